"""A storm: relays, daemons, hook workers and a pipeline under load, and blows from one table that fall on them at random.

    python -m tests.crash.storm --rounds 50 --seed 7                     a relay on SQLite
    python -m tests.crash.storm --rounds 50 --seed 7 --engine postgres   two relays on one database
    python -m tests.crash.storm --rounds 50 --seed 7 --audit             and Spark over what is left

Blows overlap: a disk may fill up while somebody is stopped and the road is bad. When they are over everything is given
time to come to its end, and what the people of the storm were told is held against every file, and against the lake.
It says in JSON what it did; a storm that lost something ends with an error that says what.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from holdfast.device import topics
from holdfast.device.device import at_work
from holdfast.device.home import Home
from holdfast.device.mesh import in_session
from tests import ports
from tests.crash import storm_audit
from tests.crash.programs import Program
from tests.crash.storm_people import PACE_S, SLOW, TOPIC, Person
from tests.device.company import gather_in_mesh
from tests.postgres import running_server
from tests.proxy import RoughProxy
from tests.relay.pair import KEYS

NAMES = ("ann", "bob", "cleo")
ROAD, RELAYS = "127.0.0.1", ("127.0.0.2", "127.0.0.3")  # one port: a relay knows its own by every name of this machine
DISK = "size=4g"  # of a disk that is not full; it takes only what is on it
# A burst is more than a relay takes of one sender at once: what it puts off must not be overtaken.
SETTINGS = "[limits]\nqueue_messages_max = 1000000\nmessages_burst = 20\nmessages_per_s = 40\n"
PAUSE_S = (0.05, 0.5)  # between two blows
LASTS_S = (0.2, 3.0)  # a blow that does not end by itself
PIPELINE_EVERY = 20  # rounds until the next pipeline is begun, to be killed
PIPELINE_S = (0.0, 8.0)  # from its plan to its death, in the middle of what it writes: a batch takes longer
PIPELINES_SPARED_MAX = 3  # that may end by themselves, because they were quicker or met a blow, before one is killed
PLAN_S = 300.0  # for it to have one; then it dies without
HERE = "HOLDFAST_STORM_HERE"  # is set where disks may be mounted


class Road(RoughProxy):
    """The way from homes to relays, which may lead to another relay from now on."""

    is_cut = False

    def aim(self, target: tuple[str, int]) -> None:
        self._target = target


@dataclass
class Storm:
    """Everything that can be struck, and what has been."""

    place: Path
    luck: random.Random
    store: str | None  # the URL of a database, or each relay's own file
    has_disks: bool
    pace_s: float = PACE_S
    people: list[Person] = field(default_factory=list)
    relays: list[Program] = field(default_factory=list)
    port: int = field(default_factory=ports.port)
    fallen: Counter[str] = field(default_factory=Counter)
    pipelines: int = 0  # that were killed
    _ends: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _spared: list[Program] = field(default_factory=list)  # since everybody was struck
    _pipeline: "subprocess.Popen[bytes] | None" = None
    _pipeline_until: float = 0.0
    _pipelines_spared: int = 0

    def __post_init__(self) -> None:
        # What draws as often as something happens has luck of its own: the blows are those of the seed.
        self.road = Road(ROAD, self.port, (RELAYS[0], self.port), random.Random(self.luck.random()))
        self._pipeline_luck = random.Random(self.luck.random())

    @property
    def url(self) -> str:
        return self.road.url

    @property
    def programs(self) -> list[Program]:
        return [*self.relays, *(person.daemon for person in self.people)]

    def victims(self, count: int) -> list[Program]:
        """By chance, but everybody once before anybody again: of the few in a short storm, one is a daemon."""
        if len(self._spared) < count:
            self._spared = self.luck.sample(self.programs, len(self.programs))
        chosen, self._spared = self._spared[:count], self._spared[count:]
        return chosen

    def folder(self, name: str) -> Path:
        """A directory, on a disk of its own where that may be."""
        path = self.place / name
        path.mkdir(mode=0o700)
        if self.has_disks:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"{DISK},mode=0700", "none", str(path)], check=True)
        return path

    def begin(self) -> None:
        """Relays, a mesh of homes with a topic, and people who use them."""
        for number in range(2 if self.store else 1):
            self._add_relay(number)
        homes = [self.folder(name) for name in NAMES]
        asyncio.run(_befriend(self.url, [Home(home) for home in homes]))
        for name, home in zip(NAMES, homes, strict=True):
            others = [other for other in NAMES if other != name]
            self.people.append(Person(name, home, others, self.place / f"{name}.log", self.pace_s))
        for person in self.people:
            person.daemon.start()
        for person in self.people:
            person.begin()

    def _add_relay(self, number: int) -> None:
        data = self.folder(f"relay-{number}")
        if number:
            for name in KEYS:
                shutil.copy(self.place / "relay-0" / name, data / name)
        (data / "relay.toml").write_text(SETTINGS)
        words = ["relay", "run", "--data", str(data), "--host", RELAYS[number], "--port", str(self.port)]
        words += ["--store", self.store] if self.store else []
        self.relays.append(Program(*words, log=self.place / f"relay-{number}.log"))
        self.relays[number].start()

    def rage(self, rounds: int, *, with_pipeline: bool) -> None:
        """Blows, one after the other and over each other; each kind once before any comes again by chance."""
        possible = [blow for blow in BLOWS if blow.is_possible(self)]
        first = self.luck.sample(possible, len(possible))
        for number in range(rounds):
            blow = (
                first[number] if number < len(first) else self.luck.choices(possible, [b.weight for b in possible])[0]
            )
            self.fallen[blow.name] += 1
            blow.fall(self)
            if with_pipeline and number % PIPELINE_EVERY == PIPELINE_EVERY // 4:
                self._begin_pipeline()
            time.sleep(self.luck.uniform(*PAUSE_S))
            self._watch_pipeline()
            self.mend(until=time.monotonic())

    def calm(self) -> None:
        """Whatever was struck works again; a pipeline that is still to be killed is."""
        self.mend(until=float("inf"))
        while self._pipeline is not None:
            time.sleep(PAUSE_S[0])
            self._watch_pipeline()
        while not all(program.is_running for program in self.programs):
            self.revive()

    def mend(self, until: float) -> None:
        """End the blows that have lasted, and start again what has ended."""
        due = [end for at, end in self._ends if at <= until]
        self._ends = [(at, end) for at, end in self._ends if at > until]
        for end in due:
            end()
        self.revive()

    def revive(self) -> None:
        for program in self.programs:
            if not program.is_running:
                program.end(signal.SIGKILL)
                program.try_start()  # or with the next look: its disk may be full

    def later(self, end: Callable[[], None]) -> None:
        self._ends.append((time.monotonic() + self.luck.uniform(*LASTS_S), end))

    def _begin_pipeline(self) -> None:
        """One that will not come to its end."""
        if self._pipeline is None:
            with (self.place / "pipeline.log").open("ab") as log:
                self._pipeline = storm_audit.pipeline(self, stdout=log, stderr=log)
            self._pipeline_until = time.monotonic() + PLAN_S

    def _watch_pipeline(self) -> None:
        """End it, a while after it has begun to write."""
        if self._pipeline is None:
            return
        if self._pipeline_until > time.monotonic() + PIPELINE_S[1] and storm_audit.has_plan(self):
            self._pipeline_until = time.monotonic() + self._pipeline_luck.uniform(*PIPELINE_S)
        if self._pipeline.poll() is not None:
            self._end_pipeline()
            self._pipelines_spared += 1
            if not self.pipelines and self._pipelines_spared <= PIPELINES_SPARED_MAX:
                self._begin_pipeline()
        elif time.monotonic() > self._pipeline_until:
            self._end_pipeline()

    def _end_pipeline(self) -> None:
        if self._pipeline is not None:
            self.pipelines += self._pipeline.poll() is None
            with suppress(ProcessLookupError):  # it has ended, and all that it began
                os.killpg(self._pipeline.pid, signal.SIGKILL)  # Java, too
            self._pipeline.wait()
            self._pipeline = None
            if storm_audit.has_plan(self):
                shutil.copy(storm_audit.plan(self), self.place / f"plan-{self.pipelines}.json")

    def close(self) -> None:
        self._end_pipeline()
        self.road.is_rough = False
        for program in self.programs:
            if program.is_running:
                assert program.process is not None
                program.process.send_signal(signal.SIGCONT)
        for person in self.people:
            person.finish()
        for program in self.programs:
            program.end()
        self.road.cut()


def _kill(storm: Storm) -> None:
    for program in storm.victims(1):
        program.end(signal.SIGKILL)


def _kill_several(storm: Storm) -> None:
    for program in storm.victims(2):
        program.end(signal.SIGKILL)


def _stop(storm: Storm) -> None:
    program = storm.luck.choice(storm.programs)
    process = program.process
    if process is not None and program.is_running:
        process.send_signal(signal.SIGSTOP)
        storm.later(lambda: None if process.returncode is not None else process.send_signal(signal.SIGCONT))


def _fill(storm: Storm) -> None:
    """No byte more fits on a relay's or a home's disk."""
    path = storm.luck.choice([*sorted(storm.place.glob("relay-?")), *(person.home for person in storm.people)])
    found = os.statvfs(path)
    _resize(path, f"size={(found.f_blocks - found.f_bfree) * found.f_frsize}")
    storm.later(lambda: _resize(path, DISK))


def _resize(path: Path, size: str) -> None:
    # It may have grown since it was measured; then the next blow may meet it.
    subprocess.run(["mount", "-o", f"remount,{size}", str(path)], capture_output=size != DISK, check=size == DISK)


def _cut(storm: Storm) -> None:
    """Nobody comes through to a relay for a while."""
    storm.road.cut()
    if not storm.road.is_cut:
        storm.road.is_cut = True
        storm.later(lambda: _restore(storm))


def _restore(storm: Storm) -> None:
    storm.road.is_cut = False
    storm.road.restore()


def _roughen(storm: Storm) -> None:
    storm.road.is_rough = True
    storm.later(lambda: setattr(storm.road, "is_rough", False))


def _lead_elsewhere(storm: Storm) -> None:
    storm.road.aim((storm.luck.choice(RELAYS), storm.port))


def _end_sessions(storm: Storm) -> None:
    """The database throws its relays out."""
    with psycopg.connect(storm.store or "", autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def _strike_agents(storm: Storm) -> None:
    for person in storm.people:
        person.strike_agent()


@dataclass(frozen=True)
class Blow:
    """Something that happens to a storm."""

    name: str
    weight: int
    fall: Callable[[Storm], None]
    is_possible: Callable[[Storm], bool] = lambda storm: True


BLOWS: tuple[Blow, ...] = (
    Blow("killed", 5, _kill),
    Blow("two killed at once", 2, _kill_several),
    Blow("stopped", 4, _stop),
    Blow("disk full", 4, _fill, lambda storm: storm.has_disks),
    Blow("network cut", 3, _cut),
    Blow("network rough", 3, _roughen),
    Blow("led to another relay", 3, _lead_elsewhere, lambda storm: len(storm.relays) > 1),
    Blow("database connections cut", 2, _end_sessions, lambda storm: storm.store is not None),
    Blow("agents killed", 2, _strike_agents),
)


async def _befriend(url: str, homes: Sequence[Home]) -> None:
    """A mesh with a topic whose key everybody has."""
    await gather_in_mesh(url, homes)
    first, *others = homes
    with at_work(first) as device:
        async with in_session(device) as keeper:
            await topics.create(keeper, TOPIC.removeprefix("@"))
            for home in others:
                with at_work(home) as other:
                    async with in_session(other) as reader:
                        await topics.subscribe(reader, TOPIC.removeprefix("@"))
                        await keeper.refresh()
                        await topics.tend(keeper)
                        await reader.refresh()
                        await topics.collect(reader)
            await topics.subscribe(keeper, TOPIC.removeprefix("@"))


def run(place: Path, rounds: int, seed: int, store: str | None, *, audited: bool) -> dict[str, object]:
    """A storm from its beginning to its judgement, and what it was."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    storm = Storm(place, random.Random(seed), store, has_disks=HERE in os.environ)
    storm.pace_s *= SLOW if audited else 1
    try:
        storm.begin()
        storm.rage(rounds, with_pipeline=audited)
        storm.calm()
        for person in storm.people:
            person.finish_sending()
        storm_audit.settle(storm)
        balance = storm_audit.lake(storm) if audited else None
    finally:
        storm.close()
    storm_audit.files(storm)
    return storm_audit.told(storm, rounds, seed, balance)


