"""What the commands about a lake share: its options, opening it, printing rows, hiding Spark's temporary files, and exit codes of failures."""

import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.output import ExitCode, Failure, print_json, print_table

if TYPE_CHECKING:
    from holdfast.pipeline.lake import Lake
    from holdfast.pipeline.shelf import AsOf, Shelf

CELL_CHARACTERS_MAX = 60

_BATCH = re.compile(r"[0-9]{1,18}")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
"""A date, or a date and a time of day. Python also takes a year or a week, which is more likely meant as a batch."""

LakePath = Annotated[Path, typer.Option("--lake", metavar="DIR", help="The lake's directory.")]
AsOfText = Annotated[
    str | None, typer.Option("--as-of", metavar="BATCH|TIME", help="As the lake was after this batch, or at this time.")
]


def open_shelf(path: Path, as_of: str | None = None) -> "Shelf":
    """The lake in a directory, to be read without Spark."""
    from holdfast.pipeline.kind import tables_of
    from holdfast.pipeline.lake import Lake
    from holdfast.pipeline.shelf import Shelf

    lake = Lake(path)
    lake.check_there()
    return Shelf(lake, tables_of(lake), None if as_of is None else then(as_of))


def with_batch(shelf: "Shelf") -> "Shelf":
    """The shelf of a lake with a batch; one without, which a run that failed early leaves, is refused."""
    if not shelf.last_run().number:
        makes = "index" if "search_posting" in shelf.tables else "run"
        message = f"{shelf.lake.path}: there is no batch in this lake yet. `holdfast pipeline {makes}` makes the first."
        raise Failure(ExitCode.NOT_FOUND, "no_batch", message)
    return shelf


def hidden(lake: "Lake") -> dict[str, str]:
    """Settings that keep Spark's temporary rows in the lake, where only the owner can read them."""
    room = lake.private / "spark"
    shutil.rmtree(room, ignore_errors=True)  # left by a run that was killed
    room.mkdir(mode=0o700)
    os.environ.pop("SPARK_LOCAL_DIRS", None)  # it would take precedence
    return {"spark.local.dir": str(room)}


def then(text: str) -> "AsOf":
    """What `--as-of` names: a batch's number, or a date or time in ISO 8601; without a zone it is UTC, and a date is its first moment."""
    from holdfast.pipeline.shelf import AsOf

    if _BATCH.fullmatch(text):
        return AsOf(number=int(text))
    try:
        at = datetime.fromisoformat(text if _TIME.fullmatch(text) else "")
        at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
        return AsOf(at=round(at.timestamp() * 1_000_000))
    except (ValueError, OverflowError):  # a month that there is not, or before the first year in UTC
        shown = text if len(text) <= CELL_CHARACTERS_MAX else text[:CELL_CHARACTERS_MAX] + "…"
        message = f"--as-of is the number of a batch or a time such as 2026-05-17T12:00:00Z, not {shown}"
        raise Failure(ExitCode.USAGE, "usage", message) from None


def print_rows(names: list[str], rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print the rows of a table or of an answer."""
    if as_json:
        print_json({"columns": names, "rows": plain(rows)})
    else:
        print_table([_cell(name) for name in names], [[_cell(row[name]) for name in names] for row in rows])


def _cell(value: Any) -> str:
    text = "" if value is None else output.plain(str(plain(value)))
    return text if len(text) <= CELL_CHARACTERS_MAX else text[: CELL_CHARACTERS_MAX - 1] + "…"


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


@contextmanager
def explained() -> Iterator[None]:
    """Turn a missing library, and errors of sources, libraries and lakes, into a failure with an exit code."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"the pipeline needs {error.name}: install holdfast[pipeline], or run `make pipeline`"
        raise Failure(ExitCode.ERROR, "pipeline_missing", message) from error
    except Exception as error:
        raise _failure(error) from error


def _failure(error: Exception) -> Exception:
    from holdfast.pipeline import failures

    told = failures.told(error)
    kind = type(error).__name__ if told is None else told[1]
    if told is None:
        return Failure(_EXIT_CODES[kind], kind, str(error)) if kind in _EXIT_CODES else error
    is_away, _, message = told
    return Failure(ExitCode.UNAVAILABLE if is_away else _EXIT_CODES.get(kind, ExitCode.ERROR), kind, message)


# By class name, because the classes take long to load; any other error exits with ERROR.
_EXIT_CODES = {
    "LakeMissing": ExitCode.NOT_FOUND,
    "LakeBusy": ExitCode.UNAVAILABLE,
    "NotThen": ExitCode.NOT_FOUND,
    "Vacuumed": ExitCode.NOT_FOUND,
    "TokenMissing": ExitCode.NOT_FOUND,
    "TokenUnfit": ExitCode.USAGE,
    "AddressWrong": ExitCode.USAGE,
    "NoQuestion": ExitCode.USAGE,
    "NoValue": ExitCode.USAGE,
    "NothingAsked": ExitCode.USAGE,
    "TooManyAsked": ExitCode.USAGE,
    "not_found": ExitCode.NOT_FOUND,
    "query": ExitCode.USAGE,
}
