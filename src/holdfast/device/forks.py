"""What is left of a log after its owner was restored from a copy: the entries up to the fork."""

from collections.abc import Sequence

import msgspec


class Fork(msgspec.Struct, frozen=True):
    """One restoration: this log's entries after this position are gone, and a new log goes on from there."""

    log_id: bytes
    seq: int


def kept_through(log_id: bytes, forks: Sequence[Fork]) -> int | None:
    """The last position of a log that its owner still has, given all restorations, the oldest first; None if it never forked.

    A later restoration may have gone back further than the log's own.
    """
    names = [fork.log_id for fork in forks]
    if log_id not in names:
        return None
    return min(fork.seq for fork in forks[names.index(log_id) :])
