"""Authentication over HTTP: an event signed for one request, valid for a minute, once, and not across a restart.

The address in the event is compared with the relay's own addresses, never with the request's Host header: so an event that
was made for another server cannot be used here. Only events of known signers are remembered as used: strangers are refused
each time, and must not fill the memory that protects the others.
"""

from collections import Counter
from collections.abc import Collection
from heapq import heappop, heappush

from holdfast.protocol import http_auth
from holdfast.protocol.event import Event
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from holdfast.store.world import Clock

WINDOW_S = 60  # how far the event's date may be from our clock, either way
SEEN_MAX = 100_000  # events remembered at once
SEEN_OF_KEY_MAX = 2_000  # and of one signer; more than an honest client needs in one window


class HttpAuth:
    """Verifies signed requests, and takes no signature twice."""

    def __init__(self, clock: Clock, seen_max: int = SEEN_MAX, seen_of_key_max: int = SEEN_OF_KEY_MAX) -> None:
        self._clock = clock
        self._seen_max = seen_max
        self._seen_of_key_max = seen_of_key_max
        self._started_s = clock() // SECOND
        self._seen: set[str] = set()
        self._seen_of_key: Counter[str] = Counter()
        # A heap of (when to forget it, in seconds; event id; signer).
        self._forget: list[tuple[int, str, str]] = []

    def verify(self, credentials: str, method: str, urls: Collection[str], body: bytes) -> Event:
        """The verified event that signs this request; `urls` are all spellings of its address."""
        event = http_auth.read(credentials, method, urls, body)
        now_s = self._clock() // SECOND
        if abs(event.created_at - now_s) > WINDOW_S:
            raise http_auth.failed(f"it is dated {event.created_at}, the relay's clock says {now_s}")
        if event.created_at < self._started_s <= now_s:  # not if the clock was set back: that would lock everybody out
            raise http_auth.failed(
                f"it is dated {event.created_at}, before the relay started at {self._started_s}, "
                "which cannot know whether it was used then; sign the request anew"
            )
        return event

    def spend(self, event: Event) -> None:
        """Mark a verified event of an allowed signer as used; refuses one that was used before."""
        now_s = self._clock() // SECOND
        while self._forget and self._forget[0][0] < now_s:
            self._drop(*heappop(self._forget)[1:])
        if event.id in self._seen:
            detail = "it was used before; sign every request anew, with a tag 'nonce' where two would be the same"
            raise http_auth.failed(detail)
        if self._seen_of_key[event.pubkey] >= self._seen_of_key_max:
            raise Refused(Refusal.RATE_LIMITED, "too many requests signed by this key within a minute")
        if len(self._seen) >= self._seen_max:
            raise Refused(Refusal.UNAVAILABLE, "too many signed requests within a minute")
        self._seen.add(event.id)
        self._seen_of_key[event.pubkey] += 1
        heappush(self._forget, (event.created_at + WINDOW_S, event.id, event.pubkey))

    def _drop(self, event_id: str, pubkey: str) -> None:
        self._seen.discard(event_id)
        self._seen_of_key[pubkey] -= 1
        if not self._seen_of_key[pubkey]:
            del self._seen_of_key[pubkey]
