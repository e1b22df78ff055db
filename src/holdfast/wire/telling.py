"""Exceptions of a handler as problem documents for the caller, and as lines of the log."""

from http import HTTPStatus
from typing import Any

import structlog

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.store import faults
from holdfast.store.world import Random
from holdfast.wire.metrics import Counts
from holdfast.wire.problem import Problem, http_problem, refusal_problem
from holdfast.wire.route import NotAllowed

BUG_NUMBER_BYTES = 8

_log = structlog.get_logger(__name__)


def told(error: Exception, path: str, counts: Counts, random: Random) -> Problem:
    """The problem to answer with: 503 for a fault, which may pass, and 500 for a bug, with a number that the log has too."""
    if isinstance(error, Refused):
        members: dict[str, Any] = getattr(error, "members", {})
        return refusal_problem(error.refusal, error.detail, **members)
    if isinstance(error, NotAllowed):
        return error.problem()
    if isinstance(error, faults.Fault):
        counts.faults.inc()
        _log.warning("fault", fault=type(error).__name__, detail=str(error), path=path)
        return refusal_problem(Refusal.UNAVAILABLE, error.what, retry_after_s=1)
    number = random(BUG_NUMBER_BYTES).hex()
    counts.bugs.inc()
    _log.error("bug", number=number, path=path, exc_info=error)
    detail = f"a mistake of ours; the log tells more under the number {number}"
    return http_problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail, number=number)
