"""A console as an ASGI application: who may see what, how a form is proved to be ours, and how every no is shown.

Whoever is not signed in is told so and nothing else, whatever the address, the files of the pages' own looks included. Only
opening a link and asking for one are done without a session, and each takes a secret of its own.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from holdfast.console.listing import TRAIL, Page
from holdfast.console.live import Change, Live
from holdfast.console.rendering import HTML, SECURITY_HEADERS, STATIC, STATIC_VERSION, Templates, static_file
from holdfast.console.signing_in import SIGNED_OUT, Role, Session, SigningIn, check_form
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.store.world import Clock, Random
from holdfast.wire.metrics import Counts
from holdfast.wire.network import is_loopback
from holdfast.wire.problem import Problem
from holdfast.wire.request import host_of, read_body, read_headers
from holdfast.wire.response import Receive, Response, Send
from holdfast.wire.route import JSON, NotAllowed, Reply, Request, Route, RouteTable, Stream, problem_reply, read_query
from holdfast.wire.telling import told

BASE = "/console"
FORM_BYTES_MAX = 262_144  # of what a form sends: the largest message, written as a form writes it, fits
FORM_FIELDS_MAX = 600
OPEN = "open"  # what is done without a session
FILE_LIFE_S = 31_536_000
RUN_BYTES = 6


class Visit(msgspec.Struct, frozen=True):
    """A request of somebody who is signed in."""

    request: Request
    session: Session
    version: str  # of all that pages show, before this one has read any of it
    form: Mapping[str, Sequence[str]] = {}

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query

    def part(self, name: str) -> str:
        """A part of the path."""
        return self.request.parameters[name]

    def field(self, name: str) -> str:
        """A field of the form; a browser writes line ends as CRLF, whatever they were."""
        return (self.form.get(name) or [""])[0].replace("\r\n", "\n")


View = Callable[[Visit], Awaitable[Reply | Stream]]


class Console:
    """The pages of one program."""

    def __init__(
        self,
        *,
        kind: str,
        nav: Sequence[tuple[str, str]],
        title: Callable[[], str],
        change: Change,
        clock: Clock,
        random: Random,
        counts: Counts,
        local_only: Callable[[], bool],
        public_url: str | None = None,
    ) -> None:
        """`kind` is what the pages are of, `nav` the addresses and names of the first ones, `change` what live pages wait for.

        `public_url` is how others reach the program, when that is not what it knows by itself: behind a proxy.
        """
        self.signing_in = SigningIn(clock, random)
        self.live = Live(change, random(RUN_BYTES).hex())
        self.clock = clock
        self._random = random
        self._counts = counts
        self._local_only = local_only
        self._public_url = urlsplit(public_url or "")
        self._title = title
        self._templates = Templates(BASE, kind=kind, nav=[(f"{BASE}{path}", name) for path, name in nav])
        self.routes = RouteTable(
            [
                _route("GET", "/enter/{secret}", self._enter, OPEN),
                self.page("POST", "/leave", self._leave, Role.READER),
                self.page("GET", "/live", self._live, Role.READER),
                self.page("GET", "/static/{version}/{name}", self._static, Role.READER),
                self.page("GET", "/static/{version}/{folder}/{name}", self._static, Role.READER),
            ]
        )

    def add(self, *routes: Route) -> None:
        """Show these pages, too."""
        self.routes = RouteTable([*self.routes.routes, *routes])

    def page(self, method: str, path: str, view: View, role: Role = Role.READER) -> Route:
        """A page, or what a form of one does, for whoever has at least this role."""

        async def handle(request: Request) -> Reply | Stream:
            session = self._session(request.headers)
            version = await self.live.version()
            if method == "GET":
                return await view(Visit(request, session, version))
            form = _form(request)
            own = frozenset({request.headers.get("host", ""), self._public_url.netloc})
            check_form(session, (form.get("csrf") or [""])[0], request.headers, own)
            if role is Role.OPERATOR and not session.may_act:
                raise Refused(Refusal.NOT_PERMITTED, "this session may look, and change nothing")
            return await view(Visit(request, session, version, form))

        return _route(method, path, handle, role, is_endless=path == "/live")

    def open_route(self, method: str, path: str, handler: Callable[[Request], Awaitable[Reply]]) -> Route:
        """A route without a session; its handler checks who asks."""
        return _route(method, path, handler, OPEN)

    def link(self, role: Role, who: str) -> str:
        """The path that signs somebody in."""
        return f"{BASE}/enter/{self.signing_in.link(role, who)}"

    def render(self, visit: Visit, template: str, **values: Any) -> Reply:
        """A page for somebody."""
        is_whole = "hx-request" not in visit.request.headers  # a part that is fetched anew shows no notices
        known = {
            "session": visit.session,
            "notices": visit.session.take_notices() if is_whole else [],
            "title": self._title(),
            "now": self.clock(),
            "path": visit.request.path,
            "version": visit.version,
        }
        return self._templates.page(template, {**known, **values})

    def back(self, visit: Visit, path: str, text: str = "", *, is_bad: bool = False) -> Reply:
        """Redirect after a form to a page that shows `text`; reloading that page repeats nothing."""
        if text:
            visit.session.tell(text, is_bad=is_bad)
        return Reply(status=HTTPStatus.SEE_OTHER, content_type="", headers={"location": BASE + quote(path, safe="/")})

    def list(self, visit: Visit, query: msgspec.Struct, rows: Sequence[Any], following: object | None) -> Page[Any]:
        return Page(visit.request.path, query, rows, following, visit.query.get(TRAIL, ""))

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})  # before it was accepted: the handshake is answered 403
            return
        body = await read_body(receive)
        if body is None:
            return  # it left before it had asked
        response = Response(receive, send)
        route = "none"
        try:
            headers = read_headers(scope)
            self._check_host(headers)
            found, parameters = self._find(scope, headers)
            route = found.path
            request = Request(
                method=scope["method"],
                path=scope["path"],
                query=read_query(scope["query_string"]),
                headers=headers,
                body=body,
                urls=scope.get("urls", frozenset()),
                local=False,
                parameters={name: unquote(value) for name, value in parameters.items()},
            )
            reply = await found.handler(request)
            await response.give(_dressed(reply) if isinstance(reply, Reply) else reply)
        except Exception as error:  # whatever it is, the visitor is told
            problem = told(error, scope["path"], self._counts, self._random)
            if response.status:
                raise  # half of an answer is out: only a broken connection can say so now
            await response.give(_dressed(self._problem(problem, read_headers(scope))))
        self._counts.request(route, response.status)

    def _check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse foreign host names where only this machine may ask: a web site can let its own name point here."""
        if self._local_only() and not is_loopback(host_of(headers)):
            raise Refused(Refusal.HOST_NOT_ALLOWED, "this console is for this machine only")

    def _find(self, scope: Any, headers: Mapping[str, str]) -> tuple[Route, dict[str, str]]:
        """The route of a request. Without a session, every address gets the same refusal, whether it exists or not."""
        path = scope["raw_path"].decode("latin-1").removeprefix(BASE) or "/"
        try:
            found = self.routes.find(scope["method"], path)
        except Exception:
            self._session(headers)
            raise
        if found[0].auth != OPEN:
            self._session(headers)
        return found

    def _session(self, headers: Mapping[str, str]) -> Session:
        found = self.signing_in.session(headers.get("cookie", ""))
        if found is None:
            raise Refused(Refusal.AUTH_REQUIRED, SIGNED_OUT)
        return found

    def _problem(self, problem: Problem, headers: Mapping[str, str]) -> Reply:
        session = self.signing_in.session(headers.get("cookie", ""))
        if JSON in headers.get("accept", ""):  # a program, which asks for a link
            return problem_reply(problem)
        if session is None:
            return Reply(
                status=problem.status,
                body=str(problem.document.get("detail", problem.document["title"])).encode() + b"\n",
                content_type="text/plain; charset=utf-8",
                headers=problem.headers,
                code=str(problem.document["code"]),
            )
        values = {
            "session": session,
            "notices": [],
            "title": self._title(),
            "now": self.clock(),
            "path": "",
            "problem": problem.document,
        }
        reply = self._templates.page("problem.html", values, problem.status)
        return msgspec.structs.replace(reply, headers=problem.headers)

    async def _enter(self, request: Request) -> Reply:
        if request.method != "GET":  # whoever only asks what a link leads to must not use it up
            raise NotAllowed(["GET"])
        own = self.signing_in.enter(request.parameters["secret"])
        # A page of ours goes on from here: a redirect would count as the other site's step, and come without the cookie.
        body = self._templates.text("enter.html", {}).encode()
        is_secure = self._public_url.scheme == "https" and not is_loopback(host_of(request.headers))
        cookie = self.signing_in.set_cookie(own, BASE, is_secure=is_secure)
        return Reply(body=body, content_type=HTML, headers={"set-cookie": cookie})

    async def _leave(self, visit: Visit) -> Reply:
        self.signing_in.leave(visit.session)
        return Reply(
            body=b"You are signed out.\n",
            content_type="text/plain; charset=utf-8",
            headers={"set-cookie": self.signing_in.clear_cookie(BASE)},
        )

    async def _live(self, visit: Visit) -> Stream:
        if visit.request.method != "GET":
            raise NotAllowed(["GET"])
        return self.live.open(lambda: self.signing_in.is_in(visit.session), visit.query.get("since"))

    async def _static(self, visit: Visit) -> Reply:
        folder = visit.request.parameters.get("folder")
        name = visit.part("name") if folder is None else f"{folder}/{visit.part('name')}"
        if name not in STATIC or visit.part("version") != STATIC_VERSION:
            raise Refused(Refusal.NOT_FOUND, "there is nothing at this path")
        kept = {"cache-control": f"private, max-age={FILE_LIFE_S}, immutable"}
        return Reply(body=static_file(name), content_type=STATIC[name], headers=kept)


def _route(
    method: str,
    path: str,
    handler: Callable[[Request], Awaitable[Reply | Stream]],
    auth: str,
    *,
    is_endless: bool = False,
) -> Route:
    return Route(method=method, path=path, handler=handler, summary="", auth=auth, is_endless=is_endless, answers={})


def _dressed(reply: Reply) -> Reply:
    return msgspec.structs.replace(reply, headers={**SECURITY_HEADERS, **reply.headers})


def _form(request: Request) -> dict[str, list[str]]:
    """The fields of a form, each with all its values."""
    if len(request.body) > FORM_BYTES_MAX:
        raise Refused(Refusal.TOO_LARGE, f"a form may have {FORM_BYTES_MAX} bytes")
    try:
        pairs = parse_qsl(
            request.body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FORM_FIELDS_MAX
        )
    except ValueError as error:
        raise Refused(Refusal.MALFORMED, "this is not a form") from error
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found
