"""An HTTP client of one relay: every answer becomes a yes, a refusal or a fault.

A hostile relay can do no harm: every wait has a timeout, every response a size limit, and redirects are not followed,
because a relay must answer under the address that its users were given.
"""

import asyncio
import os
import ssl
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Annotated, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx2 as httpx
import msgspec
from msgspec import Meta

from holdfast.protocol import keys
from holdfast.protocol.action import Identifier, Key, KeyEpoch, KeyId, LogId, Position, TopicName
from holdfast.protocol.anchor import Anchor
from holdfast.protocol.http_auth import NONCE_BYTES, authorization
from holdfast.protocol.reaction import Confirmation, FaultKind, RelaySays
from holdfast.protocol.refusal import PROBLEM_TYPE, Refusal, Refused
from holdfast.protocol.schedule import DEDUPE_DAYS_MIN, SECOND, DedupeMode
from holdfast.protocol.snapshot import Standing
from holdfast.store.world import Clock, Random, wall_clock
from holdfast.wire.network import is_loopback
from holdfast.wire.request import MET_LOG
from holdfast.wire.response import RESPONSE_BYTES_MAX

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 15.0  # without a byte of the answer, which the relay sends after a commit
WRITE_TIMEOUT_S = 15.0
EXCHANGE_TIMEOUT_S = 120.0  # for a whole request and its whole answer, however steadily the bytes come
QUEUE_TTL_DAYS = 7  # assumed of a relay that does not say how long messages wait
DAYS_MAX = 36_500  # that a relay may promise
DETAIL_CHARACTERS_MAX = 300  # of the relay's words quoted in an error of ours

_TIMEOUT = httpx.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S, write=WRITE_TIMEOUT_S, pool=CONNECT_TIMEOUT_S)

T = TypeVar("T")


class Unreachable(Exception):
    """No usable answer of the relay: it may have done what it was asked, or not."""

    def __init__(self, url: str, fault: FaultKind, detail: str, retry_after_s: int | None = None) -> None:
        super().__init__(f"{url}: {detail}")
        self.url = url
        self.fault = fault
        self.detail = detail
        self.retry_after_s = retry_after_s


class InvalidUrl(ValueError):
    """A text that is not the address of a relay."""


class Yes(msgspec.Struct, frozen=True, kw_only=True):
    """A relay's answer about an event that it has."""

    broker_message_id: str
    client_message_id: str
    history_id: Position
    log_id: LogId
    duplicate: bool
    anchor: Anchor
    history_available: bool = True


class SnapshotYes(Yes, frozen=True, kw_only=True):
    """A relay's answer about a snapshot that it has, with its standing to the other snapshots there."""

    broker_message_id: str = ""
    client_message_id: str = ""
    event_id: str
    standing: Standing


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The relay's answer to one event: a yes, a refusal, or a fault if there was none."""

    says: RelaySays
    detail: str = ""
    yes: Yes | None = None
    retry_after_s: int | None = None


class MemberKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that a member has, or had until it was replaced or revoked (microseconds)."""

    pubkey: Key
    since: Position
    until: Position | None = None


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a mesh; a revoked one has no current key. `keys` are all that it ever had."""

    member: Identifier
    pubkey: Key | None
    name: str
    role: str
    status: str
    keys: tuple[MemberKey, ...] = ()

    @property
    def is_active(self) -> bool:
        return self.status == "active"


class Subscriber(msgspec.Struct, frozen=True, kw_only=True):
    """A subscriber of a topic, and whether the current key was granted to it."""

    member: str
    has_key: bool


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic; its key epoch is 0 until it has its first key. An earlier version of the relay does not tell the key's id."""

    topic: TopicName
    key_epoch: Position
    key_id: KeyId | None = None
    created_by: str
    subscribers: tuple[Subscriber, ...]
    left: tuple[str, ...]  # a member who has the current key and should not: it has to be rotated


class Mesh(msgspec.Struct, frozen=True, kw_only=True):
    """A mesh as the relay shows it to its members."""

    mesh: str
    name: str
    members: tuple[Member, ...]
    topics: tuple[Topic, ...]


class GrantedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's key, sealed to us; `key` is the public key of ours that it was sealed to."""

    key_epoch: KeyEpoch
    key_id: str
    key: str
    sealed: str
    granted_by: str


class Grants(msgspec.Struct, frozen=True, kw_only=True):
    """The grants of a topic that are ours."""

    topic: str
    key_epoch: int
    grants: tuple[GrantedKey, ...]


class Dedupe(msgspec.Struct, frozen=True, kw_only=True):
    """How long the relay remembers ids."""

    mode: DedupeMode
    days: Annotated[int, Meta(le=DAYS_MAX)] | None = None


