"""How pages are made: templates that escape whatever they show, and the words for times, sizes and states."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from holdfast.protocol.schedule import DAY, HOUR, SECOND
from holdfast.wire.route import Reply

HTML = "text/html; charset=utf-8"
NOTHING = "\N{EN DASH}"  # where there is nothing to show

# No script and no style but our own files; nobody frames us, and forms go nowhere else.
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # `no-referrer` would take the origin out of our own forms, too
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

STATIC = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "mark.svg": "image/svg+xml",
    "vendor/htmx.min.js": "text/javascript; charset=utf-8",
    "vendor/htmx-sse.min.js": "text/javascript; charset=utf-8",
    "vendor/uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "vendor/uPlot.min.css": "text/css; charset=utf-8",
    "vendor/ibm-plex-sans-latin-400-normal.woff2": "font/woff2",
    "vendor/ibm-plex-sans-latin-600-normal.woff2": "font/woff2",
    "vendor/ibm-plex-mono-latin-400-normal.woff2": "font/woff2",
}
"""What can be fetched, and as what."""

# A state's sign: told by its shape and its word first, by its colour last.
_SIGNS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("delivered", "applied", "done", "receipt", "ok", "active", "connected", "there", "ended", "live", "hook_done"),
        ("●", "good"),
    ),
    **dict.fromkeys(
        (
            "open",
            "pending",
            "accepted",
            "queued",
            "relayed",
            "stored",
            "scheduled",
            "idle",
            "current",
            "enqueued",
            "hook_received",
        ),
        ("○", "calm"),
    ),
    **dict.fromkeys(
        (
            "inflight",
            "working",
            "offered",
            "handling",
            "locked",
            "running",
            "waiting",
            "released",
            "opened",
            "attempted",
        ),
        ("◐", "calm"),
    ),
    **dict.fromkeys(
        ("expired", "blocked", "full", "unreadable", "duplicate", "parked", "aborted", "superseded"), ("▲", "warn")
    ),
    **dict.fromkeys(
        ("conflict", "rolled_back", "disconnected", "deleted", "taken down", "coalesced", "hook_coalesced"),
        ("▲", "warn"),
    ),
    **dict.fromkeys(
        ("dead", "hook_dead", "dropped", "quarantined", "moderated", "revoked", "refused", "violation"), ("✕", "bad")
    ),
}


def static_file(name: str) -> bytes:
    """The bytes of one of our files."""
    return resources.files(__package__).joinpath("static").joinpath(name).read_bytes()


def _version() -> str:
    digest = hashlib.sha256()
    for name in STATIC:
        digest.update(static_file(name))
    return digest.hexdigest()[:12]


STATIC_VERSION = _version()
"""Part of every file's address, so that a file may be kept for ever and a new one is fetched at once."""


class Templates:
    """The pages of one console."""

    def __init__(self, base: str, **everywhere: Any) -> None:
        self._environment = Environment(
            loader=PackageLoader("holdfast.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "time": show_time,
            "ago": ago,
            "bytes": show_bytes,
            "number": show_number,
            "duration": show_duration,
            "state": show_state,
            "short": short,
        }
        self._environment.globals |= {"base": base, "static": f"{base}/static/{STATIC_VERSION}", **everywhere}

    def text(self, name: str, values: Mapping[str, Any]) -> str:
        return self._environment.get_template(name).render(values)

    def page(self, name: str, values: Mapping[str, Any], status: int = 200) -> Reply:
        return Reply(status=status, body=self.text(name, values).encode(), content_type=HTML)


def show_time(at: int | None) -> Markup:
    """A moment (microseconds since 1970) as people read it, in UTC, with the exact one behind it."""
    if at is None:
        return Markup('<span class="none">{}</span>').format(NOTHING)
    try:
        moment = datetime.fromtimestamp(at / SECOND, UTC)
    except (OverflowError, ValueError, OSError):  # no time of any calendar
        return Markup("<span>{}</span>").format(at)
    exact = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, f"{moment:%Y-%m-%d %H:%M:%S}")


def ago(at: int | None, now: int) -> str:
    """How long ago, or from now on."""
    if at is None:
        return NOTHING
    return f"{show_duration(now - at)} ago" if at <= now else f"in {show_duration(at - now)}"


def show_duration(length: int | None) -> str:
    """A time span in microseconds, in its two largest units."""
    if length is None:
        return NOTHING
    if length < SECOND:
        return f"{max(length, 0) // 1000} ms"
    for unit, name, below, lower in (
        (DAY, "d", HOUR, "h"),
        (HOUR, "h", 60 * SECOND, "min"),
        (60 * SECOND, "min", SECOND, "s"),
    ):
        if length >= unit:
            rest = length % unit // below
            return f"{length // unit:,} {name} {rest} {lower}" if rest else f"{length // unit:,} {name}"
    return f"{length // SECOND} s"


def show_bytes(size: int | None) -> str:
    if size is None:
        return NOTHING
    amount = float(size)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} GiB"


def show_number(number: int | None) -> str:
    return NOTHING if number is None else f"{number:,}"


def show_state(state: str | None, word: str | None = None) -> Markup:
    """A state by shape, word and colour; another word for it where that says more."""
    sign, tone = _SIGNS.get(str(state), ("·", "calm"))
    return Markup('<span class="state {}"><span aria-hidden="true">{}</span> {}</span>').format(
        tone, sign, word or str(state or "none").replace("_", " ")
    )


def short(name: str | None, length: int = 12) -> Markup:
    """The first characters of an id, with the whole id as its title."""
    if not name:
        return Markup('<span class="none">{}</span>').format(NOTHING)
    if len(name) <= length:
        return Markup("<code>{}</code>").format(name)
    return Markup('<code title="{0}">{1}…</code>').format(name, name[:length])
