"""JSON through the interpreter's C parts alone: the `json` package brings regular expressions, which cost more than a commit.

Stricter than that package: NaN and the infinities are no JSON, and nothing may stand behind the value.
"""

try:
    import _json
except ImportError:  # an interpreter without them
    _json = None  # type: ignore[assignment]  # then the package does it, slowly

_SPACE = " \t\r\n"


class NotJson(ValueError):
    """The text is not one JSON value."""


def read(text: str) -> object:
    """The value of a JSON text."""
    start = 0
    while start < len(text) and text[start] in _SPACE:
        start += 1
    try:
        value, end = _scan(text, start)
    except NotJson:
        raise
    except Exception:  # the C parts cannot even say what is wrong unless the package is loaded
        raise NotJson(_complaint(text)) from None
    if text[end:].strip(_SPACE):
        raise NotJson(f"Extra data at character {end}")
    return value


def write(value: object) -> str:
    """A value as JSON, in ASCII: whatever a text held can be stored."""
    if _json is None or not hasattr(_json, "make_encoder"):
        import json

        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    encode = _json.make_encoder(None, _refuse, _json.encode_basestring_ascii, None, ":", ",", False, False, False)
    return "".join(encode(value, 0))


class _Rules:
    """The settings that the C scanner reads."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int

    def __init__(self) -> None:
        self.memo: dict[str, str] = {}

    @staticmethod
    def parse_constant(name: str) -> object:
        raise NotJson(f"{name} is no number")


def _scan(text: str, start: int):  # type: ignore[no-untyped-def]  # a value and where it ends; C has no types to name
    if _json is None or not hasattr(_json, "make_scanner"):
        from json.decoder import JSONDecoder

        return JSONDecoder(parse_constant=_Rules.parse_constant).raw_decode(text, start)
    return _json.make_scanner(_Rules())(text, start)  # type: ignore[arg-type]  # anything with these names is taken


def _complaint(text: str) -> str:
    """What is wrong with a text, in the package's words."""
    from json import loads

    try:
        loads(text)
    except (ValueError, RecursionError) as error:
        return str(error)
    return "it cannot be read"


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is no JSON")
