"""ULIDs: ids that sort by the millisecond they were minted in.

One id has one spelling here: 26 upper-case Crockford characters. Two ids of the same millisecond sort by their random part,
in no particular order; where order matters there is a sequence.
"""

from holdfast.protocol.refusal import Refusal, Refused

ULID_CHARACTERS = 26
RANDOM_BYTES = 10
TIME_BYTES = 6
MICROSECONDS_PER_MILLISECOND = 1000

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(first + second for first in _DIGITS for second in _DIGITS)  # ids are minted by the thousand
_ALPHABET = frozenset(_DIGITS)
_SHIFTS = tuple(range(120, -1, -10))
_FIRST_CHARACTERS = frozenset("01234567")  # 26 characters hold 130 bits, an id has 128


def mint(at: int, random: bytes) -> str:
    """The ULID of a time in microseconds and of ten random bytes."""
    if len(random) != RANDOM_BYTES:
        raise ValueError(f"a ULID takes {RANDOM_BYTES} random bytes, not {len(random)}")
    milliseconds = at // MICROSECONDS_PER_MILLISECOND
    if not 0 <= milliseconds < 1 << 8 * TIME_BYTES:
        raise ValueError(f"a ULID cannot hold the time {at}")
    number = int.from_bytes(milliseconds.to_bytes(TIME_BYTES, "big") + random, "big")
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])


def parse(text: str) -> bytes:
    """The sixteen bytes of a ULID in its one spelling."""
    if len(text) != ULID_CHARACTERS:
        raise Refused(Refusal.MALFORMED, f"a ULID has {ULID_CHARACTERS} characters, this text has {len(text)}")
    if not _ALPHABET.issuperset(text):
        raise Refused(Refusal.MALFORMED, "a ULID has digits and upper-case letters only, without I, L, O and U")
    if text[0] not in _FIRST_CHARACTERS:
        raise Refused(Refusal.MALFORMED, "a ULID starts with 0 to 7, this text stands for more than 128 bits")
    from ulid import ULID

    return ULID.from_str(text).bytes


def is_ulid(text: str) -> bool:
    """Whether a text is a ULID in its one spelling."""
    return len(text) == ULID_CHARACTERS and _ALPHABET.issuperset(text) and text[0] in _FIRST_CHARACTERS


def minted_at(text: str) -> int:
    """The time in a ULID: the start of its millisecond, in microseconds."""
    return int.from_bytes(parse(text)[:TIME_BYTES], "big") * MICROSECONDS_PER_MILLISECOND
