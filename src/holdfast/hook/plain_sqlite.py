"""The interpreter's own SQLite through its C part alone, for the receiver and nobody else.

It never shares a process with the library of the store: closing a file in one drops the locks of the other.
"""

import sys


class _Functools:
    """All that the C part wants of `functools`, which with everything behind it would cost half of a receiver's time."""

    @staticmethod
    def lru_cache(_size: int):  # type: ignore[no-untyped-def]  # a decorator of anything
        return lambda function: function  # each statement of a receiver is run once


_is_stand_in = "functools" not in sys.modules
if _is_stand_in:
    sys.modules["functools"] = _Functools  # type: ignore[assignment]  # for the moment of this import
try:
    import _sqlite3
finally:
    if _is_stand_in:
        del sys.modules["functools"]

Connection = _sqlite3.Connection
Error = _sqlite3.Error
connect = _sqlite3.connect
