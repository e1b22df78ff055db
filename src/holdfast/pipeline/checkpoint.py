"""Tells a relay how far its history is in the lake, so that it does not prune what is not there yet."""

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.pipeline import pages
from holdfast.pipeline.pages import Place

if TYPE_CHECKING:
    from holdfast.pipeline.plan import Mark

TOKEN_PREFIX = "hft1_"  # noqa: S105 - how tokens begin, not one of them
_BEFORE_NAME_BYTES = 72


@dataclass(frozen=True)
class Checkpoint:
    """The position up to which a relay was told that its history is kept, by the consumer that a token names."""

    consumer: str
    log_id: bytes
    seq: int


def find(place: Place) -> Checkpoint | None:
    """The checkpoint that a relay has for the token's consumer; None if it has none."""
    consumer = consumer_of(place.token)
    if consumer is None:
        return None
    try:
        told = pages.read_document(place, _path(consumer))
    except pages.Refused as refused:
        if refused.code == "consumer_unknown":
            return None
        raise
    return Checkpoint(consumer, bytes.fromhex(told["log_id"]), int(told["seq"]))


def move(place: Place, mark: "Mark | None") -> str | None:
    """Move the checkpoint of the token's consumer; returns why it could not be moved, or None. The lake is complete either way."""
    consumer = consumer_of(place.token)
    if consumer is None or mark is None:
        return None
    body = json.dumps({"log_id": mark.log_id.hex(), "seq": mark.seq}).encode()
    try:
        pages.put(place, _path(consumer), body)
    except pages.SourceError as error:
        return f"the relay's checkpoint was not moved: {error}{_remedy(error, consumer)}"
    return None


def repeat(place: Place, told: Checkpoint | None, mark: "Mark | None") -> None:
    """Move a checkpoint that an earlier run could not move: otherwise it would stay behind until there is a new batch."""
    if mark is not None and (told is None or told.log_id != mark.log_id or told.seq < mark.seq):
        move(place, mark)  # if that fails, the next batch reports it


def _remedy(error: pages.SourceError, consumer: str) -> str:
    if not isinstance(error, pages.Refused) or error.code != "checkpoint_backwards":
        return ""
    return f". Another lake reads as {consumer}, too: let each have a token of its own (`holdfast relay token --consumer NAME`)"


def _path(consumer: str) -> str:
    return f"/v1/consumers/{consumer}"


def consumer_of(token: str | None) -> str | None:
    """The consumer that an export token names."""
    if token is None or not token.startswith(TOKEN_PREFIX):
        return None
    text = token.removeprefix(TOKEN_PREFIX)
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))[_BEFORE_NAME_BYTES:].decode()
    except ValueError:
        return None
