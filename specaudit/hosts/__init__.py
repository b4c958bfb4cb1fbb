"""The seam to the outside: everything that is read from, run on or written to a place goes through :class:`base.Host`."""
