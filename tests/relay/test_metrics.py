"""What a relay counts with every request, in the words of Prometheus."""

import asyncio
import itertools
from typing import Any

from holdfast.export.exporter import Exporter
from holdfast.relay.metrics import Metrics
from holdfast.relay.server import Application
from holdfast.wire.route import Reply
from tests.relay.place import Place


def test_answers_are_counted_by_code_and_requests_by_how_many_events_they_brought() -> None:
    metrics = Metrics()
    for codes in (["accepted"], ["accepted", "duplicate", "queue_full"], ["accepted"] * 101):
        metrics.answers(codes)
    metrics.request("/v1/messages", 201)
    metrics.request("/v1/messages", 201)
    assert metrics.answered() == {"accepted": 103, "duplicate": 1, "queue_full": 1}
    told = metrics.text().decode().splitlines()
    for line in (
        'holdfast_answers_total{code="accepted"} 103.0',
        'holdfast_requests_total{route="/v1/messages",status="201"} 2.0',
        'holdfast_offered_events_bucket{le="1.0"} 1.0',
        'holdfast_offered_events_bucket{le="2.0"} 1.0',
        'holdfast_offered_events_bucket{le="5.0"} 2.0',
        'holdfast_offered_events_bucket{le="100.0"} 2.0',
        'holdfast_offered_events_bucket{le="+Inf"} 3.0',
        "holdfast_offered_events_count 3.0",
        "holdfast_offered_events_sum 105.0",
    ):
        assert line in told


def test_the_database_is_read_once_for_all_who_ask_at_the_same_time(place: Place) -> None:
    """Anybody may ask, and it goes through all members: whoever asks on many connections must not keep the readers busy."""
    place.settle()
    app = Application(place.relay, Exporter("unused", "unused"))
    reads = itertools.count()
    app.metrics.watch("reads", "How often it was read.", lambda: next(reads))
    ask = app._routes.find("GET", "/metrics")[0].handler
    nothing: Any = None

    async def ask_at_once(count: int) -> list[Any]:
        return await asyncio.gather(*(ask(nothing) for _ in range(count)))

    told = asyncio.run(ask_at_once(50))
    assert {reply.body for reply in told if isinstance(reply, Reply)} == {told[0].body}
    assert b"holdfast_members 3.0" in told[0].body
    assert next(reads) == 1
    asyncio.run(ask_at_once(1))
    assert next(reads) == 3, "whoever asks later is told what is then"
