"""``python -m specaudit``."""

from specaudit.cli import main

main()
