"""The hook worker inside the daemon's process: opened beside the device, given the device's history, watched, and closed."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256

import msgspec
import structlog

from holdfast.cli import settings_seen
from holdfast.device import hook_entries, send
from holdfast.device.daemon import Daemon, LinkState
from holdfast.device.device import Device
from holdfast.hook import agent_settings, database, settings, spool
from holdfast.hook.agent_service import AgentService, Post
from holdfast.hook.event import Handler
from holdfast.hook.followers import Undeliverable
from holdfast.hook.layout import DATABASE_NAME
from holdfast.hook.store import Store
from holdfast.hook.worker import Worker
from holdfast.protocol.agent_event import AgentEvent
from holdfast.protocol.history import Draft
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from holdfast.store import faults
from holdfast.wire.metrics import Counts
from holdfast.wire.network import SystemNetwork

REOPEN_S = 30.0  # after a fault that did not pass; messages are carried meanwhile, and events go to the spool
BUSY_REOPEN_S = 3.0  # after one that may have passed by then
TOPIC_DIGITS = 16  # of the digest of a topic's name, in the id of what is sent there
MARKED = {"type": "holdfast.agent_event"}  # what agents tell, among other messages of a topic
HOPELESS = frozenset({Refusal.TOO_LARGE, Refusal.MALFORMED, Refusal.IDEMPOTENCY_KEY_REUSED})  # of this event, for ever

_log = structlog.get_logger("holdfast.hooks")


class HookService:
    """A worker that is started again whatever happens to its database."""

    def __init__(
        self,
        device: Device,
        handle: Handler | None = None,
        *,
        is_clock_right: Callable[[], bool],
        post: Post | None = None,
    ) -> None:
        """`handle` stands in for everything that is done about events; `post` sends to topics of the mesh.

        `is_clock_right` says whether somebody else has found the clock right.
        """
        self._device = device
        self._handle = handle
        self._is_clock_right = is_clock_right
        self._post = post
        self._agents: AgentService | None = None
        self._worker: Worker | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Handle events until told to stop."""
        while not self._stopping.is_set():
            wait_s = REOPEN_S
            try:
                await self._work()
            except* faults.Fault as group:
                for fault in _leaves(group):
                    _log.error("hook events are not handled", detail=str(fault))
                    wait_s = BUSY_REOPEN_S if getattr(fault, "temporary", False) else wait_s
            finally:
                self._worker = self._agents = None
            await self._pause(wait_s)

    def stop(self) -> None:
        self._stopping.set()
        if self._worker is not None:
            self._worker.stop()

    def counts(self) -> dict[str, int]:
        """The counts for Prometheus."""
        if self._worker is None:
            return {"hook_worker": 0, "hook_spool_bytes": spool.size(str(self._device.home.path))}
        found = self._worker.statistics
        agents = {} if self._agents is None else self._agents.counts
        return (
            agents
            | {f"hook_{name}": number for name, number in found.counts.items()}
            | {
                "hook_spool_bytes": self._worker.spool_bytes,
                "hook_worker": int(not self._worker.is_failing),
                "hook_queue_depth": self._worker.depth,
                "hook_stuck": self._worker.stuck,
                "hook_lag_p95_ms": found.lag.p95 * 1000 // SECOND,
                "hook_lag_p99_ms": found.lag.p99 * 1000 // SECOND,
            }
        )

    async def _work(self) -> None:
        device, home = self._device, self._device.home.path
        # In a thread, because a database that somebody keeps locked is waited for, and messages must be carried meanwhile.
        store = Store(await asyncio.to_thread(database.opened, home / DATABASE_NAME, device.clock))
        try:
            told, chosen = agent_settings.load(home), settings.load(home)
            settings_seen.tell(home, "agents", told)
            settings_seen.tell(home, "hooks", chosen)
            self._agents = AgentService(
                home,
                store,
                told,
                clock=device.clock,
                network=SystemNetwork(),
                environment=os.environ,
                is_clock_right=self._is_clock_right,
                post=self._post,
            )
            self._worker = Worker(
                home,
                store,
                self._handle or self._agents.handle,
                report=self._report,
                clock=device.clock,
                random=device.random,
                settings=chosen,
            )
            if not self._stopping.is_set():
                await self._run(self._worker, self._agents)
        finally:
            await asyncio.to_thread(store.close)

    async def _run(self, worker: Worker, agents: AgentService) -> None:
        async with asyncio.TaskGroup() as tasks:
            beside = tasks.create_task(agents.run())
            await worker.run()
            beside.cancel()

    async def _report(self, drafts: Sequence[Draft]) -> None:
        await self._device.do_soon(lambda tx: hook_entries.append(tx, self._device.clock(), drafts))

    async def _pause(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._stopping.wait()
        except TimeoutError:
            return


def posting(daemon: Daemon) -> Post:
    """Sends what agents tell to topics, as any other message: under an id of its own, so that a repetition sends nothing twice."""

    async def post(topic: str, event: AgentEvent) -> None:
        name = f"agent-{event.id}-{sha256(topic.encode()).hexdigest()[:TOPIC_DIGITS]}"
        body = msgspec.json.encode(event).decode()
        try:
            prepared = send.prepare(send.Send(to=topic, message=body, client_message_id=name, meta=MARKED))
        except Refused as refused:  # whatever is wrong with it will be wrong again
            raise Undeliverable(str(refused)) from refused
        device, facts = daemon.device, daemon.facts
        no_room = daemon.room.for_send()
        answer = await daemon.do(send.Taking(facts, daemon.directory, device.clock, device.random, prepared, no_room))
        if answer.refusal in HOPELESS:
            raise Undeliverable(str(answer.body))
        if answer.refusal is not None:
            raise Refused(answer.refusal, str(answer.body.get("detail", "")))

    return post


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        yield from _leaves(error) if isinstance(error, BaseExceptionGroup) else (error,)


@asynccontextmanager
async def hooks_handled(daemon: Daemon, counts: Counts, stop: asyncio.Event) -> AsyncIterator[None]:
    """Handle hook events while the block lasts; a mistake of ours ends the whole program, which is then started anew."""
    service = HookService(
        daemon.device,
        is_clock_right=lambda: daemon.state.link is LinkState.CONNECTED,  # a relay lets nobody in whose clock is wrong
        post=posting(daemon),
    )
    counts.watch_counts(service.counts)
    working = asyncio.create_task(service.run(), name="holdfast-hooks")
    working.add_done_callback(lambda _: stop.set())
    try:
        yield
    finally:
        service.stop()
        await working
