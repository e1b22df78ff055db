"""Pacing: how often an adapter sends, to a receiver that limits its rate.

Final events are sent at once and in order. Of the others only the latest of each session is sent, at most once per tick of
the session, which grows with the number of active sessions.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0, le=86_400)]


class PacingMode(StrEnum):
    """Which events are held back."""

    OFF = "off"  # none: everything is sent, in order
    COALESCE = "coalesce"  # those that are not final, until the next tick of their session
    STRICT = "strict"  # as coalesce; and nothing at all is sent between two ticks, final or not


class Pacing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sending budget of one adapter in one process."""

    mode: PacingMode = PacingMode.COALESCE
    per_minute: Annotated[int, Meta(ge=1, le=100_000)] = 20  # that the receiver takes
    budget_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.8  # the share of it that is used
    reserve_per_minute: Annotated[int, Meta(ge=0)] = 4  # left to other senders
    session_tick_s: Positive = 3.0  # the least time between two events of one session
    active_window_s: Positive = 10.0  # a session is active for so long after its last event
    smoothing: Annotated[float, Meta(gt=0, le=1)] = 0.2  # weight of the newest count of active sessions
    rounding_s: Positive = 0.1

    @property
    def tick_s(self) -> float:
        """Seconds between any two events, in strict mode."""
        budget = min(self.per_minute - self.reserve_per_minute, int(self.per_minute * self.budget_ratio))
        steps = round(60 / max(1, budget) / self.rounding_s, 6)  # without the error of floating point
        return round(-(-steps // 1) * self.rounding_s, 6)

    def session_tick(self, active: float) -> float:
        """Seconds between two events of one session that are not final, while so many sessions are active."""
        return max(self.session_tick_s, self.tick_s * active)

    def smoothed(self, before: float, active: int) -> float:
        """The moving average of the number of active sessions."""
        return self.smoothing * active + (1 - self.smoothing) * before
