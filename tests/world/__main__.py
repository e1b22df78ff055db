"""Run worlds: `python -m tests.world --seed 7` replays one, `--seeds 20` runs the first twenty."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests import ledger

if TYPE_CHECKING:
    from tests.world.run import Result

SECONDS = 600.0


def main() -> int:
    arguments = _arguments()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what a seed decides
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        optimised = ["-O"] * sys.flags.optimize
        os.execve(sys.executable, [sys.executable, *optimised, "-m", "tests.world", *sys.argv[1:]], environment)
    seeds = (
        list(range(arguments.first, arguments.first + arguments.seeds)) if arguments.seed is None else [arguments.seed]
    )
    if not arguments.coverage:
        return _judge(seeds, arguments)
    from tests.world.covered import Covered

    covered = Covered()
    covered.start()  # before the programs are even loaded
    failed = _judge(seeds, arguments)
    covered.stop()
    folders = covered.folders()
    what = f"{len(seeds)} seeds of {arguments.seconds:g} simulated seconds each ran through:"
    ledger.note("covered", {"what": what, "folders": folders})
    print(what, folders)
    return failed


def _judge(seeds: list[int], arguments: argparse.Namespace) -> int:
    """Run worlds one after the other; says whether any of them broke a rule."""
    began = time.process_time()
    results: list[Result] = []
    for seed in seeds:
        result = _run(seed, arguments)
        results.append(result)
        print(result.line(), *(f"  ✗ {finding}" for finding in result.findings), sep="\n", flush=True)
        if result.findings:
            print(f"  replay: {result.command()}", flush=True)
    took_s = time.process_time() - began
    numbers, failed = _numbers(results), sum(bool(result.findings) for result in results)
    print(
        f"{len(results)} worlds, {failed} of them with a finding,",
        f"{numbers['simulated seconds'] / took_s:,.0f} simulated seconds a second of CPU;",
        ", ".join(f"{count:,} {what}" for what, count in numbers.items()),
    )
    if arguments.page:
        one = {"runs": len(results), "failed": failed, "seconds": round(took_s), "numbers": numbers}
        ledger.add("worlds", {f"{arguments.seconds:g}": one})
    return 1 if failed else 0


def _numbers(results: "list[Result]") -> dict[str, int]:
    """What many worlds were."""
    return {
        "simulated seconds": round(sum(result.simulated_s for result in results)),
        "faults": sum(result.faults for result in results),
        "sends": sum(result.sends for result in results),
        "edits of documents": sum(result.edits for result in results),
        "hook events": sum(result.hooks for result in results),
        "machines put back to a backup": sum(result.restores for result in results),
    }


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
    parser.add_argument("--seeds", type=int, default=1, help="run so many seeds")
    parser.add_argument("--first", type=int, default=0, help="from this one on")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="simulated seconds in which faults fall")
    parser.add_argument("--trace", help="write every step into this file")
    parser.add_argument("--page", action="store_true", help="write into docs/reliability.md what the worlds were")
    parser.add_argument("--coverage", action="store_true", help="write into docs/reliability.md which lines ran")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
