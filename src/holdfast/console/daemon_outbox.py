"""What was sent, on a daemon's console: by state, one row with all that became of it, and sending again what was given up."""

import math
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.console import daemon_lists, health
from holdfast.console.application import Console, Visit
from holdfast.console.diff import side_by_side
from holdfast.console.listing import read
from holdfast.console.redrive import RATE_PER_S, RATE_PER_S_MAX, ROWS_MAX, Redrive
from holdfast.console.signing_in import Role
from holdfast.device import ipc_documents as documents
from holdfast.device import outbox, requeue
from holdfast.device.daemon import Daemon
from holdfast.protocol.payload import Payload
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import shown
from holdfast.store.engine import Transaction
from holdfast.wire.route import Reply, Route

SCHEDULED_SHOWN = 50

T = TypeVar("T")


class Ask(Protocol):
    """Asks the daemon."""

    def __call__(
        self, method: str, path: str, shape: type[T], *, query: Any = ..., body: object = ...
    ) -> Awaitable[T]: ...


class Content(msgspec.Struct, frozen=True):
    """What a message says; `text` is None where it is no text."""

    text: str | None
    meta: str
    size: int


class OutboxPages:
    """The pages of the outbox."""

    def __init__(self, console: Console, daemon: Daemon, ask: Ask) -> None:
        self._console = console
        self._daemon = daemon
        self._ask = ask
        self._redrive: Redrive | None = None

    def routes(self) -> list[Route]:
        page = self._console.page
        return [
            page("GET", "/outbox", self._list),
            page("POST", "/outbox/redrive", self._start_redrive, Role.OPERATOR),
            page("POST", "/outbox/redrive/stop", self._stop_redrive, Role.OPERATOR),
            page("GET", "/outbox/{id}", self._row),
            page("POST", "/outbox/{id}/preview", self._preview, Role.OPERATOR),
            page("POST", "/outbox/{id}/requeue", self._requeue, Role.OPERATOR),
            page("POST", "/scheduled/{id}/cancel", self._cancel, Role.OPERATOR),
        ]

    async def close(self) -> None:
        if self._redrive is not None and self._redrive.is_running:
            self._redrive.stop()
            await self._redrive.ended()

    async def _list(self, visit: Visit) -> Reply:
        query = read(visit.query, daemon_lists.OutboxQuery)
        destination = None if query.to is None else self._daemon.directory.resolve(query.to)
        rows, following = self._daemon.look(lambda tx: daemon_lists.operations(tx, query, destination))
        given_up = self._daemon.look(outbox.given_up)
        counted = await self._ask("GET", "/v1/outbox", documents.OutboxPage, query={"limit": 1, "status": "dead"})
        waiting = await self._ask("GET", "/v1/scheduled", documents.ScheduledPage, query={"limit": SCHEDULED_SHOWN})
        return self._console.render(
            visit,
            "daemon/outbox.html",
            page=self._console.list(visit, query, rows, following),
            query=query,
            counts=counted.counts,
            given_up=given_up,
            scheduled=waiting.scheduled,
            names=names(self._daemon),
            redrive=self._redrive,
            rate=RATE_PER_S,
            rate_max=RATE_PER_S_MAX,
            remedy_of=health.remedy_of,
        )

    async def _row(self, visit: Visit) -> Reply:
        return self._shown(visit, visit.part("id"))

    async def _preview(self, visit: Visit) -> Reply:
        """Show a changed text beside the old one; nothing is sent yet."""
        return self._shown(visit, visit.part("id"), visit.field("message"))

    def _shown(self, visit: Visit, name: str, patched: str | None = None) -> Reply:
        found, contents = self._daemon.look(lambda tx: _inspected(tx, name))
        if found is None:
            raise Refused(Refusal.NOT_FOUND, f"there is no operation {shown(name)} in the log")
        own = contents.get(found.item.id)
        return self._console.render(
            visit,
            "daemon/operation.html",
            item=found.item,
            chain=found.chain,
            content=own,
            patched=patched,
            lines=side_by_side((own.text if own else "") or "", patched) if patched is not None else None,
            change=_change(found, contents),
            names=names(self._daemon),
            remedy=health.remedy_of(found.item.last_error),
            can_requeue=found.item.status in ("dead", "pending") and found.item.destination_kind in ("dm", "topic"),
        )

    async def _requeue(self, visit: Visit) -> Reply:
        name = visit.part("id")
        asked: dict[str, object] = {"id": name, "force": visit.field("force") == "true"}
        if "message" in visit.form:
            asked["patch"] = {"message": visit.field("message")}
        try:
            done = await self._ask("POST", "/v1/outbox/requeue", documents.Requeued, body=asked)
        except Refused as refused:
            return self._console.back(visit, f"/outbox/{name}", _no(refused), is_bad=True)
        text = f"It goes on as {done.new_client_message_id}, sequence {done.sequence}; the old id is retired."
        return self._console.back(visit, f"/outbox/{done.new_row_id}", text)

    async def _start_redrive(self, visit: Visit) -> Reply:
        if self._redrive is not None and self._redrive.is_running:
            return self._back(visit, "Messages are being sent again already; wait, or stop that first.", is_bad=True)
        try:
            rate = min(max(float(visit.field("rate") or RATE_PER_S), 0.1), RATE_PER_S_MAX)
            if math.isnan(rate):
                raise ValueError  # no event loop knows when that is over
        except ValueError:
            return self._back(visit, "The pace is a number of messages a second.", is_bad=True)
        ids = list(visit.form.get("id", ())) if visit.field("which") == "chosen" else self._all_dead()
        if not ids:
            return self._back(visit, "Nothing was chosen.", is_bad=True)
        self._redrive = Redrive(ids, rate, self._requeue_one)
        return self._back(visit, f"{len(ids):,} message{'s' * (len(ids) != 1)} will be sent again, {rate:g} a second.")

    async def _stop_redrive(self, visit: Visit) -> Reply:
        if self._redrive is None or not self._redrive.is_running:
            return self._back(visit, "Nothing is under way.", is_bad=True)
        self._redrive.stop()
        return self._back(visit, f"Stopped after {self._redrive.tried:,} of {self._redrive.total:,}.")

    async def _requeue_one(self, name: str) -> object:
        done = await self._ask("POST", "/v1/outbox/requeue", documents.Requeued, body={"id": name})
        self._daemon.changes.tell()
        return done

    def _all_dead(self) -> list[str]:
        """Every message that was given up, the oldest first, as many as one run takes."""
        query = daemon_lists.OutboxQuery(show="dead", order="oldest")
        rows, _ = self._daemon.look(lambda tx: daemon_lists.operations(tx, query, None, ROWS_MAX))
        return [row.id for row in rows]

    async def _cancel(self, visit: Visit) -> Reply:
        try:
            await self._ask("POST", "/v1/outbox/cancel", documents.ScheduledSend, body={"id": visit.part("id")})
        except Refused as refused:
            return self._console.back(visit, "/outbox", _no(refused), is_bad=True)
        return self._console.back(visit, "/outbox", "Taken back. Its id is used up.")

    def _back(self, visit: Visit, text: str, *, is_bad: bool = False) -> Reply:
        reply = self._console.back(visit, "/outbox", text, is_bad=is_bad)
        return msgspec.structs.replace(reply, headers={"location": f"{reply.headers['location']}?show=dead"})


