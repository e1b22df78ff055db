"""Run worlds: `python -m tests.world --seed 7` replays one, `--seeds 20` runs the first twenty."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

SECONDS = 600.0


def main() -> int:
    arguments = _arguments()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what a seed decides
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        optimised = ["-O"] * sys.flags.optimize
        os.execve(sys.executable, [sys.executable, *optimised, "-m", "tests.world", *sys.argv[1:]], environment)
    from tests.world.run import run_seed

    seeds = range(arguments.seeds) if arguments.seed is None else [arguments.seed]
    failed = 0
    began = time.process_time()
    simulated = 0.0
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="holdfast-world-") as place:
            shown = open(arguments.trace, "w") if arguments.trace else None
            result = run_seed(seed, Path(place), arguments.seconds, shown)
        simulated += result.simulated_s
        print(result.line(), flush=True)
        if result.findings:
            failed += 1
            for finding in result.findings:
                print(f"  ✗ {finding}")
            print(f"  replay: {result.command()}", flush=True)
    took = time.process_time() - began
    print(
        f"{len(seeds)} seeds, {failed} failed; {simulated:.0f} simulated seconds in {took:.1f} s of CPU: {simulated / took:.0f} a second"
    )
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--seeds", type=int, default=1, help="run seeds from 0 on")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="simulated seconds in which faults fall")
    parser.add_argument("--trace", help="write every step into this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
