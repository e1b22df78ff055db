"""What a daemon is asked for about its mesh, and what it answers: the arguments of every verb, and what came of one."""

from typing import Any

import msgspec

from holdfast.protocol.action import Key, Role


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a verb may be given."""


class InviteArguments(Arguments, frozen=True, kw_only=True):
    """For whom the invitation is, and until when (microseconds)."""

    role: Role = Role.MEMBER
    expires_at: int


class WithdrawArguments(Arguments, frozen=True, kw_only=True):
    """The invitation's public key."""

    key: Key


class WhoArguments(Arguments, frozen=True, kw_only=True):
    """A name, a member id, an npub or a key in hex."""

    who: str


class RenameArguments(Arguments, frozen=True, kw_only=True):
    """The new name, and whose it is to be: one's own if nobody is named."""

    name: str
    who: str | None = None


class SetRoleArguments(Arguments, frozen=True, kw_only=True):
    """Whose role it is to be, and which."""

    who: str
    role: Role


class TopicArguments(Arguments, frozen=True, kw_only=True):
    """A topic's name."""

    topic: str


class SomeTopicArguments(Arguments, frozen=True, kw_only=True):
    """One topic, or all that one keeps."""

    topic: str | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a verb, and what was done beside it, for people."""

    document: Any
    notes: tuple[str, ...] = ()
