"""RFC 9457 problem documents, for our refusals and for errors of HTTP itself."""

from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from holdfast.protocol.refusal import REFUSALS, Refusal, problem

PROBLEM_JSON = "application/problem+json"

Headers = list[tuple[bytes, bytes]]


class Problem(msgspec.Struct, frozen=True):
    """A problem document with its status and further headers."""

    status: int
    document: Mapping[str, object]
    headers: Mapping[str, str] = {}

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self.document)

    def all_headers(self) -> Headers:
        """The headers of an answer that consists of this problem."""
        headers = {"content-type": PROBLEM_JSON, "content-length": str(len(self.body)), **self.headers}
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def refusal_problem(refusal: Refusal, detail: str = "", **members: object) -> Problem:
    """The problem of a refusal; a member `retry_after_s` also becomes the header Retry-After."""
    retry_after_s = members.pop("retry_after_s", None)
    headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    return Problem(REFUSALS[refusal].http_status, problem(refusal, detail, **members), headers)


def http_problem(
    status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None, **members: object
) -> Problem:
    """A problem with an HTTP status and no refusal of ours: it is about the request's form, not its meaning."""
    document = {
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "code": status.name.lower(),
        "temporary": status >= HTTPStatus.INTERNAL_SERVER_ERROR or status is HTTPStatus.REQUEST_TIMEOUT,
        "detail": detail,
    }
    return Problem(status.value, document | members, headers or {})
