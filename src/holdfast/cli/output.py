"""What commands print: tables for people on a terminal, JSON for programs, and how they end."""

import codecs
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Annotated, Any, TextIO

import typer
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table

from holdfast.store.world import iso_time

_WORD_BEGINS = re.compile(r"(?<=[a-z])(?=[A-Z])")
_OBEYED = re.compile(r"[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

WHOLE_CHARACTERS = 64  # of an id, a key or a time, which are never cut
TEXT_CHARACTERS = 24  # of a text that is cut
GAP_CHARACTERS = 2  # between two columns

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


def standard_input() -> TextIO:
    """What `-` reads; where it is closed, nothing was given, not even an empty text."""
    if sys.stdin is None:
        raise Failure(ExitCode.USAGE, "usage", "- reads standard input, which is closed here.")
    return sys.stdin


def print_json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json_text(value) + "\n")


def print_list(rows: Sequence[dict[str, Any]]) -> None:
    sys.stdout.write(json_text(rows) + "\n")


def json_text(value: Any) -> str:
    """A value as JSON in which nothing moves the cursor either: what JSON may leave as it is and a terminal obeys is escaped."""
    # Elsewhere a letter that the stream does not know would become a question mark.
    is_utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=not is_utf8))


def plain(text: str) -> str:
    """A text without control characters, so that nothing in it moves the cursor."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print a table. At a narrow terminal texts of its last column are cut; its lines may still be longer than that."""
    shown = list(rows)
    widths = _fitted(list(zip(columns, *shown, strict=True)), console().width)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column, width in zip(columns, widths, strict=True):
        justify: JustifyMethod = "right" if column in right else "left"
        table.add_column(column, justify=justify, overflow="ellipsis", no_wrap=True, width=width)
    for row in shown:
        table.add_row(*row)
    console(_total(widths)).print(table, soft_wrap=False)


def _fitted(columns: Sequence[Sequence[str]], terminal: int) -> list[int]:
    """The columns' widths at a terminal. No id, state or time is cut: half of one is useless."""
    widths = [max(map(cell_len, cells)) for cells in columns]
    if _total(widths) <= terminal:
        return widths
    others = [min(width, WHOLE_CHARACTERS) for width in widths[:-1]]
    words = max((cell_len(cell) for cell in columns[-1] if " " not in cell), default=0)
    least = max(min(words, WHOLE_CHARACTERS), TEXT_CHARACTERS)
    return [*others, min(widths[-1], max(terminal - _total([*others, 0]), least))]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP_CHARACTERS * (len(widths) - 1)


def say_failure(kind: str, message: str, *, as_json: bool) -> None:
    """What went wrong; `kind` is the code of a refusal or the name of a fault, and a program reads all of them alike."""
    if as_json:
        code = _WORD_BEGINS.sub("_", kind).lower().replace("-", "_")
        sys.stderr.write(json_text({"error": code, "message": message}) + "\n")
    else:
        # A database quotes the values that it could not read, and those may be anybody's.
        lines = map(plain, message.replace("\t", " ").split("\n"))
        sys.stderr.write("holdfast: " + "\n".join(lines) + "\n")


def console(width: int | None = None) -> Console:
    if width is None and not sys.stdout.isatty():
        width = 10_000  # Rich folds at 80 columns there, which would break lines that a program reads
    # On a terminal the terminal itself folds: a path that is broken in two cannot be copied.
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)


def show_time(at: int | None) -> str:
    """Microseconds since 1970 as a person reads them, in UTC; nothing for none."""
    return "" if at is None else iso_time(at)
