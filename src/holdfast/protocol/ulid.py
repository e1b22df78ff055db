"""ULIDs: ids that sort by the millisecond they were minted in.

An id is 26 upper-case Crockford characters. Two ids of the same millisecond sort by their random part,
in no particular order; where order matters there is a sequence.
"""

RANDOM_BYTES = 10
TIME_BYTES = 6
MICROSECONDS_PER_MILLISECOND = 1000

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(first + second for first in _DIGITS for second in _DIGITS)  # ids are minted by the thousand
_SHIFTS = tuple(range(120, -1, -10))


def mint(at: int, random: bytes) -> str:
    """The ULID of a time in microseconds and of ten random bytes."""
    if len(random) != RANDOM_BYTES:
        raise ValueError(f"a ULID takes {RANDOM_BYTES} random bytes, not {len(random)}")
    milliseconds = at // MICROSECONDS_PER_MILLISECOND
    if not 0 <= milliseconds < 1 << 8 * TIME_BYTES:
        raise ValueError(f"a ULID cannot hold the time {at}")
    number = int.from_bytes(milliseconds.to_bytes(TIME_BYTES, "big") + random, "big")
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
