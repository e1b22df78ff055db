"""Run worlds: `python -m tests.world --seed 7` replays one, `--seeds 20` runs the first twenty, each in a process of its own."""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
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
    """Run worlds; says whether any of them broke a rule."""
    began_s = time.monotonic()
    results: list[Result] = []
    for result in _results(seeds, arguments):
        results.append(result)
        print(
            f"[{len(results)}/{len(seeds)}] {result.line()}",
            *(f"  ✗ {one}" for one in result.findings),
            sep="\n",
            flush=True,
        )
        if result.findings:
            print(f"  replay: {result.command()}", flush=True)
    real_s = time.monotonic() - began_s
    _sum_up(results, real_s)
    failed = sum(bool(result.findings) for result in results)
    if arguments.page:
        took_s = sum(result.took_s for result in results)
        one = {"runs": len(results), "failed": failed, "seconds": round(took_s), "numbers": _numbers(results)}
        ledger.add("worlds", {f"{arguments.seconds:g}": one})
    return 1 if failed else 0


def _results(seeds: Sequence[int], arguments: argparse.Namespace) -> "Iterator[Result]":
    """As they come to their end, several at once."""
    jobs = min(arguments.jobs, len(seeds))
    if jobs == 1 or arguments.coverage:
        yield from (_run(arguments.seconds, arguments.trace, seed) for seed in seeds)
        return
    import tests.world.run  # noqa: F401 - loaded once, for all of them

    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(partial(_run, arguments.seconds, None), seeds)


def _sum_up(results: "Sequence[Result]", real_s: float) -> None:
    numbers, took_s = _numbers(results), sum(result.took_s for result in results)
    failed = sorted(result.seed for result in results if result.findings)
    relays = Counter(result.relays for result in results)
    print(
        f"{len(results)} worlds, {len(failed)} of them with a finding,",
        f"{numbers['simulated seconds'] / took_s:,.0f} simulated seconds a second of CPU,",
        f"{numbers['simulated seconds'] / real_s:,.0f} a real one;",
        ", ".join(f"{count:,} {what}" for what, count in numbers.items()),
    )
    print("worlds by relays:", ", ".join(f"{count} with {number}" for number, count in sorted(relays.items())))
    if failed:
        print("seeds with a finding:", *failed)


def _numbers(results: "Sequence[Result]") -> dict[str, int]:
    """What many worlds were."""
    return {
        "relays": sum(result.relays for result in results),
        "simulated seconds": round(sum(result.simulated_s for result in results)),
        "faults": sum(result.faults for result in results),
        "sends": sum(result.sends for result in results),
        "edits of documents": sum(result.edits for result in results),
        "hook events": sum(result.hooks for result in results),
        "machines put back to a backup": sum(result.restores for result in results),
    }


def _run(seconds: float, trace: str | None, seed: int) -> "Result":
    from tests.world.run import run_seed  # not before the hashes are fixed

    with (
        tempfile.TemporaryDirectory(prefix="holdfast-world-") as place,
        open(trace or os.devnull, "w", encoding="ascii") as shown,
    ):
        return run_seed(seed, Path(place), seconds, shown if trace else None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--seeds", type=int, default=1, help="run so many seeds")
    parser.add_argument("--first", type=int, default=0, help="from this one on")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="simulated seconds in which faults fall")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worlds that run at once")
    parser.add_argument("--trace", help="write every step into this file; of one seed")
    parser.add_argument("--page", action="store_true", help="write into docs/reliability.md what the worlds were")
    parser.add_argument("--coverage", action="store_true", help="write into docs/reliability.md which lines ran")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
