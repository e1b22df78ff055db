"""`holdfast log`: look into an operation log. These commands only read; a daemon may be writing meanwhile."""

import base64
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.output import AsJson, ExitCode, Failure, print_json, print_table, show_time
from holdfast.device import operations
from holdfast.device.database import open_to_read
from holdfast.device.database import restore as restore_log
from holdfast.device.operations import SEQUENCE_MAX, Entry
from holdfast.store.engine import Transaction

app = typer.Typer(help="Look into an operation log.", no_args_is_help=True)

LIMIT = 50
"""How many entries a listing shows unless told otherwise."""

PREVIEW_BYTES = 40
"""How much of a blob a listing shows."""

LogPath = Annotated[Path, typer.Argument(metavar="PATH", help="The operation log's file.")]
After = Annotated[int, typer.Option(min=-1, max=SEQUENCE_MAX, help="Start behind this sequence.")]
Limit = Annotated[int, typer.Option(min=1, max=1_000_000, help="Show at most so many entries.")]


@app.command("list")
def list_entries(path: LogPath, after: After = -1, limit: Limit = LIMIT, as_json: AsJson = False) -> None:
    """Every entry, by sequence."""
    with _reading(path) as transaction:
        page = operations.entries(transaction, after, limit + 1)
        total, waiting = operations.count(transaction)
    _print_page(page, limit, as_json, {"total": total, "outbox": waiting})


@app.command()
def outbox(path: LogPath, after: After = -1, limit: Limit = LIMIT, as_json: AsJson = False) -> None:
    """What the relay has not confirmed yet, in the order of sending."""
    with _reading(path) as transaction:
        page = operations.outbox(transaction, after, limit + 1)
        total, waiting = operations.count(transaction)
    _print_page(page, limit, as_json, {"total": total, "outbox": waiting})


@app.command()
def history(
    path: LogPath,
    object_id: Annotated[str, typer.Argument(help="The object's 64 hex digits, or the first few of them.")],
    from_: Annotated[int, typer.Option("--from", min=0, max=SEQUENCE_MAX, help="Start at this sequence.")] = 0,
    limit: Limit = LIMIT,
    as_json: AsJson = False,
) -> None:
    """All entries of one object. Their sequences have gaps where other objects were sent in between."""
    with _reading(path) as transaction:
        found = _find_object(transaction, object_id)
        page = operations.entries_of_object(transaction, found, from_ - 1, limit + 1)
    _print_page(page, limit, as_json, {"object_id": found.hex()}, "from")


@app.command()
def show(
    path: LogPath,
    sequence: Annotated[int, typer.Argument(min=0, max=SEQUENCE_MAX, help="The entry's sequence.")],
    raw: Annotated[bool, typer.Option("--raw", help="Write the blob's bytes and nothing else.")] = False,
    as_json: AsJson = False,
) -> None:
    """One entry with its blob."""
    with _reading(path) as transaction:
        found = operations.entries(transaction, sequence - 1, 1)
    if not found or found[0].sequence != sequence:
        raise Failure(ExitCode.NOT_FOUND, "not_found", f"{path} has no entry with sequence {sequence}.")
    (entry,) = found
    if raw:
        _write_blob(entry)
    elif as_json:
        blob = None if entry.blob is None else base64.b64encode(entry.blob).decode()
        print_json({**_fields(entry), "blob": blob})
    else:
        fields = {**_fields(entry), "blob": _text(entry.blob)}
        for name in ("enqueued_at", "delivered_at"):
            fields[name] = show_time(fields[name])
        print_table(("field", "value"), [(name, str(value)) for name, value in fields.items()])


@app.command()
def restore(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="A copy made by `OperationLog.backup`.")],
    path: LogPath,
    as_json: AsJson = False,
) -> None:
    """Put a copy of a backup at PATH, which must be free. Opened as a log it is a new sender, with a new epoch."""
    restore_log(backup, path)
    with _reading(path) as transaction:
        total, waiting = operations.count(transaction)
    if as_json:
        print_json({"path": str(path), "total": total, "outbox": waiting})
    else:
        print(f"restored {path}: {total} entries, {waiting} of them in the outbox")


@contextmanager
def _reading(path: Path) -> Iterator[Transaction]:
    engine = open_to_read(path)
    try:
        with engine.read() as transaction:
            yield transaction
    finally:
        engine.close()


def _find_object(transaction: Transaction, prefix: str) -> bytes:
    digits = prefix.lower()
    if not 0 < len(digits) <= 64 or set(digits) - set("0123456789abcdef"):
        raise Failure(
            ExitCode.USAGE,
            "usage",
            f"{prefix!r} is not an object id: 64 hex digits, or the first few of them.",
        )
    found = operations.objects_between(
        transaction, bytes.fromhex(digits.ljust(64, "0")), bytes.fromhex(digits.ljust(64, "f"))
    )
    if not found:
        raise Failure(ExitCode.NOT_FOUND, "not_found", f"no object in this log begins with {digits}.")
    if len(found) > 1:
        raise Failure(ExitCode.USAGE, "usage", f"several objects begin with {digits}; give more of its digits.")
    return found[0]


def _print_page(page: list[Entry], limit: int, as_json: bool, summary: dict[str, Any], option: str = "after") -> None:
    """A page of entries and, if there are more, the option that shows the next page."""
    shown, more = page[:limit], len(page) > limit
    following = None if not more else shown[-1].sequence + (option == "from")
    if as_json:
        print_json({**summary, "entries": [_fields(entry) for entry in shown], f"next_{option}": following})
        return
    print_table(
        ("sequence", "object", "status", "enqueued", "bytes", "blob"),
        [
            (
                str(entry.sequence),
                entry.object_id.hex()[:12],
                entry.status,
                show_time(entry.enqueued_at),
                "" if entry.blob is None else str(len(entry.blob)),
                _text(entry.blob, PREVIEW_BYTES),
            )
            for entry in shown
        ],
        right=("sequence", "bytes"),
    )
    if more:
        print(f"… more: --{option} {following}")


def _fields(entry: Entry) -> dict[str, Any]:
    return {
        "sequence": entry.sequence,
        "object_id": entry.object_id.hex(),
        "status": entry.status,
        "delivered": entry.delivered,
        "enqueued_at": entry.enqueued_at,
        "delivered_at": entry.delivered_at,
        "size": None if entry.blob is None else len(entry.blob),
    }


def _text(blob: bytes | None, most: int | None = None) -> str:
    """A blob as text where it is text, else as hex digits."""
    if blob is None:
        return "(pruned)"
    cut = blob[:most]
    more = "…" if len(cut) < len(blob) else ""
    for spare in range(4 if more else 1):  # a cut may fall inside a character
        try:
            text = cut[: len(cut) - spare].decode()
        except UnicodeDecodeError:
            continue
        return (text if text.isprintable() else cut.hex()) + more
    return cut.hex() + more


def _write_blob(entry: Entry) -> None:
    if entry.blob is None:
        raise Failure(ExitCode.NOT_FOUND, "pruned", f"the blob of entry {entry.sequence} was pruned after delivery.")
    sys.stdout.buffer.write(entry.blob)
