"""The rate limiter: how fast one sender may publish, by a token bucket for each.

A sender is a member of a mesh, whichever key it has at the time, or a key that is in force for no member of the mesh.

Repeating the same bytes is free a few times per window: a retry after a lost answer must not cost twice, but repeating
one event for ever must not be free. The buckets are in memory only; they start full after a restart.
"""

import math
import threading
from collections import OrderedDict

import msgspec

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from holdfast.relay.settings import Limits

SENDERS_MAX = 100_000  # remembered at once; the longest unseen one is forgotten, and starts full again
EVENTS_MAX = 10_000  # counted events remembered at once; accepted ones need not be, because the store knows their id


class _Bucket(msgspec.Struct):
    tokens: float
    at: int


class _Seen(msgspec.Struct):
    since: int
    times: int


class TooFast(Refused):
    """The refusal of a sender that publishes too fast."""

    def __init__(self, messages_per_s: float, wait_s: int) -> None:
        super().__init__(Refusal.RATE_LIMITED, f"more than {messages_per_s:g} a second")
        self.members = {"retry_after_s": wait_s}


class Limiter:
    """Counts what senders publish. May be used from several threads."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def check(self, sender: str, event_id: str, now: int) -> None:
        """Refuse an event if its sender publishes too fast."""
        self._refuse(self.wait_s(sender, event_id, now))

    def check_debt(self, sender: str, now: int) -> None:
        """Refuse a sender that still owes tokens for useless events that it was charged for."""
        self._refuse(self.debt_s(sender, now))

    def _refuse(self, wait_s: int) -> None:
        if wait_s:
            raise TooFast(self._limits.messages_per_s, wait_s)

    def wait_s(self, sender: str, event_id: str, now: int) -> int:
        """Seconds until this event may pass; 0 if it may pass now."""
        with self._lock:
            if self._is_free(event_id, now):
                return 0
            bucket = self._refilled(sender, now)
            if bucket.tokens < 1:
                return math.ceil((1 - bucket.tokens) / self._limits.messages_per_s)
            bucket.tokens -= 1
            self._seen[event_id] = _Seen(now, 0)
            self._seen.move_to_end(event_id)
            _trim(self._seen, EVENTS_MAX)
            return 0

    def charge(self, sender: str, now: int) -> None:
        """Charge a sender for an event that was not counted at first and turned out to be useless."""
        with self._lock:
            bucket = self._refilled(sender, now)
            bucket.tokens = max(bucket.tokens - 1, -float(self._limits.messages_burst))

    def debt_s(self, sender: str, now: int) -> int:
        """Seconds until a sender owes nothing; 0 if it owes nothing now."""
        with self._lock:
            tokens = self._refilled(sender, now).tokens
            return 0 if tokens >= 0 else math.ceil(-tokens / self._limits.messages_per_s)

    def _is_free(self, event_id: str, now: int) -> bool:
        """Whether this event was counted in this window and may be repeated for free."""
        seen = self._seen.get(event_id)
        if seen is None or now - seen.since > self._limits.free_repeats_window_s * SECOND:
            return False
        seen.times += 1
        return seen.times <= self._limits.free_repeats

    def _refilled(self, sender: str, now: int) -> _Bucket:
        bucket = self._buckets.get(sender)
        if bucket is None:
            bucket = self._buckets[sender] = _Bucket(float(self._limits.messages_burst), now)
            _trim(self._buckets, SENDERS_MAX)
        gained = max(0, now - bucket.at) / SECOND * self._limits.messages_per_s
        bucket.tokens = min(float(self._limits.messages_burst), bucket.tokens + gained)
        # Even if the clock was set back: that earns no tokens, but nobody has to wait until it has caught up.
        bucket.at = now
        self._buckets.move_to_end(sender)
        return bucket


def _trim(remembered: OrderedDict[str, _Seen] | OrderedDict[str, _Bucket], most: int) -> None:
    while len(remembered) > most:
        remembered.popitem(last=False)
