"""The relay's frames of a queue, read strictly: anything else is an error."""

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Raw

from holdfast.protocol.action import Identifier, LogId, Position


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """A restoration of the relay's log: what `log_id` had after `seq` is gone."""

    log_id: LogId
    seq: Position


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The relay's first answer when a queue is opened."""

    pending_count: int
    log_id: LogId
    seq: Position
    highest_sequence: int | None = None
    forks: tuple[Fork, ...] = ()


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    was_stored: bool
    message_id: str
    sender: Identifier
    replayed: bool = False


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the queue: its position in the relay's history, the relay's facts about it, and the event's bytes."""

    seq: int
    message_id: str
    sender: str
    was_stored: bool
    replayed: bool
    event: bytes


class Live(msgspec.Struct, frozen=True):
    """Everything up to this position was sent; further messages come as they are accepted."""

    seq: int


class Acknowledged(msgspec.Struct, frozen=True):
    """These positions are closed at the relay, durably."""

    seqs: tuple[int, ...]


class AckUnknown(msgspec.Struct, frozen=True):
    """Some acknowledged positions are not in our queue, says the relay."""

    detail: str


Frame = QueueStatus | Queued | Live | Acknowledged | AckUnknown


class _Head(msgspec.Struct, array_like=True, tag="QUEUE"):
    subscription: str
    word: str


class _StatusFrame(msgspec.Struct, array_like=True, tag="QUEUE"):
    subscription: str
    word: str
    status: QueueStatus


class _MessageFrame(msgspec.Struct, array_like=True, tag="QUEUE"):
    subscription: str
    word: str
    seq: Position
    facts: _Facts
    event: Raw


class _LiveFrame(msgspec.Struct, array_like=True, tag="QUEUE"):
    subscription: str
    word: str
    seq: Position


class _AckedFrame(msgspec.Struct, array_like=True, tag="QUEUE"):
    subscription: str
    word: str
    seqs: tuple[Position, ...]


_head_decoder = msgspec.json.Decoder(_Head)
_message_decoder = msgspec.json.Decoder(_MessageFrame)


def _queued(raw: bytes) -> Queued:
    frame = _message_decoder.decode(raw)
    facts = frame.facts
    return Queued(
        seq=frame.seq,
        message_id=facts.message_id,
        sender=facts.sender,
        was_stored=facts.was_stored,
        replayed=facts.replayed,
        event=bytes(frame.event),
    )


def _status(raw: bytes) -> QueueStatus:
    return msgspec.json.decode(raw, type=_StatusFrame).status


def _live(raw: bytes) -> Live:
    return Live(msgspec.json.decode(raw, type=_LiveFrame).seq)


def _acknowledged(raw: bytes) -> Acknowledged:
    return Acknowledged(msgspec.json.decode(raw, type=_AckedFrame).seqs)


_READERS: Mapping[str, Callable[[bytes], Frame]] = {
    "STATUS": _status,
    "MSG": _queued,
    "LIVE": _live,
    "ACKED": _acknowledged,
}


def word_of(raw: bytes) -> str:
    """The type of a queue's frame; raises `msgspec.DecodeError` if it is not a frame of a queue."""
    return _head_decoder.decode(raw).word


def read(raw: bytes) -> Frame | None:
    """The frame in these bytes; None if its type is unknown."""
    reader = _READERS.get(word_of(raw))
    return None if reader is None else reader(raw)
