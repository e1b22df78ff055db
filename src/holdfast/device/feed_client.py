"""`holdfast.FeedClient`: reads and edits the documents of a home through its daemon.

with holdfast.FeedClient() as notes:
    notes.put("shopping", "milk")
    print(notes.document("shopping").body)
"""

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from holdfast.device.client import Client
from holdfast.device.feed_views import Document, DocumentVersion, Page
from holdfast.device.handling import insist
from holdfast.device.ipc_feed import Added, AuthorView, Feed, Shared, Versions
from holdfast.device.ipc_link import part
from holdfast.protocol.history import Kind
from holdfast.protocol.refusal import Refusal, Refused

PAGE_ROWS = 100


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a document: `outcome` is edited, applied, conflict, resolved or deleted."""

    seq: int
    cursor: str  # for `changes`, to go on after this one
    outcome: str
    document: Document


class FeedClient(Client):
    """A connection to the daemon of one home, with its documents."""

    def feed(self) -> Feed:
        """The author, the number of documents, and the state of each relay."""
        return self._link.ask("GET", "/v1/feed", Feed)

    def init(self, member: str | None = None) -> AuthorView:
        """Give this home an author: a new one, or the one whose key this member has shared."""
        asked = {} if member is None else {"from": member}
        return self._link.ask("POST", "/v1/feed/init", AuthorView, body=asked)

    def share(self, member: str, *, client_message_id: str | None = None) -> Shared:
        """Share the author's key with a member's home: on disk when this returns."""
        return self._send_once("/v1/feed/share", Shared, {"member": member}, client_message_id)

    def add_relay(self, relay: str) -> Added:
        """Keep the documents at one more relay."""
        return self._link.ask("POST", "/v1/feed/relays", Added, body={"relay": relay})

    def put(self, name: str, body: str, *, seen: Sequence[str] | None = None) -> Document:
        """Make or change a document. On disk when this returns."""
        return self._edit("put", {"name": name, "body": body}, seen)

    def delete(self, name: str, *, seen: Sequence[str] | None = None) -> Document:
        """Delete a document."""
        return self._edit("delete", {"name": name}, seen)

    def resolve(
        self,
        name: str,
        body: str | None = None,
        *,
        keep: str | None = None,
        delete: bool = False,
        seen: Sequence[str] | None = None,
    ) -> Document:
        """End a conflict with a text, with one of the versions, or by deleting the document."""
        given = {"body": body, "keep": keep, "delete": delete or None}
        chosen = {option: value for option, value in given.items() if value is not None}
        return self._edit("resolve", {"name": name, **chosen}, seen)

    def document(self, name: str) -> Document:
        """A document as it stands, by its name or id."""
        return self._link.ask("GET", f"/v1/feed/documents/{part(name)}", Document)

    def documents(
        self, *, after: str = "", limit: int = PAGE_ROWS, deleted: bool = False, conflicts: bool = False
    ) -> Page:
        """A page of documents, by name."""
        query = {"after": after, "limit": limit, "deleted": deleted, "conflicts": conflicts}
        return self._link.ask("GET", "/v1/feed/documents", Page, query=query)

    def history(self, name: str) -> tuple[DocumentVersion, ...]:
        """The versions of a document that are kept, the newest first."""
        return self._link.ask("GET", f"/v1/feed/history/{part(name)}", Versions).versions

    def changes(self, *, after: int | str | None = None) -> Iterator[Change]:
        """Changes of documents from now on, or after a cursor or a position; each comes with the document as it is now.

        Like `events`, this goes on when the daemon is back.
        """
        for event in self.events(after=after, kinds=(Kind.SNAPSHOT, Kind.COMPACTED)):
            if event.seq is None or event.cursor is None:
                continue
            asked = partial(self._of_version, event.data["event_id"])
            if (found := insist(self, asked, "the daemon is asked again")) is not None:
                yield Change(seq=event.seq, cursor=event.cursor, outcome=event.data["reason"], document=found)

    def _of_version(self, event_id: str) -> Document | None:
        """The document that a version belongs to; None if the version is no longer kept."""
        try:
            return self._link.ask("GET", f"/v1/feed/versions/{part(event_id)}", Document)
        except Refused as refused:
            if refused.refusal is not Refusal.NOT_FOUND:
                raise
            return None

    def _edit(self, verb: str, asked: dict[str, object], seen: Sequence[str] | None) -> Document:
        known = {} if seen is None else {"seen": list(seen)}
        return self._link.ask("POST", f"/v1/feed/{verb}", Document, body={**asked, **known})
