"""Good inputs made bad: bytes flipped, cut, doubled and swapped, and the values of JSON replaced by others."""

import json
import random
from collections.abc import Sequence
from typing import Any

WORDS = (
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"{",
    b"[",
    b"]",
    b'"',
    b"\\u0000",
    b"\\ud800",
    b"\n",
    b" ",
    b"=",
    b"%00",
    b"&",
)
NUMBERS: tuple[Any, ...] = (0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**30, 1.5, 1e308)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    None,
    True,
    "",
    "x" * 5_000,
    "\x00",
    "\ud800",
    "é\u202e",
    "0" * 64,
    "00" * 16,
    [],
    {},
    [[]],
    {"x": 1},
)
DEEP = 3_000  # brackets, more than any reader follows


def mutated(luck: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of these, changed in one way or in several."""
    found = luck.choice(seeds)
    if luck.random() < 0.5:
        found = _reshaped(luck, found)
    for _ in range(luck.choice((0, 1, 1, 2, 5))):
        found = luck.choice(_CHANGES)(luck, found, luck.choice(seeds))
    return found


def _flipped(luck: random.Random, raw: bytes, _: bytes) -> bytes:
    if not raw:
        return raw
    place = luck.randrange(len(raw))
    return raw[:place] + bytes([raw[place] ^ (1 << luck.randrange(8))]) + raw[place + 1 :]


def _cut(luck: random.Random, raw: bytes, _: bytes) -> bytes:
    start = luck.randrange(len(raw) + 1)
    return raw[:start] + raw[start + luck.choice((1, 2, 8, 64, len(raw))) :]


def _doubled(luck: random.Random, raw: bytes, _: bytes) -> bytes:
    start = luck.randrange(len(raw) + 1)
    end = min(len(raw), start + luck.choice((1, 4, 32, 256)))
    return raw[:end] + raw[start:end] * luck.choice((1, 2, 20)) + raw[end:]


def _worded(luck: random.Random, raw: bytes, _: bytes) -> bytes:
    place = luck.randrange(len(raw) + 1)
    return raw[:place] + luck.choice(WORDS) + raw[place:]


def _numbered(luck: random.Random, raw: bytes, _: bytes) -> bytes:
    place = luck.randrange(len(raw) + 1)
    return raw[:place] + str(luck.choice(NUMBERS)).encode() + raw[place + 1 :]


def _spliced(luck: random.Random, raw: bytes, other: bytes) -> bytes:
    return raw[: luck.randrange(len(raw) + 1)] + other[luck.randrange(len(other) + 1) :]


_CHANGES = (_flipped, _flipped, _cut, _doubled, _worded, _numbered, _spliced)


def _reshaped(luck: random.Random, raw: bytes) -> bytes:
    """JSON with another value in one place; what is no JSON stays."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    if luck.random() < 0.02:
        return luck.choice((b"[", b'{"x":')) * DEEP + raw
    changed = json.dumps(_with_another(luck, document), ensure_ascii=luck.random() < 0.5, separators=(",", ":"))
    return changed.encode("utf-8", "surrogatepass")


def _with_another(luck: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and luck.random() < 0.85:
        key = luck.choice(list(value))
        kept = {name: one for name, one in value.items() if name != key}
        change = luck.random()
        if change < 0.1:
            return kept
        if change < 0.2:
            return {**kept, luck.choice(("", "x", key + "x")): value[key]}
        return {**value, key: _with_another(luck, value[key])}
    if isinstance(value, list) and value and luck.random() < 0.85:
        place = luck.randrange(len(value))
        change = luck.random()
        if change < 0.1:
            return value[:place] + value[place + 1 :]
        if change < 0.2:
            return value + value[place:] * 2
        return [*value[:place], _with_another(luck, value[place]), *value[place + 1 :]]
    return luck.choice(VALUES)
