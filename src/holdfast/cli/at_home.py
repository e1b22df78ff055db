"""Which home a command of the daemon is about."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.device.home import VARIABLE, Home

AtHome = Annotated[
    Path | None, typer.Option("--home", metavar="DIR", help=f"The home. Default: {VARIABLE}, or ~/.holdfast.")
]


def find_home(home: Path | None) -> Home:
    """The home that is named, or the user's own."""
    return Home.find() if home is None else Home(home.expanduser().absolute())
