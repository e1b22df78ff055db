"""What a daemon answers at which of its doors, route by route, and which routes of the consoles are for whom; as data."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Door(StrEnum):
    """How somebody comes to a daemon."""

    OWNER = "owner"  # over the socket, as the user whose home it is
    PAGE = "page"  # over the socket, with what a browser adds to what a page of some site asks for
    FAR = "far"  # over the socket, with a host that is not this machine
    PORT = "port"  # over the loopback port, with nothing
    WRONG = "wrong"  # with another token
    URL = "url"  # with the token, in the URL
    TOKEN = "token"  # with the token, as it should be
    TOKEN_PAGE = "token_page"  # with the token, from a page


NOT_SERVED: Mapping[Door, str] = {
    Door.PAGE: "403 origin_not_allowed",
    Door.FAR: "403 host_not_allowed",
    Door.PORT: "401 token_invalid",
    Door.WRONG: "401 token_invalid",
    Door.URL: "400 token_in_query",
    Door.TOKEN_PAGE: "403 origin_not_allowed",
}
"""What these doors say at every address, whether there is something or not."""


@dataclass(frozen=True)
class Row:
    """One request, and what the owner gets; who comes with the token gets the same, where it is not for the socket only."""

    path: str
    yes: str = "200"
    body: object = None
    socket_only: bool = False

    @property
    def raw(self) -> bytes:
        return b"" if self.body is None else json.dumps(self.body).encode()


MISSING = "404 not_found"
UNKNOWN = "404 destination_unknown"
NO_AUTHOR = "404 author_missing"

ROUTES: Mapping[tuple[str, str], Row] = {
    ("POST", "/v1/send"): Row("/v1/send", UNKNOWN, {"to": "nobody", "message": "x"}),
    ("POST", "/v1/topic/post"): Row("/v1/topic/post", UNKNOWN, {"topic": "nothing", "message": "x"}),
    ("POST", "/v1/topic/subscribe"): Row("/v1/topic/subscribe", MISSING, {"topic": "nothing"}),
    ("POST", "/v1/topic/unsubscribe"): Row("/v1/topic/unsubscribe", MISSING, {"topic": "nothing"}),
    ("GET", "/v1/topic/list"): Row("/v1/topic/list"),
    ("GET", "/v1/inbox"): Row("/v1/inbox"),
    ("POST", "/v1/inbox/ack"): Row("/v1/inbox/ack", body={"ids": ["x"]}),
    ("POST", "/v1/inbox/fail"): Row("/v1/inbox/fail", MISSING, {"id": "x", "error": "x"}),
    ("GET", "/v1/inbox/{id}"): Row("/v1/inbox/x", MISSING),
    ("GET", "/v1/mentions"): Row("/v1/mentions"),
    ("GET", "/v1/reports"): Row("/v1/reports"),
    ("GET", "/v1/peers"): Row("/v1/peers"),
    ("GET", "/v1/events"): Row("/v1/events"),
    ("GET", "/v1/outbox"): Row("/v1/outbox"),
    ("POST", "/v1/outbox/requeue"): Row("/v1/outbox/requeue", MISSING, {"id": "x"}),
    ("POST", "/v1/outbox/cancel"): Row("/v1/outbox/cancel", MISSING, {"id": "x"}),
    ("GET", "/v1/outbox/{id}"): Row("/v1/outbox/x", MISSING),
    ("GET", "/v1/scheduled"): Row("/v1/scheduled"),
    ("GET", "/v1/trace/{id}"): Row("/v1/trace/x", MISSING),
    ("POST", "/v1/administration/{verb}"): Row("/v1/administration/show_mesh", body={}),
    ("GET", "/v1/export/{table}"): Row("/v1/export/history"),
    ("GET", "/v1/health"): Row("/v1/health"),
    ("GET", "/v1/version"): Row("/v1/version"),
    ("GET", "/v1/compat"): Row("/v1/compat"),
    ("POST", "/v1/reload"): Row("/v1/reload", socket_only=True),
    ("POST", "/v1/token/rotate"): Row("/v1/token/rotate", socket_only=True),
    ("GET", "/v1/metrics"): Row("/v1/metrics"),
    ("GET", "/openapi.json"): Row("/openapi.json"),
    ("GET", "/v1/feed"): Row("/v1/feed"),
    ("POST", "/v1/feed/init"): Row("/v1/feed/init", UNKNOWN, {"from": "nobody"}),
    ("POST", "/v1/feed/share"): Row("/v1/feed/share", UNKNOWN, {"member": "nobody"}),
    ("POST", "/v1/feed/relays"): Row("/v1/feed/relays", "400 malformed", {"relay": "no address"}),
    ("GET", "/v1/feed/documents"): Row("/v1/feed/documents", NO_AUTHOR),
    ("POST", "/v1/feed/put"): Row("/v1/feed/put", NO_AUTHOR, {"name": "x", "body": "x"}),
    ("POST", "/v1/feed/delete"): Row("/v1/feed/delete", NO_AUTHOR, {"name": "x"}),
    ("POST", "/v1/feed/resolve"): Row("/v1/feed/resolve", NO_AUTHOR, {"name": "x", "delete": True}),
    ("GET", "/v1/feed/documents/{name}"): Row("/v1/feed/documents/x", NO_AUTHOR),
    ("GET", "/v1/feed/history/{name}"): Row("/v1/feed/history/x", NO_AUTHOR),
    ("GET", "/v1/feed/versions/{id}"): Row("/v1/feed/versions/x", NO_AUTHOR),
    ("POST", "/v1/console"): Row("/v1/console", body={"role": "reader"}, socket_only=True),
}

PAYLOADS = "/v1/export/inbox?columns=seq,body"  # bodies: for the socket only, though the route is not


# The consoles.


class Visitor(StrEnum):
    """Who comes to a console."""

    NOBODY = "nobody"
    FOREIGN = "foreign"  # with the cookie of another console
    READER = "reader"
    OPERATOR = "operator"
    FORGETFUL = "forgetful"  # an operator whose form lacks what proves that the page was ours
    LURED = "lured"  # an operator whose browser sends a form of another site


class Page(StrEnum):
    """Whom a route of a console serves."""

    OPEN = "open"  # it takes a secret of its own
    LOOK = "look"
    ACT = "act"
    LEAVE = "leave"  # a form, and for everybody who is signed in


SIGNED_OUT, FOREIGN_FORM, LOOK_ONLY = "401 auth_required", "403 origin_not_allowed", "403 not_permitted"

VISITS: Mapping[Page, Mapping[Visitor, str]] = {
    Page.OPEN: {},
    Page.LOOK: {Visitor.NOBODY: SIGNED_OUT, Visitor.FOREIGN: SIGNED_OUT},
    Page.ACT: {
        Visitor.NOBODY: SIGNED_OUT,
        Visitor.FOREIGN: SIGNED_OUT,
        Visitor.READER: LOOK_ONLY,
        Visitor.FORGETFUL: FOREIGN_FORM,
        Visitor.LURED: FOREIGN_FORM,
    },
    Page.LEAVE: {
        Visitor.NOBODY: SIGNED_OUT,
        Visitor.FOREIGN: SIGNED_OUT,
        Visitor.FORGETFUL: FOREIGN_FORM,
        Visitor.LURED: FOREIGN_FORM,
    },
}


@dataclass(frozen=True)
class Shown:
    """One address of a console, and what those get whom it serves."""

    page: Page
    path: str
    yes: str = "200"


BACK = "303"
SHARED_PAGES: Mapping[tuple[str, str], Shown] = {
    ("GET", "/enter/{secret}"): Shown(Page.OPEN, "/enter/x", SIGNED_OUT),
    ("POST", "/leave"): Shown(Page.LEAVE, "/leave"),
    ("GET", "/live"): Shown(Page.LOOK, "/live"),
    ("GET", "/static/{version}/{name}"): Shown(Page.LOOK, "/static/x/x", MISSING),
    ("GET", "/static/{version}/{folder}/{name}"): Shown(Page.LOOK, "/static/x/x/x", MISSING),
    ("GET", "/"): Shown(Page.LOOK, "/"),
}

RELAY_PAGES: Mapping[tuple[str, str], Shown] = {
    **SHARED_PAGES,
    ("POST", "/sign-in"): Shown(Page.OPEN, "/sign-in", SIGNED_OUT),
    ("GET", "/rates"): Shown(Page.LOOK, "/rates"),
    ("GET", "/messages"): Shown(Page.LOOK, "/messages"),
    ("GET", "/messages/{message_id}"): Shown(Page.LOOK, "/messages/x", MISSING),
    ("POST", "/messages/{message_id}/moderation"): Shown(Page.ACT, "/messages/x/moderation", MISSING),
    ("GET", "/queues"): Shown(Page.LOOK, "/queues"),
    ("GET", "/meshes"): Shown(Page.LOOK, "/meshes"),
    ("GET", "/meshes/{mesh}"): Shown(Page.LOOK, "/meshes/x", "404 mesh_unknown"),
    ("GET", "/meshes/{mesh}/members/{member}"): Shown(Page.LOOK, "/meshes/x/members/x", "404 subject_unknown"),
    ("GET", "/feed"): Shown(Page.LOOK, "/feed"),
    ("GET", "/feed/{author}/{d}"): Shown(Page.LOOK, "/feed/x/x", MISSING),
    ("GET", "/history"): Shown(Page.LOOK, "/history"),
    ("GET", "/audit"): Shown(Page.LOOK, "/audit"),
    ("GET", "/audit/latency"): Shown(Page.LOOK, "/audit/latency", "503 unavailable"),  # there is no lake
}

DAEMON_PAGES: Mapping[tuple[str, str], Shown] = {
    **SHARED_PAGES,
    ("GET", "/inbox"): Shown(Page.LOOK, "/inbox"),
    ("GET", "/inbox/{id}"): Shown(Page.LOOK, "/inbox/x", MISSING),
    ("POST", "/inbox/{id}/apply"): Shown(Page.ACT, "/inbox/x/apply", MISSING),
    ("GET", "/trace"): Shown(Page.LOOK, "/trace"),
    ("GET", "/agents"): Shown(Page.LOOK, "/agents"),
    ("GET", "/agents/{agent}/{session}"): Shown(Page.LOOK, "/agents/x/x", MISSING),
    ("GET", "/health"): Shown(Page.LOOK, "/health"),
    ("GET", "/outbox"): Shown(Page.LOOK, "/outbox"),
    ("POST", "/outbox/redrive"): Shown(Page.ACT, "/outbox/redrive", BACK),
    ("POST", "/outbox/redrive/stop"): Shown(Page.ACT, "/outbox/redrive/stop", BACK),
    ("GET", "/outbox/{id}"): Shown(Page.LOOK, "/outbox/x", MISSING),
    ("POST", "/outbox/{id}/preview"): Shown(Page.ACT, "/outbox/x/preview", MISSING),
    ("POST", "/outbox/{id}/requeue"): Shown(Page.ACT, "/outbox/x/requeue", BACK),
    ("POST", "/scheduled/{id}/cancel"): Shown(Page.ACT, "/scheduled/x/cancel", BACK),
    ("GET", "/documents"): Shown(Page.LOOK, "/documents"),
    ("POST", "/documents"): Shown(Page.ACT, "/documents", BACK),
    ("GET", "/documents/{id}"): Shown(Page.LOOK, "/documents/x", NO_AUTHOR),
    ("POST", "/documents/{id}/edit"): Shown(Page.ACT, "/documents/x/edit", NO_AUTHOR),
    ("POST", "/documents/{id}/delete"): Shown(Page.ACT, "/documents/x/delete", NO_AUTHOR),
    ("POST", "/documents/{id}/resolve"): Shown(Page.ACT, "/documents/x/resolve", NO_AUTHOR),
}
