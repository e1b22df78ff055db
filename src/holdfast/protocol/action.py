"""Actions: the changes that an administration event can ask for, each a struct, written as canonical JSON.

An action says only what is to change. Who asks is the event's signer, the mesh is in the event's head, and the relay
decides whether it may be done. Every action has one spelling: its own fields and no others, in canonical form.
"""

from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec
import rfc8785
from msgspec import Meta

from holdfast.protocol.event import DETAIL_CHARACTERS_MAX
from holdfast.protocol.history import LOG_ID_BYTES
from holdfast.protocol.keys import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, is_public_key
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import IDENTIFIER, INTEGER_MAX, TOPIC, check_distinct, shown
from holdfast.protocol.topic_key import KEY_ID_BYTES

NAME_CHARACTERS_MAX = 64  # of a display name
GRANTS_MAX = 64  # keys granted in one event; more members take more events

Identifier = Annotated[str, Meta(pattern=IDENTIFIER.pattern)]
TopicName = Annotated[str, Meta(pattern=TOPIC.pattern)]
# A display name: one line of text that does not start or end with a space and that looks like what it is. It may hold no
# character that is invisible or turns the direction of writing, except a joiner between two visible characters. Variation
# selectors are allowed, but a name needs at least one character that is visible by itself.
_LINES = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
# Unicode's category Cf without the two joiners. Listed here, because every version of Python must refuse the same names.
_FORMATS = (
    r"\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e007f"
)
# Unicode calls these letters, marks or symbols, but they show nothing.
_BLANKS = r"\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
_JOINERS = r"\u200c\u200d"
_VARIANTS = r"\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_UNSEEN = _LINES + _FORMATS + _BLANKS + _JOINERS
_JOINED = rf"(?<=[^\s{_JOINERS}])[{_JOINERS}](?=[^\s{_JOINERS}])"
NAME_PATTERN = (
    rf"\A(?!\s)(?=.*[^\s{_JOINERS}{_VARIANTS}])(?:[^{_UNSEEN}]|{_JOINED}){{1,{NAME_CHARACTERS_MAX}}}(?<!\s)\Z"
)
_NAME_RULE = f"of 1 to {NAME_CHARACTERS_MAX} visible characters on one line, without spaces around them"


def _hex(size_bytes: int) -> str:
    return rf"\A[0-9a-f]{{{2 * size_bytes}}}\Z"


Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Key = Annotated[str, Meta(pattern=_hex(PUBLIC_KEY_BYTES))]
KeyId = Annotated[str, Meta(pattern=_hex(KEY_ID_BYTES))]
Signature = Annotated[str, Meta(pattern=_hex(SIGNATURE_BYTES))]
LogId = Annotated[str, Meta(pattern=_hex(LOG_ID_BYTES))]
# The base64 of NIP-44 around a topic's key: 99 bytes, the first of them the version, 2.
SealedKey = Annotated[str, Meta(pattern=r"\AA[g-v][A-Za-z0-9+/]{130}\Z")]
Microseconds = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
Position = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
KeyEpoch = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]


class Role(StrEnum):
    """A member's role: an admin may also invite, revoke, change roles and grant topic keys."""

    ADMIN = "admin"
    MEMBER = "member"


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="action"):
    """Base of all actions; on the wire the field `action` names which one it is."""


class CreateMesh(Asked, frozen=True, kw_only=True, omit_defaults=True, tag="create_mesh"):
    """Create the mesh that the head names, with one member, an admin; an operator of the relay may vouch for it."""

    name: Name
    member: Identifier
    member_name: Name
    key: Key
    operator: Key | None = None  # the operator who vouches
    countersignature: Signature | None = None  # the operator's, for this mesh, member and key

    def __post_init__(self) -> None:
        _check_key(self.key)
        if (self.operator is None) != (self.countersignature is None):
            raise Refused(Refusal.MALFORMED, "action: operator and countersignature stand together, or neither does")


class Invite(Asked, frozen=True, kw_only=True, tag="invite"):
    """Let one new member join: whoever first signs with this key's secret before the invitation expires."""

    key: Key
    expires_at: Microseconds
    role: Role


class WithdrawInvite(Asked, frozen=True, kw_only=True, tag="withdraw_invite"):
    """Withdraw an invitation."""

    key: Key


class Join(Asked, frozen=True, kw_only=True, tag="join"):
    """Join the mesh as a new member, with the signer's key."""

    invite: Key  # the invitation's public key
    agreement: Signature  # by the invitation's key, for this member and the signer's key
    member: Identifier
    name: Name


class AddMember(Asked, frozen=True, kw_only=True, tag="add_member"):
    """Add a member without an invitation."""

    member: Identifier
    name: Name
    key: Key
    role: Role

    def __post_init__(self) -> None:
        _check_key(self.key)