@contextmanager
def _database(engine: str) -> Iterator[str | None]:
    with running_server() if engine == "postgres" else nullcontext() as server:
        yield None if server is None else server.database()


def command(*words: str) -> list[str]:
    """How a storm is started where it may mount disks of its own, which are gone with it; or where it may not."""
    program = [sys.executable, "-m", "tests.crash.storm", *words]
    inside = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-rm"]
    may = shutil.which("unshare") is not None and not subprocess.run([*inside, "true"], capture_output=True).returncode
    return [*inside, "env", f"{HERE}=1", *program] if may else program


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.storm", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="blows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite", help="of the relays")
    parser.add_argument("--store", help="the database, if it is there already")
    parser.add_argument("--place", type=Path, help="where everything is, and is left")
    parser.add_argument("--audit", action="store_true", help="have Spark look at what is left")
    chosen = parser.parse_args()
    if HERE not in os.environ and chosen.store is None and command()[0] == "unshare":
        with _database(chosen.engine) as store:
            words = [*sys.argv[1:], *([] if store is None else ["--store", store])]
            sys.exit(subprocess.run(command(*words)).returncode)
    place = chosen.place or Path(tempfile.mkdtemp(prefix="holdfast-storm-"))
    print(json.dumps(run(place, chosen.rounds, chosen.seed, chosen.store, audited=chosen.audit)), flush=True)
    if chosen.place is None:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
