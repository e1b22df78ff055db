"""The receiver: an agent's hook, from its command line and its payload to one durable line; then it is gone.

It runs inside the agent's own time and may not be in its way: nothing is ever written to stdout, which the agent would read,
and it ends with 0 whatever happens, unless `--strict` was asked for. What cannot be stored is said on stderr and in
`hook.log`. Standard library only, and as little of it as possible: a start costs more than a disk's sync.

    --agent claude|codex|gemini [--home DIR] [--cwd DIR] [--strict] [--notify] [EVENT] [PAYLOAD]
"""

import os
import time

from holdfast.hook import plain_json, spool
from holdfast.hook.layout import LOG_NAME, SETTINGS_NAME
from holdfast.protocol import hook_event

PAYLOAD_BYTES_MAX = 1_048_576  # of a stored payload; of a larger one the large fields are cut
SESSION_CHARACTERS_MAX = 256  # of a session's id; of a longer one its beginning and its digest
NAME_CHARACTERS_MAX = 100  # of an event's name
FIELD_BYTES_MAX = 65_536  # of one field of such a payload
INPUT_BYTES_MAX = 67_108_864  # beyond it a payload is not even read
DETAIL_CHARACTERS_MAX = 1_000  # of what could not be read, in the row that says so
LOG_BYTES_MAX = 1_048_576  # then the log is put aside
RANDOM_BYTES = 10
TIME_BYTES = 6
CUT_DIGITS = 16  # of such a size, and what stands around it
CUT = "holdfast_cut"  # names the fields that were too large, and their sizes
CUT_NAMES_MAX = 1_000  # of these
CUT_UNNAMED = "holdfast_cut_unnamed"  # how many more are left out, because they are too many or their names too long

INVALID_JSON = "hook_invalid_json"
NOT_OBJECT = "hook_payload_not_object"
TOO_LARGE = "hook_payload_too_large"


class Misused(Exception):
    """The command line is wrong."""


class Invalid(Exception):
    """The payload is no event; an `error` event is stored instead."""

    def __init__(self, code: str, message: str, details: str) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


class Call:
    """One command line."""

    def __init__(self, arguments: list[str]) -> None:
        self.agent = self.home = self.cwd = ""
        self.is_strict = "--strict" in arguments
        self.is_notify = False
        self.words: list[str] = []
        waiting = iter(arguments)
        for argument in waiting:
            name, _, value = argument.partition("=")
            if name in ("--agent", "--home", "--cwd"):
                setattr(self, name[2:], value or next(waiting, ""))
            elif argument == "--notify":
                self.is_notify = True
            elif argument.startswith("--") and argument != "--strict":
                raise Misused(f"{argument} is no option of `holdfast hook`")
            elif argument != "--strict":
                self.words.append(argument)
        if self.agent not in hook_event.AGENTS:
            raise Misused(f"--agent must be one of {', '.join(hook_event.AGENTS)}")
        self.home = self.home or _home()

    def payload(self) -> bytes:
        """What the agent sent: the last word of a notify command, stdin otherwise."""
        if self.words and (self.is_notify or self.words[-1].lstrip()[:1] in ("{", "[")):
            return os.fsencode(self.words.pop())
        return _stdin()


def main(arguments: list[str]) -> int:
    """Receive one event; the exit code is 0, or 1 after an error with `--strict`."""
    is_strict, home = "--strict" in arguments, ""
    try:
        call = Call(arguments)
        home = call.home
        receive(call)
    except (Exception, KeyboardInterrupt) as error:  # nothing may get out of here: it would stand in the agent's way
        _complain(home, f"{type(error).__name__}: {error}")
        return 1 if is_strict else 0
    return 0


def receive(call: Call) -> str:
    """Store the event, or count it as dropped; returns `stored` or `dropped`."""
    at = time.time_ns() // 1000
    raw = call.payload()
    _undisturbed()
    try:
        payload = _read(raw)
    except Invalid as invalid:
        values = _event(call, at, hook_event.ERROR, "receiver", _session(call, {}), _error_payload(invalid))
        _store(call, "insert_event", values)
        raise
    payload = hook_event.normalised(call.agent, payload)
    name = _storable(call.words[0] if call.words else hook_event.name_of(payload))[:NAME_CHARACTERS_MAX]
    event_type = hook_event.type_of(call.agent, name, payload)
    allowed = hook_event.ALLOWED | _also_allowed(call.home)
    reason = hook_event.drop_reason(call.agent, name, event_type, payload, allowed)
    if reason is not None:
        dropped = {
            "agent": call.agent,
            "event_name": name,
            "reason": reason,
            "received_at": at,
        }
        _store(call, "count_dropped", dropped)
        return "dropped"
    if "cwd" not in payload:
        payload |= _where(call)
    values = _event(call, at, event_type, name, _session(call, payload), _sized(payload, len(raw)))
    _store(call, "insert_event", values)
    return "stored"


def _store(call: Call, statement: str, values: dict[str, object]) -> None:
    """Append a statement and its values to the spool, for the worker to run."""
    spool.append(call.home, {"statement": statement, "values": values})


def _undisturbed() -> None:
    """Ignore Ctrl-C from here on: it is meant for the agent, and storing takes only a moment."""
    import _signal  # type: ignore[import-not-found]  # `signal` without its enums

    try:
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    except ValueError:
        return  # only a program's first thread has signals


