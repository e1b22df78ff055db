"""Pages of an export, over HTTP or a Unix socket: asked for again while the relay is away, checked before anybody sees a row.

This module travels to machines that have Python, Arrow and nothing of ours, so it imports nothing of ours.
"""

import http.client
import json
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # likewise

PATIENCE_S = 60.0
"""For how long a relay that does not answer is asked again."""

TIMEOUT_S = 120.0
"""How long one answer may take: a page is read whole before its first byte is sent."""

HISTORY_PAGE_ROWS = 50_000
"""How many entries are asked for at once. Their bytes, about 20 MB, go where those of the page before lay; from 32 MB on the C library
gives memory back to the system each time, and to get it again took longer than reading and checking the page."""

FIRST_WAIT_S = 0.2
WAIT_S_MAX = 5.0

_PRUNED = re.compile(r"ask after (\d+)")


class SourceError(Exception):
    """An export cannot be read; the message says what to do."""


class Refused(SourceError):
    """The source refused, with a code that callers can act on."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class AddressWrong(SourceError):
    """The given text is not an address."""


class TokenMissing(SourceError):
    """The file that is to have the token cannot be read."""


class TokenUnfit(SourceError):
    """The given text cannot be a token; it is never shown, because most of it may be the secret."""


class Unreachable(SourceError):
    """Nobody answered for too long."""


class NotAllowed(SourceError):
    """The token is missing, wrong or too old."""


class OtherLog(SourceError):
    """The log is not the one that was read so far."""


class LogShorter(SourceError):
    """The log ends before the position that was read already."""


class RangePruned(SourceError):
    """The entries were pruned; the first that are left come after `anchor_seq`."""

    def __init__(self, message: str, anchor_seq: int) -> None:
        super().__init__(message, anchor_seq)
        self.anchor_seq = anchor_seq

    def __str__(self) -> str:
        return str(self.args[0])


class Gap(SourceError):
    """Positions are missing in what came."""


@dataclass(frozen=True)
class Place:
    """Where an export is, and how long to wait for it."""

    url: str  # http://host:port, https://…, or unix:/path/of/a/daemon's/socket
    token: str | None = field(default=None, repr=False)
    patience_s: float = PATIENCE_S
    token_file: str | None = None  # where the token is from, for a reader that gets options and reads it itself


@dataclass(frozen=True)
class Page:
    """What one answer brought."""

    log_id: bytes
    as_of_seq: int
    until: int
    next_after: int
    schema: Any  # pa.Schema
    batches: list[Any]  # of pa.RecordBatch

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


@dataclass(frozen=True)
class Head:
    """Which log an export shows, where it ends and where it begins."""

    log_id: bytes
    seq: int
    anchor_seq: int  # the last position that was pruned


def read_head(place: Place) -> Head:
    """The id, the end and the beginning of a place's log."""
    anchor_seq = 0
    while True:
        try:
            page = read_page(place, "history", anchor_seq, anchor_seq, ("seq",))
            return Head(page.log_id, page.as_of_seq, anchor_seq)
        except RangePruned as pruned:  # perhaps once more: a relay prunes while it is asked
            if pruned.anchor_seq <= anchor_seq:
                raise
            anchor_seq = pruned.anchor_seq


def read_pages(
    place: Place,
    table: str,
    after: int,
    until: int,
    columns: tuple[str, ...] | None,
    log_id: bytes,
    *,
    gaps: bool = False,
) -> Iterator[Page]:
    """All pages of a range, one after the other; with `gaps`, missing positions of a history are left for the caller to find."""
    while after < until:
        wanted = min(until, after + HISTORY_PAGE_ROWS) if table == "history" else until
        page = read_page(place, table, after, wanted, columns)
        if page.log_id != log_id:
            raise OtherLog(
                f"{place.url}: the log changed from {log_id.hex()} to {page.log_id.hex()} while it was read: the relay was "
                "restored or replaced. Start again; what was read before is not used."
            )
        if not after < page.next_after <= wanted or page.until != wanted:
            raise Gap(f"{place.url}: asked for {table} after {after} until {wanted}, got until {page.next_after}")
        if table == "history" and not gaps:
            check_dense(place, page, after)
        yield page
        after = page.next_after


def check_dense(place: Place, page: Page, after: int) -> None:
    """Refuse a page of a history that lacks a position, has one twice, or is out of order."""
    expected = page.next_after - after
    if page.rows == expected and _in_steps_of_one(page, after):
        return
    raise Gap(
        f"{place.url}: the history has {page.rows} entries after {after} up to {page.next_after} where there must be {expected}. "
        "Run `holdfast check` on its database; to look at what is left, read with the option gaps=pass."
    )


def _in_steps_of_one(page: Page, after: int) -> bool:
    if "seq" not in page.schema.names or page.rows == 0:
        return True
    seqs = pa.chunked_array([batch.column("seq") for batch in page.batches]).combine_chunks()
    steps = pc.pairwise_diff(seqs).slice(1)  # the first has none before it
    return bool(
        seqs[0].as_py() == after + 1 and steps.null_count == 0 and pc.all(pc.equal(steps, 1), min_count=0).as_py()
    )


def read_page(place: Place, table: str, after: int, until: int, columns: tuple[str, ...] | None) -> Page:
    """One page. Asked for again while nobody answers, for as long as `patience_s` says."""
    parameters = {"after": str(after), "until": str(until)}
    if columns is not None:
        parameters["columns"] = ",".join(columns)
    path = f"/v1/export/{quote(table)}?{urlencode(parameters, safe=',')}"
    response, body = ask(place, path)
    if response.status != http.client.OK:
        raise _refused(place, response, body)
    return _page(place, response, body)


