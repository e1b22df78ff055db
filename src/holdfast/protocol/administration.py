"""Administration: signed events of kind 4204 that change a mesh, its members, topics and keys.

The content is one action in canonical JSON; the tags are the head that every send of a device has, and a counter. The
counter of a mesh and signer only ever grows, so an old event cannot be replayed. Two actions are also signed by the key
that they name: `rotate_member_key` by the new key, `admit_author` by the author's. `create_mesh` may be signed by an
operator of the relay, who vouches for the founder. For the keys in `create_mesh` and `add_member` there is only the
signer's word; a grant names the key of somebody who is a member already.
"""

import hashlib
from typing import TypeAlias

import msgspec

from holdfast.protocol import action as actions
from holdfast.protocol.action import (
    Action,
    AdmitAuthor,
    CreateMesh,
    Join,
    RegisterConsumer,
    RemoveConsumer,
    RotateMemberKey,
)
from holdfast.protocol.envelope import HEAD_TAGS, Head, check_kind, head_from_tags, head_to_tags
from holdfast.protocol.event import Event, sign_event
from holdfast.protocol.keys import public_key, sign, verify
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import TagRule, Tags, check_range, check_type, read_integer, read_tags
from holdfast.protocol.ulid import MICROSECONDS_PER_MILLISECOND

ADMINISTRATION_KIND = 4204
RELAY = "relay"  # named as the mesh by actions that concern the whole relay; no real mesh may have this name

ADMINISTRATION_TAGS = (*HEAD_TAGS, TagRule("counter"))

_AGREEMENT = b"holdfast agreement 1\x00"  # so that such a signature never passes for one under an event

Countersigned: TypeAlias = RotateMemberKey | AdmitAuthor


class Administration(msgspec.Struct, frozen=True, kw_only=True):
    """One action in one mesh, with the signer's counter."""

    head: Head
    counter: int
    action: Action

    def __post_init__(self) -> None:
        check_type(self.head, Head, "head")
        check_type(self.action, actions.Asked, "action")
        check_range(self.counter, "counter", 1)
        of_the_relay = isinstance(self.action, RegisterConsumer | RemoveConsumer)
        if of_the_relay and self.head.mesh != RELAY:
            raise Refused(Refusal.MALFORMED, f"{actions.name(self.action)} belongs to the mesh '{RELAY}'")
        if not of_the_relay and self.head.mesh == RELAY:
            raise Refused(Refusal.MALFORMED, f"{actions.name(self.action)} may not name the mesh '{RELAY}'")


def to_tags(administration: Administration) -> Tags:
    """The tags of an administration event."""
    return (*head_to_tags(administration.head), ("counter", str(administration.counter)))


def from_event(event: Event) -> Administration:
    """The action in an event; its id and signature are checked elsewhere."""
    check_kind(event, ADMINISTRATION_KIND)
    found = read_tags(event.tags, ADMINISTRATION_TAGS)
    return Administration(
        head=head_from_tags(found),
        counter=read_integer(found["counter"][0][0], "counter"),
        action=actions.read_action(event.content),
    )


def sign_administration(secret: bytes, created_at: int, administration: Administration, aux: bytes) -> Event:
    """The event that asks the relay for the action."""
    content = actions.write_action(administration.action)
    return sign_event(secret, created_at, ADMINISTRATION_KIND, to_tags(administration), content, aux)


def next_counter(last: int | None, at: int) -> int:
    """The counter of the next event: the time in milliseconds (`at` is in microseconds), but always past the last one used."""
    return max((last or 0) + 1, at // MICROSECONDS_PER_MILLISECOND)


def accept_counter(last: int | None, given: int) -> None:
    """Refuse a counter that is not above the last one of this mesh and signer."""
    if last is not None and given <= last:
        raise Refused(Refusal.COUNTER_NOT_INCREASING, f"counter {given} does not follow {last}")


def join(invite_secret: bytes, mesh: str, member: str, name: str, key: str, aux: bytes) -> Join:
    """The join action of an invitation's holder for this key; the relay never sees the invitation's secret."""
    digest = _agreement(Join, mesh, member, key)
    agreement = sign(invite_secret, digest, aux).hex()
    return Join(invite=public_key(invite_secret), agreement=agreement, member=member, name=name)


def check_agreement(mesh: str, action: Join, signer: str) -> None:
    """Refuse a join that the invitation's key did not sign for this member and the signer's key."""
    digest = _agreement(Join, mesh, action.member, signer)
    if not verify(action.invite, digest, bytes.fromhex(action.agreement)):
        raise Refused(Refusal.INVITE_INVALID, "the invitation was not signed for this member and key")


def vouched(secret: bytes, mesh: str, action: CreateMesh, aux: bytes) -> CreateMesh:
    """The `create_mesh` action with the countersignature of an operator, valid for this mesh, member and key only."""
    countersignature = sign(secret, _agreement(CreateMesh, mesh, action.member, action.key), aux).hex()
    return msgspec.structs.replace(action, operator=public_key(secret), countersignature=countersignature)


def check_vouched(mesh: str, action: CreateMesh) -> None:
    """Refuse a `create_mesh` whose named operator did not sign it. Whether that key is an operator's, the relay checks."""
    if action.operator is None or action.countersignature is None:
        return
    digest = _agreement(CreateMesh, mesh, action.member, action.key)
    if not verify(action.operator, digest, bytes.fromhex(action.countersignature)):
        detail = f"{actions.name(action)}: the key {action.operator} did not vouch for this mesh, member and key"
        raise Refused(Refusal.COUNTERSIGNATURE_MISSING, detail)


def rotate_member_key(secret: bytes, mesh: str, member: str, aux: bytes) -> RotateMemberKey:
    """The action that gives a member this new key, with the key's agreement."""
    digest = _agreement(RotateMemberKey, mesh, member, public_key(secret))
    return RotateMemberKey(member=member, key=public_key(secret), countersignature=sign(secret, digest, aux).hex())


def admit_author(secret: bytes, mesh: str, member: str, aux: bytes) -> AdmitAuthor:
    """The action by which a member vouches for this author key, with the key's agreement."""
    digest = _agreement(AdmitAuthor, mesh, member, public_key(secret))
    return AdmitAuthor(member=member, author=public_key(secret), countersignature=sign(secret, digest, aux).hex())


def check_countersignature(mesh: str, action: Countersigned) -> None:
    """Refuse an action that the key it names did not countersign for this mesh and member."""
    key = action.key if isinstance(action, RotateMemberKey) else action.author
    digest = _agreement(type(action), mesh, action.member, key)
    if not verify(key, digest, bytes.fromhex(action.countersignature)):
        raise Refused(Refusal.COUNTERSIGNATURE_MISSING, f"{actions.name(action)}: the key {key} did not agree")


def _agreement(action: type[Countersigned | CreateMesh | Join], mesh: str, member: str, key: str) -> bytes:
    """The digest that a key countersigns; each field has its length before it, so that no two agreements share a digest."""
    fields = (field.encode() for field in (str(action.__struct_config__.tag), mesh, member, key))
    prefixed = (len(field).to_bytes(4, "big") + field for field in fields)
    return hashlib.sha256(_AGREEMENT + b"".join(prefixed)).digest()
