"""The daemon's routes about its author's documents, and their JSON."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.device import author as authors
from holdfast.device import feed_views, ipc_queries, send
from holdfast.device.feed_views import Document, DocumentVersion, Page, RelayView
from holdfast.protocol import keys
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import shown
from holdfast.wire.client import InvalidUrl, relay_url
from holdfast.wire.request import read_document
from holdfast.wire.route import Handler, Reply, Request, Route, json_reply

if TYPE_CHECKING:
    from holdfast.device.daemon import Daemon

_PATH = "/v1/feed"
_Limit = Annotated[int, Meta(ge=1, le=feed_views.PAGE_ROWS)]


class Init(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Give this home an author: a new one, or the one whose key a member shared."""

    member: str | None = msgspec.field(name="from", default=None)


class Share(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Share this home's author with a member's home."""

    member: str
    client_message_id: str | None = None


class Put(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The new text of a document. `seen` are the ids of the versions that it replaces."""

    name: str
    body: str
    seen: tuple[str, ...] | None = None


class Delete(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A document to delete."""

    name: str
    seen: tuple[str, ...] | None = None


class Resolve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a conflict ends: with exactly one of a text, one of the versions, or the deletion."""

    name: str
    body: str | None = None
    keep: str | None = None
    delete: bool = False
    seen: tuple[str, ...] | None = None


class AddRelay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One more relay to keep the documents."""

    relay: str


class AuthorView(msgspec.Struct, frozen=True, kw_only=True):
    """The author of this home."""

    author: str
    npub: str
    granted_by: str | None


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """The message that carries the author's key to a member."""

    author: str
    member: str
    client_message_id: str


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """An author's key that a member shared with this home and that is not in use."""

    author: str
    member: str
    name: str


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """The author, the number of documents, and the state of each relay."""

    author: str | None
    npub: str | None
    granted_by: str | None
    documents: int
    conflicts: int
    deleted: int
    relays: tuple[RelayView, ...]
    shared: tuple[Offered, ...]


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of a document that are kept, the newest first."""

    versions: tuple[DocumentVersion, ...]


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the relay is new."""

    relay: str
    is_new: bool


class _ListQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: str = ""
    limit: _Limit = 100
    deleted: bool = False
    conflicts: bool = False


_LIST = {
    "after": "Only what comes after the document of this id.",
    "limit": "At most so many, up to 500.",
    "deleted": "true: deleted ones, too.",
    "conflicts": "true: only those in conflict.",
}


class FeedHandlers:
    """The routes of documents and their handlers."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self._feed = daemon.feed

    def routes(self) -> list[Route]:
        """All routes."""
        return [
            _get(_PATH, self.get_feed, "How it stands with the documents.", Feed),
            _post(f"{_PATH}/init", self.post_init, "Have an author here.", Init, AuthorView),
            _post(
                f"{_PATH}/share",
                self.post_share,
                "Share the author with a member's home; the id may come as Idempotency-Key, too.",
                Share,
                Shared,
            ),
            _post(f"{_PATH}/relays", self.post_relay, "Keep the documents at one more relay.", AddRelay, Added),
            _get(f"{_PATH}/documents", self.get_documents, "Documents by name.", Page, _LIST),
            _post(f"{_PATH}/put", self.post_put, "Make or change a document.", Put, Document),
            _post(f"{_PATH}/delete", self.post_delete, "Delete a document.", Delete, Document),
            _post(f"{_PATH}/resolve", self.post_resolve, "End a conflict.", Resolve, Document),
            _get(f"{_PATH}/documents/{{name}}", self.get_document, "A document, by its name or id.", Document),
            _get(f"{_PATH}/history/{{name}}", self.get_history, "The versions of a document.", Versions),
            _get(f"{_PATH}/versions/{{id}}", self.get_version, "The document that a version is of.", Document),
        ]

    async def get_feed(self, request: Request) -> Reply:
        ipc_queries.read(request.query, ipc_queries.NoQuery)
        feed = self._feed
        author, counts, grants, relays = self._daemon.look(
            lambda tx: (
                authors.load(tx),
                feed_views.counts(tx),
                authors.grants(tx),
                feed_views.relays(tx, feed.is_live, feed.details),
            )
        )
        shared = [
            Offered(author=one.author, member=one.member, name=self._daemon.directory.name_of(one.member))
            for one in grants
            if author is None or one.author != author.pubkey
        ]
        return json_reply(
            Feed(
                author=None if author is None else author.pubkey,
                npub=None if author is None else keys.npub(author.pubkey),
                granted_by=None if author is None else author.granted_by,
                relays=tuple(relays),
                shared=tuple(shared),
                **counts,
            )
        )

    async def post_init(self, request: Request) -> Reply:
        asked = read_document(request.body, Init)
        kept = await self._feed.init(None if asked.member is None else self._member(asked.member))
        return json_reply(AuthorView(author=kept.pubkey, npub=keys.npub(kept.pubkey), granted_by=kept.granted_by))

    async def post_share(self, request: Request) -> Reply:
        daemon, device = self._daemon, self._daemon.device
        asked = read_document(request.body, Share)
        chosen = send.chosen_id(request.headers.get("idempotency-key"), asked.client_message_id)
        member = self._member(asked.member)
        if member == daemon.facts.member:
            raise Refused(Refusal.MALFORMED, "that is this home itself; share with another one")
        pubkey = daemon.directory.sealing_key_of(member)
        if pubkey is None:
            raise Refused(Refusal.DESTINATION_UNKNOWN, f"no key of member {member} is known here")
        author = daemon.look(authors.need)
        grant = authors.grant(author, device.secret, member, pubkey, device.random, chosen)
        answer = await daemon.do(
            send.Taking(daemon.facts, daemon.directory, device.clock, device.random, grant, daemon.room.for_send())
        )
        if answer.refusal is not None:
            raise Refused(answer.refusal, str(answer.body.get("detail", "")))
        named = str(answer.body["client_message_id"])
        return json_reply(Shared(author=author.pubkey, member=member, client_message_id=named))

    async def post_relay(self, request: Request) -> Reply:
        asked = read_document(request.body, AddRelay)
        try:
            is_new = await self._feed.add_relay(asked.relay)
            return json_reply(Added(relay=relay_url(asked.relay), is_new=is_new))
        except InvalidUrl as error:
            raise Refused(Refusal.MALFORMED, str(error)) from error

    async def get_documents(self, request: Request) -> Reply:
        query = ipc_queries.read(request.query, _ListQuery)
        filters = {"deleted": query.deleted, "conflicts": query.conflicts}
        self._daemon.look(authors.need)
        return json_reply(
            self._daemon.look(lambda tx: feed_views.page(tx, after=query.after, limit=query.limit, **filters))
        )

    async def get_document(self, request: Request) -> Reply:
        return json_reply(self._feed.document(request.parameters["name"]))

    async def get_history(self, request: Request) -> Reply:
        return json_reply(Versions(versions=tuple(self._feed.history(request.parameters["name"]))))

    async def get_version(self, request: Request) -> Reply:
        named = request.parameters["id"]
        return json_reply(self._daemon.look(lambda tx: feed_views.of_version(tx, authors.need(tx), named)))

    async def post_put(self, request: Request) -> Reply:
        asked = read_document(request.body, Put)
        self._check_room()
        return json_reply(await self._feed.put(asked.name, asked.body, seen=asked.seen))

    async def post_delete(self, request: Request) -> Reply:
        asked = read_document(request.body, Delete)
        self._check_room()
        return json_reply(await self._feed.delete(asked.name, seen=asked.seen))

    async def post_resolve(self, request: Request) -> Reply:
        asked = read_document(request.body, Resolve)
        if sum((asked.body is not None, asked.keep is not None, asked.delete)) != 1:
            raise Refused(Refusal.MALFORMED, "resolve: give a body, a version to keep, or delete, and one of them only")
        self._check_room()
        if asked.keep is not None:
            return json_reply(await self._keep(asked, asked.keep))
        return json_reply(await self._feed.resolve(asked.name, asked.body, seen=asked.seen))

    async def _keep(self, asked: Resolve, keep: str) -> Document:
        """End a conflict with the content of one version; refused if the versions have changed since it was read."""
        found = self._feed.document(asked.name)
        kept = [version for version in found.versions if version.id.startswith(keep)]
        if len(kept) != 1 or not kept[0].readable:
            raise Refused(Refusal.NOT_FOUND, f"document {asked.name} has no readable version {shown(keep)}")
        seen = tuple(version.id for version in found.versions) if asked.seen is None else asked.seen
        return await self._feed.resolve(asked.name, kept[0].body, seen=seen)

    def _check_room(self) -> None:
        """Refuse an edit where there is no room for a send: it waits in the same log."""
        no_room = self._daemon.room.for_send()
        if no_room is not None:
            raise no_room

    def _member(self, who: str) -> str:
        kind, ref = self._daemon.directory.resolve(who)
        if kind != "dm":
            raise Refused(Refusal.MALFORMED, f"{shown(who)} is not a member")
        return ref


def _get(path: str, handler: Handler, summary: str, answer: Any, query: Mapping[str, str] | None = None) -> Route:
    return Route(
        method="GET",
        path=path,
        handler=handler,
        summary=summary,
        auth="local",
        query=query or {},
        answers={200: (answer,)},
    )


def _post(path: str, handler: Handler, summary: str, body: Any, answer: Any) -> Route:
    return Route(
        method="POST", path=path, handler=handler, summary=summary, auth="local", body=body, answers={200: (answer,)}
    )
