"""The arguments of every administration verb, and the answer to one."""

from typing import Any

import msgspec

from holdfast.protocol.action import Key, Role


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a verb."""


class InviteArguments(Arguments, frozen=True, kw_only=True):
    """The role of the invited member, and the invitation's end (microseconds)."""

    role: Role = Role.MEMBER
    expires_at: int


class WithdrawArguments(Arguments, frozen=True, kw_only=True):
    """The invitation's public key."""

    key: Key


class WhoArguments(Arguments, frozen=True, kw_only=True):
    """A name, a member id, an npub or a key in hex."""

    who: str


class RenameArguments(Arguments, frozen=True, kw_only=True):
    """The new name, and the member who gets it: this one if none is named."""

    name: str
    who: str | None = None


class SetRoleArguments(Arguments, frozen=True, kw_only=True):
    """A member, and its new role."""

    who: str
    role: Role


class TopicArguments(Arguments, frozen=True, kw_only=True):
    """A topic's name."""

    topic: str


class SomeTopicArguments(Arguments, frozen=True, kw_only=True):
    """One topic, or all topics that this member keeps."""

    topic: str | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verb, and notes for people on what else was done."""

    document: Any
    notes: tuple[str, ...] = ()
