"""Machines: a disk, a clock, and one process after the other that runs the production code of a relay or of a home.

A process ends at any moment, in the middle of a commit, too. What it does after that reaches neither disk nor network; its
files are as the system, or after a power cut the disk, has them.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from holdfast.device import database, recover
from holdfast.device.daemon import Daemon, Ended
from holdfast.device.device import Device, at_work
from holdfast.device.home import Home
from holdfast.device.ipc_service import EXPORT_READER as DEVICE_READER
from holdfast.device.ipc_service import Service as DaemonService
from holdfast.export.exporter import Exporter
from holdfast.protocol.history import LOG_ID_BYTES
from holdfast.relay import database as relay_database
from holdfast.relay.identity import Identity
from holdfast.relay.relay import Relay
from holdfast.relay.service import Service as RelayService
from holdfast.relay.settings import Settings as RelaySettings
from holdfast.store import faults, history
from holdfast.store.sqlite import SqliteEngine
from tests.disk import Disk, File
from tests.world import evidence
from tests.world.hooks import Hooks
from tests.world.journal import Restored
from tests.world.loop import Life, WorldLoop
from tests.world.network import MachineNetwork

if TYPE_CHECKING:
    from tests.world.world import World

COMMIT_S = (0.000_5, 0.004)  # until a batch of the writer is written
SKEW_S = 2.0  # that no two clocks are further from the right time, when nothing is wrong with them
RESTART_S = (0.2, 20.0)  # until a process is started again
UNWIND_S = 0.05  # between two looks whether a dead process has come to its end
JOURNAL_PAGES = 60  # of a write-ahead log before it is put into its file: power goes during that, too
FREE_BYTES = 1 << 40


class Died(BaseException):
    """The process is gone; whatever was under way in it goes no further."""


class SmallJournal(SqliteEngine):
    """Puts its write-ahead log into its file often."""

    def prepare(self) -> None:
        super().prepare()
        self._execute(self._writer, f"PRAGMA wal_autocheckpoint={JOURNAL_PAGES}")


class Machine:
    """One machine of a world; `_work` is its program."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.loop: WorldLoop = world.loop
        self.disk = Disk()
        self.disk.trouble = self._on_step
        self.luck = random.Random(f"{world.seed} {name}")
        self.skew = round(self.luck.uniform(-SKEW_S, SKEW_S) * 1_000_000)  # of its clock, always
        self.offset = 0  # of its clock beside that, for a while; microseconds
        self.life: Life | None = None
        self.is_wanted = False  # to be started again when it ends
        self.is_full = False  # no write to its disk succeeds
        self.slow_s = 0.0  # that a write takes longer, and what is read beside the loop
        self.fuse = 0  # steps of the disk until something happens
        self.at_fuse: Callable[[], None] = lambda: None
        self.ended: str | None = None  # why it must not be started again
        self._stop: asyncio.Event | None = None
        self.lives = 0
        self.backups: list[tuple[bytes, int]] = []  # content, and when it was made
        self._away_until_s = 0.0

    def clock(self) -> int:
        return self.loop.now() + self.skew + self.offset

    def random(self, number: int) -> bytes:
        return self.luck.randbytes(number)

    @property
    def is_up(self) -> bool:
        return self.life is not None and self.life.is_alive

    def start(self) -> None:
        """Begin a process."""
        assert not self.is_up
        self.lives += 1
        life = self.life = Life(f"{self.name}-{self.lives}", slow_s=lambda: self.slow_s)
        self.world.told("start", life.name)
        self.loop.create_task(self._live(life), context=life.context)

    async def stop(self) -> None:
        """Let the process end in order."""
        self.is_wanted = False
        if self.life is not None and self.life.is_alive:
            life = self.life
            if self._stop is not None:
                self._stop.set()
            while life.is_alive:
                await asyncio.sleep(UNWIND_S)

    def kill(self) -> None:
        """End the process here and now."""
        self._lose(self.disk.kill, silent_s=0.0)

    def cut_power(self, *, torn: bool) -> None:
        """Switch the machine off; whatever was not synced is gone, or any part of it."""
        luck = self.world.luck
        if self._lose(lambda: self.disk.cut(luck if torn else None), silent_s=luck.uniform(0.0, 20.0)):
            broken = evidence.broken_rules(self.disk)
            self.world.journal.broken += [f"{self.name} after a power cut: {what}" for what in broken]

    def go_away(self, seconds: float) -> None:
        """End the process, and be without one for a while."""
        self._away_until_s = self.loop.time() + seconds
        self.kill()

    def come_back(self) -> None:
        self._away_until_s = 0.0

    def keep_backup(self, write: Callable[[Path], None]) -> None:
        """Take a copy of the database as it is."""
        path = self.world.place / f"{self.name}-{len(self.backups)}-{self.lives}.backup"
        try:
            write(path)
        except faults.Fault:
            return
        self.backups.append((path.read_bytes(), self.loop.now()))

    def go_back(self, name: str, prepare: Callable[[SqliteEngine], None]) -> None:
        """End the process, and put the database back as an earlier copy has it."""
        if not self.backups or self.ended is not None:
            return
        content, made_at = self.luck.choice(self.backups)
        self.kill()
        self.disk.files = {path: file for path, file in self.disk.files.items() if not path.startswith(name)}
        self.disk.files[name] = File(bytearray(content))
        self._vfs = self.disk.boot()
        was_full, self.is_full = self.is_full, False
        with closing(self.engine(name)) as engine:
            prepare(engine)
        self.is_full = was_full
        self.disk.cut()
        self.world.journal.restored.append(Restored(self.name, made_at, self.loop.now()))

    def fail_at_step(self, number: int, fail: Callable[[], None], *, is_done: bool) -> None:
        """Have something happen at a step of the disk that comes: instead of it, or as soon as the work is done that it is part of.

        The latter is between two transactions: what was decided is on the disk, and nobody has heard of it.
        """
        self.fuse, self.at_fuse = number, fail
        if is_done:
            self.at_fuse = lambda: self._fail_soon(fail)

    def _fail_soon(self, fail: Callable[[], None]) -> None:
        life = self.life
        self.loop.call_soon(lambda: fail() if life is self.life else None)

    def restart_later(self) -> None:
        if self.is_wanted and self.ended is None:
            self.loop.call_later(self.luck.uniform(*RESTART_S), self._restart)

    def later(self, work: Callable[[], None]) -> None:
        """The writer's batches: written on the loop, after the time that this disk takes."""
        life = self.life

        def write() -> None:
            if life is not None and life.is_alive:
                work()

        self.loop.call_later(self.luck.uniform(*COMMIT_S) + self.slow_s, write)

    def engine(self, path: str | Path, **options: Any) -> SqliteEngine:
        return SmallJournal(Path(path).name, vfs=self._vfs, exclusive=True, **options)

    def network(self, life: Life) -> MachineNetwork:
        return self.world.internet.of(self.name, life)

    async def _live(self, life: Life) -> None:
        self._vfs = self.disk.boot()
        self._stop = asyncio.Event()
        why = "stopped"
        try:
            await self._work(life, self._stop)
        except Ended as ended:
            if life.is_alive:
                self.ended = why = str(ended.refusal)
                self.world.journal.ended[self.name] = why
        except (faults.Fault, OSError) as fault:
            why = f"{type(fault).__name__}"
        except Exception as error:
            why = f"mistake: {type(error).__name__}: {error}"
            if life.is_alive:
                self.world.mistake(life.name, error)
        if life.is_alive:
            self.world.told("end", life.name, why)
            life.is_alive = False
            self.disk.kill()
            self.world.internet.lose(life, silent_s=0.0)
            self._unwind(life)
            self.restart_later()

    async def _work(self, life: Life, stop: asyncio.Event) -> None:
        raise NotImplementedError

    def back_up(self) -> None:
        """Have a copy for later."""
        raise NotImplementedError

    def _lose(self, lose: Callable[[], None], *, silent_s: float) -> bool:
        life = self.life
        if life is None or not life.is_alive:
            return False
        life.is_alive = False
        self.fuse = 0
        lose()
        self.world.internet.lose(life, silent_s=silent_s)
        self._unwind(life)
        self.restart_later()
        return True

    def _unwind(self, life: Life) -> None:
        """Have whatever is left of a process come to its end; nothing that it does counts."""
        for task in list(life.tasks):
            task.cancel()
        if life.tasks:
            self.loop.call_later(UNWIND_S, self._unwind, life)

    def _restart(self) -> None:
        if not self.is_wanted or self.is_up or self.ended is not None:
            return
        if self._away_until_s > self.loop.time() or (self.life is not None and self.life.tasks):
            self.loop.call_later(UNWIND_S, self._restart)
            return
        self.start()

    def _on_step(self, step: int, what: str) -> None:
        """Before each change of the disk."""
        self.world.told(self.name, what)
        if self.fuse:
            self.fuse -= 1
            if not self.fuse:
                self.at_fuse()
        if self.is_full and what == "write":
            raise apsw.FullError


