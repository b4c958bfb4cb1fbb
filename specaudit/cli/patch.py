"""``specaudit patch``: to be filled."""

from __future__ import annotations

from specaudit.cli.root import sub_app

app = sub_app()


@app.command()
def patch() -> None:
    """To be filled."""
