"""Which home a command of the daemon is about."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.device.home import VARIABLE, Home

AtHome = Annotated[
    Path | None, typer.Option("--home", metavar="DIR", help=f"The home. Default: {VARIABLE}, or ~/.holdfast.")
]


def find_home(home: Path | None = None) -> Home:
    """The home that is named, or the user's own; put back first, if a restore died while homes changed places."""
    found = Home.find() if home is None else Home(home.expanduser().absolute())
    if not found.path.exists() and found.path.parent.exists():
        from holdfast.device.backup import undo

        undo(found.path)
    return found
