"""The result of a check."""

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """A rule, and a row or file that breaks it."""

    check: str
    rule: str
    found: str
