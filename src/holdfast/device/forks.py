"""What remains of a relay's log after it was restored from a copy: everything up to the fork, in this log and its heirs."""

from collections.abc import Sequence

import msgspec


class Fork(msgspec.Struct, frozen=True):
    """One restoration: the entries of this log after this position are gone, and the next log goes on from there."""

    log_id: bytes
    seq: int


def kept_through(log_id: bytes, forks: Sequence[Fork]) -> int | None:
    """The last position of a log that its relay still has, given all restorations, the oldest first; None: no fork of it.

    A later restoration may have gone back further than the log's own.
    """
    names = [fork.log_id for fork in forks]
    if log_id not in names:
        return None
    return min(fork.seq for fork in forks[names.index(log_id) :])
