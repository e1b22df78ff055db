"""The messages between a program and its reader process: every request has exactly one reply, in order.

A message is a four-byte big-endian length and that many bytes of MessagePack. Faults and refusals are raised again as such.
"""

import msgspec

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.store import faults

LENGTH_BYTES = 4
CHUNK_BYTES = 262_144  # the largest piece of a page in one reply


class PageLimits(msgspec.Struct, frozen=True):
    """How much is read at once, in rows and bytes."""

    page_rows: int = 100_000
    page_bytes: int = 67_108_864  # after which a page ends; its last step may go past it
    batch_rows: int = 10_000  # rows of a record batch: Spark reads these fastest
    step_rows: int = 500  # rows fetched at once; of the largest events that is half a page


PAGE_LIMITS = PageLimits()


class Query(msgspec.Struct, frozen=True):
    """Rows with after < seq ≤ until. Without `until` up to the head; without `columns` all except payloads."""

    table: str
    after: int = 0
    until: int | None = None
    columns: tuple[str, ...] | None = None


class Open(msgspec.Struct, frozen=True, tag=True):
    """Read a page and keep it under this number."""

    number: int
    query: Query


class Next(msgspec.Struct, frozen=True, tag=True):
    """Ask for the next piece of a page."""

    number: int


class Close(msgspec.Struct, frozen=True, tag=True):
    """Drop a page, if it is kept."""

    number: int


class Page(msgspec.Struct, frozen=True, tag=True):
    """A page that the reader keeps: all rows with after < seq ≤ next_after; the last of its range if that is `until`."""

    table: str
    log_id: bytes
    as_of_seq: int  # the head at the moment of reading
    after: int
    until: int
    next_after: int
    rows: int
    size: int  # bytes


class Chunk(msgspec.Struct, frozen=True, tag=True):
    """The next piece of a page."""

    data: bytes


class Closed(msgspec.Struct, frozen=True, tag=True):
    """The page was dropped."""


class No(msgspec.Struct, frozen=True, tag=True):
    """A refusal."""

    refusal: Refusal
    detail: str

    def exception(self) -> Refused:
        return Refused(self.refusal, self.detail)


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A fault of the store, by the name of its class."""

    fault: str
    where: str
    detail: str

    def exception(self) -> faults.Fault:
        kind: type[faults.Fault] = getattr(faults, self.fault)
        return kind(self.where, self.detail)


Request = Open | Next | Close
Reply = Page | Chunk | Closed | No | Failed

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Request)
_replies = msgspec.msgpack.Decoder(Reply)


def frame(message: Request | Reply) -> bytes:
    """The bytes of a message, with its length before it."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def length(head: bytes) -> int:
    """The length in the first four bytes of a message."""
    return int.from_bytes(head, "big")


def read_request(body: bytes) -> Request:
    request: Request = _requests.decode(body)
    return request


def read_reply(body: bytes) -> Reply:
    reply: Reply = _replies.decode(body)
    return reply
