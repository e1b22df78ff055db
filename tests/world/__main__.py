"""Run worlds: `python -m tests.world --seed 7` replays one, `--seeds 20` runs the first twenty."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.world.run import Result

SECONDS = 600.0


def main() -> int:
    arguments = _arguments()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what a seed decides
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        optimised = ["-O"] * sys.flags.optimize
        os.execve(sys.executable, [sys.executable, *optimised, "-m", "tests.world", *sys.argv[1:]], environment)
    seeds = list(range(arguments.seeds)) if arguments.seed is None else [arguments.seed]
    if not arguments.coverage:
        return _judge(seeds, arguments)
    from tests.world.covered import Covered

    covered = Covered()
    covered.start()  # before the programs are even loaded
    failed = _judge(seeds, arguments)
    covered.stop()
    covered.write(f"{len(seeds)} seeds of {arguments.seconds:g} simulated seconds each ran through:")
    print("\n".join(covered.lines()))
    return failed


def _judge(seeds: list[int], arguments: argparse.Namespace) -> int:
    """Run worlds one after the other; says whether any of them broke a rule."""
    began, simulated, failed = time.process_time(), 0.0, 0
    for seed in seeds:
        result = _run(seed, arguments)
        simulated += result.simulated_s
        failed += bool(result.findings)
        print(result.line(), *(f"  ✗ {finding}" for finding in result.findings), sep="\n", flush=True)
        if result.findings:
            print(f"  replay: {result.command()}", flush=True)
    took = time.process_time() - began
    print(
        f"{len(seeds)} seeds, {failed} failed; {simulated:.0f} simulated seconds in {took:.1f} s of CPU: {simulated / took:.0f} a second"
    )
    return 1 if failed else 0


def _run(seed: int, arguments: argparse.Namespace) -> "Result":
    from tests.world.run import run_seed  # not before the hashes are fixed

    with (
        tempfile.TemporaryDirectory(prefix="holdfast-world-") as place,
        open(arguments.trace or os.devnull, "w", encoding="ascii") as shown,
    ):
        return run_seed(seed, Path(place), arguments.seconds, shown if arguments.trace else None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--seeds", type=int, default=1, help="run seeds from 0 on")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="simulated seconds in which faults fall")
    parser.add_argument("--trace", help="write every step into this file")
    parser.add_argument("--coverage", action="store_true", help="write into docs/reliability.md which lines ran")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
