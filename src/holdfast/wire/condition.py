"""Conditional requests (RFC 9110, section 13): a client that has the document with the current tag gets 304."""

import re
from http import HTTPStatus

from holdfast.wire.route import Reply, json_reply

_TAG = re.compile(r'"([^"]*)"')  # without W/: whether a tag is weak does not matter here

# A client may keep it, but must ask each time whether it is current.
_KEPT = {"cache-control": "private, no-cache"}


def names(if_none_match: str, tag: str) -> bool:
    """Whether a header `If-None-Match` names this tag, or any tag (`*`)."""
    return if_none_match.strip() == "*" or tag in _TAG.findall(if_none_match)


def tagged_reply(tag: str, document: object | None) -> Reply:
    """The answer with a document and its strong tag; 304 without a document, if the client has it (None)."""
    headers = {"etag": f'"{tag}"', **_KEPT}
    if document is None:
        return Reply(status=HTTPStatus.NOT_MODIFIED, content_type="", headers=headers)
    reply = json_reply(document)
    return Reply(body=reply.body, headers=headers)
