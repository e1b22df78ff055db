"""The directory of a mesh: its members with all their keys, and its topics with their key epochs.

It is what the relay said last, kept in the device's database, so that messages can be addressed, sealed and recognised while
the relay is away.
"""

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.protocol import keys
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import shown
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements
from holdfast.wire.client import Mesh

_SQL = Statements(__package__, "directory.sql")

RESOLVED_MAX = 1_024
"""How many names are remembered with whom they mean."""

TOPIC_MARK = "@"  # what a person writes before the name of a topic


class Known(msgspec.Struct, frozen=True):
    """A member as the relay showed it; one that was revoked has no key."""

    member: str
    name: str
    role: str
    status: str
    pubkey: str | None

    @property
    def is_active(self) -> bool:
        return self.status == "active"


class KnownKey(msgspec.Struct, frozen=True):
    """A key that is or was a member's; times are microseconds."""

    pubkey: str
    member: str
    since: int
    until: int | None


class KnownTopic(msgspec.Struct, frozen=True):
    """A topic; its key epoch is 0 until it has its first key. The key's id is None if the relay does not tell it."""

    topic: str
    key_epoch: int
    created_by: str
    key_id: str | None = None


class Directory:
    """A mesh as it was seen last. Immutable: a newer directory replaces it."""

    def __init__(
        self, members: Iterable[Known] = (), member_keys: Iterable[KnownKey] = (), topics: Iterable[KnownTopic] = ()
    ) -> None:
        self.members: Mapping[str, Known] = {found.member: found for found in members}
        self.keys: Mapping[str, KnownKey] = {found.pubkey: found for found in member_keys}
        self.topics: Mapping[str, KnownTopic] = {found.topic: found for found in topics}
        self._resolved: dict[str, tuple[str, str]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Directory) and self._content == other._content

    __hash__ = None  # type: ignore[assignment]  # it compares by content, which is large

    @property
    def _content(self) -> tuple[object, ...]:
        return self.members, self.keys, self.topics

    def resolve(self, to: str) -> tuple[str, str]:
        """The destination that a person means: `@topic`, or a member's name, id, npub or key in hex, past keys included."""
        found = self._resolved.get(to)  # cached: every send asks, and most go to the same few destinations
        if found is None:
            found = self._resolve(to)
            if len(self._resolved) < RESOLVED_MAX:
                self._resolved[to] = found
        return found

    def _resolve(self, to: str) -> tuple[str, str]:
        if to.startswith(TOPIC_MARK):
            return self._topic(to.removeprefix(TOPIC_MARK))
        named = {found.member: found for found in self._named(to)}
        active = [found for found in named.values() if found.is_active]
        if len(active) == 1:
            return DestinationKind.DM.value, active[0].member
        if active:
            raise _unknown(f"{len(active)} members are called {shown(to)}; name one by its member id or key")
        if named:
            raise _unknown(f"the member {shown(to)} was revoked")
        raise _unknown(f"no member is called {shown(to)}" if self.members else _NEVER_SEEN)

    def member_of(self, pubkey: str) -> str | None:
        """The member whose key this is or was."""
        found = self.keys.get(pubkey)
        return None if found is None else found.member

    def sealing_key_of(self, member: str) -> str | None:
        """The key to seal to: the member's current one, else its last, since only the relay may say that a member is gone."""
        known = self.members.get(member)
        if known is not None and known.pubkey is not None:
            return known.pubkey
        return next((found.pubkey for found in self.keys.values() if found.member == member), None)

    def name_of(self, member: str) -> str:
        """The name of a member."""
        known = self.members.get(member)
        return member if known is None else known.name

    def _topic(self, topic: str) -> tuple[str, str]:
        if topic not in self.topics:
            raise _unknown(f"there is no topic {shown(topic)}" if self.members else _NEVER_SEEN)
        return DestinationKind.TOPIC.value, topic

    def _named(self, who: str) -> Iterable[Known]:
        owner = self.member_of(_hex(who))
        for known in self.members.values():
            if who in (known.member, known.name) or known.member == owner:
                yield known


_NEVER_SEEN = "this home has not seen its mesh yet; let it meet its relay once"


def load(transaction: Transaction) -> Directory:
    """The directory in the database."""
    return Directory(
        (Known(*row) for row in transaction.rows(_SQL["members"])),
        (KnownKey(*row) for row in transaction.rows(_SQL["keys"])),
        (KnownTopic(*row) for row in transaction.rows(_SQL["topics"])),
    )


def replace(transaction: Transaction, mesh: Mesh) -> Directory:
    """Replace the directory in the database by the mesh as the relay shows it, if that differs; returns it."""
    seen = seen_in(mesh)
    if load(transaction) == seen:
        return seen
    for name in ("forget_members", "forget_keys", "forget_topics"):
        transaction.run(_SQL[name])
    for table, found in (
        ("directory_member", seen.members),
        ("directory_key", seen.keys),
        ("directory_topic", seen.topics),
    ):
        rows = [msgspec.structs.astuple(value) for value in found.values()]
        if rows:
            columns = next(iter(found.values())).__struct_fields__
            transaction.insert(table, columns, rows)
    return seen


def seen_in(mesh: Mesh) -> Directory:
    """The directory of a mesh as the relay shows it."""
    found = [
        KnownKey(key.pubkey, member.member, key.since, key.until) for member in mesh.members for key in member.keys
    ]
    named = {key.pubkey for key in found}
    # A relay that does not list keys still names each member's current one.
    found += [
        KnownKey(member.pubkey, member.member, 0, None)
        for member in mesh.members
        if member.pubkey is not None and member.pubkey not in named
    ]
    found.sort(key=lambda key: (-key.since, key.pubkey))
    return Directory(
        (Known(m.member, m.name, m.role, m.status, m.pubkey) for m in sorted(mesh.members, key=lambda m: m.member)),
        found,
        (KnownTopic(t.topic, t.key_epoch, t.created_by, t.key_id) for t in sorted(mesh.topics, key=lambda t: t.topic)),
    )


def _hex(who: str) -> str:
    """A public key in hex, from an npub or hex; any other text in lower case."""
    try:
        return keys.read_npub(who)
    except Refused:
        return who.lower()


def _unknown(detail: str) -> Refused:
    return Refused(Refusal.DESTINATION_UNKNOWN, detail)