def read_document(place: Place, path: str, accept: str = "application/json") -> Mapping[str, Any]:
    """A JSON document that a place serves, such as its description of itself."""
    response, body = ask(place, path, accept)
    if response.status != http.client.OK:
        raise _refused(place, response, body)
    document = _document(body)
    if document is None:
        raise SourceError(f"{place.url} did not answer with a document of JSON: is it a Holdfast?")
    return document


def put(place: Place, path: str, body: bytes) -> None:
    """PUT a JSON document, perhaps more than once: a repetition must do no harm."""
    response, answer = ask(place, path, body=body)
    if response.status != http.client.OK:
        raise _refused(place, response, answer)


def ask(
    place: Place, path: str, accept: str = "*/*", body: bytes | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    """The whole answer to a GET, or to a PUT of a body; temporary failures are waited out."""
    give_up_at = time.monotonic() + place.patience_s
    wait_s = FIRST_WAIT_S
    while True:
        retry_after_s = 0.0
        try:
            response, answer = _once(place, path, accept, body)
            if not _is_temporary(response.status):
                return response, answer
            reason = f"{response.status} {_problem(answer).get('detail', '')}".strip()
            retry_after_s = _seconds(response.headers.get("Retry-After"))
        except (OSError, http.client.HTTPException) as error:
            reason = _plain(str(error)) or type(error).__name__
        wait_s = min(max(wait_s, retry_after_s), WAIT_S_MAX)
        if time.monotonic() + wait_s > give_up_at:
            raise Unreachable(
                f"{place.url} did not answer for {place.patience_s:g} s ({reason}). "
                "Start it, or correct the address, and run again: nothing is lost."
            )
        time.sleep(wait_s)
        wait_s *= 2


def _once(place: Place, path: str, accept: str, body: bytes | None) -> tuple[http.client.HTTPResponse, bytes]:
    connection = _connection(place.url)
    headers = {"Accept": accept} if body is None else {"Content-Type": "application/json"}
    if place.token is not None:
        headers["Authorization"] = f"Bearer {place.token}"
    try:
        connection.request("GET" if body is None else "PUT", path, body, headers)
        response = connection.getresponse()
        return response, response.read()  # raises if the answer was cut short
    finally:
        connection.close()


def check_address(url: str) -> SplitResult:
    """The parts of an address, if it is one."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme == "unix" or (parts.scheme in ("http", "https") and parts.hostname and parts.port != 0)
    except ValueError:  # a bad bracket or port
        is_one = False
    if not is_one:
        raise AddressWrong(f"{url}: an address is http://host:port, https://host, or unix:/path/of/a/socket")
    return parts


def _connection(url: str) -> http.client.HTTPConnection:
    parts = check_address(url)
    if parts.scheme == "unix":
        return _UnixConnection(url.partition(":")[2])  # a path may have a # or a ? in it
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


def _page(place: Place, response: http.client.HTTPResponse, body: bytes) -> Page:
    headers = response.headers
    try:
        with pa.ipc.open_stream(body) as stream:
            schema, batches = stream.schema.remove_metadata(), list(stream)
        if len(set(schema.names)) < len(schema.names):  # names that are not UTF-8 fail here, too
            raise ValueError("two columns have one name")
        for batch in batches:
            # Lengths and offsets are taken on trust otherwise, and a false one reads other memory.
            batch.validate(full=True)
        page = Page(
            log_id=bytes.fromhex(headers["Holdfast-Log-Id"]),
            as_of_seq=int(headers["Holdfast-As-Of-Seq"]),
            until=int(headers["Holdfast-Until"]),
            next_after=int(headers["Holdfast-Next-After"]),
            schema=schema,
            batches=batches,
        )
        told = int(headers["Holdfast-Rows"])
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:  # Arrow raises OSError for some damage
        raise SourceError(
            f"{place.url} did not answer with a page of an export: is it a Holdfast? ({_plain(str(error))})"
        ) from error
    if page.rows != told:
        raise Gap(f"{place.url}: a page of {told} rows came with {page.rows}")
    return page


def _refused(place: Place, response: http.client.HTTPResponse, body: bytes) -> SourceError:
    """The error for an answer that is not a page."""
    problem = _problem(body)
    code, detail = problem.get("code", "").replace("-", "_"), problem.get("detail", "")
    told = _sentence(f"{place.url}: {response.status} {': '.join(filter(None, (code, detail)))}")
    if not code:  # a Holdfast that refuses says why
        told = f"{place.url} answered {response.status} {_plain(response.reason)}: is it a Holdfast?"
    if response.status in (401, 403):
        remedy = "Mint a token with `holdfast relay token`, and give its file: --token-file, or the option token_file."
        return NotAllowed(f"{told} {remedy}")
    if code == "range_pruned":
        found = _PRUNED.search(detail)
        if found:
            message = (
                f"{told} The entries up to there are gone. Begin after them; what is missing is then reported as a gap."
            )
            return RangePruned(message, int(found[1]))
    if code == "cursor_ahead":
        return LogShorter(
            f"{told} The log is shorter than what was read of it: it lost entries, or an old copy was put in its place."
        )
    return Refused(told, code)


def _problem(body: bytes) -> dict[str, str]:
    """The texts in the description of a problem; none if an answer does not describe one."""
    return {name: _plain(value) for name, value in (_document(body) or {}).items() if isinstance(value, str)}


def _plain(text: str) -> str:
    """What somebody else said, without what would move the cursor of the terminal that shows it."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _document(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _is_temporary(status: int) -> bool:
    return status >= 500 or status in (408, 429)


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isdecimal() else 0.0
