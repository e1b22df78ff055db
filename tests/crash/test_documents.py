"""`kill -9` of two daemons and their relay while a person edits in both homes: no edit that was acknowledged is lost.

The audit at the end reads the databases themselves: every edit that a daemon said yes to is in its history, both homes see
the same, and that is what is left when every edit is compared with every other.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from holdfast.cli.check import inspect
from holdfast.device import author as authors
from holdfast.device.device import at_work
from holdfast.device.feed_client import FeedClient
from holdfast.device.home import Home
from holdfast.device.ipc_link import DaemonLost, NoDaemon
from holdfast.protocol.refusal import Refusal, Refused
from tests import ports
from tests.crash.programs import Program
from tests.crash.test_daemons import SETTLE_S
from tests.device.company import gather_in_mesh
from tests.device.feed_world import AUTHOR, frontier, made_in

ROUNDS = int(os.environ.get("HOLDFAST_CRASH_CYCLES", "3"))
NAMES = ("list", "plan", "poem")
EDITS = 12  # between two deaths


class Editor:
    """A person at a home, who goes on whatever happens to the daemon, and remembers what was acknowledged."""

    def __init__(self, home: Home, luck: random.Random) -> None:
        self.home = home
        self.acknowledged: set[str] = set()
        self.seen: dict[str, tuple[str, frozenset[str]]] = {}  # in the end
        self._luck = luck
        self._count = 0

    def edit(self) -> None:
        name, self._count = self._luck.choice(NAMES), self._count + 1
        with suppress(NoDaemon, DaemonLost, Refused), FeedClient(home=self.home.path) as client:
            try:
                text = f"{self.home.path.name} {self._count}"
                is_deletion = self._luck.random() < 0.2
                done = client.delete(name) if is_deletion else client.put(name, text)
            except Refused as refused:
                if refused.refusal is not Refusal.DOCUMENT_CONFLICTED:
                    raise
                done = client.resolve(name, f"resolved {self._count}")
            self.acknowledged.add(done.versions[0].id)

    def sees(self) -> dict[str, tuple[str, frozenset[str]]] | None:
        """Every document that is there; None while something waits to be offered, or nobody is there to ask."""
        with suppress(NoDaemon, DaemonLost), FeedClient(home=self.home.path) as client:
            if any(not relay.live or relay.waiting for relay in client.feed().relays):
                return None
            found = [client.document(one.id) for one in client.documents().documents]
            return {str(one.name): (one.status, frozenset(v.id for v in one.versions)) for one in found}
        return None


@pytest.mark.timeout(300 + 15 * ROUNDS)
def test_no_edit_that_was_acknowledged_is_lost_though_anybody_is_killed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    homes = [Home(tmp_path / name) for name in ("ann", "bob")]
    relay = Program("relay", "run", "--data", str(tmp_path / "relay"), *ports.options(), log=tmp_path / "relay.log")
    daemons = [
        Program("daemon", "run", "--home", str(home.path), log=tmp_path / f"{home.path.name}.log") for home in homes
    ]
    (tmp_path / "relay").mkdir(mode=0o700)
    settings = "[feed]\ntombstones_max = 1\ncompact_after_hours = 0\n[retention]\nsweep_interval_s = 1\n"
    (tmp_path / "relay" / "relay.toml").write_text(settings)
    relay.start()
    asyncio.run(gather_in_mesh(relay.first["url"], homes))
    for home in homes:
        with at_work(home) as device:
            device.do(partial(authors.keep, now=device.clock(), secret=AUTHOR))
    luck = random.Random(ROUNDS)
    editors = [Editor(home, luck) for home in homes]
    programs = [relay, *daemons]
    for program in daemons:
        program.start()
    try:
        for _ in range(ROUNDS):
            victims = luck.sample(programs, luck.choice((1, 1, 2)))
            for number in range(EDITS):
                luck.choice(editors).edit()
                if number == EDITS // 2:
                    for victim in victims:
                        victim.end(signal.SIGKILL)
            for victim in victims:
                victim.start()
        _settle(editors)
    finally:
        for program in programs:
            program.end()
    assert inspect(tmp_path / "relay" / "relay.db") == ("relay", [])
    made = made_in(*(home.database for home in homes))
    for editor in editors:
        assert inspect(editor.home.database) == ("device", [])
        assert editor.acknowledged
        assert {name for name in editor.acknowledged if bytes.fromhex(name) not in made} == set()
        assert editor.seen == frontier(made, NAMES)
    record_property("rounds of kills", ROUNDS)
    record_property("edits", sum(len(editor.acknowledged) for editor in editors))


def _settle(editors: list[Editor]) -> None:
    """Wait until both homes see what was made in both; each edit is in its own history from the beginning."""
    give_up_at = time.monotonic() + SETTLE_S
    while True:
        seen = [editor.sees() for editor in editors]
        made = made_in(*(editor.home.database for editor in editors))
        if seen[0] is not None and seen[0] == seen[1] == frontier(made, NAMES):
            break
        assert time.monotonic() < give_up_at, seen
        time.sleep(0.2)
    for editor, found in zip(editors, seen, strict=True):
        editor.seen = found or {}
