"""`holdfast outbox`: what waits, what was given up, sending it again under a new id, and taking back what has time."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from holdfast.cli import asking
from holdfast.cli.output import (
    AsJson,
    ExitCode,
    Failure,
    console,
    plain,
    print_json,
    print_table,
    say_failure,
    show_time,
)
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.outbox import Status
from holdfast.protocol.refusal import Refused

if TYPE_CHECKING:
    from holdfast.device.client import Client
    from holdfast.device.ipc_documents import Item, Requeued, ScheduledSend

RATE_PER_S = 20.0
NEVER = "never"
ALL = "all"
SCHEDULED = "scheduled"  # what waits for its time is listed as if that were a status

_MESSAGES = (DestinationKind.DM, DestinationKind.TOPIC)  # what else is in the log is never sent under another id

T = TypeVar("T")

app = typer.Typer(help="What waits, what was given up, and sending it again.", no_args_is_help=True)

Row = Annotated[str, typer.Argument(metavar="ID", help="The id of a row, or its client_message_id.")]


@app.command("list")
def list_rows(
    status: Annotated[
        str, typer.Option(help="Statuses with commas between them, or all.")
    ] = f"{SCHEDULED},pending,inflight,dead",
    to: Annotated[str | None, typer.Option(metavar="TO", help="Only what goes to this member or @topic.")] = None,
    after: Annotated[int, typer.Option(metavar="N", help="Only what has a greater sequence.")] = -1,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Rows by sequence: what waits and what was given up, if nothing else is asked for. What has time comes first."""
    _check_statuses(status)
    statuses = [name for name in status.split(",") if name != SCHEDULED]
    with asking.daemon() as client:
        has_scheduled = after < 0 and (status == ALL or SCHEDULED in status.split(","))
        ahead = client.scheduled(to=to, limit=limit).scheduled if has_scheduled else ()
        page = client.outbox(status=_asked(statuses), to=to, after=after, limit=limit)
        if not statuses:
            page = msgspec.structs.replace(page, items=(), next_after=None)
        if as_json:
            print_json({"scheduled": msgspec.to_builtins(ahead), **msgspec.to_builtins(page)})
            return
        names = {peer.member: peer.name for peer in client.peers().peers}
    columns = ("sequence", "id", "kind", "to", "status", "enqueued", "attempts", "reason")
    rows = [*(_scheduled_row(send, names) for send in ahead), *(_row(item, names) for item in page.items)]
    print_table(columns, rows, right=("sequence", "attempts"))
    print("  ".join(f"{count} {name}" for name, count in page.counts.items()))
    if page.next_after is not None:
        print(f"… more: --after {page.next_after}")
    if len(ahead) == limit < page.counts[SCHEDULED]:
        print("… more is scheduled: --limit N")


def _check_statuses(status: str) -> None:
    known = (SCHEDULED, *(one.value for one in Status))
    if status != ALL and not set(known).issuperset(status.split(",")):
        message = f"--status {plain(status)}: write {ALL}, or some of {', '.join(known)} with commas between them."
        raise Failure(ExitCode.USAGE, "usage", message)


def _asked(statuses: Sequence[str]) -> str | None:
    """The statuses to ask the daemon for; one that is nearly always empty, if only scheduled sends are wanted."""
    if statuses == [ALL]:
        return None
    return ",".join(statuses) or Status.INFLIGHT.value


@app.command()
def cancel(
    name: Annotated[str, typer.Argument(metavar="ID", help="The client_message_id of a send that is scheduled.")],
    as_json: AsJson = False,
) -> None:
    """Take back a send that waits for its time (`send --at`). Its id stays used up; nothing else can be taken back."""
    with asking.daemon() as client:
        cancelled = client.cancel(name)
    if as_json:
        print_json(msgspec.to_builtins(cancelled))
    else:
        shown = plain(cancelled.client_message_id)
        console().print(f"{shown} is cancelled: it was to leave at {show_time(cancelled.not_before)}")


@app.command()
def inspect(row: Row, as_json: AsJson = False) -> None:
    """One row, and the rows that it replaced and was replaced by."""
    with asking.daemon() as client:
        found = client.inspect(row)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    fields = {name: value for name, value in msgspec.to_builtins(found.item).items() if value not in (None, ())}
    shown = {name: show_time(value) if name.endswith("_at") else str(value) for name, value in fields.items()}
    print_table(("field", "value"), [(name, plain(value)) for name, value in shown.items()])
    if len(found.chain) > 1:
        console().print("chain: " + " → ".join(f"{item.id} ({item.status})" for item in found.chain))


@app.command()
def requeue(
    rows: Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="Rows to send again.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="All rows like this: status=dead, to=bob.")
    ] = None,
    new_client_id: Annotated[str | None, typer.Option(metavar="ID", help="The new id; minted if not given.")] = None,
    auto: Annotated[bool, typer.Option("--auto", help="Mint the new id; what is done anyway.")] = False,
    patch_payload: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the message to send instead.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Worthless after another time (as send --at), or never.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also where the relay or some recipients may have it: it may arrive twice.")
    ] = False,
    rate: Annotated[float, typer.Option(min=0.1, max=1000.0, help="With --where: rows a second.")] = RATE_PER_S,
    as_json: AsJson = False,
) -> None:
    """Send the content of rows again under new ids, at their destination's end of the line. The old ids are retired."""
    _check_usage(rows, where, new_client_id, auto)
    conditions = _conditions(where or [])
    patch = _patch(patch_payload, expires)
    with asking.daemon() as client:
        if rows:
            with _telling(as_json) as done:
                for row in rows:
                    done.append(client.requeue(row, new_client_message_id=new_client_id, patch=patch, force=force))
        else:
            _requeue_all(client, conditions, patch, force, rate, as_json)


