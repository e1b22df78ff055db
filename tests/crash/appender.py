"""A process to kill: threads append to one log and report each append, and each delivery, after it returned."""

import os
import sys
import threading

from holdfast import OperationLog

THREADS = 4


def object_id(thread: int) -> bytes:
    return bytes([thread]) * 32


def blob(writer: str, thread: int, number: int) -> bytes:
    return f"{writer} {thread} {number} ".encode() * 20


def _append(log: OperationLog, writer: str, thread: int) -> None:
    for number in range(1_000_000):
        sequence = log.append_next(object_id(thread), blob(writer, thread, number))
        os.write(1, f"appended {sequence} {writer} {thread} {number}\n".encode())
        if number % 3 == 0:
            log.mark_delivered(object_id(thread), sequence)
            os.write(1, f"delivered {sequence}\n".encode())


if __name__ == "__main__":
    path, writer = sys.argv[1:]
    with OperationLog(path) as log:
        workers = [threading.Thread(target=_append, args=(log, writer, thread)) for thread in range(THREADS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
