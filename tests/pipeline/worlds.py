"""A relay and devices with some days of traffic behind them, running."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from holdfast.cli.generate import make
from holdfast.pipeline.pages import Place
from holdfast.pipeline.plan import Source, find_sources
from holdfast.store.world import wall_clock
from tests.pipeline import lakes
from tests.relay.running import ANSWER_S, RunningRelay, running

DAYS = 9
"""Long enough for messages to expire, short enough for few partitions: every file costs more than what is in it."""


@dataclass(frozen=True)
class World:
    """What the pipeline is pointed at, and where its histories stood when it began."""

    relay: RunningRelay
    place: Place
    devices: tuple[Place, ...]
    sources: tuple[Source, ...]


@contextmanager
def generated(
    folder: Path, messages: int, *, homes: int = 0, devices: int = 6, seed: int = 7, settings: str = ""
) -> Iterator[World]:
    """A world of this many messages, with a daemon for some of its members."""
    made = make(folder / "world", messages, Random(seed), devices, homes, wall_clock(), days=DAYS, as_json=True)
    with ExitStack() as stack:
        relay = stack.enter_context(running(Path(made["relay"]), settings))
        sockets = [stack.enter_context(_daemon(Path(home))) for home in made["homes"]]
        places = tuple(Place(f"unix:{socket}", None, lakes.PATIENCE_S) for socket in sockets)
        place = lakes.place_of(relay, folder)
        yield World(relay, place, places, tuple(find_sources(place, places)))


@contextmanager
def _daemon(home: Path) -> Iterator[str]:
    """A daemon that finds no relay and so changes nothing."""
    environment = {**os.environ, "HOLDFAST_HOME": str(home)}
    with (home.parent / f"{home.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", "daemon", "run"], stdout=subprocess.PIPE, stderr=log, env=environment
        )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["socket"]
    finally:
        process.terminate()
        process.wait(ANSWER_S)
        process.stdout.close()
