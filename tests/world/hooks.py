"""The hook worker of a home, as the daemon's process has it; its handler is the world's, takes its time, and fails sometimes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.device import hook_entries
from holdfast.device.device import Device
from holdfast.hook import agent_settings, database, settings
from holdfast.hook.agent_service import AgentService
from holdfast.hook.event import HookEvent
from holdfast.hook.layout import DATABASE_NAME, JOURNAL_MODE
from holdfast.hook.store import Store
from holdfast.hook.worker import Worker
from holdfast.protocol.history import Draft
from holdfast.store import faults
from tests.world.journal import Handled
from tests.world.loop import Life

if TYPE_CHECKING:
    from tests.world.machine import HomeMachine

POLL_S = 3.0  # between two looks: most seconds bring nothing, and looking is most of what a home costs here
REOPEN_S = 3.0  # after a fault of the database
HANDLING_S_MAX = 3.0
FAILED_SHARE = 0.1  # of attempts


class Hooks:
    """Handles hook events for as long as its process lives."""

    def __init__(self, machine: "HomeMachine", life: Life, device: Device) -> None:
        self._machine = machine
        self._life = life
        self._device = device
        self.store: Store | None = None

    async def run(self) -> None:
        while True:
            try:
                await self._work()
            except* faults.Fault:
                pass  # as the daemon does: opened again a little later
            await asyncio.sleep(REOPEN_S)

    @property
    def waiting(self) -> int:
        """Events that have not come to their end, or whose end the history does not know."""
        if self.store is None:
            return 1
        rows = self.store.look(
            lambda tx: tx.rows(
                "SELECT count(*) FROM hook_outbox WHERE status IN ('pending', 'locked', 'handling') OR ended_reported = 0"
            )
        )
        return int(rows[0][0])

    async def _work(self) -> None:
        machine, device, home = self._machine, self._device, self._device.home.path
        engine = machine.engine(Path(DATABASE_NAME), journal_mode=JOURNAL_MODE)
        store = Store(engine, later=machine.later)
        try:
            database.prepare(engine, device.clock)
            agents = AgentService(
                home,
                store,
                agent_settings.AgentSettings(transcript_poll_s=POLL_S),
                clock=device.clock,
                network=machine.network(self._life),
                environment={},
                is_clock_right=lambda: True,
            )
            self._agents = agents
            worker = Worker(
                home,
                store,
                self._handle,
                report=self._report,
                clock=device.clock,
                random=device.random,
                settings=settings.Settings(poll_s=POLL_S),
            )
            self.store = store
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(agents.run())
                await worker.run()
        finally:
            self.store = None
            store.close()

    async def _handle(self, event: HookEvent) -> None:
        """What the production handler does, and a note that it was done."""
        machine = self._machine
        await asyncio.sleep(machine.luck.random() * HANDLING_S_MAX)
        machine.world.journal.handled.append(Handled(machine.name, event.session_id, event.event_id, event.event_type))
        if machine.luck.random() < FAILED_SHARE:
            raise RuntimeError("the handler has no luck today")
        await self._agents.handle(event)

    async def _report(self, drafts: Sequence[Draft]) -> None:
        await self._device.do_soon(lambda tx: hook_entries.append(tx, self._device.clock(), drafts))
