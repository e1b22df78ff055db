"""Actions: what an administration event can ask for, each a struct, written as canonical JSON.

An action says only what is asked. Who asks is the signer of the event, in which mesh is its head's matter, and whether it
may be done is for the relay to decide. Every action has one spelling: its own fields and no others, in canonical form.
"""

from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec
import rfc8785
from msgspec import Meta

from holdfast.protocol.event import DETAIL_CHARACTERS_MAX
from holdfast.protocol.keys import is_public_key
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import IDENTIFIER, INTEGER_MAX, TOPIC, check_distinct, shown

NAME_CHARACTERS_MAX = 64  # of a name for people
GRANTS_MAX = 64  # keys granted in one event; more members take more events

Identifier = Annotated[str, Meta(pattern=IDENTIFIER.pattern)]
TopicName = Annotated[str, Meta(pattern=TOPIC.pattern)]
# A name for people: any text on one line that does not start or end with a space.
Name = Annotated[str, Meta(pattern=rf"\A(?!\s)[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{1,{NAME_CHARACTERS_MAX}}}(?<!\s)\Z")]
Key = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Secret = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Signature = Annotated[str, Meta(pattern=r"\A[0-9a-f]{128}\Z")]
LogId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
# The base64 of NIP-44 around a topic's key: 99 bytes, the first of them the version, 2.
SealedKey = Annotated[str, Meta(pattern=r"\AA[g-v][A-Za-z0-9+/]{130}\Z")]
Microseconds = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
Position = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
KeyEpoch = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]


class Role(StrEnum):
    """What a member may do: an admin also invites, revokes, changes roles and grants topic keys."""

    ADMIN = "admin"
    MEMBER = "member"


class _Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="action"):
    """One thing to do; the field `action` names it."""


class CreateMesh(_Action, frozen=True, kw_only=True, tag="create_mesh"):
    """The mesh of the head comes to be, with one member, who is an admin."""

    name: Name
    member: Identifier
    member_name: Name
    key: Key

    def __post_init__(self) -> None:
        _check_key(self.key)


class Invite(_Action, frozen=True, kw_only=True, tag="invite"):
    """Whoever shows the secret with this sha256 before it expires may join, once."""

    secret_hash: Digest
    expires_at: Microseconds
    role: Role


class WithdrawInvite(_Action, frozen=True, kw_only=True, tag="withdraw_invite"):
    """The invitation is void."""

    secret_hash: Digest


class Join(_Action, frozen=True, kw_only=True, tag="join"):
    """The signer's key becomes that of a new member."""

    secret: Secret
    member: Identifier
    name: Name


class AddMember(_Action, frozen=True, kw_only=True, tag="add_member"):
    """A member joins without invitation."""

    member: Identifier
    name: Name
    key: Key
    role: Role

    def __post_init__(self) -> None:
        _check_key(self.key)


class RenameMember(_Action, frozen=True, kw_only=True, tag="rename_member"):
    """People see another name; the id stays."""

    member: Identifier
    name: Name


class RevokeMember(_Action, frozen=True, kw_only=True, tag="revoke_member"):
    """The member is out: of itself when it signs this, else by an admin."""

    member: Identifier


class SetRole(_Action, frozen=True, kw_only=True, tag="set_role"):
    """The member has this role from now on."""

    member: Identifier
    role: Role


class RotateMemberKey(_Action, frozen=True, kw_only=True, tag="rotate_member_key"):
    """The member has another key: signed with the old one, or by an admin when that is lost; the new key agrees."""

    member: Identifier
    key: Key
    countersignature: Signature


class CreateTopic(_Action, frozen=True, kw_only=True, tag="create_topic"):
    """A topic comes to be, without a key: its key epoch is 0 until epoch 1 is made current."""

    topic: TopicName


class Subscribe(_Action, frozen=True, kw_only=True, tag="subscribe"):
    """The signer wants what is posted to the topic."""

    topic: TopicName


