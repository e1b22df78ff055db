"""The two entries of a hook event in the device's history: that it was received, and how it ended. Each is made once.

`event_id` is the sixteen bytes of the event's own id; `detail` has the rest in a fixed order, so that Spark can decode it
without JSON. The entry's time is when it was written; when the event came is in the detail.
"""

import msgspec

from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.hook_row import ATTEMPTS_MAX, HookStatus

ENDINGS = {
    HookStatus.DONE: Kind.HOOK_DONE,
    HookStatus.DEAD: Kind.HOOK_DEAD,
    HookStatus.COALESCED: Kind.HOOK_COALESCED,
}

_LENGTH_BYTES = 4
_NUMBER_BYTES = 8


class HookDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Detail of every hook entry: four texts, two numbers, then the error; each text has its length before it."""

    agent: str
    session_id: str
    event_type: str
    event_name: str
    received_at: int  # microseconds
    attempts: int = 0  # when the entry was made
    error: str = ""  # the last one

    def encode(self) -> bytes:
        texts = b"".join(map(_text, (self.agent, self.session_id, self.event_type, self.event_name)))
        return texts + _number(self.received_at) + _number(self.attempts) + _text(self.error)

    @classmethod
    def decode(cls, detail: bytes) -> "HookDetail":
        texts: list[str] = []
        place = 0
        for _ in range(4):
            text, place = _read(detail, place)
            texts.append(text)
        received_at, attempts = (
            int.from_bytes(detail[start : start + _NUMBER_BYTES], "big", signed=True)
            for start in (place, place + _NUMBER_BYTES)
        )
        error, _ = _read(detail, place + 2 * _NUMBER_BYTES)
        return cls(
            agent=texts[0],
            session_id=texts[1],
            event_type=texts[2],
            event_name=texts[3],
            received_at=received_at,
            attempts=attempts,
            error=error,
        )


def received(event_id: str, size: int, detail: HookDetail) -> Draft:
    """The entry for an event that is on disk."""
    whole = msgspec.structs.replace(detail, attempts=0, error="")
    return Draft(kind=Kind.HOOK_RECEIVED, event_id=bytes.fromhex(event_id), size=size, detail=whole.encode())


def ended(event_id: str, status: HookStatus, detail: HookDetail) -> Draft:
    """The entry for an event that is done, dead or coalesced."""
    reason = None
    if status is HookStatus.DEAD:
        reason = "exhausted" if detail.attempts >= ATTEMPTS_MAX else "unprocessable"
    return Draft(kind=ENDINGS[status], event_id=bytes.fromhex(event_id), reason=reason, detail=detail.encode())


def _text(text: str) -> bytes:
    content = text.encode()
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


def _number(number: int) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "big", signed=True)


def _read(detail: bytes, place: int) -> tuple[str, int]:
    start = place + _LENGTH_BYTES
    end = start + int.from_bytes(detail[place:start], "big")
    return detail[start:end].decode(), end
