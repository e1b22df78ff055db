"""What a worker says of a row that it holds: that it gives it back, or how it ended."""

from holdfast.hook.outbox import Mark, Row
from holdfast.protocol.hook_row import HookSignal, HookStatus


def released(row: Row) -> Mark:
    return given_back(row.id, row.token)


def given_back(row_id: int, token: int) -> Mark:
    return Mark(id=row_id, token=token, before=HookStatus.LOCKED, signal=HookSignal.RELEASED)


def begun(row: Row, wrong: str | None) -> Mark:
    """The mark before a handler gets a row, or for a payload that cannot be read (`wrong`)."""
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