class Unsubscribe(_Action, frozen=True, kw_only=True, tag="unsubscribe"):
    """The signer wants it no longer."""

    topic: TopicName


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic's key, sealed by the signer to one member's key."""

    member: Identifier
    key: Key
    sealed: SealedKey


class GrantTopicKey(_Action, frozen=True, kw_only=True, tag="grant_topic_key"):
    """Members get the key of an epoch: of the current one, or of the next, which stays staged until it is current."""

    topic: TopicName
    key_epoch: KeyEpoch
    grants: Annotated[tuple[Grant, ...], Meta(min_length=1, max_length=GRANTS_MAX)]

    def __post_init__(self) -> None:
        check_distinct((grant.member for grant in self.grants), "grants: member")


class AdvanceTopicKey(_Action, frozen=True, kw_only=True, tag="advance_topic_key"):
    """The key epoch after this one becomes current, if this one still is: compare and set."""

    topic: TopicName
    key_epoch: Position


class Block(_Action, frozen=True, kw_only=True, tag="block"):
    """The signer wants nothing more from this member."""

    member: Identifier


class Unblock(_Action, frozen=True, kw_only=True, tag="unblock"):
    """The signer hears this member again."""

    member: Identifier


class AdmitAuthor(_Action, frozen=True, kw_only=True, tag="admit_author"):
    """Snapshots of this author are taken and served, on the word of a member; the author's key agrees."""

    member: Identifier
    author: Key
    countersignature: Signature


class DismissAuthor(_Action, frozen=True, kw_only=True, tag="dismiss_author"):
    """Snapshots of this author are taken no longer."""

    author: Key


class RegisterConsumer(_Action, frozen=True, kw_only=True, tag="register_consumer"):
    """A reader of the relay's history holds back pruning from this position of this log on."""

    consumer: Identifier
    log_id: LogId
    seq: Position


class RemoveConsumer(_Action, frozen=True, kw_only=True, tag="remove_consumer"):
    """The reader holds back nothing any more."""

    consumer: Identifier


Action: TypeAlias = (
    CreateMesh
    | Invite
    | WithdrawInvite
    | Join
    | AddMember
    | RenameMember
    | RevokeMember
    | SetRole
    | RotateMemberKey
    | CreateTopic
    | Subscribe
    | Unsubscribe
    | GrantTopicKey
    | AdvanceTopicKey
    | Block
    | Unblock
    | AdmitAuthor
    | DismissAuthor
    | RegisterConsumer
    | RemoveConsumer
)

_decoder: msgspec.json.Decoder[Action] = msgspec.json.Decoder(Action)


def write_action(action: Action) -> str:
    """An action as the content of its event; one that could not be read back is refused."""
    content = _canonical(action)
    read_action(content)
    return content


def read_action(content: str) -> Action:
    """The action in a content: its fields and no others, each within its limits, in canonical JSON."""
    try:
        action = _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise Refused(Refusal.MALFORMED, _fault(error)) from None
    if _canonical(action) != content:
        raise Refused(Refusal.MALFORMED, f"action: {name(action)} is not in canonical form")
    return action


def name(action: Action) -> str:
    """The word that stands for the action on the wire."""
    return str(action.__struct_config__.tag)


def _check_key(key: str) -> None:
    """Refuse a key that nobody could seal to; where a key agrees by a signature, that has shown it already."""
    if not is_public_key(key):
        raise Refused(Refusal.MALFORMED, f"action: key {shown(key)} is not a point of the curve")


def _canonical(action: Action) -> str:
    try:
        return rfc8785.dumps(msgspec.to_builtins(action)).decode()
    except rfc8785.CanonicalizationError as error:
        raise Refused(Refusal.MALFORMED, _fault(error)) from None


def _fault(error: Exception) -> str:
    """What the reader found, in words that fit a log line: they may quote what a stranger sent."""
    printable = ascii(f"action: {error}")[1:-1].replace(r"\\", "\\")
    return printable[:DETAIL_CHARACTERS_MAX]
