"""Compares what a device and its relay know of each other, at every connection, before anything is signed or sealed.

If the relay has sends of the device's epoch that the log does not know, the log went back in time, and the device takes a new
epoch. If it is the relay that was restored, the sends that it lost are put back to be offered again.
"""

import structlog

from holdfast.device import outbox, sending
from holdfast.device.device import Device
from holdfast.device.forks import Fork
from holdfast.device.operations import Facts
from holdfast.wire.queue_frames import QueueStatus

_log = structlog.get_logger(__name__)


async def reconcile(device: Device, facts: Facts, status: QueueStatus) -> None:
    """Take a new epoch if this log went back in time, and put back sends that a restored relay has lost."""
    highest = device.look(lambda tx: sending.highest_claimed(tx, device.epoch))
    if status.highest_sequence is not None and status.highest_sequence > highest:
        _log.error("sender_reset", relay_has=status.highest_sequence, log_has=highest, epoch=device.epoch.hex())
        await device.take_new_epoch()
    forks = forks_in(status)
    if forks:
        forks = device.look(lambda tx: outbox.with_abandoned(tx, bytes.fromhex(status.log_id), forks))
    while forks:
        undone = await device.do_soon(lambda tx: outbox.roll_back(tx, facts, device.clock(), forks))
        if undone.lost:
            _log.error("the relay lost sends whose bytes are gone", sequences=undone.lost)
        if not undone.offered:
            break
        _log.warning("the relay was restored", offered_again=undone.offered)


def forks_in(status: QueueStatus) -> list[Fork]:
    """The restorations of the relay, the oldest first."""
    return [Fork(bytes.fromhex(fork.log_id), fork.seq) for fork in status.forks]
