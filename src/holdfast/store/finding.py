"""What a check reports."""

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """A rule, and something that breaks it."""

    check: str
    rule: str
    found: str
