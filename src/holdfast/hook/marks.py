"""What a worker says of a row that it holds: that it gives it back, or how it ended."""

from holdfast.hook.outbox import Mark, Row
from holdfast.protocol.hook_row import HookSignal, HookStatus


def released(row: Row) -> Mark:
    return given_back(row.id, row.token)


def given_back(row_id: int, token: int) -> Mark:
    return Mark(id=row_id, token=token, before=HookStatus.LOCKED, signal=HookSignal.RELEASED)


def begun(row: Row, wrong: str | None) -> Mark:
    """A handler is about to get it; or never will, because its payload cannot be read."""
    signal = HookSignal.STARTED if wrong is None else HookSignal.UNPROCESSABLE
    return Mark(id=row.id, token=row.token, before=HookStatus.LOCKED, signal=signal, error=wrong)


def ended(row: Row, signal: HookSignal, error: str | None, next_attempt_at: int | None = None) -> Mark:
    return Mark(
        id=row.id,
        token=row.token,
        before=HookStatus.HANDLING,
        signal=signal,
        error=error,
        next_attempt_at=next_attempt_at,
    )
