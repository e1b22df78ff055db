"""`holdfast trace`: what became of one message, rung by rung."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import asking
from holdfast.cli.output import AsJson, console, plain, print_json, show_time
from holdfast.protocol.outbox import Status

if TYPE_CHECKING:
    from holdfast.device.ipc_documents import Health


def trace(
    name: Annotated[
        str, typer.Argument(metavar="ID", help="A client_message_id, or an id of the outbox or the inbox.")
    ],
    as_json: AsJson = False,
) -> None:
    """What became of a message that this home sent or received, each step with its time."""
    with asking.daemon() as client:
        found = client.trace(name)
        names = {} if as_json else {peer.member: peer.name for peer in client.peers().peers}
        why = "" if as_json or not _waits(found["sent"]) else _why(found["sent"], client.health())
    if as_json:
        print_json(found)
        return
    if found["sent"] is not None:
        _print_sent(found["sent"], names, why)
    for received in found["received"]:
        where = "" if received["topic"] is None else f" on @{received['topic']}"
        _print(f"received {received['id']} from {received['sender_name']}{where}: {received['state']}")
        _print_rungs(received["rungs"])


def _waits(sent: Mapping[str, Any] | None) -> bool:
    """Whether a send is in the log and the relay has not answered; what waits for its time says so itself."""
    return sent is not None and sent["sequence"] is not None and sent["status"] in _UNANSWERED


_UNANSWERED = (Status.PENDING, Status.INFLIGHT)


def _why(sent: Mapping[str, Any], health: "Health") -> str:
    if not health.connected:
        return f"waits: the relay {health.relay} is not in reach ({health.detail or 'no word yet'})"
    reason = next((rung["reason"] for rung in reversed(sent["rungs"]) if rung.get("reason")), None)
    return "waits for the relay's answer" if reason is None else f"waits to be offered again ({reason})"


def _print_sent(sent: Mapping[str, Any], names: Mapping[str, str], why: str) -> None:
    ref = sent["destination_ref"]
    to = f"@{ref}" if sent["destination_kind"] == "topic" else names.get(ref, ref)
    _print(f"sent {sent['client_message_id']} to {to}: {sent['state']}")
    if sent["not_before"] is not None:
        _print(f"  not before {show_time(sent['not_before'])}")
    _print_rungs(sent["rungs"])
    if why:
        _print(f"  {why}")
    for recipient in [] if why else sent["recipients"]:  # who cannot have it yet
        _print(f"  at {names.get(recipient['member'], recipient['member'])}: {recipient['state']}")
        _print_rungs(recipient["rungs"], "    ")
    if sent["superseded_by"] is not None:
        _print(f"  goes on as {sent['superseded_by']}")


_STORED = {None: "", True: "had waited", False: "came live"}


def _print_rungs(rungs: list[Mapping[str, Any]], indent: str = "  ") -> None:
    for rung in rungs:
        stored = _STORED[rung.get("was_stored")]
        further = [str(part) for part in (stored, rung.get("reason"), rung.get("detail")) if part]
        attempt = f" {rung['attempt']}" if rung.get("attempt") is not None else ""
        _print(
            f"{indent}{show_time(rung['at'])}  {rung['what']}{attempt}"
            + (f"  ({'; '.join(further)})" if further else "")
        )


def _print(text: str) -> None:
    console().print(plain(text))
