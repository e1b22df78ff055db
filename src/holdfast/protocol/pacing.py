"""How often something is told to whoever should not be told too often.

What is final is told at once and in order. Of the rest only the latest of each session is worth telling, and that no more
often than a session's tick, which grows with the number of sessions that have something to say.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0, le=86_400)]


class PacingMode(StrEnum):
    """How much is held back."""

    OFF = "off"  # nothing: everything, in order
    COALESCE = "coalesce"  # what is not final, until its session's tick
    STRICT = "strict"  # and nothing at all between two ticks, final or not


class Pacing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The budget of one adapter in one process."""

    mode: PacingMode = PacingMode.COALESCE
    per_minute: Annotated[int, Meta(ge=1, le=100_000)] = 20  # what the other side takes
    budget_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.8  # of that, how much is used
    reserve_per_minute: Annotated[int, Meta(ge=0)] = 4  # left for others
    session_tick_s: Positive = 3.0  # at the least, between two of one session
    active_window_s: Positive = 10.0  # a session that has said something within it is counted
    smoothing: Annotated[float, Meta(gt=0, le=1)] = 0.2  # of that count: the share of the new one
    rounding_s: Positive = 0.1

    @property
    def tick_s(self) -> float:
        """Between any two, when strict."""
        budget = min(self.per_minute - self.reserve_per_minute, int(self.per_minute * self.budget_ratio))
        steps = round(60 / max(1, budget) / self.rounding_s, 6)  # without what floats add
        return round(-(-steps // 1) * self.rounding_s, 6)

    def session_tick(self, active: float) -> float:
        """Between two of one session that are not final, while so many sessions are active."""
        return max(self.session_tick_s, self.tick_s * active)

    def smoothed(self, before: float, active: int) -> float:
        """The number of active sessions, without its jumps."""
        return self.smoothing * active + (1 - self.smoothing) * before
