"""Finds out by which key the relay knows this home's member, when a key rotation got no answer.

The log decides where it can: if the rotation was accepted, it is the next key; if it was refused, it is not. Where the log
cannot tell, because the send grew too old or the log went back in time, the next key is tried at the relay. No key is
deleted before the relay has answered.
"""

import structlog

from holdfast.device import member_keys, sending
from holdfast.device.device import Device
from holdfast.device.member_keys import Next
from holdfast.device.publish import Publisher
from holdfast.protocol import administration, event, keys
from holdfast.protocol.action import RotateMemberKey
from holdfast.protocol.outbox import Status
from holdfast.protocol.reaction import FaultKind
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused
from holdfast.wire.client import RelayClient, Unreachable

_log = structlog.get_logger(__name__)


def is_unsettled(device: Device) -> bool:
    """Whether a rotation was begun and its outcome is not known here."""
    return member_keys.asked_for(device.home) is not None


async def settle(device: Device, client: RelayClient, publisher: Publisher, mesh: str) -> None:
    """Find out which key the relay knows, and use it. Raises PutOff or Unreachable if the relay cannot be asked now."""
    if not is_unsettled(device):
        return
    await publisher.heal(mesh)
    follow_log(device)
    asked = member_keys.asked_for(device.home)
    if asked is not None and await _is_known(client, device, keys.read_nsec(asked.secret), mesh):
        _use(device, asked)
    elif asked is not None and not _is_waiting(device, asked):
        aside = member_keys.put_aside(device.home, device.clock())
        _log.error("key_rotation_came_to_nothing", pubkey=device.pubkey, aside=str(aside))
    client.use(device.secret)


async def introduce_again(device: Device, client: RelayClient) -> bool:
    """Offer this member's past rotations to a relay that was restored to before them; returns whether it accepted one.

    They are signed with the earlier keys, which the relay knows, though it does not know the present one. Raises Unreachable
    if the relay has not decided about each: until then it is not certain that it does not know this member.
    """
    taken = False
    for raw in device.look(sending.administration_done):
        if isinstance(administration.from_event(event.decode(raw)).action, RotateMemberKey):
            said = await client.publish(raw)
            if said.yes is None and not (isinstance(said.says, Refusal) and REFUSALS[said.says].is_permanent):
                raise Unreachable(
                    client.url, FaultKind.CONNECTION_LOST, f"it has not decided about our key ({said.detail})"
                )
            taken |= said.yes is not None and not said.yes.duplicate  # one that it had already did not help
    if taken:
        _log.warning("key_introduced_again", pubkey=device.pubkey)
    return taken


def follow_log(device: Device) -> None:
    """Use or delete the next key, if the log knows the outcome of its rotation."""
    asked = member_keys.asked_for(device.home)
    if asked is None:
        return
    found = device.look(lambda tx: sending.called(tx, asked.client_message_id))
    if found is not None and found.status is Status.DONE:
        _use(device, asked)
    elif found is not None and found.status is Status.DEAD and not _grew_old(found.last_error):
        member_keys.abandon(device.home)
        _log.error("key_rotation_refused", pubkey=device.pubkey, detail=found.last_error)


def _use(device: Device, asked: Next) -> None:
    was = device.pubkey
    device.take_key(member_keys.finish(device.home, device.clock(), device.secret, asked))
    _log.warning("key_rotated", pubkey=device.pubkey, was=was)


def _is_waiting(device: Device, asked: Next) -> bool:
    found = device.look(lambda tx: sending.called(tx, asked.client_message_id))
    return found is not None and found.status in (Status.PENDING, Status.INFLIGHT)


def _grew_old(last_error: str | None) -> bool:
    """Whether a row was given up for its age, without an answer: the relay may have accepted it all the same."""
    return last_error is None or last_error.partition(":")[0] == Refusal.MAX_AGE_PASSED


async def _is_known(client: RelayClient, device: Device, secret: bytes, mesh: str) -> bool:
    """Whether the relay shows the mesh to this key, as it does only to members."""
    client.use(secret)
    try:
        await client.mesh(mesh)
    except Refused as refused:
        if not REFUSALS[refused.refusal].is_permanent:
            raise  # a temporary refusal says nothing about the key
        return False
    finally:
        client.use(device.secret)
    return True
