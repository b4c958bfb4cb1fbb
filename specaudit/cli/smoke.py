"""``specaudit smoke``: to be filled."""

from __future__ import annotations

from specaudit.cli.root import sub_app

app = sub_app()


@app.command()
def smoke() -> None:
    """To be filled."""