class RenameMember(Asked, frozen=True, kw_only=True, tag="rename_member"):
    """Change a member's display name; its id stays."""

    member: Identifier
    name: Name


class RevokeMember(Asked, frozen=True, kw_only=True, tag="revoke_member"):
    """Remove a member: itself, when it signs this, or another, when an admin does."""

    member: Identifier


class SetRole(Asked, frozen=True, kw_only=True, tag="set_role"):
    """Change a member's role."""

    member: Identifier
    role: Role


class RotateMemberKey(Asked, frozen=True, kw_only=True, tag="rotate_member_key"):
    """Give a member a new key: signed by the old key, or by an admin if that is lost, and countersigned by the new one."""

    member: Identifier
    key: Key
    countersignature: Signature


class CreateTopic(Asked, frozen=True, kw_only=True, tag="create_topic"):
    """Create a topic. It has no key yet: its key epoch is 0 until epoch 1 is made current."""

    topic: TopicName


class Subscribe(Asked, frozen=True, kw_only=True, tag="subscribe"):
    """Subscribe the signer to a topic."""

    topic: TopicName


class Unsubscribe(Asked, frozen=True, kw_only=True, tag="unsubscribe"):
    """End the signer's subscription to a topic."""

    topic: TopicName


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic's key, sealed by the signer to one member's key."""

    member: Identifier
    key: Key
    sealed: SealedKey


class GrantTopicKey(Asked, frozen=True, kw_only=True, tag="grant_topic_key"):
    """Give members the key of the current epoch, or of the next one, which `advance_topic_key` then makes current."""

    topic: TopicName
    key_epoch: KeyEpoch
    key_id: KeyId
    grants: Annotated[tuple[Grant, ...], Meta(min_length=1, max_length=GRANTS_MAX)]

    def __post_init__(self) -> None:
        check_distinct((grant.member for grant in self.grants), "grants: member")


class AdvanceTopicKey(Asked, frozen=True, kw_only=True, tag="advance_topic_key"):
    """Make the epoch after `key_epoch` current, with this key; only if `key_epoch` still is (compare and set)."""

    topic: TopicName
    key_epoch: Position
    key_id: KeyId


class Block(Asked, frozen=True, kw_only=True, tag="block"):
    """Block a member: nothing more from it is delivered to the signer."""

    member: Identifier


class Unblock(Asked, frozen=True, kw_only=True, tag="unblock"):
    """End the signer's block of a member."""

    member: Identifier


class AdmitAuthor(Asked, frozen=True, kw_only=True, tag="admit_author"):
    """Let the relay keep and serve this author's snapshots, on the word of a member; the author's key countersigns."""

    member: Identifier
    author: Key
    countersignature: Signature


class DismissAuthor(Asked, frozen=True, kw_only=True, tag="dismiss_author"):
    """Stop the relay from taking this author's snapshots."""

    author: Key


class RegisterConsumer(Asked, frozen=True, kw_only=True, tag="register_consumer"):
    """Register a reader of the relay's history: nothing of this log after position `seq` is pruned before it was read."""

    consumer: Identifier
    log_id: LogId
    seq: Position


class RemoveConsumer(Asked, frozen=True, kw_only=True, tag="remove_consumer"):
    """Remove a registered reader, so that it no longer holds back pruning."""

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
    """The content of an action's event; refused if it could not be read back."""
    content = _canonical(action)
    read_action(content)
    return content


def read_action(content: str) -> Action:
    """The action in an event's content; refused if it has other fields, breaks a limit or is not canonical JSON."""
    try:
        action = _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise Refused(Refusal.MALFORMED, _fault(error)) from None
    if _canonical(action) != content:
        raise Refused(Refusal.MALFORMED, f"action: {name(action)} is not in canonical form")
    return action


def name(action: Action) -> str:
    """The action's name on the wire."""
    return str(action.__struct_config__.tag)


def _check_key(key: str) -> None:
    """Refuse a key that nobody could seal to. Keys that countersign need no such check: their signature proves them."""
    if not is_public_key(key):
        raise Refused(Refusal.MALFORMED, f"action: key {shown(key)} is not a point of the curve")


def _canonical(action: Action) -> str:
    try:
        return rfc8785.dumps(msgspec.to_builtins(action)).decode()
    except rfc8785.CanonicalizationError as error:
        raise Refused(Refusal.MALFORMED, _fault(error)) from None


def _fault(error: Exception) -> str:
    """The decoder's error for a log line: printable and cut, because it may quote what a stranger sent."""
    # Nobody could read a pattern that long.
    said = str(error).replace(f"matching regex {NAME_PATTERN!r}", _NAME_RULE)
    printable = ascii(f"action: {said}")[1:-1].replace(r"\\", "\\")
    return printable[:DETAIL_CHARACTERS_MAX]
