"""`holdfast relay queues|moderate`: what waits for whom, and taking down what nobody has yet."""

import asyncio
from contextlib import closing
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli.output import AsJson, ExitCode, Failure, console, print_json, print_table, show_time
from holdfast.cli.relay_store import Data, Store, check_there, where_of
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from holdfast.relay import lock, queue
from holdfast.relay.database import open_to_read
from holdfast.relay.identity import OPERATOR_KEY, read_key
from holdfast.store.world import wall_clock

REASON_CHARACTERS_MAX = 500


def queues(
    data: Data,
    member: Annotated[
        str | None, typer.Option(metavar="MEMBER", help="Only of the members with this id or name.")
    ] = None,
    mesh: Annotated[str | None, typer.Option(metavar="MESH", help="Only of this mesh.")] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show what waits for whom: every queue that is not empty, the longest first. Reads only."""
    now = wall_clock()
    with closing(open_to_read(where_of(data, store))) as engine, engine.read() as transaction:
        found = queue.depths(transaction, now, mesh, member)
        if mesh is not None and not found and not queue.has_mesh(transaction, mesh):
            raise Failure(ExitCode.NOT_FOUND, "not_found", f"no mesh here has the id {mesh!r}")
        if member is not None and not found and not queue.has_member(transaction, mesh, member):
            raise Failure(ExitCode.NOT_FOUND, "not_found", f"no member has the id or the name {member!r}")
    shown = [{**msgspec.structs.asdict(depth), "oldest_age_s": _age_s(depth, now)} for depth in found]
    if as_json:
        print_json({"queues": shown})
    elif not shown:
        console().print("Nothing waits.")
    else:
        _print(shown)


def moderate(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id at the relay (broker_message_id).")],
    data: Data,
    reason: Annotated[str, typer.Option(help="Why; the history keeps it, and the sender can read it.")] = "moderated",
    as_json: AsJson = False,
) -> None:
    """Close a message for everybody who does not have it yet. Who has it, keeps it; its sender sees what became of it."""
    if not 1 <= len(reason) <= REASON_CHARACTERS_MAX:
        raise Failure(ExitCode.USAGE, "usage", f"a reason has 1 to {REASON_CHARACTERS_MAX} characters")
    done = _moderated(data, message_id, reason)
    if as_json:
        print_json(done)
    else:
        count = done["closed"]
        many = "nobody waited for it any more" if not count else f"closed for {count} member{'s' if count > 1 else ''}"
        console().print(f"✓ {message_id}: {many}; entry {done['history_id']} of the history")


def _moderated(data: Data, message_id: str, reason: str) -> dict[str, Any]:
    check_there(data)
    try:
        url = lock.address(data)
    except lock.NotRunning as fault:
        raise Failure(ExitCode.UNAVAILABLE, type(fault).__name__, str(fault)) from fault
    secret = read_key(data / OPERATOR_KEY)
    # An HTTP client is large, and every other command starts without it.
    from holdfast.wire.client import RelayClient, Unreachable

    async def ask() -> dict[str, Any]:
        async with RelayClient(url, secret) as client:
            return msgspec.structs.asdict(await client.moderate(message_id, reason))

    try:
        return asyncio.run(ask())
    except Refused as refused:
        code = ExitCode.NOT_FOUND if refused.refusal is Refusal.NOT_FOUND else ExitCode.ERROR
        raise Failure(code, refused.refusal.value, refused.detail) from refused
    except Unreachable as fault:
        raise Failure(ExitCode.UNAVAILABLE, fault.fault.value, str(fault)) from fault


def _age_s(depth: queue.Depth, now: int) -> int | None:
    return None if depth.oldest_at is None else max(0, now - depth.oldest_at) // SECOND


def _print(shown: list[dict[str, Any]]) -> None:
    numbers = ("messages", "receipts", "expired", "bytes")
    rows = [
        (
            *(one["mesh"], one["name"], one["member"]),
            *(str(one[name]) for name in ("messages", "receipts", "expired")),
            *(str(one["size"] or 0), show_time(one["oldest_at"])),
        )
        for one in shown
    ]
    print_table(("mesh", "name", "member", *numbers, "oldest"), rows, right=numbers)