def _inspected(transaction: Transaction, name: str) -> tuple[outbox.Inspection | None, dict[str, Content]]:
    """A row with its chain, and the contents of the chain's rows as far as they are kept."""
    found = outbox.inspect(transaction, name)
    if found is None:
        return None, {}
    contents = {}
    for item in found.chain:
        payload = requeue.content_of(transaction, item)
        if payload is not None:
            contents[item.id] = _content(payload)
    return found, contents


def _content(payload: Payload) -> Content:
    try:
        text: str | None = payload.body.decode()
    except UnicodeDecodeError:
        text = None
    return Content(text, (payload.meta or b"").decode(errors="replace"), len(payload.body))


def _change(found: outbox.Inspection, contents: dict[str, Content]) -> Any:
    """The lines of this row beside the row that it replaced, if both are kept."""
    number = next(number for number, item in enumerate(found.chain) if item.id == found.item.id)
    if number == 0:
        return None
    before, after = contents.get(found.chain[number - 1].id), contents.get(found.item.id)
    if before is None or after is None or before.text is None or after.text is None:
        return None
    return side_by_side(before.text, after.text)


def _no(refused: Refused) -> str:
    return f"Refused ({refused.refusal}): {refused.detail}. {health.remedy_of(str(refused.refusal))}".strip()


def names(daemon: Daemon) -> dict[str, str]:
    """The names of the mesh's members, by their ids."""
    return {member: known.name for member, known in daemon.directory.members.items()}


def part(text: str) -> str:
    """A text as one part of a URL's path."""
    return quote(text, safe="")
