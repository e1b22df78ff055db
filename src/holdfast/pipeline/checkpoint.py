"""Tells a relay how far its history is in the lake, so that it does not prune what is not there yet."""

import base64
import json
from collections.abc import Mapping

from holdfast.pipeline import pages
from holdfast.pipeline.pages import Place
from holdfast.pipeline.plan import RELAY, Mark

TOKEN_PREFIX = "hft1_"  # noqa: S105 - how tokens begin, not one of them
_BEFORE_NAME_BYTES = 72


def move(place: Place, marks: Mapping[str, Mark]) -> str | None:
    """Move the checkpoint of the token's consumer; why it could not be moved, if so. The lake is complete either way."""
    consumer = consumer_of(place.token)
    mark = next((mark for mark in marks.values() if mark.origin.startswith(RELAY)), None)
    if consumer is None or mark is None:
        return None
    body = json.dumps({"log_id": mark.log_id.hex(), "seq": mark.seq}).encode()
    try:
        pages.put(place, f"/v1/consumers/{consumer}", body)
    except pages.SourceError as error:
        return f"the relay's checkpoint was not moved: {error}"
    return None


def consumer_of(token: str | None) -> str | None:
    """The consumer that an export token names."""
    if token is None or not token.startswith(TOKEN_PREFIX):
        return None
    text = token.removeprefix(TOKEN_PREFIX)
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))[_BEFORE_NAME_BYTES:].decode()
    except ValueError:
        return None
