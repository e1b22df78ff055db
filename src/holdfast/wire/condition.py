"""Conditional requests (RFC 9110, section 13): whoever knows a document by its entity tag is not told it again."""

import re
from http import HTTPStatus

from holdfast.wire.route import Reply, json_reply

_TAG = re.compile(r'"([^"]*)"')  # without W/: whether a tag is weak does not matter here

# It may be kept, and is asked for again every time: what it says can change at any moment.
_KEPT = {"cache-control": "private, no-cache"}


def names(if_none_match: str, tag: str) -> bool:
    """Whether a header `If-None-Match` names a tag, or any there is."""
    return if_none_match.strip() == "*" or tag in _TAG.findall(if_none_match)


def tagged_reply(tag: str, document: object | None) -> Reply:
    """The answer with a document of this strong tag; or without it, to somebody who has it."""
    headers = {"etag": f'"{tag}"', **_KEPT}
    if document is None:
        return Reply(status=HTTPStatus.NOT_MODIFIED, content_type="", headers=headers)
    reply = json_reply(document)
    return Reply(body=reply.body, headers=headers)