def _read(raw: bytes) -> hook_event.Payload:
    if len(raw) > INPUT_BYTES_MAX:
        raise Invalid(TOO_LARGE, f"the payload has more than {INPUT_BYTES_MAX} bytes", _shown(raw))
    try:
        payload = plain_json.read(raw.decode("utf-8"))
        plain_json.write(payload)  # a number can be too large to be written again
    except (ValueError, RecursionError) as error:
        raise Invalid(INVALID_JSON, f"the payload is not JSON: {error}", _shown(raw)) from None
    if not isinstance(payload, dict):
        raise Invalid(NOT_OBJECT, "the payload is not a JSON object", _shown(raw))
    return payload


def _event(
    call: Call, at: int, event_type: str, name: str, session: str, payload: hook_event.Payload
) -> dict[str, object]:
    """The row of an event."""
    text = plain_json.write(payload)
    occurrence = hook_event.occurrence_of(event_type, payload)
    key = None if occurrence is None else _digest("\0".join((call.agent, session, name, occurrence, text)))
    stamp = (at // 1000).to_bytes(TIME_BYTES, "big")
    return {
        "event_id": (stamp + os.urandom(RANDOM_BYTES)).hex(),
        "agent": call.agent,
        "session_id": session,
        "event_type": event_type,
        "event_name": name,
        "payload": text,
        "occurrence": key,
        "received_at": at,
    }


def _where(call: Call) -> hook_event.Payload:
    """The current directory as `cwd`; nothing if it was removed, as agents do with their work trees."""
    try:
        return {"cwd": call.cwd or os.getcwd()}
    except OSError:
        return {}


def _session(call: Call, payload: hook_event.Payload) -> str:
    found = hook_event.session_of(payload)
    if not found and call.agent == "gemini":
        found = os.environ.get("GEMINI_SESSION_ID", "")
    found = _storable(found)
    if len(found) <= SESSION_CHARACTERS_MAX:
        return found
    return f"{found[: SESSION_CHARACTERS_MAX // 2]}…{_digest(found)}"  # still one name for one session


def _error_payload(invalid: Invalid) -> hook_event.Payload:
    return {
        "message": str(invalid),
        "source": "hook_receiver",
        "code": invalid.code,
        "details": invalid.details,
        "severity": "error",
        "retryable": False,
    }


def _sized(payload: hook_event.Payload, size: int) -> hook_event.Payload:
    """The payload, with large fields cut so that it fits."""
    if size <= FIELD_BYTES_MAX or (total := len(plain_json.write(payload))) <= PAYLOAD_BYTES_MAX:
        return payload
    kept = dict(payload)
    gone: dict[str, int] = {}
    unnamed = 0
    sizes = {name: len(plain_json.write(value)) for name, value in payload.items()}
    for name in sorted(sizes, key=lambda one: sizes[one] + len(one), reverse=True):
        is_large = sizes[name] > FIELD_BYTES_MAX
        if not is_large and total <= PAYLOAD_BYTES_MAX:
            break
        if len(name) > NAME_CHARACTERS_MAX or len(gone) == CUT_NAMES_MAX:
            del kept[name]  # its name alone may be too large, or there are too many of them
            unnamed += 1
            total -= len(plain_json.write(name)) + sizes[name] + len(":,")
            continue
        kept[name] = _cut(payload[name]) if is_large else None  # there may be many, and none of them large by itself
        gone[name] = sizes[name]
        total += len(plain_json.write({name: kept[name]})) + CUT_DIGITS - sizes[name]
    return kept | {CUT: gone} | ({CUT_UNNAMED: unnamed} if unnamed else {})


def _cut(value: object) -> object:
    return value[: FIELD_BYTES_MAX // 12] if isinstance(value, str) else None  # a character is at most twelve in JSON


def _also_allowed(home: str) -> frozenset[str]:
    """The types that the user's setting adds; a setting that cannot be read adds none."""
    try:
        with open(f"{home}/{SETTINGS_NAME}", encoding="utf-8") as file:
            settings = plain_json.read(file.read())
        return frozenset(settings.get("allow", ()))  # type: ignore[attr-defined]  # what is no object is told below
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, AttributeError, TypeError) as error:
        _complain(home, f"{SETTINGS_NAME} cannot be read and allows nothing: {error}")
        return frozenset()


def _home() -> str:
    given = os.environ.get("HOLDFAST_HOME") or "~/.holdfast"
    return os.path.abspath(os.path.expanduser(given))


def _stdin() -> bytes:
    parts: list[bytes] = []
    size = 0
    while size <= INPUT_BYTES_MAX and (part := os.read(0, 1_048_576)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _storable(text: str) -> str:
    """A text without lone surrogates, which JSON can spell and no database takes."""
    return text.encode("utf-8", "replace").decode()


def _shown(raw: bytes) -> str:
    return raw[:DETAIL_CHARACTERS_MAX].decode("utf-8", "replace")


def _digest(text: str) -> str:
    try:
        from _sha2 import sha256  # type: ignore[import-not-found]  # `hashlib` without everything else that is in it
    except ImportError:
        from _sha256 import sha256  # type: ignore[import-not-found]  # its name until Python 3.11
    digest: str = sha256(text.encode("utf-8", "replace")).hexdigest()
    return digest


def _complain(home: str, message: str) -> None:
    """Say what went wrong, on stderr and in the log, if they are there."""
    text = f"holdfast hook: {_storable(message)}"
    for tell in (_to_stderr, _to_log):
        try:
            tell(home, text)
        except OSError:
            continue


def _to_stderr(_: str, text: str) -> None:
    os.write(2, f"{text}\n".encode())


def _to_log(home: str, text: str) -> None:
    path = f"{home or _home()}/{LOG_NAME}"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        line = plain_json.write({"at": time.time_ns() // 1000, "message": text})
        os.write(descriptor, f"{line}\n".encode())
        if os.fstat(descriptor).st_size > LOG_BYTES_MAX:
            os.replace(path, f"{path}.1")
    finally:
        os.close(descriptor)
