"""Two relays on one database of PostgreSQL: to everybody else they are one."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.cli.check import inspect
from tests.postgres import Server
from tests.relay import store
from tests.relay.running import RunningRelay, started

KEYS = ("relay.key", "operator.key")


class Pair:
    """Two relays, each of which may be down for a while."""

    def __init__(self, folder: Path, url: str, settings: str = "") -> None:
        self.url = url
        self.folder = folder
        self._options = ["--store", url]
        if settings:
            (folder / "pair.toml").write_text(settings)
            self._options += ["--config", str(folder / "pair.toml")]
        self.relays = [self._started(0)]
        self._share_keys()
        self.relays.append(self._started(1))

    def __getitem__(self, number: int) -> RunningRelay:
        return self.relays[number]

    def kill(self, number: int) -> None:
        self.relays[number].stop(signal.SIGKILL)

    def start(self, number: int) -> None:
        self.relays[number] = self._started(number)

    def close(self) -> None:
        for relay in self.relays:
            if relay.process.poll() is None:
                relay.process.send_signal(signal.SIGCONT)
                relay.stop()

    def _started(self, number: int) -> RunningRelay:
        relay = started(self.folder / f"relay-{number}", *self._options)
        relay.people = self.relays[0].people if number and hasattr(self, "relays") else relay.people
        return relay

    def _share_keys(self) -> None:
        (self.folder / "relay-1").mkdir(mode=0o700)
        for name in KEYS:
            shutil.copy(self.folder / "relay-0" / name, self.folder / "relay-1" / name)


@contextmanager
def two_relays(folder: Path, server: Server, settings: str = "") -> Iterator[Pair]:
    """Two relays that run while the block does; afterwards their database keeps every rule."""
    url = store.database(server)
    pair = Pair(folder, url, settings)
    try:
        yield pair
    finally:
        pair.close()
    assert inspect(url) == ("relay", [])
