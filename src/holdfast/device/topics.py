"""Topics and their keys: who gets which key, when a key changes, and keeping the keys that others grant.

A topic's key is random, one per key epoch. Its keepers (its creator, and admins) seal it to each subscriber. When a holder
leaves, a keeper makes the next key, stages grants of it for all who stay, and then makes it current; the relay accepts that
last step only if the key epoch is still the one before, and no subscriber lacks a grant.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from holdfast.device import topic_keys
from holdfast.device.mesh import InvalidName, NotAllowed, NotThatOne, Session
from holdfast.device.publish import PutOff
from holdfast.protocol import sealing, topic_key
from holdfast.protocol.action import (
    GRANTS_MAX,
    AdvanceTopicKey,
    CreateTopic,
    Grant,
    GrantTopicKey,
    Role,
    Subscribe,
    Unsubscribe,
)
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import TOPIC
from holdfast.store.engine import Transaction
from holdfast.wire.client import GrantedKey, Topic

ROUNDS_MAX = 4  # how often a keeper starts over because somebody came, left or was faster meanwhile

# The mesh has changed since it was fetched: fetch it again and decide again.
_OVERTAKEN = frozenset({Refusal.EPOCH_SUPERSEDED, Refusal.GRANT_MISSING, Refusal.STALE_KEY, Refusal.SUBJECT_UNKNOWN})


class KeyState(StrEnum):
    """Whether this device is subscribed to a topic and has its key."""

    READY = "ready"  # subscribed, and the current key is here
    WAITING = "waiting for key"  # subscribed, and nobody has granted the current key yet
    NOT_SUBSCRIBED = "not subscribed"


class Need(StrEnum):
    """What a keeper has to do for a topic."""

    NOTHING = "nothing"
    GRANT = "grant"  # the current key, to subscribers who wait for it
    ROTATE = "rotate"  # a new key, for everybody who is still there


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """What a keeper did for a topic."""

    topic: str
    did: Need
    key_epoch: int
    members: tuple[str, ...]  # who got the key; not the keeper itself


def need(topic: Topic, me: str, *, has_key: bool) -> Need:
    """What a keeper has to do for a topic, given whether it has the current key."""
    someone_waits = not all(subscriber.has_key for subscriber in topic.subscribers)
    has_no_key_yet = topic.key_epoch == 0 and topic.created_by == me
    if topic.left or has_no_key_yet or (someone_waits and not has_key):
        return Need.ROTATE
    return Need.GRANT if someone_waits else Need.NOTHING


def check_name(topic: str) -> None:
    """Refuse a name that no topic can have."""
    try:
        TOPIC.check(topic, "a topic's name")
    except Refused as refused:
        raise InvalidName(refused.detail) from refused


def find(session: Session, topic: str) -> Topic:
    """The topic with this name."""
    for found in session.mesh.topics:
        if found.topic == topic:
            return found
    raise NotThatOne("topic", topic)


def key_state(session: Session, topic: Topic) -> KeyState:
    """How this device stands to a topic."""
    if not is_subscribed(session, topic):
        return KeyState.NOT_SUBSCRIBED
    return KeyState.WAITING if _key_in_force(session, topic) is None else KeyState.READY


def is_subscribed(session: Session, topic: Topic) -> bool:
    return any(subscriber.member == session.membership.member for subscriber in topic.subscribers)


def is_keeper(session: Session, topic: Topic) -> bool:
    """Whether this member may grant the topic's key."""
    return session.me.role == Role.ADMIN or topic.created_by == session.membership.member


def check_keeper(session: Session, topic: Topic) -> None:
    """Refuse a member who is not a keeper of a topic."""
    if not is_keeper(session, topic):
        raise NotAllowed(f"the keys of topic {topic.topic} are granted by its creator and by admins")


async def create(session: Session, topic: str) -> list[Deed]:
    """Make a topic and its first key; completes what an earlier command began."""
    check_name(topic)
    if not _was_begun(session, topic):
        await session.ask(CreateTopic(topic=topic))
    return await tend(session, topic)


async def subscribe(session: Session, topic: str) -> KeyState:
    """Subscribe to a topic; no post comes before its key is granted."""
    if not is_subscribed(session, find(session, topic)):
        await session.ask(Subscribe(topic=topic))
    await collect(session)
    return key_state(session, find(session, topic))


async def unsubscribe(session: Session, topic: str) -> None:
    """Unsubscribe from a topic."""
    if is_subscribed(session, find(session, topic)):
        await session.ask(Unsubscribe(topic=topic))


async def collect(session: Session) -> None:
    """Fetch and keep the keys that were granted to this device and are not here yet."""
    for topic in session.mesh.topics:
        granted = any(s.has_key and s.member == session.membership.member for s in topic.subscribers)
        if granted and _key_in_force(session, topic) is None:
            await _keep_grants(session, topic.topic)


async def tend(session: Session, only: str | None = None) -> list[Deed]:
    """Grant keys to those who wait, and rotate keys where somebody left, in one or all topics that this member keeps."""
    names = [topic.topic for topic in session.mesh.topics if only in (None, topic.topic)]
    return [deed for name in names for deed in await _tend(session, name)]


def wanting(session: Session) -> list[str]:
    """The topics for which this member has something left to do."""
    me = session.membership.member
    kept = [topic for topic in session.mesh.topics if is_keeper(session, topic)]
    return [topic.topic for topic in kept if need(topic, me, has_key=True) is not Need.NOTHING]


