"""Documents on a daemon's console: lists, versions side by side, edits, and the end of a conflict."""

from string import ascii_uppercase
from typing import Any

import msgspec

from holdfast.console import health
from holdfast.console.application import Console, Visit
from holdfast.console.daemon_outbox import Ask, part
from holdfast.console.diff import side_by_side
from holdfast.console.listing import PAGE_ROWS, read
from holdfast.console.signing_in import Role
from holdfast.device.feed_views import Document, Page
from holdfast.device.ipc_feed import Feed, Versions
from holdfast.protocol.refusal import Refused
from holdfast.wire.route import Reply, Route


class DocumentQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which documents."""

    conflicts: bool = False
    deleted: bool = False
    at: str | None = None


class DocumentPages:
    """The pages of documents. They are named by their ids: a name may have any character."""

    def __init__(self, console: Console, ask: Ask) -> None:
        self._console = console
        self._ask = ask

    def routes(self) -> list[Route]:
        page = self._console.page
        return [
            page("GET", "/documents", self._list),
            page("POST", "/documents", self._make, Role.OPERATOR),
            page("GET", "/documents/{id}", self._document),
            page("POST", "/documents/{id}/edit", self._edit, Role.OPERATOR),
            page("POST", "/documents/{id}/delete", self._delete, Role.OPERATOR),
            page("POST", "/documents/{id}/resolve", self._resolve, Role.OPERATOR),
        ]

    async def _list(self, visit: Visit) -> Reply:
        query = read(visit.query, DocumentQuery)
        feed = await self._ask("GET", "/v1/feed", Feed)
        rows, following = (), None
        if feed.author is not None:
            asked = {
                "after": query.at or "",
                "limit": PAGE_ROWS,
                "deleted": _word(query.deleted),
                "conflicts": _word(query.conflicts),
            }
            found = await self._ask("GET", "/v1/feed/documents", Page, query=asked)
            rows, following = found.documents, found.next_after  # type: ignore[assignment]  # empty before
        page = self._console.list(visit, query, rows, following)
        return self._console.render(visit, "daemon/documents.html", page=page, query=query, feed=feed)

    async def _make(self, visit: Visit) -> Reply:
        name = visit.field("name").strip()
        body = {"name": name, "body": visit.field("body")}
        if visit.field("only_new") == "true":
            body |= {"seen": []}  # type: ignore[dict-item]  # one that is there already must not be written over
        return await self._done(visit, "put", body, "/documents", "Kept.")

    async def _document(self, visit: Visit) -> Reply:
        name = part(visit.part("id"))
        found = await self._ask("GET", f"/v1/feed/documents/{name}", Document)
        known = await self._ask("GET", f"/v1/feed/history/{name}", Versions)
        return self._console.render(
            visit, "daemon/document.html", document=found, versions=known.versions, **sides(found)
        )

    async def _edit(self, visit: Visit) -> Reply:
        found = await self._named(visit)
        body = {"name": found.name, "body": visit.field("body"), "seen": visit.form.get("seen", [])}
        return await self._done(
            visit, "put", body, f"/documents/{found.id}", "Kept; relays get it as they are in reach."
        )

    async def _delete(self, visit: Visit) -> Reply:
        found = await self._named(visit)
        body = {"name": found.name, "seen": visit.form.get("seen", [])}
        return await self._done(
            visit, "delete", body, f"/documents/{found.id}", "Deleted. Its versions are listed below."
        )

    async def _resolve(self, visit: Visit) -> Reply:
        """End a conflict with one of the versions, a text, or the deletion; not if another version came meanwhile."""
        found = await self._named(visit)
        choice = visit.field("choice")
        body: dict[str, Any] = {"name": found.name, "seen": visit.form.get("seen", [])}
        if choice == "text":
            body["body"] = visit.field("body")
        elif choice == "delete":
            body["delete"] = True
        else:
            body["keep"] = choice
        return await self._done(visit, "resolve", body, f"/documents/{found.id}", "Resolved: one version stands.")

    async def _named(self, visit: Visit) -> Document:
        return await self._ask("GET", f"/v1/feed/documents/{part(visit.part('id'))}", Document)

    async def _done(self, visit: Visit, verb: str, body: dict[str, Any], path: str, text: str) -> Reply:
        try:
            await self._ask("POST", f"/v1/feed/{verb}", Document, body=body)
        except Refused as refused:
            told = f"Refused ({refused.refusal}): {refused.detail}. {health.remedy_of(str(refused.refusal))}"
            return self._console.back(visit, path, told.strip(), is_bad=True)
        return self._console.back(visit, path, text)


def sides(document: Document) -> dict[str, Any]:
    """The letter of each version, and the lines of the two readable ones, if there are two."""
    called = {version.id: _letter(number) for number, version in enumerate(document.versions)}
    readable = [version for version in document.versions if version.readable]
    lines = side_by_side(*(version.body or "" for version in readable)) if len(readable) == 2 else None
    return {"called": called, "lines": lines, "compared": [called[version.id] for version in readable]}


def _letter(number: int) -> str:
    return ascii_uppercase[number] if number < len(ascii_uppercase) else str(number + 1)


def _word(flag: bool) -> str:
    return "true" if flag else "false"