class RelayMachine(Machine):
    """A relay."""

    def __init__(self, world: "World", name: str, data: Path, settings: RelaySettings) -> None:
        super().__init__(world, name)
        data.mkdir(mode=0o700)
        self.settings = settings
        self.identity = Identity.load(data, self.random)
        self.url = f"http://{settings.host}:{settings.port}"
        self.relay: Relay | None = None

    def has(self, event_id: bytes) -> bool:
        """Whether an event is in the relay's database."""
        if self.relay is None or not self.is_up:
            return False
        with self.relay._engine.read() as transaction:
            return bool(transaction.rows("SELECT 1 FROM message WHERE event_id = :event_id", {"event_id": event_id}))

    def back_up(self) -> None:
        if self.is_up and self.relay is not None:
            self.keep_backup(self.relay._engine.backup)  # type: ignore[attr-defined]  # it is SQLite

    def restore(self) -> None:
        def fork(engine: SqliteEngine) -> None:
            relay_database.prepare(engine, self.clock, self.random)
            with engine.write() as transaction:
                history.fork(transaction, self.clock(), self.random(LOG_ID_BYTES))

        self.go_back("relay.db", fork)

    async def _work(self, life: Life, stop: asyncio.Event) -> None:
        engine = self.engine("relay.db")
        try:
            relay_database.prepare(engine, self.clock, self.random)
        except BaseException:
            engine.close()
            raise
        relay = self.relay = Relay(
            engine, self.settings, self.identity, clock=self.clock, random=self.random, later=self.later
        )
        exporter = Exporter("relay.db", relay_database.EXPORT_READER)
        service = RelayService(relay, exporter, clock=self.clock, random=self.random)
        try:
            await service.start(self.network(life))
            await service.run_until(stop)
        finally:
            await service.close()


