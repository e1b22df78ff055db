"""Two processes, or more, on one file."""

import multiprocessing
from pathlib import Path

from holdfast import OperationLog
from holdfast.cli.check import inspect


def _append(arguments: tuple[str, int]) -> list[int]:
    path, process = arguments
    with OperationLog(path) as log:
        return [log.append_next(bytes([process]) * 32, b"x") for _ in range(50)]


def test_processes_never_get_the_same_sequence(path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        given = pool.map(_append, [(str(path), process) for process in range(3)], chunksize=1)
    assert sorted(sequence for taken in given for sequence in taken) == list(range(150))
    with OperationLog(path) as log:
        for process, taken in enumerate(given):
            assert [entry.sequence for entry in log.entries_from(bytes([process]) * 32, 0)] == taken
    assert inspect(path) == ("device", [])


def _epoch(path: str) -> bytes:
    with OperationLog(path) as log:
        return log.epoch


def test_processes_that_create_one_log_together_share_its_epoch(path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert len(set(pool.map(_epoch, [str(path)] * 8, chunksize=1))) == 1


def test_one_process_sees_what_another_wrote(path: Path) -> None:
    with OperationLog(path) as log:
        log.append_next(b"a" * 32, b"ours")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.map(_append, [(str(path), 1)])
        assert log.next_sequence() == 51
        assert len(log.outbox()) == 51
        assert log.append_next(b"a" * 32, b"") == 51
