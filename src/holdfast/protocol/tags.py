"""Strict reading of an event's tags: which there are, how many values each has, and in which order.

The tags of a kind are a table of rules. The order of the table is the order on the wire and is checked: a value then has
exactly one spelling, so an event can be rebuilt from its columns byte for byte, and a tag that is unknown, repeated or
out of place is found in the same pass. The rules for the texts inside tags stand here too, each with its limit.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cache
from typing import TypeVar

import msgspec

from holdfast.protocol.refusal import Refusal, Refused

Tags = tuple[tuple[str, ...], ...]

Choice = TypeVar("Choice", bound=StrEnum)

INTEGER_MAX = 9_007_199_254_740_991  # the largest integer that every reader of JSON holds exactly: 2**53 - 1
SHOWN_CHARACTERS_MAX = 40  # of somebody else's text quoted in a refusal

_DIGITS = re.compile(r"[0-9]+", re.ASCII)


class TagRule(msgspec.Struct, frozen=True):
    """How often a tag may occur, and how many values follow its name."""

    name: str
    least: int = 1
    most: int | None = 1  # None if the struct that is built from the tags limits them
    values: int = 1


class TextRule(msgspec.Struct, frozen=True):
    """Which texts are allowed: the first character, the further ones, and the greatest length."""

    first: str
    further: str
    characters_max: int
    allowed: str  # both classes of characters, in words

    @property
    def pattern(self) -> str:
        return rf"\A[{self.first}][{self.further}]{{0,{self.characters_max - 1}}}\Z"

    def check(self, text: str, what: str) -> None:
        """Refuse a text that breaks this rule; the refusal says how."""
        if type(text) is str and _compiled(self)(text):
            return
        check_type(text, str, what)
        if not text:
            raise Refused(Refusal.MALFORMED, f"{what} is empty")
        if len(text) > self.characters_max:
            raise Refused(
                Refusal.MALFORMED,
                f"{what} has {len(text)} characters, at most {self.characters_max} are allowed",
            )
        raise Refused(Refusal.MALFORMED, f"{what} {shown(text)} may only have {self.allowed}")


@cache
def _compiled(rule: TextRule) -> Callable[[str], re.Match[str] | None]:
    return re.compile(rule.pattern).search


# Meshes, members, queues, consumers: safe in a path, a URL and a shell; 64 characters hold a ULID or a key in hex.
IDENTIFIER = TextRule(
    first="A-Za-z0-9",
    further=r"A-Za-z0-9._\-",
    characters_max=64,
    allowed="letters, digits, '.', '_' and '-', and start with a letter or digit",
)
# Topics are named by people and may be grouped with slashes.
TOPIC = TextRule(
    first="A-Za-z0-9",
    further=r"A-Za-z0-9._\-/",
    characters_max=64,
    allowed="letters, digits, '.', '_', '-' and '/', and start with a letter or digit",
)
# A caller's own id: any visible ASCII that JSON writes as one byte, so that the length of an event is predictable.
REFERENCE = TextRule(
    first=r"!#-\[\]-~",
    further=r"!#-\[\]-~",
    characters_max=128,
    allowed="visible ASCII without quotation mark and backslash",
)


def read_tags(tags: Sequence[Sequence[str]], rules: Sequence[TagRule]) -> dict[str, list[tuple[str, ...]]]:
    """The values of every tag by name, or a refusal of the first tag that breaks a rule."""
    places = {rule.name: place for place, rule in enumerate(rules)}
    found: dict[str, list[tuple[str, ...]]] = {rule.name: [] for rule in rules}
    reached = 0
    for tag in tags:
        name = tag[0] if tag else ""
        if name not in places:
            raise Refused(Refusal.MALFORMED, f"unknown tag {shown(name)}")
        if places[name] < reached:
            raise Refused(Refusal.MALFORMED, f"tag '{name}' stands after '{rules[reached].name}'")
        reached = places[name]
        found[name].append(_values(tag, rules[reached]))
    for rule in rules:
        _check_count(len(found[rule.name]), rule)
    return found


def _values(tag: Sequence[str], rule: TagRule) -> tuple[str, ...]:
    if len(tag) != rule.values + 1:
        raise Refused(Refusal.MALFORMED, f"tag '{rule.name}' has {len(tag)} elements, it must have {rule.values + 1}")
    return tuple(tag[1:])


def _check_count(count: int, rule: TagRule) -> None:
    if count < rule.least:
        raise Refused(Refusal.MALFORMED, f"tag '{rule.name}' is missing")
    if rule.most is not None and count > rule.most:
        raise Refused(Refusal.MALFORMED, f"tag '{rule.name}' stands {count} times, at most {rule.most} allowed")


def read_integer(text: str, what: str) -> int:
    """A number in plain base 10: ASCII digits, no sign, no space, no leading zero. Its range is the caller's rule."""
    if not _DIGITS.fullmatch(text):
        raise Refused(Refusal.MALFORMED, f"{what} {shown(text)} is not plain base-10 digits")
    if text[0] == "0" and text != "0":
        raise Refused(Refusal.MALFORMED, f"{what} {shown(text)} has a leading zero")
    if len(text) > len(str(INTEGER_MAX)):  # before converting it, which takes long for a long text
        raise Refused(Refusal.MALFORMED, f"{what} {shown(text)} is over {INTEGER_MAX}")
    return int(text)


def read_choice(choices: type[Choice], text: str, what: str) -> Choice:
    """The member of an enum that this text names."""
    try:
        return choices(text)
    except ValueError:
        allowed = ", ".join(choices)
        raise Refused(Refusal.MALFORMED, f"{what} {shown(text)} is not one of {allowed}") from None


def check_type(value: object, expected: type, what: str) -> None:
    """Refuse a value of another type; a bool does not pass as an int."""
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise Refused(Refusal.MALFORMED, f"{what} is of type {type(value).__name__}, not {expected.__name__}")


def check_range(value: int, what: str, least: int, most: int = INTEGER_MAX) -> None:
    check_type(value, int, what)
    if value < least:
        raise Refused(Refusal.MALFORMED, f"{what} {value} is under {least}")
    if value > most:
        raise Refused(Refusal.MALFORMED, f"{what} {value} is over {most}")


def check_bytes(value: bytes, what: str, size_bytes: int) -> None:
    """Refuse what is not exactly so many bytes."""
    check_type(value, bytes, what)
    if len(value) != size_bytes:
        raise Refused(Refusal.MALFORMED, f"{what} has {len(value)} bytes, it must have {size_bytes}")


def is_hex(text: str) -> bool:
    """Whether a text is whole bytes in lower-case hex; faster than a pattern, and events are read by the thousand."""
    try:
        return bytes.fromhex(text).hex() == text
    except ValueError:
        return False


def check_hex(text: str, what: str, size_bytes: int) -> None:
    """Refuse what is not exactly `size_bytes` bytes in lower-case hex."""
    check_type(text, str, what)
    if len(text) != 2 * size_bytes:
        raise Refused(Refusal.MALFORMED, f"{what} has {len(text)} characters, {2 * size_bytes} hex digits are needed")
    if not is_hex(text):
        raise Refused(Refusal.MALFORMED, f"{what} {shown(text)} is not lower-case hex")


def check_distinct(values: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise Refused(Refusal.MALFORMED, f"{what} {shown(value)} stands twice")
        seen.add(value)


def shown(text: str) -> str:
    """A text quoted for a refusal, cut to a length that a log can bear."""
    if len(text) > SHOWN_CHARACTERS_MAX:
        text = text[:SHOWN_CHARACTERS_MAX] + "..."
    return ascii(text)