async def _tend(session: Session, name: str) -> list[Deed]:
    deeds: list[Deed] = []
    for _ in range(ROUNDS_MAX):
        topic = find(session, name)
        if not is_keeper(session, topic):
            return deeds
        try:
            deed = await _do_what_is_needed(session, topic)
        except (Refused, PutOff) as overtaken:
            if _cause(overtaken) not in _OVERTAKEN:
                raise
        else:
            if deed is None:
                return deeds
            deeds.append(deed)
        await session.refresh()
    return deeds


async def _do_what_is_needed(session: Session, topic: Topic) -> Deed | None:
    me = session.membership.member
    wanted = need(topic, me, has_key=True)
    if wanted is Need.GRANT and _key_in_force(session, topic) is None:
        await _keep_grants(session, topic.topic)  # another keeper may have made it
        wanted = need(topic, me, has_key=_key_in_force(session, topic) is not None)
    if wanted is Need.ROTATE:
        return await _rotate(session, topic)
    if wanted is Need.GRANT:
        return await _grant_current(session, topic)
    return None


async def _grant_current(session: Session, topic: Topic) -> Deed:
    key = _key_in_force(session, topic)
    assert key is not None  # noqa: S101 - the need says so
    waiting = [subscriber.member for subscriber in topic.subscribers if not subscriber.has_key]
    await _publish_grants(session, topic.topic, topic.key_epoch, key, waiting)
    return Deed(topic=topic.topic, did=Need.GRANT, key_epoch=topic.key_epoch, members=tuple(waiting))


async def _rotate(session: Session, topic: Topic) -> Deed:
    """Make the next key current; it is on disk before it is granted to anybody.

    Every try makes a new key, because that of an earlier try may have been granted to somebody who has left since.
    """
    device, me, epoch = session.device, session.membership.member, topic.key_epoch + 1
    key = device.random(sealing.CONVERSATION_KEY_BYTES)
    others = [subscriber.member for subscriber in topic.subscribers if subscriber.member != me]
    device.do(lambda tx: topic_keys.keep_made(tx, device.clock(), topic.topic, epoch, key))
    await _publish_grants(session, topic.topic, epoch, key, [me, *others])
    named = topic_key.key_id(session.membership.mesh, topic.topic, epoch, key)
    advance = AdvanceTopicKey(topic=topic.topic, key_epoch=topic.key_epoch, key_id=named)
    await session.publisher.publish(session.membership.mesh, advance)
    await _keep_grants(session, topic.topic)
    return Deed(topic=topic.topic, did=Need.ROTATE, key_epoch=epoch, members=tuple(others))


async def _publish_grants(session: Session, topic: str, epoch: int, key: bytes, members: Sequence[str]) -> None:
    grants = [_seal(session, member, key) for member in members]
    named = topic_key.key_id(session.membership.mesh, topic, epoch, key)
    for start in range(0, len(grants), GRANTS_MAX):
        part = tuple(grants[start : start + GRANTS_MAX])
        action = GrantTopicKey(topic=topic, key_epoch=epoch, key_id=named, grants=part)
        await session.publisher.publish(session.membership.mesh, action)


def _seal(session: Session, member: str, key: bytes) -> Grant:
    pubkey = session.member(member).pubkey
    if pubkey is None:
        raise Refused(Refusal.SUBJECT_UNKNOWN, f"member {member} has no key")
    conversation = sealing.conversation_key(session.device.secret, pubkey)
    sealed = sealing.seal(conversation, key, session.device.random(sealing.NONCE_BYTES))
    return Grant(member=member, key=pubkey, sealed=sealed)


async def _keep_grants(session: Session, topic: str) -> None:
    """Open and keep the keys that were granted to this device, of all key epochs."""
    found = await session.client.grants(session.membership.mesh, topic)
    opened = [(grant.key_epoch, _opened(session, topic, grant)) for grant in found.grants]

    def keep(transaction: Transaction) -> None:
        for epoch, key in opened:
            if key is not None:
                topic_keys.keep_granted(transaction, session.device.clock(), topic, epoch, key)

    session.device.do(keep)


def _opened(session: Session, topic: str, grant: GrantedKey) -> bytes | None:
    """The key in a grant; None if the grant was sealed to another key, or its key is not the one it names."""
    secret = session.device.secret_of(grant.key)
    if secret is None:
        return None
    try:
        conversation = sealing.conversation_key(secret, grant.granted_by)
        mesh = session.membership.mesh
        return topic_key.open_grant(conversation, grant.sealed, mesh, topic, grant.key_epoch, grant.key_id)
    except Refused:
        return None


def _key_in_force(session: Session, topic: Topic) -> bytes | None:
    mesh, name, epoch = session.membership.mesh, topic.topic, topic.key_epoch
    return session.device.look(lambda tx: topic_keys.in_force(tx, mesh, name, epoch, topic.key_id))


def _was_begun(session: Session, topic: str) -> bool:
    """Whether an earlier command of this member made the topic, and died before it was complete."""
    for found in session.mesh.topics:
        if found.topic == topic and found.created_by == session.membership.member:
            is_new = any(getattr(settled.action, "topic", None) == topic for settled in session.publisher.healed)
            return found.key_epoch == 0 or is_new
    return False


def _cause(error: Refused | PutOff) -> object:
    return error.refusal if isinstance(error, Refused) else error.says
