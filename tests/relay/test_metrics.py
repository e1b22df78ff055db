"""What a relay counts with every request, in the words of Prometheus."""

from holdfast.relay.metrics import Metrics


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
