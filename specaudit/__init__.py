"""specaudit: which speculative-decoding code an installed engine really runs, with evidence."""

__version__ = "0.1.0"
