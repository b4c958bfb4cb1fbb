"""The seam to the outside: whatever is read from, run on or written to a place goes through :class:`base.Host`."""
