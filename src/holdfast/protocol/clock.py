"""Vector clocks: which of two snapshots of a document knew of the other.

A clock is a value: devices with their counters, ascending by device id, in one spelling only. Whatever breaks a rule is
refused and never mended. Device ids are opaque and compared exactly; ascending means by code point, which for Unicode
text is also the order of its UTF-8 bytes (and not that of UTF-16 units, which puts astral characters too early).
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property

import msgspec

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tables import total
from holdfast.protocol.tags import Tags, check_range, check_type, read_integer, shown

CLOCK_TAG = "vc"
DEVICES_MAX = 32  # devices in one clock
DEVICE_ID_BYTES_MAX = 128  # in UTF-8; a UUID takes 36, a key in hex 64


class Order(StrEnum):
    """The order of one clock relative to another."""

    BEFORE = "before"
    AFTER = "after"
    EQUAL = "equal"
    CONCURRENT = "concurrent"


# (the first has a counter ahead, the second has a counter ahead) -> the order of the first relative to the second
ORDERS: Mapping[tuple[bool, bool], Order] = total(
    {
        (False, False): Order.EQUAL,
        (True, False): Order.AFTER,
        (False, True): Order.BEFORE,
        (True, True): Order.CONCURRENT,
    },
    itertools.product((False, True), (False, True)),
)


class VectorClock(msgspec.Struct, frozen=True, dict=True):
    """Counters by device, ascending by device id; an absent device counts as 0. The empty clock knows of no edit."""

    entries: tuple[tuple[str, int], ...] = ()

    @cached_property
    def counters(self) -> Mapping[str, int]:
        """The same to look things up in: made once, because one clock is compared with many."""
        return dict(self.entries)

    def __post_init__(self) -> None:
        check_type(self.entries, tuple, "clock entries")
        if len(self.entries) > DEVICES_MAX:
            raise Refused(Refusal.MALFORMED, f"clock has {len(self.entries)} devices, at most {DEVICES_MAX} allowed")
        for device, counter in self.entries:
            _check_device(device)
            check_range(counter, f"clock device {shown(device)}: counter", 1)
        for (device, _), (following, _) in zip(self.entries, self.entries[1:], strict=False):
            _check_ascending(device, following)


def _check_device(device: str) -> None:
    check_type(device, str, "clock device")
    if not device:
        raise Refused(Refusal.MALFORMED, "clock has an empty device id")
    if "\0" in device:  # PostgreSQL cannot store it in a text
        raise Refused(Refusal.MALFORMED, f"clock device {shown(device)} has a NUL character")
    try:
        size_bytes = len(device.encode())
    except UnicodeEncodeError:
        raise Refused(Refusal.MALFORMED, f"clock device {shown(device)} is not Unicode text") from None
    if size_bytes > DEVICE_ID_BYTES_MAX:
        raise Refused(
            Refusal.MALFORMED,
            f"clock device {shown(device)} has {size_bytes} bytes, at most {DEVICE_ID_BYTES_MAX} allowed",
        )


def _check_ascending(device: str, following: str) -> None:
    if device == following:
        raise Refused(Refusal.MALFORMED, f"clock device {shown(device)} stands twice")
    if device > following:
        raise Refused(
            Refusal.MALFORMED,
            f"clock devices are not ascending: {shown(following)} stands after {shown(device)}",
        )


def from_tags(tags: Sequence[Sequence[str]]) -> VectorClock:
    """The clock in an event's tags; other tags may stand anywhere between and are skipped."""
    entries = tuple(_entry(tag) for tag in tags if tag and tag[0] == CLOCK_TAG)
    if not entries:
        raise Refused(Refusal.MALFORMED, "clock is missing: at least one 'vc' tag is needed")
    return VectorClock(entries)


def _entry(tag: Sequence[str]) -> tuple[str, int]:
    if len(tag) != 3:
        raise Refused(Refusal.MALFORMED, f"tag 'vc' has {len(tag)} elements, it must have 3")
    _, device, counter = tag
    return device, read_integer(counter, f"clock device {shown(device)}: counter")


def to_tags(clock: VectorClock) -> Tags:
    """The tags of a clock in an event."""
    if not clock.entries:
        raise Refused(Refusal.MALFORMED, "clock is empty: an event needs at least one device")
    return tuple((CLOCK_TAG, device, str(counter)) for device, counter in clock.entries)


def compare(first: VectorClock, second: VectorClock) -> Order:
    """The order of `first` relative to `second`."""
    one, other = first.counters, second.counters
    return ORDERS[_is_ahead(one, other), _is_ahead(other, one)]


def _is_ahead(first: Mapping[str, int], second: Mapping[str, int]) -> bool:
    for device, counter in first.items():  # noqa: SIM110 - `any` over a generator takes twice as long
        if counter > second.get(device, 0):
            return True
    return False


def dominates(first: VectorClock, second: VectorClock) -> bool:
    """Whether `first` knew all of `second` and more; equal clocks do not dominate each other."""
    return compare(first, second) is Order.AFTER


def merge(first: VectorClock, second: VectorClock) -> VectorClock:
    """The smallest clock that knows both; refused when together they name too many devices."""
    counters = dict(first.entries)
    for device, counter in second.entries:
        counters[device] = max(counter, counters.get(device, 0))
    return VectorClock(tuple(sorted(counters.items())))


def increment(clock: VectorClock, device: str) -> VectorClock:
    """The clock after one more edit on `device`; refused when its counter or the number of devices is at its limit."""
    counters = dict(clock.entries)
    counters[device] = counters.get(device, 0) + 1
    return VectorClock(tuple(sorted(counters.items())))


def frontier(clocks: Iterable[VectorClock]) -> tuple[VectorClock, ...]:
    """The clocks that no other dominates, in the order given; equal ones are all kept.

    Each clock is compared with those kept before it, so the time is quadratic in the number of concurrent clocks: a
    quarter of a second for a thousand. A caller that takes clocks from strangers must limit their number.
    """
    kept: list[VectorClock] = []
    for clock in clocks:
        orders = [compare(clock, other) for other in kept]
        if Order.BEFORE in orders:
            continue
        kept = [other for other, order in zip(kept, orders, strict=True) if order is not Order.AFTER]
        kept.append(clock)
    return tuple(kept)
