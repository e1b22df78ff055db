"""Exceptions of administration, carried from the daemon to a client inside a problem document."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.device.mesh import InvalidName, NoMesh, NotAllowed, NotThatOne, OtherRelay
from holdfast.device.publish import PutOff
from holdfast.protocol.reaction import FaultKind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.wire.client import Unreachable


class _Form(msgspec.Struct, frozen=True):
    """The form of a carried exception: the refusal that other clients see, its fields, and how it is made from them."""

    refusal: Refusal
    fields: tuple[str, ...]
    make: Callable[..., Exception]


def _put_off(url: str, says: str, detail: str, kept: bool) -> PutOff:
    return PutOff(url, Refusal(says) if says in set(Refusal) else FaultKind(says), detail, kept=kept)


_FORMS: Mapping[type[Exception], _Form] = {
    NotThatOne: _Form(Refusal.NOT_FOUND, ("what", "name", "found"), NotThatOne),
    NotAllowed: _Form(Refusal.NOT_PERMITTED, ("args",), lambda args: NotAllowed(*args)),
    InvalidName: _Form(Refusal.MALFORMED, ("args",), lambda args: InvalidName(*args)),
    NoMesh: _Form(Refusal.NOT_A_MEMBER, (), NoMesh),
    OtherRelay: _Form(Refusal.UNAVAILABLE, ("url", "known", "shown"), OtherRelay),
    PutOff: _Form(Refusal.UNAVAILABLE, ("url", "says", "detail", "kept"), _put_off),
    Unreachable: _Form(
        Refusal.UNAVAILABLE,
        ("url", "fault", "detail"),
        lambda url, fault, detail: Unreachable(url, FaultKind(fault), detail),
    ),
}

TROUBLES = tuple(_FORMS)


class Troubled(Refused):
    """A refusal that carries such an exception."""

    def __init__(self, error: Exception) -> None:
        kind = next(kind for kind in _FORMS if isinstance(error, kind))
        super().__init__(_FORMS[kind].refusal, str(error))
        made_of = {name: getattr(error, name) for name in _FORMS[kind].fields}
        self.members = {"trouble": {"kind": kind.__name__, **msgspec.to_builtins(made_of)}}


def carried(document: Mapping[str, Any]) -> Exception | None:
    """The exception that a problem document carries, if any."""
    made_of = dict(document.get("trouble") or {})
    named = made_of.pop("kind", None)
    return next((form.make(**made_of) for kind, form in _FORMS.items() if kind.__name__ == named), None)
