"""Gives a member a new key, while its id, its queue and its subscriptions stay.

The relay accepts the new key in an event that the old key signs and the new one countersigns. Messages that others seal to the
old key after that are refused as stale, and sealed anew. Those that the relay had accepted before open with the old key,
which is kept for as long as they may wait.
"""

import msgspec

from holdfast.device import member_keys, own_key, topics
from holdfast.device.mesh import Session
from holdfast.protocol import administration, keys
from holdfast.protocol.refusal import Refused


class Rotated(msgspec.Struct, frozen=True, kw_only=True):
    """The member's new key, the one before, and until when that is kept (microseconds)."""

    member: str
    pubkey: str
    was: str
    kept_until: int


async def rotate(session: Session) -> Rotated:
    """Have the relay accept a new key for this member, and use it. Raises PutOff if the relay has not decided yet."""
    device, mesh, member = session.device, session.membership.mesh, session.membership.member
    await topics.collect(session)
    ttl_days = (await session.client.information()).features.queue.ttl_days
    was, name = device.pubkey, device.mint()
    secret = member_keys.begin(device.home, device.clock(), device.random, name, ttl_days)
    action = administration.rotate_member_key(secret, mesh, member, device.random(keys.AUX_BYTES))
    try:
        await session.publisher.publish(mesh, action, client_message_id=name)
    except Refused:
        own_key.follow_log(device)  # it has the relay's refusal
        raise
    own_key.follow_log(device)
    session.client.use(device.secret)
    await session.refresh()
    kept = {one.pubkey: one.expires_at for one in member_keys.archived(device.home, device.clock())}
    return Rotated(member=member, pubkey=device.pubkey, was=was, kept_until=kept[was])
