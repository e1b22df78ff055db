"""A no over HTTP: RFC 9457 problem documents, of our refusals and of what HTTP itself has a status for."""

from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from holdfast.protocol.refusal import REFUSALS, Refusal, problem

PROBLEM_JSON = "application/problem+json"

Headers = list[tuple[bytes, bytes]]


class Problem(msgspec.Struct, frozen=True):
    """A document with its status and further headers."""

    status: int
    document: Mapping[str, object]
    headers: Mapping[str, str] = {}

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self.document)

    def all_headers(self) -> Headers:
        """The headers of an answer with this problem and nothing else."""
        headers = {"content-type": PROBLEM_JSON, "content-length": str(len(self.body)), **self.headers}
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def refusal_problem(refusal: Refusal, detail: str = "", **members: object) -> Problem:
    """A refusal of ours; `retry_after_s` among the members becomes the header."""
    retry_after_s = members.pop("retry_after_s", None)
    headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    return Problem(REFUSALS[refusal].http_status, problem(refusal, detail, **members), headers)


def http_problem(
    status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None, **members: object
) -> Problem:
    """A no for which HTTP has a status and we have no refusal: it is about the request, not about what is asked."""
    document = {
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "code": status.name.lower(),
        "temporary": status >= HTTPStatus.INTERNAL_SERVER_ERROR or status is HTTPStatus.REQUEST_TIMEOUT,
        "detail": detail,
    }
    return Problem(status.value, document | members, headers or {})
