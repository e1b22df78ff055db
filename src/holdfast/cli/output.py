"""What commands print: tables for people on a terminal, JSON for programs, and how they end."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from holdfast.store.world import iso_time

_WORD_BEGINS = re.compile(r"(?<=[a-z])(?=[A-Z])")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class ExitCode(IntEnum):
    """The same for every command."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    VIOLATION = 4
    UNAVAILABLE = 5
    ENDED = 6  # of a daemon that must not be started again before somebody has decided something


class Failure(Exception):
    """The command cannot do what was asked."""

    def __init__(self, code: ExitCode, kind: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind


def print_json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def print_list(rows: Sequence[dict[str, Any]]) -> None:
    sys.stdout.write(json.dumps(rows, ensure_ascii=False) + "\n")


def plain(text: str) -> str:
    """Somebody else's text as a terminal may show it: nothing in it moves the cursor."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="ellipsis", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console().print(table, soft_wrap=False)


def say_failure(kind: str, message: str, *, as_json: bool) -> None:
    """What went wrong; `kind` is the code of a refusal or the name of a fault, and a program reads all of them alike."""
    if as_json:
        code = _WORD_BEGINS.sub("_", kind).lower().replace("-", "_")
        sys.stderr.write(json.dumps({"error": code, "message": message}, ensure_ascii=False) + "\n")
    else:
        sys.stderr.write(f"holdfast: {message}\n")


def console() -> Console:
    # Rich folds at 80 columns when the output is no terminal, which would break lines that a program reads.
    width = None if sys.stdout.isatty() else 10_000
    # On a terminal the terminal itself folds: a path that is broken in two cannot be copied.
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)


def show_time(at: int | None) -> str:
    """Microseconds since 1970 as a person reads them, in UTC; nothing for none."""
    return "" if at is None else iso_time(at)
