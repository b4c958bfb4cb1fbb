"""Rule documents that ship with specaudit, packaged as ``specaudit.rules``."""