class HomeMachine(Machine):
    """A home with its daemon. Its keys lie in a real directory; its databases on the machine's disk."""

    def __init__(self, world: "World", name: str, place: Path, followed: Sequence[RelayMachine]) -> None:
        super().__init__(world, name)
        self.followed = tuple(followed)  # relays that keep its documents; the first is that of its mesh
        self.home = Home(place / name)
        self.socket = str(self.home.path / "daemon.sock")
        self.daemon: Daemon | None = None
        self.hooks: Hooks | None = None

    @property
    def relay(self) -> RelayMachine:
        """The relay of its mesh."""
        return self.followed[0]

    def work(self, **options: Any) -> Any:
        """The device of this home, on this machine's disk."""
        return at_work(
            self.home,
            clock=self.clock,
            random=self.random,
            later=self.later,
            open_engine=self.engine,
            wait_s=0.0,
            **options,
        )

    def back_up(self) -> None:
        if self.is_up and self.daemon is not None:
            engine = self.daemon.device._engine
            self.keep_backup(lambda path: database.back_up(engine, path))

    def restore(self) -> None:
        def begin_again(engine: SqliteEngine) -> None:
            database.prepare(engine, self.clock, self.random)
            with engine.write() as transaction:
                recover.begin_again(transaction, self.clock())

        self.go_back("device.db", begin_again)

    def found(self, founding: Callable[[Device, MachineNetwork], Awaitable[None]]) -> None:
        """Begin a process that does something once, before the daemon comes."""
        self._once = founding
        self.start()

    _once: Callable[[Device, MachineNetwork], Awaitable[None]] | None = None

    async def _work(self, life: Life, stop: asyncio.Event) -> None:
        once, self._once = self._once, None
        with self.work(create=once is not None) as device:
            if once is not None:
                self.home.database.touch()  # what is in it is on the machine's own disk
                await once(device, self.network(life))
                return
            await self._serve(life, device, stop)

    async def _serve(self, life: Life, device: Device, stop: asyncio.Event) -> None:
        daemon = self.daemon = Daemon(device, network=self.network(life), free_bytes=self._free_bytes)
        service = DaemonService(daemon, Exporter("device.db", DEVICE_READER))
        self.socket = service.socket
        self.hooks = Hooks(self, life, device)
        hooking = asyncio.create_task(self.hooks.run())
        try:
            await service.start(self.network(life))
            await service.run_until(stop)
        finally:
            hooking.cancel()
            await asyncio.wait([hooking])
            if not hooking.cancelled() and (error := hooking.exception()) is not None and life.is_alive:
                self.world.mistake(f"hooks of {life.name}", error)
            await service.close()

    def _free_bytes(self, path: Path) -> int:
        return 0 if self.is_full else FREE_BYTES
