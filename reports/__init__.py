"""Templates and JSON schemas that ship with specaudit, packaged as ``specaudit.reports``."""
