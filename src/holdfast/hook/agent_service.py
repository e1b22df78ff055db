"""Everything that agents' events are good for, in one process: sessions, transcripts, and whoever is told.

`handle` is the worker's handler. When it returns, what the event makes of its session and what is told of it are on disk; to
deliver that is the followers' business, each with its own place, so no adapter holds up a session or another adapter.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import structlog

from holdfast.hook import agent_sessions, json_lines, programs, transcripts
from holdfast.hook.agent_settings import AgentSettings
from holdfast.hook.event import HookEvent
from holdfast.hook.followers import Adapter, Follower
from holdfast.hook.patience import Patience
from holdfast.hook.store import Store
from holdfast.hook.webhook import WebhookSender
from holdfast.protocol.agent_event import AgentEvent
from holdfast.protocol.hook_event import AGENT_STOP
from holdfast.protocol.pacing import Pacing, PacingMode
from holdfast.protocol.schedule import SECOND
from holdfast.store.world import Clock
from holdfast.wire.network import Network

LOG_NAME = "agents.jsonl"
PRUNE_S = 3_600.0
CLOCK_LOOK_S = 5.0  # between two looks whether the clock was found right
SESSIONS_READ_MAX = 200  # whose transcripts are looked at, the latest first

_log = structlog.get_logger(__name__)

Post = Callable[[str, AgentEvent], Awaitable[None]]
"""Sends to a topic of the mesh; it is in the outbox when this returns. The same event again is not sent again."""


class AgentService:
    """Keeps the agent sessions of one home, and runs its adapters."""

    def __init__(
        self,
        home: Path,
        store: Store,
        settings: AgentSettings,
        *,
        clock: Clock,
        network: Network,
        environment: Mapping[str, str],
        is_clock_right: Callable[[], bool],
        post: Post | None = None,
    ) -> None:
        """`is_clock_right` says whether somebody else has found the clock right."""
        self._home = home
        self._store = store
        self._patience = Patience(store)
        self._settings = settings
        self._clock = clock
        self._network = network
        self._is_clock_right = is_clock_right
        self._post = post
        self._reader = transcripts.Reader(environment)
        self._followers: list[Follower] = []
        self._senders: list[WebhookSender] = []

    async def handle(self, event: HookEvent) -> None:
        """Handle an event. The transcript is reported first, so that a turn's outputs come before its end."""
        if event.event_type == AGENT_STOP:
            await self._read(event.agent, event.session_id)
        await self._patience.do(lambda tx: agent_sessions.handle(tx, event, self._clock(), transcripts.end_of))
        self._told()

    @property
    def counts(self) -> dict[str, int]:
        """The sums of all adapters' counts."""
        names = ("delivered", "coalesced", "failed", "given_up")
        return {f"agent_{name}": sum(follower.counts[name] for follower in self._followers) for name in names}

    async def run(self) -> None:
        """Read transcripts and run the adapters until cancelled."""
        self._followers = [
            Follower(adapter, self._store, self._clock, self._is_clock_right) for adapter in self._adapters()
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                for loop in (self._read_on, self._keep_house, *(follower.run for follower in self._followers)):
                    tasks.create_task(loop())
        finally:
            for sender in self._senders:
                await sender.close()

    def _adapters(self) -> list[Adapter]:
        settings = self._settings
        found = [
            Adapter(f"topic:{topic}", self._poster(topic), settings.topic_pacing)
            for topic in (settings.topics if self._post is not None else ())
        ]
        for webhook in settings.webhooks:
            sender = WebhookSender(webhook, self._network, self._clock)
            self._senders.append(sender)
            name = f"webhook:{webhook.name}"
            found.append(
                Adapter(name, sender.deliver, webhook.pacing, timeout_s=webhook.timeout_s, kinds=webhook.kinds)
            )
        if settings.log:
            found.append(Adapter("log", self._log, settings.log_pacing))
        return found + self._programs()

    def _programs(self) -> list[Adapter]:
        settings = self._settings.programs
        runner, everything = programs.Runner(self._home, settings, self._clock), Pacing(mode=PacingMode.OFF)
        return [
            Adapter(f"program:{name}", _running(runner, name), everything, settings.attempts_max, None)
            for name in programs.found(self._home)
        ]

    def _poster(self, topic: str) -> Callable[[AgentEvent], Awaitable[None]]:
        post = self._post
        assert post is not None  # noqa: S101 - there are no topics without it

        async def deliver(event: AgentEvent) -> None:
            await post(topic, event)

        return deliver

    async def _log(self, event: AgentEvent) -> None:
        json_lines.append(self._home / LOG_NAME, event, is_synced=True)

    def _told(self) -> None:
        for follower in self._followers:
            follower.wake()

    async def _read_on(self) -> None:
        """Read the transcripts of recently active sessions, again and again."""
        while True:
            since = self._clock() - int(self._settings.transcript_idle_s * SECOND)
            latest = partial(agent_sessions.latest, since=since, limit=SESSIONS_READ_MAX)
            for session in await self._patience.do(latest):
                if self._reader.has_news(session):
                    await self._read(session.agent, session.session_id)
            await asyncio.sleep(self._settings.transcript_poll_s)

    async def _read(self, agent: str, session_id: str) -> None:
        while await self._patience.do(lambda tx: self._reader.read_on(tx, agent, session_id, self._clock())):
            self._told()
        self._told()

    async def _keep_house(self) -> None:
        """Remove what is old, once the clock was found right: by one that is far ahead everything is old."""
        named = {follower.name for follower in self._followers}
        while True:
            while not self._is_clock_right():
                await asyncio.sleep(CLOCK_LOOK_S)
            forget = partial(agent_sessions.forget_followers, named=named, now=self._clock())
            for name, number in (await self._patience.do(forget)).items():
                _log.warning("an adapter that is no longer named is forgotten", adapter=name, undelivered=number)
            while await self._patience.do(lambda tx: agent_sessions.prune(tx, self._clock())):
                pass
            await asyncio.sleep(PRUNE_S)


def adapter_names(home: Path, settings: AgentSettings) -> frozenset[str]:
    """The names of all adapters in a home's settings and program folder."""
    return frozenset(
        (
            *(f"topic:{topic}" for topic in settings.topics),
            *(f"webhook:{webhook.name}" for webhook in settings.webhooks),
            *(("log",) if settings.log else ()),
            *(f"program:{name}" for name in programs.found(home)),
        )
    )


def _running(runner: programs.Runner, name: str) -> Callable[[AgentEvent], Awaitable[None]]:
    async def deliver(event: AgentEvent) -> None:
        await runner.run(name, event)

    return deliver
