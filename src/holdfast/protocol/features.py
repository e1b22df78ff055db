"""Features: what a daemon requires of a relay, what it can use, and how they negotiate.

The daemon names features and their versions. The relay answers with those it has, each with its parameters, and ends the
connection if a required one is missing. Then the daemon checks the parameters: an invalid or unsafe one ends the
connection if its feature is required; an optional feature is then treated as missing.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.protocol.event import EVENT_BYTES_MAX
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import DEDUPE_DAYS_MIN, DedupeMode
from holdfast.protocol.tables import total


class Feature(StrEnum):
    """Something that a relay can do. The value is its name on the wire."""

    DEDUPE = "client_message_id_dedupe"  # remembers ids, so that a repetition is recognised
    QUEUE = "member_queue"  # keeps messages for a member that is not connected
    MAX_PAYLOAD = "max_payload"
    SECOND_CONNECTION = "concurrent_connection_policy"
    KEY_ROTATION = "member_key_rotation"
    KEY_EPOCH = "key_epoch"  # topics with keys that change


class Parameter(msgspec.Struct, frozen=True):
    """A number with its minimum, or one of several words. Some are needed only if another parameter has a certain word."""

    floor: int | None = None
    words: frozenset[str] = frozenset()
    needed_with: tuple[str, str] | None = None


class Rule(msgspec.Struct, frozen=True):
    """The version of a feature that is known here, its parameters, and whether it is required."""

    version: int
    is_required: bool
    parameters: Mapping[str, Parameter] = {}


RULES: Mapping[Feature, Rule] = total(
    {
        Feature.DEDUPE: Rule(
            2,
            True,
            {
                "mode": Parameter(words=frozenset(mode.value for mode in DedupeMode)),
                "dedupe_retention_days": Parameter(
                    floor=DEDUPE_DAYS_MIN, needed_with=("mode", DedupeMode.RETENTION_SCOPED.value)
                ),
            },
        ),
        Feature.QUEUE: Rule(1, True, {"ttl_days": Parameter(floor=1), "window_messages": Parameter(floor=1)}),
        Feature.MAX_PAYLOAD: Rule(1, True, {"event_bytes": Parameter(floor=EVENT_BYTES_MAX)}),
        Feature.SECOND_CONNECTION: Rule(
            1,
            False,
            {"policy": Parameter(words=frozenset({"prefer_newest", "prefer_oldest", "allow_concurrent"}))},
        ),
        Feature.KEY_ROTATION: Rule(1, False),
        Feature.KEY_EPOCH: Rule(1, False, {"grants_max": Parameter(floor=1)}),
    },
    Feature,
)

Parameters = Mapping[str, Any]


class Negotiated(msgspec.Struct, frozen=True, kw_only=True):
    """The features that both sides have, with the relay's parameters, and what is wrong with the others."""

    features: dict[str, dict[str, Any]]
    ignored: tuple[str, ...] = ()


def wanted(*, required: bool) -> dict[str, int]:
    """The features that a daemon asks for: names and versions."""
    return {feature.value: rule.version for feature, rule in RULES.items() if rule.is_required is required}


def missing(required: Mapping[str, int], supported: Mapping[str, Parameters]) -> list[str]:
    """The required features that a relay lacks in the wanted version, for its refusal."""
    return [name for name, version in required.items() if supported.get(name, {}).get("version") != version]


def negotiate(supported: Mapping[str, Parameters]) -> Negotiated:
    """The features usable with a relay; refused if a required one is missing or unsafe."""
    features: dict[str, dict[str, Any]] = {}
    ignored: list[str] = []
    for feature, rule in RULES.items():
        try:
            features[feature.value] = _judged(feature, rule, supported.get(feature.value))
        except Refused as refused:
            if rule.is_required:
                raise
            ignored.append(refused.detail)
    return Negotiated(features=features, ignored=tuple(ignored))


def _judged(feature: Feature, rule: Rule, said: Parameters | None) -> dict[str, Any]:
    if said is None:
        raise Refused(Refusal.FEATURE_UNAVAILABLE, f"the relay does not have {feature}")
    if said.get("version") != rule.version:
        detail = f"the relay has {feature} in version {said.get('version')}, {rule.version} is known here"
        raise Refused(Refusal.FEATURE_UNAVAILABLE, detail)
    for name, parameter in rule.parameters.items():
        if parameter.needed_with is None or said.get(parameter.needed_with[0]) == parameter.needed_with[1]:
            _check(f"{feature}: {name}", parameter, said.get(name))
    return dict(said)


def _check(what: str, parameter: Parameter, value: object) -> None:
    if parameter.floor is None:
        if not isinstance(value, str) or value not in parameter.words:
            raise Refused(Refusal.FEATURE_PARAM_INVALID, f"{what} is {value!r}, not one of {sorted(parameter.words)}")
    elif not isinstance(value, int) or isinstance(value, bool):
        raise Refused(Refusal.FEATURE_PARAM_INVALID, f"{what} is {value!r}, which is no whole number")
    elif value < parameter.floor:
        raise Refused(Refusal.FEATURE_PARAM_BELOW_FLOOR, f"{what} is {value}, at least {parameter.floor} needed")