def _check_usage(
    rows: Sequence[str] | None, where: Sequence[str] | None, new_client_id: str | None, auto: bool
) -> None:
    if bool(rows) == bool(where):
        raise Failure(ExitCode.USAGE, "usage", "name rows, or say which ones with --where, and not both.")
    if new_client_id is not None and (auto or len(rows or ()) != 1):
        raise Failure(ExitCode.USAGE, "usage", "--new-client-id is for one row, and not with --auto.")


def _patch(payload: Path | None, expires: str | None) -> dict[str, Any] | None:
    """The changes to the old row, if any were asked for."""
    message = {} if payload is None else {"message": _read_message(payload)}
    at = None if expires in (None, NEVER) else asking.read_time(str(expires), "--expires")
    expiry = {} if expires is None else {"expires_at": at}
    return {**message, **expiry} or None


def _read_message(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}. Correct the path."
        raise Failure(ExitCode.NOT_FOUND, "not_found", message) from error
    except UnicodeDecodeError as error:
        message = f"{path}: a message must be UTF-8, and byte {error.start} of this file is not."
        raise Failure(ExitCode.USAGE, "usage", message) from error


def _conditions(where: Sequence[str]) -> dict[str, str]:
    found = {}
    for condition in where:
        name, equals, value = condition.partition("=")
        if name not in ("status", "to") or not equals or not value:
            raise Failure(ExitCode.USAGE, "usage", f"--where {condition}: write status=dead or to=bob.")
        found[name] = value
    if found.get("status", "dead") not in (Status.DEAD, Status.PENDING):
        raise Failure(ExitCode.USAGE, "usage", "only rows that are dead or pending can be sent again.")
    return {"status": Status.DEAD.value, **found}


def _requeue_all(
    client: "Client", conditions: dict[str, str], patch: dict[str, Any] | None, force: bool, rate: float, as_json: bool
) -> None:
    """Requeue all matching messages at a pace; those that are refused are named and skipped."""
    refused = 0
    with _telling(as_json) as done:
        for item in paced(list(_matching(client, conditions)), rate):
            try:
                done.append(client.requeue(item.id, patch=patch, force=force))
            except Refused as no:
                refused += 1
                say_failure(str(no.refusal), f"{item.id}: {plain(no.detail)}", as_json=as_json)
    if refused:
        raise Failure(ExitCode.VIOLATION, "refused", f"{refused} of {refused + len(done)} rows were not sent again.")


def _matching(client: "Client", conditions: dict[str, str]) -> Iterator["Item"]:
    after = -1
    while True:
        page = client.outbox(status=conditions["status"], to=conditions.get("to"), after=after, limit=500)
        yield from (item for item in page.items if item.destination_kind in _MESSAGES)
        if page.next_after is None:
            return
        after = page.next_after


def paced(
    items: Sequence[T],
    rate: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[T]:
    """Yield items at a rate, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        bar = progress.add_task("requeue", total=len(items))
        due_at = clock()
        for item in items:
            sleep(max(0.0, due_at - clock()))
            due_at = clock() + 1 / rate  # from its own beginning: after a stall nothing is made up for
            yield item
            progress.advance(bar)


@contextmanager
def _telling(as_json: bool) -> Iterator[list["Requeued"]]:
    """Collect what was requeued, and print it, also if a later row fails."""
    done: list[Requeued] = []
    try:
        yield done
    except BaseException:
        if done:
            _print_done(done, as_json)
        raise
    _print_done(done, as_json)


def _print_done(done: Sequence["Requeued"], as_json: bool) -> None:
    if as_json:
        print_json({"requeued": msgspec.to_builtins(list(done))})
        return
    for one in done:
        console().print(f"{one.aborted_row_id} goes on as {one.new_row_id} under {one.new_client_message_id}")
    if not done:
        console().print("nothing was sent again")


def _to(kind: str | None, ref: str, names: Mapping[str, str]) -> str:
    return plain(f"@{ref}" if kind == DestinationKind.TOPIC else names.get(ref, ref))


def _scheduled_row(send: "ScheduledSend", names: Mapping[str, str]) -> tuple[str, ...]:
    to = _to(send.destination_kind, send.destination_ref, names)
    asked, leaves = show_time(send.accepted_at), f"leaves at {show_time(send.not_before)}"
    return "", plain(send.client_message_id), send.destination_kind, to, SCHEDULED, asked, "", leaves


def _row(item: "Item", names: Mapping[str, str]) -> tuple[str, ...]:
    ref = item.destination_ref or ""
    return (
        str(item.sequence),
        item.id,
        item.destination_kind or "",
        _to(item.destination_kind, ref, names),
        item.status,
        show_time(item.enqueued_at),
        str(item.attempts),
        plain(item.last_error or ""),
    )
