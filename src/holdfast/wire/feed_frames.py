"""The relay's frames of a CHANGES subscription, read strictly: anything else is an error."""

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Raw

from holdfast.protocol.action import Position


class State(msgspec.Struct, frozen=True):
    """The state follows, as of this position."""

    snapshot_seq: int


class Held(msgspec.Struct, frozen=True):
    """A snapshot of the state, as the event's bytes."""

    event: bytes


class Changed(msgspec.Struct, frozen=True):
    """A snapshot that was accepted at a position."""

    seq: int
    event: bytes


class Compacted(msgspec.Struct, frozen=True):
    """A position whose snapshot was compacted: its payload is gone."""

    seq: int


class CaughtUp(msgspec.Struct, frozen=True):
    """Everything up to this position was sent."""

    seq: int


class Denied(msgspec.Struct, frozen=True):
    """The subscription was refused or ended."""

    detail: str


Frame = State | Held | Changed | Compacted | CaughtUp | Denied


class _Head(msgspec.Struct, array_like=True):
    verb: str
    subscription: str


class _Word(msgspec.Struct, array_like=True, tag="CHANGES"):
    subscription: str
    word: str


class _Status(msgspec.Struct):
    snapshot_seq: Position


class _StatusFrame(msgspec.Struct, array_like=True, tag="CHANGES"):
    subscription: str
    word: str
    status: _Status


class _HeldFrame(msgspec.Struct, array_like=True, tag="CHANGES"):
    subscription: str
    word: str
    event: Raw


class _ChangedFrame(msgspec.Struct, array_like=True, tag="CHANGES"):
    subscription: str
    word: str
    seq: Position
    event: Raw


class _EndFrame(msgspec.Struct, array_like=True, tag="CHANGES"):
    subscription: str
    word: str
    seq: Position


class _DeniedFrame(msgspec.Struct, array_like=True, tag="CHANGES"):
    subscription: str
    word: str
    detail: str


class _Gone(msgspec.Struct):
    seq: Position


class _GoneFrame(msgspec.Struct, array_like=True, tag="EVENT-STATUS"):
    subscription: str
    about: _Gone


class _ClosedFrame(msgspec.Struct, array_like=True, tag="CLOSED"):
    subscription: str
    detail: str


def _state(raw: bytes) -> State:
    return State(msgspec.json.decode(raw, type=_StatusFrame).status.snapshot_seq)


def _held(raw: bytes) -> Held:
    return Held(bytes(msgspec.json.decode(raw, type=_HeldFrame).event))


def _changed(raw: bytes) -> Changed:
    frame = msgspec.json.decode(raw, type=_ChangedFrame)
    return Changed(frame.seq, bytes(frame.event))


def _caught_up(raw: bytes) -> CaughtUp:
    return CaughtUp(msgspec.json.decode(raw, type=_EndFrame).seq)


def _denied(raw: bytes) -> Denied:
    return Denied(msgspec.json.decode(raw, type=_DeniedFrame).detail)


_READERS: Mapping[str, Callable[[bytes], Frame]] = {
    "STATUS": _state,
    "SNAPSHOT": _held,
    "EVENT": _changed,
    "EOSE": _caught_up,
    "ERR": _denied,
}


def read(raw: bytes) -> Frame | None:
    """The frame in these bytes; None if its type is unknown. Raises `msgspec.DecodeError` if it is not a frame."""
    verb = msgspec.json.decode(raw, type=_Head).verb
    if verb == "EVENT-STATUS":
        return Compacted(msgspec.json.decode(raw, type=_GoneFrame).about.seq)
    if verb == "CLOSED":
        return Denied(msgspec.json.decode(raw, type=_ClosedFrame).detail)
    reader = _READERS.get(msgspec.json.decode(raw, type=_Word).word)
    return None if reader is None else reader(raw)