class QueuePromise(msgspec.Struct, frozen=True, kw_only=True):
    """How long a message waits for its recipient."""

    ttl_days: Annotated[int, Meta(ge=1, le=DAYS_MAX)] = QUEUE_TTL_DAYS


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """The relay's promises to senders; the defaults are the least that is safe."""

    dedupe: Dedupe = Dedupe(mode=DedupeMode.RETENTION_SCOPED, days=DEDUPE_DAYS_MIN)
    queue: QueuePromise = QueuePromise()


class Information(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the relay's NIP-11 document that a device reads."""

    pubkey: Key
    name: str = ""
    software: str = ""
    log_id: LogId | None = None
    features: Features = Features()


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of one of our sends at one recipient, and its position in the relay's history.

    A newer relay may tell kinds that are unknown here.
    """

    seq: Position
    at: Position
    kind: str
    client_message_id: str
    event_id: str
    recipient: str
    was_stored: bool | None = None
    reason: str | None = None


class Fates(msgspec.Struct, frozen=True, kw_only=True):
    """The fates up to a position of the relay's history."""

    log_id: LogId
    through_seq: Position
    fates: tuple[Fate, ...]


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the relay has a send of ours, and as which event."""

    committed: bool
    event_id: str | None = None
    broker_message_id: str | None = None
    history_id: Position | None = None


class Moderated(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a moderation: how many deliveries it closed, and its position in the relay's history."""

    message_id: str
    closed: int
    history_id: Position


class ConsoleLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that signs somebody in to the console once; `role` is what they may do there."""

    path: str
    role: str


class RelayClient:
    """A client of one relay that signs its requests with one key."""

    def __init__(
        self,
        url: str,
        secret: bytes,
        *,
        clock: Clock = wall_clock,
        random: Random = os.urandom,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = relay_url(url)
        self._secret = secret
        self._clock = clock
        self._random = random
        self._seen: dict[str, tuple[str, Mesh]] = {}  # by mesh: the last answer and its entity tag
        # The environment's proxy is for the outside world; a relay on this machine is not behind it.
        trust_env = not is_loopback(urlsplit(self.url).hostname or "")
        self._http = httpx.AsyncClient(
            transport=transport, timeout=_TIMEOUT, follow_redirects=False, trust_env=trust_env, cookies=_no_cookies()
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    def use(self, secret: bytes) -> None:
        """Sign further requests with another key."""
        self._secret = secret

    async def publish(self, event: bytes) -> Said:
        """Offer one event. Failures of the relay or the network are answers too; they do not raise."""
        try:
            answer = await self._ask("POST", "/v1/messages", body=event)
            yes = _read(answer, Yes, self.url)
        except Refused as refused:
            return self._heeded(_said_no(refused))
        except Unreachable as fault:
            return _said_nothing(fault)
        return Said(says=_confirmation(yes), yes=yes)

    async def publish_all(
        self, events: Sequence[bytes], shape: type[Yes] = Yes, *, log_id: bytes | None = None
    ) -> list[Said]:
        """Offer events together, in this order; returns an answer for each, a yes as `shape`. Like `publish`, it does not raise.

        With a `log_id` the relay takes them only if it still writes this log.
        """
        met = {} if log_id is None else {MET_LOG: log_id.hex()}
        try:
            answer = await self._ask("POST", "/v1/messages", headers=met, body=b"[" + b",".join(events) + b"]")
            answers = _read(answer, _Answers, self.url).answers
            if len(answers) != len(events):
                detail = f"it gives {len(answers)} answers to {len(events)} events"
                raise Unreachable(self.url, FaultKind.NOT_UNDERSTOOD, detail)
        except Refused as refused:
            return [_said_no(refused)] * len(events)
        except Unreachable as fault:
            return [_said_nothing(fault)] * len(events)
        return [self._heeded(_said(answer, self.url, shape)) for answer in answers]

    def _heeded(self, said: Said) -> Said:
        """The answer itself. After `stale_key` the cached mesh is wrong, so it is fetched in full next time."""
        if said.says is Refusal.STALE_KEY:
            self._seen.clear()
        return said

    async def fates(self, mesh: str, after: int) -> Fates:
        """The fates of our own sends after a position of the relay's history."""
        return await self._get(f"/v1/meshes/{quote(mesh, safe='')}/fates?after={after}", Fates)

    async def committed(self, mesh: str, client_message_id: str) -> Committed:
        """Whether the relay has a send of ours."""
        path = f"/v1/meshes/{quote(mesh, safe='')}/sends/{quote(client_message_id, safe='')}"
        return await self._get(path, Committed)

    async def mesh(self, mesh: str) -> Mesh:
        """The mesh with its members and topics; the same object as last time, if nothing has changed."""
        path, seen = f"/v1/meshes/{quote(mesh, safe='')}", self._seen.get(mesh)
        known = {} if seen is None else {"if-none-match": seen[0]}
        response, body = await self._exchange("GET", path, headers=self._signature("GET", path) | known)
        if seen is not None and response.status_code == httpx.codes.NOT_MODIFIED:
            return seen[1]
        found = _read(_judge(response, body, self.url), Mesh, self.url)
        self._seen.pop(mesh, None)
        if tag := response.headers.get("etag"):
            self._seen[mesh] = (tag, found)
        return found

    async def grants(self, mesh: str, topic: str) -> Grants:
        """Our own grants of a topic's keys."""
        return await self._get(f"/v1/meshes/{quote(mesh, safe='')}/grants?topic={quote(topic, safe='')}", Grants)

    async def information(self) -> Information:
        """The relay's information document; the one request that is not signed."""
        answer = await self._ask("GET", "/", headers={"accept": "application/nostr+json"})
        return _read(answer, Information, self.url)

    async def date(self) -> int | None:
        """The relay's time in microseconds, exact to the second; None if it does not tell."""
        response, said = await self._exchange("GET", "/livez")
        _judge(response, said, self.url)
        try:
            return int(parsedate_to_datetime(response.headers["date"]).timestamp()) * SECOND
        except (KeyError, ValueError, OverflowError):
            return None

    async def moderate(self, message_id: str, reason: str) -> Moderated:
        """Close a message for all recipients who do not have it yet; for operators."""
        path, body = f"/v1/messages/{quote(message_id, safe='')}/moderation", msgspec.json.encode({"reason": reason})
        return await self._signed("POST", path, Moderated, body)

    async def console_link(self, role: str) -> ConsoleLink:
        """A link that opens the relay's console once; for operators, and for readers that its settings name."""
        return await self._signed("POST", "/console/sign-in", ConsoleLink, msgspec.json.encode({"role": role}))

    async def _get(self, path: str, shape: type[T]) -> T:
        return await self._signed("GET", path, shape)

    async def _signed(self, method: str, path: str, shape: type[T], body: bytes = b"") -> T:
        headers = self._signature(method, path, body)
        return _read(await self._ask(method, path, headers=headers, body=body), shape, self.url)

    def _signature(self, method: str, path: str, body: bytes = b"") -> dict[str, str]:
        nonce, aux = self._random(NONCE_BYTES), self._random(keys.AUX_BYTES)
        return {
            "authorization": authorization(
                self._secret, self.url + path, method, body, self._clock() // SECOND, nonce, aux
            )
        }

    async def _ask(self, method: str, path: str, *, headers: dict[str, str] | None = None, body: bytes = b"") -> bytes:
        """The body of a successful answer; anything else raises."""
        response, said = await self._exchange(method, path, headers=headers, body=body)
        return _judge(response, said, self.url)

    async def _exchange(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[httpx.Response, bytes]:
        """The response, whatever its status, and its body; raises if there is none."""
        sent = {"accept": "application/json", "accept-encoding": "identity", **(headers or {})}
        if body:
            sent["content-type"] = "application/json"
        try:
            async with (
                asyncio.timeout(EXCHANGE_TIMEOUT_S),
                self._http.stream(method, self.url + path, headers=sent, content=body or None) as response,
            ):
                return response, await self._body(response)
        except TimeoutError as error:
            detail = f"no whole answer within {EXCHANGE_TIMEOUT_S:g} s"
            raise Unreachable(self.url, FaultKind.TIMEOUT, detail) from error
        except httpx.ConnectTimeout as error:
            raise Unreachable(self.url, FaultKind.TIMEOUT, f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
        except httpx.TimeoutException as error:
            raise Unreachable(self.url, FaultKind.TIMEOUT, f"no answer within {READ_TIMEOUT_S:g} s") from error
        except httpx.ConnectError as error:
            raise Unreachable(self.url, FaultKind.CONNECTION_LOST, f"no connection ({_cause(error)})") from error
        except httpx.TransportError as error:
            detail = f"the connection broke before the answer ({_cause(error)})"
            raise Unreachable(self.url, FaultKind.CONNECTION_LOST, detail) from error

    async def _body(self, response: httpx.Response) -> bytes:
        if response.headers.get("content-encoding", "identity") != "identity":  # it could unpack to any size
            raise Unreachable(self.url, FaultKind.NOT_UNDERSTOOD, "its answer is compressed, which was not asked for")
        parts, size = [], 0
        async for part in response.aiter_bytes():
            size += len(part)
            if size > RESPONSE_BYTES_MAX:
                detail = f"its answer is longer than {RESPONSE_BYTES_MAX} bytes"
                raise Unreachable(self.url, FaultKind.NOT_UNDERSTOOD, detail)
            parts.append(part)
        return b"".join(parts)


def relay_url(text: str) -> str:
    """A relay's address in its one spelling: http or https, a host, perhaps a path; no final slash."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port
        (parts.hostname or "").encode("idna")  # as the system will, whose error would name no address
        httpx.URL(text.strip())
    except (ValueError, httpx.InvalidURL) as error:
        raise InvalidUrl(f"{text!r} is not an address: {error.__cause__ or error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidUrl(f"{text!r} is not a relay's address; it looks like http://127.0.0.1:7447")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidUrl(f"{text!r} has more than a relay's address: no user, no ?, no #")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"


def _no_cookies() -> CookieJar:
    """A jar that takes nothing: a relay could fill it with every answer, and would be sent all of it with every request."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


class _Problem(msgspec.Struct):
    type: str = ""
    code: str = ""
    detail: str = ""
    title: str = ""


class _Status(msgspec.Struct):
    status: int
    retry_after_s: int | None = None


class _Answers(msgspec.Struct):
    answers: list[msgspec.Raw]


class _RefusedForNow(Refused):
    """A refusal with a Retry-After."""

    retry_after_s: int | None = None


def _said(answer: bytes, url: str, shape: type[Yes]) -> Said:
    """One of several answers in a response."""
    try:
        status = _read(answer, _Status, url)
        if status.status in (200, 201):
            yes = _read(answer, shape, url)
            return Said(says=_confirmation(yes), yes=yes)
        raise _no(_problem(answer), status.status, "", url, status.retry_after_s)
    except Refused as refused:
        return _said_no(refused)
    except Unreachable as fault:
        return _said_nothing(fault)


def _said_no(refused: Refused) -> Said:
    return Said(says=refused.refusal, detail=refused.detail, retry_after_s=_wait_of(refused))


def _said_nothing(fault: Unreachable) -> Said:
    return Said(says=fault.fault, detail=fault.detail, retry_after_s=fault.retry_after_s)


def _judge(response: httpx.Response, body: bytes, url: str) -> bytes:
    if response.status_code in (200, 201):
        return body
    wait_s = _retry_after(response)
    if response.is_redirect:
        where = response.headers.get("location", "elsewhere")[:DETAIL_CHARACTERS_MAX]
        raise Unreachable(url, FaultKind.NOT_UNDERSTOOD, f"it points to {where}; use that address if you trust it")
    raise _no(_problem(body), response.status_code, response.reason_phrase, url, wait_s)


def _no(problem: _Problem, status: int, reason: str, url: str, wait_s: int | None) -> Refused | Unreachable:
    refusal = _refusal(problem)
    if refusal is not None:
        refused = _RefusedForNow(refusal, problem.detail[:DETAIL_CHARACTERS_MAX])
        refused.retry_after_s = wait_s
        return refused
    said = (problem.detail or problem.title or reason)[:DETAIL_CHARACTERS_MAX]
    kind = FaultKind.SERVER_ERROR if status >= 500 else FaultKind.NOT_UNDERSTOOD
    return Unreachable(url, kind, f"it answers {status} {said}".rstrip(), wait_s)


def _problem(body: bytes) -> _Problem:
    try:
        return msgspec.json.decode(body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Problem()


def _refusal(problem: _Problem) -> Refusal | None:
    """The refusal in a problem document; None for a proxy's own pages and for codes of a newer relay."""
    try:
        return Refusal(problem.code) if problem.type == PROBLEM_TYPE + problem.code else None
    except ValueError:
        return None


def _retry_after(response: httpx.Response) -> int | None:
    text = response.headers.get("retry-after", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _wait_of(refused: Refused) -> int | None:
    return refused.retry_after_s if isinstance(refused, _RefusedForNow) else None


def _read(body: bytes, shape: type[T], url: str) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        detail = f"its answer is not a Holdfast relay's ({error})"[:DETAIL_CHARACTERS_MAX]
        raise Unreachable(url, FaultKind.NOT_UNDERSTOOD, detail) from error


def _confirmation(yes: Yes) -> Confirmation:
    if not yes.duplicate:
        return Confirmation.CREATED
    return Confirmation.DUPLICATE if yes.history_available else Confirmation.DUPLICATE_PRUNED


def _cause(error: BaseException) -> str:
    """The innermost reason, which says most: connection refused, name not known."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    if isinstance(error, ssl.SSLError):  # its errno is not the system's
        return f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)  # asyncio's own text names the call and not the reason
    return str(error) or type(error).__name__
