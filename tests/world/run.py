"""One seed from its beginning to its judgement."""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tests.world import oracle
from tests.world.world import Unsettled, World, quiet


@dataclass
class Result:
    """What became of a world."""

    seed: int
    seconds: float
    relays: int
    simulated_s: float
    took_s: float
    faults: int
    sends: int
    edits: int
    hooks: int
    restores: int
    steps: int
    trace: str
    files: str
    findings: list[str]

    def line(self) -> str:
        verdict = "ok" if not self.findings else f"{len(self.findings)} findings"
        return (
            f"seed {self.seed}: {verdict}; {self.relays} relays, {self.simulated_s:.0f} s in {self.took_s:.1f} s, {self.faults} faults, "
            f"{self.sends} sends, {self.edits} edits, {self.hooks} hook events, {self.restores} restores, trace {self.trace[:12]}, files {self.files[:12]}"
        )

    def command(self) -> str:
        return f"python -m tests.world --seed {self.seed} --seconds {self.seconds:g}"


def run_seed(seed: int, place: Path, seconds: float, shown: TextIO | None = None) -> Result:
    """Run a world and judge it."""
    quiet()
    began = time.process_time()
    world = World(seed, place, seconds, shown)
    findings: list[str] = []
    try:
        world.run()
    except Unsettled as error:
        findings.append(f"settles: {error}")
        for machine in world.machines:
            machine.disk.cut()
    findings += oracle.judge(world)
    return Result(
        seed=seed,
        seconds=seconds,
        relays=len(world.relays),
        simulated_s=world.loop.time(),
        took_s=time.process_time() - began,
        faults=sum(world.journal.faults.values()),
        sends=len(world.journal.asked),
        edits=len(world.journal.edited),
        hooks=len(world.journal.hooked),
        restores=len(world.journal.restored),
        steps=world.trace.steps,
        trace=world.trace.hexdigest(),
        files=_digest(world),
        findings=findings,
    )


def _digest(world: World) -> str:
    """Of every byte on every disk."""
    digest = hashlib.sha256()
    for machine in world.machines:
        for name, file in sorted(machine.disk.files.items()):
            digest.update(f"{machine.name} {name} {len(file.durable)}\n".encode())
            digest.update(file.durable)
    return digest.hexdigest()
