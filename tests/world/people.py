"""The applications beside the daemons: they send, ask again when nobody answered, read and confirm what came."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.device.home import Home
from holdfast.hook import receiver
from holdfast.protocol.hook_event import NAMES
from holdfast.protocol.schedule import SECOND
from tests.world import evidence
from tests.world.journal import Asked, Confirmed, Edited, Hooked, Requeued
from tests.world.loop import Life
from tests.world.machine import HomeMachine

if TYPE_CHECKING:
    from tests.world.world import World

ANSWER_S = 20.0  # for which an application waits
AGAIN_S = 5.0  # until it asks again
INSISTS_MAX = 60
MARK = "plaintext"  # in everything that only its recipients may read
# Beside the text of every message: its object and what its sender notes about it.
HIDDEN: dict[str, Any] = {"object_id": MARK.encode().ljust(32, b".").hex(), "meta": {"about": MARK}}
DOCUMENTS = ("plan", "list", "notes", "log", "menu", "map")
DELETED_SHARE = 0.1  # of edits
EDITS_MAX = 12  # of one stretch of writing
HOOK_NAMES = ("UserPromptSubmit", "PreToolUse", "PreToolUse", "PostToolUse", "PostToolUse", "Notification", "Stop")
HOOKS_MAX = 8  # of one stretch of work
MANY = 14  # messages at once
IMPATIENT_SHARE = 0.4  # of those who have sent many, and of operators who requeue: all that waits is to be sent anew
FORCED_SHARE = 0.2  # of requeues that do not wait for the relay's word
EXPIRING_SHARE = 0.25  # of messages that are of no use after a while
LASTS_S = (5.0, 120.0)
SCHEDULED_SHARE = 0.1  # of messages that are to leave later
LATER_S = (1.0, 90.0)
BLOCK_SHARE = 0.4  # of those who change their mind about somebody: the others take a block back
LONG_SHARE = 0.1  # of messages that are long
LONG_CHARACTERS = 6_000

Answer = tuple[int, Any]  # status, document


class _Exchange(asyncio.Protocol):
    """One request, one answer."""

    def __init__(self) -> None:
        self.done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._read = b""

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, body = self._read.partition(b"\r\n\r\n")
        if not end:
            return
        lines = head.decode().lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length"))
        if len(body) >= length and not self.done.done():
            self.done.set_result((int(lines[0].split()[1]), json.loads(body) if body else None))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the daemon is gone"))


class App:
    """Somebody who uses one home."""

    def __init__(self, world: "World", machine: HomeMachine) -> None:
        self.world = world
        self.machine = machine
        self.name = machine.name
        self.luck = random.Random(f"{world.seed} app {self.name}")
        self._life = Life(f"app-{self.name}")
        self._network = world.internet.of(machine.name, self._life)
        self._number = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._hooks: dict[str, int] = {}  # events of each session
        self.acts: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (6.0, self._send),
            (1.0, self._ask_again),
            (0.5, self._use_id_again),
            (2.0, self._confirm),
            (0.5, self._send_many),
            (0.8, self._requeue),
            (0.4, self._take_back),
            (0.3, self._block),
            (2.5, self._edit),
            (0.5, self._edit_much),
            (1.0, self._work_with_an_agent),
        ]

    async def live(self) -> None:
        """Do one thing after the other while the world is busy."""
        weights = [weight for weight, _ in self.acts]
        while self.world.is_busy:
            await asyncio.sleep(self.luck.expovariate(1 / self.world.pause_s))
            ((_, act),) = self.luck.choices(self.acts, weights)
            await act()

    async def ask(self, method: str, path: str, body: Any = None) -> Answer | None:
        """What the daemon answers, if it does."""
        raw = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(raw)}\r\nconnection: close\r\n\r\n"
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(ANSWER_S):
                transport, exchange = await self._network.connect(_Exchange, self.machine.socket, 0)
                transport.write(head.encode() + raw)
                return await exchange.done
        except (OSError, TimeoutError):
            return None
        finally:
            if transport is not None:
                transport.abort()

    async def insist(self, method: str, path: str, body: Any = None) -> Any:
        """Ask until the answer is yes, which takes a while at most."""
        for _ in range(INSISTS_MAX):
            answer = await self.ask(method, path, body)
            if answer is not None and answer[0] < 300:
                return answer[1]
            await asyncio.sleep(AGAIN_S)
        raise RuntimeError(f"{self.name} insisted on {path}, and was never told yes: {answer}")

    def administer(self, verb: str, asked: dict[str, Any]) -> None:
        """Have something done to the mesh, and ask until it is."""
        self._tasks.append(asyncio.create_task(self._administer(verb, asked)))

    async def _administer(self, verb: str, asked: dict[str, Any]) -> None:
        while self.machine.ended is None and self.world.is_busy:
            answer = await self.ask("POST", f"/v1/administration/{verb}", asked)
            self.world.told("administered", verb, None if answer is None else answer[0])
            if answer is not None and (answer[0] < 300 or answer[0] in (403, 404, 409)):
                return
            await asyncio.sleep(AGAIN_S)

    def write_much(self, to: str) -> None:
        """Write to somebody beside everything else."""
        self._tasks.append(asyncio.create_task(self._send_many(to)))

    async def _send_many(self, to: str | None = None) -> None:
        """More than fits into a queue, and faster than is allowed."""
        to = to or self._destination()
        for _ in range(MANY):
            await self._send(to)
        if self.luck.random() < IMPATIENT_SHARE:
            await self._requeue_all(await self._outbox("pending"))

    async def _requeue(self) -> None:
        """An operator has something sent anew that waits or was given up, or all of it, in the middle of everything."""
        rows = await self._outbox(self.luck.choice(("pending", "pending", "inflight", "dead")))
        is_impatient = self.luck.random() < IMPATIENT_SHARE
        await self._requeue_all(rows if is_impatient or not rows else [self.luck.choice(rows)])

    async def _outbox(self, status: str) -> list[dict[str, Any]]:
        answer = await self.ask("GET", f"/v1/outbox?status={status}&limit=20")
        return answer[1]["items"] if answer is not None and answer[0] == 200 else []

    async def _requeue_all(self, rows: Sequence[dict[str, Any]]) -> None:
        """At once, as a script does that waits for no answer, while they may be on their way."""
        await asyncio.gather(*map(self._requeue_one, rows))

    async def _requeue_one(self, row: dict[str, Any]) -> None:
        asked = {"id": row["id"], "force": self.luck.random() < FORCED_SHARE}
        at = self.world.loop.now()
        done = await self.ask("POST", "/v1/outbox/requeue", asked)
        if done is None or done[0] == 200:
            told_at = self.world.loop.now()
            requeued = Requeued(row["client_message_id"], row["event_id"], at, told_at, asked["force"])
            self.world.journal.requeued.setdefault((self.name, row["id"]), []).append(requeued)
        self.world.told("requeued", None if done is None else done[0])

    async def _send(self, to: str | None = None) -> None:
        self._number += 1
        name = f"{self.name}-{self._number}"
        text = f"{MARK} {name} " + "x" * (LONG_CHARACTERS if self.luck.random() < LONG_SHARE else 0)
        now = self.world.loop.now()
        lasts = round(self.luck.uniform(*LASTS_S) * SECOND) if self.luck.random() < EXPIRING_SHARE else None
        later = round(self.luck.uniform(*LATER_S) * SECOND) if self.luck.random() < SCHEDULED_SHARE else 0
        asked = Asked(
            self.name,
            name,
            to or self._destination(),
            text,
            now,
            expires_at=None if lasts is None else now + later + lasts,
            not_before=now + later if later else None,
        )
        self.world.journal.asked[self.name, name] = asked
        await self._ask_for(asked)

    def _destination(self) -> str:
        others = [name for name in self.world.mesh_of(self.name).members if name != self.name]
        return "@news" if self.luck.random() < 0.25 else self.luck.choice(others)

    async def _ask_for(self, asked: Asked) -> None:
        body = {"to": asked.to, "message": asked.body, "client_message_id": asked.client_message_id, **HIDDEN}
        if asked.expires_at is not None:
            body["expires_at"] = asked.expires_at
        if asked.not_before is not None:
            body["not_before"] = asked.not_before
        answer = await self.ask("POST", "/v1/send", body)
        if answer is not None:
            asked.statuses.append(answer[0])
            if answer[0] < 300 and asked.accepted_at is None:
                asked.accepted_at = self.world.loop.now()
            if answer[0] == 409:
                asked.refused_at = self.world.loop.now()
        self.world.told("asked", asked.client_message_id, None if answer is None else answer[0])

    async def _take_back(self) -> None:
        """Cancel a send whose time has not come."""
        waiting = [asked for asked in self._mine() if (asked.not_before or 0) > self.world.loop.now()]
        if waiting:
            asked = self.luck.choice(waiting)
            done = await self.ask("POST", "/v1/outbox/cancel", {"id": asked.client_message_id})
            self.world.told("cancelled", asked.client_message_id, None if done is None else done[0])
            if done is not None and done[0] == 200:
                asked.cancelled_at = self.world.loop.now()

    async def _block(self) -> None:
        """Want nothing more from somebody, or want it again."""
        others = [name for name in self.world.mesh_of(self.name).members if name != self.name]
        verb = "block" if self.luck.random() < BLOCK_SHARE else "unblock"
        self.administer(verb, {"who": self.luck.choice(others)})

    def _mine(self) -> list[Asked]:
        return [asked for (home, _), asked in self.world.journal.asked.items() if home == self.name]

    async def _ask_again(self) -> None:
        """The same once more: above all what nobody answered."""
        mine = self._mine()
        if mine:
            open_ones = [asked for asked in mine if not asked.is_accepted]
            await self._ask_for(self.luck.choice(open_ones or mine))

    async def _use_id_again(self) -> None:
        """Something else under an id that was used before: it must be refused."""
        mine = [asked for asked in self._mine() if asked.is_accepted]
        if mine:
            before = self.luck.choice(mine)
            other = Asked(
                self.name, before.client_message_id, before.to, f"{MARK} other {self._number}", self.world.loop.now()
            )
            self.world.journal.conflicts.append(other)
            await self._ask_for(other)

    async def _edit(self) -> None:
        """Change a document, or end a conflict, on the versions that are there."""
        name, text = self.luck.choice(DOCUMENTS), f"{MARK} document {self.name} {self.luck.getrandbits(32)}"
        found = await self.ask("GET", f"/v1/feed/documents/{name}")
        if found is None or found[0] not in (200, 404):
            return
        status = found[1]["status"] if found[0] == 200 else "new"
        verb = "resolve" if status == "conflict" else "put"
        asked: dict[str, Any] = {"name": name, "body": text}
        if status == "ok" and self.luck.random() < DELETED_SHARE:
            verb, asked = "delete", {"name": name}
        if status != "new":
            asked["seen"] = [version["id"] for version in found[1]["versions"]]
        done = await self.ask("POST", f"/v1/feed/{verb}", asked)
        self.world.told("edited", verb, None if done is None else done[0])
        if done is not None and done[0] == 200:
            now = self.world.loop.now()
            self.world.journal.edited += [
                Edited(self.name, version["id"], now) for version in done[1]["versions"] if version["own"]
            ]

    async def _edit_much(self) -> None:
        """Somebody writes, and saves again and again."""
        for _ in range(self.luck.randrange(1, EDITS_MAX)):
            await self._edit()
            await asyncio.sleep(self.luck.expovariate(2.0))

    async def _work_with_an_agent(self) -> None:
        """An agent's hooks run one after the other, whether the daemon is there or not."""
        session = f"session-{self.luck.randrange(2)}"
        for _ in range(self.luck.randrange(1, HOOKS_MAX)):
            name = self.luck.choice(HOOK_NAMES)
            self._hook(session, name)
            await asyncio.sleep(self.luck.expovariate(4.0))

    def _hook(self, session: str, name: str) -> None:
        if self.machine.is_full:
            return
        number = self._hooks[session] = self._hooks.get(session, 0) + 1
        payload = {"session_id": session, "hook_event_name": name, "number": number, "cwd": "/"}
        call = receiver.Call(["--agent", "claude", "--home", str(self.machine.home.path), json.dumps(payload)])
        if receiver.receive(call) == "stored":
            self.world.journal.hooked.append(Hooked(self.name, session, NAMES["claude"][name], number))

    async def _confirm(self) -> None:
        """Act on what came."""
        answer = await self.ask("GET", "/v1/inbox?unapplied=true&limit=20")
        if answer is None or answer[0] != 200 or not answer[1]["messages"]:
            return
        ids = [message["id"] for message in answer[1]["messages"]]
        done = await self.ask("POST", "/v1/inbox/ack", {"ids": ids})
        if done is not None and done[0] == 200:
            applied, now = [*done[1]["applied"], *done[1]["already"]], self.world.loop.now()
            kept = evidence.applied_on(self.machine.disk)  # now: a later confirmation would make up for it
            self.world.journal.confirmed += [Confirmed(self.name, one, now, one in kept) for one in applied]


def name_of(home: Home) -> str:
    return home.path.name
