"""What a daemon needs of a relay: every way in which one can be unfit has its own code."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.protocol.features import RULES, Feature, missing, negotiate, wanted
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused
from holdfast.relay.features import supported
from holdfast.relay.settings import Settings
from tests.relay.queue_client import connected
from tests.relay.running import RunningRelay, running

GOOD: dict[str, dict[str, Any]] = supported(Settings())


def _changed(feature: Feature, **parameters: Any) -> dict[str, dict[str, Any]]:
    changed = copy.deepcopy(GOOD)
    for name, value in parameters.items():
        if value is None:
            changed[feature].pop(name, None)
        else:
            changed[feature][name] = value
    return changed


def test_a_relay_of_ours_is_fit_whatever_its_settings() -> None:
    negotiated = negotiate(GOOD)
    assert (set(negotiated.features), negotiated.ignored) == (set(Feature), ())
    assert missing(wanted(required=True), GOOD) == []
    permanent = _changed(Feature.DEDUPE, mode="permanent", dedupe_retention_days=None)
    assert negotiate(permanent).features[Feature.DEDUPE] == {"version": 2, "mode": "permanent"}


@pytest.mark.parametrize(
    ("feature", "changed", "refusal", "close_code"),
    [
        (Feature.DEDUPE, {"version": 1}, Refusal.FEATURE_UNAVAILABLE, 4010),
        (Feature.DEDUPE, {"version": None}, Refusal.FEATURE_UNAVAILABLE, 4010),
        (Feature.DEDUPE, {"mode": "sometimes"}, Refusal.FEATURE_PARAM_INVALID, 4011),
        (Feature.DEDUPE, {"mode": 7}, Refusal.FEATURE_PARAM_INVALID, 4011),
        (Feature.DEDUPE, {"mode": None}, Refusal.FEATURE_PARAM_INVALID, 4011),
        (Feature.DEDUPE, {"dedupe_retention_days": None}, Refusal.FEATURE_PARAM_INVALID, 4011),
        (Feature.DEDUPE, {"dedupe_retention_days": "365"}, Refusal.FEATURE_PARAM_INVALID, 4011),
        (Feature.DEDUPE, {"dedupe_retention_days": True}, Refusal.FEATURE_PARAM_INVALID, 4011),
        (Feature.DEDUPE, {"dedupe_retention_days": 6}, Refusal.FEATURE_PARAM_BELOW_FLOOR, 4012),
        (Feature.QUEUE, {"ttl_days": 0}, Refusal.FEATURE_PARAM_BELOW_FLOOR, 4012),
        (Feature.QUEUE, {"window_messages": None}, Refusal.FEATURE_PARAM_INVALID, 4011),
        (Feature.MAX_PAYLOAD, {"event_bytes": 65_535}, Refusal.FEATURE_PARAM_BELOW_FLOOR, 4012),
    ],
)
def test_a_required_feature_that_is_not_as_it_must_be_is_refused(
    feature: Feature, changed: dict[str, Any], refusal: Refusal, close_code: int
) -> None:
    with pytest.raises(Refused) as refused:
        negotiate(_changed(feature, **changed))
    assert refused.value.refusal is refusal
    assert REFUSALS[refusal].close_code == close_code
    assert feature in refused.value.detail


@pytest.mark.parametrize("feature", Feature)
def test_a_feature_that_is_missing_matters_only_if_it_is_required(feature: Feature) -> None:
    without = {name: said for name, said in GOOD.items() if name != feature}
    if RULES[feature].is_required:
        with pytest.raises(Refused) as refused:
            negotiate(without)
        assert refused.value.refusal is Refusal.FEATURE_UNAVAILABLE
        assert missing(wanted(required=True), without) == [feature]
    else:
        assert set(negotiate(without).features) == set(without)
        assert missing(wanted(required=True), without) == []


def test_an_optional_feature_with_a_bad_parameter_is_taken_for_missing_and_told() -> None:
    negotiated = negotiate(_changed(Feature.SECOND_CONNECTION, policy="whoever"))
    assert Feature.SECOND_CONNECTION not in negotiated.features
    assert "'whoever'" in negotiated.ignored[0]


def test_what_is_not_known_here_is_left_aside() -> None:
    more = {**GOOD, "teleport": {"version": 1}}
    assert set(negotiate(more).features) == set(Feature)
    assert missing({"teleport": 1, "telepathy": 1}, more) == ["telepathy"]


# On the wire: a real relay, asked by hand


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("features") / "relay") as started:
        yield started


def test_a_relay_says_what_it_has_and_closes_on_whoever_needs_more(relay: RunningRelay) -> None:
    with connected(relay) as client:
        client.say("FEATURES", {"require": {Feature.QUEUE: 1}, "optional": {Feature.KEY_EPOCH: 1, "teleport": 1}})
        told = client.hear()
        assert told == [
            "FEATURES",
            {"supported": {name: GOOD[name] for name in (Feature.QUEUE, Feature.KEY_EPOCH)}, "missing_required": []},
        ]
        client.say("FEATURES", {"require": {Feature.QUEUE: 2, Feature.DEDUPE: 2, "teleport": 1}})
        assert client.hear()[1]["missing_required"] == [Feature.QUEUE, "teleport"]
        assert client.closed() == (4010, "feature_unavailable")


@pytest.mark.parametrize("before", [2_500, 6_000])
def test_who_needs_more_hears_so_whatever_else_it_said_in_the_same_breath(relay: RunningRelay, before: int) -> None:
    require = b'["FEATURES",{"require":{"teleport":1}}]'
    said = [require, *[b"{}"] * before, b"\xff\xfe"]  # the last is no text
    with connected(relay) as client:
        client.socket.socket.sendall(b"".join(bytes((0x81, 0x80 | len(text))) + bytes(4) + text for text in said))
        assert client.closed() == (4010, "feature_unavailable")
    assert relay.metric("holdfast_bugs_total") == 0


def test_a_question_that_is_none_is_told_so(relay: RunningRelay) -> None:
    with connected(relay) as client:
        client.say("FEATURES", {"require": ["dedupe"]})
        assert client.hear()[0] == "NOTICE"
        client.say("FEATURES", {})
        assert client.hear() == ["FEATURES", {"supported": {}, "missing_required": []}]
