"""`holdfast feed`: a person's documents, the same in all of that person's homes, editable in each though no relay is in reach."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from holdfast.cli import asking
from holdfast.cli import session as sessions
from holdfast.cli.at_home import find_home
from holdfast.cli.output import (
    AsJson,
    ExitCode,
    Failure,
    console,
    plain,
    print_json,
    print_list,
    print_table,
    show_time,
    standard_input,
)
from holdfast.protocol.refusal import Refusal

if TYPE_CHECKING:
    from holdfast.device.feed_client import FeedClient
    from holdfast.device.feed_views import Document, DocumentVersion, Page

PREVIEW_CHARACTERS = 60
CONFLICTS_AT_ONCE = 100
SHOWN_ID_CHARACTERS = 12  # of a version's id; any beginning that fits one only will do

app = typer.Typer(help="Your documents, in all your homes.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The document's name, or its id.")]
Seen = Annotated[
    list[str] | None,
    typer.Option(
        "--seen",
        metavar="ID",
        help="Only if this is still the current version; its beginning will do. Repeatable in a conflict.",
    ),
]


@app.command()
def init(
    member: Annotated[
        str | None, typer.Option("--from", metavar="MEMBER", help="Use the author key that this member has shared.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Have an author in this home: a new one, or the one that another home of yours has shared. Safe to repeat."""
    with _daemon() as client:
        kept = client.init(member)
    if as_json:
        print_json(msgspec.to_builtins(kept))
    else:
        console().print(f"the documents of {kept.npub} are kept here")


@app.command()
def share(
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="A member's name, npub or key: your other home.")],
    client_message_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Your own id: the same command again sends nothing twice."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Share your author key with another home of yours, sealed. Whoever has it can read and edit everything."""
    from holdfast.device.ipc_link import SendUnanswered  # here, because every command would pay for it

    with _daemon() as client:
        own = "" if as_json else client.health().member_name  # before: what was shared must not look as if it was not
        try:
            shared = client.share(member, client_message_id=client_message_id)
        except SendUnanswered as lost:
            raise asking.in_doubt(lost, {}) from lost
    if as_json:
        print_json(msgspec.to_builtins(shared))
    else:
        console().print(f"on its way. In that home: holdfast feed init --from {shlex.quote(own)}")


@app.command()
def status(as_json: AsJson = False) -> None:
    """Whose documents are kept here, and how far each relay was followed."""
    with _daemon() as client:
        feed = client.feed()
    if as_json:
        print_json(msgspec.to_builtins(feed))
        return
    console().print(f"author: {feed.npub or 'none; holdfast feed init makes one'}")
    many = "document" if feed.documents == 1 else "documents"
    console().print(f"{feed.documents} {many}, {feed.conflicts} in conflict, {feed.deleted} deleted")
    rows = [
        (
            one.relay,
            "live" if one.live else plain(one.detail) or "not followed",
            *(str(number) for number in (one.seq or "", one.waiting, one.refused)),
        )
        for one in feed.relays
    ]
    numbers = ("seq", "waiting", "refused")
    print_table(("relay", "state", *numbers), rows, right=numbers)
    for offered in feed.shared:
        console().print(f"{plain(offered.name)} has shared an author key: holdfast feed init --from {offered.member}")


@app.command()
def relay(
    url: Annotated[str, typer.Argument(metavar="URL", help="The relay's address.")], as_json: AsJson = False
) -> None:
    """Keep the documents at one more relay, which must take this author's."""
    with _daemon() as client:
        added = client.add_relay(url)
    if as_json:
        print_json(msgspec.to_builtins(added))
    else:
        console().print(f"{added.relay} {'is followed from now on' if added.is_new else 'was followed already'}")


@app.command()
def put(
    name: Name,
    body: Annotated[str, typer.Argument(metavar="BODY", help="The text; - reads it from stdin.")],
    seen: Seen = None,
    as_json: AsJson = False,
) -> None:
    """Make or change a document. It is on this machine's disk when the command ends; the daemon sees to the rest."""
    text = _text(body)
    with _daemon() as client:
        _print_edited(client.put(name, text, seen=seen), as_json)


@app.command("del")
def delete(name: Name, seen: Seen = None, as_json: AsJson = False) -> None:
    """Delete a document, in all homes."""
    with _daemon() as client:
        _print_edited(client.delete(name, seen=seen), as_json)


@app.command()
def get(name: Name, as_json: AsJson = False) -> None:
    """A document's text. One in conflict has several: exit status 4."""
    with _daemon() as client:
        found = client.document(name)
    if found.status == "deleted":
        raise sessions.refusal(Refusal.NOT_FOUND, f"document {found.name or found.id} was deleted")
    if as_json:
        print_json(msgspec.to_builtins(found))
    elif found.status == "ok" and found.body is not None:
        _print_text(found.body if found.body.endswith("\n") else f"{found.body}\n")
    if found.status == "conflict":
        detail = f"document {found.name or found.id} has {len(found.versions)} versions side by side"
        advice = "See holdfast feed conflicts, then holdfast feed resolve."
        raise sessions.refusal(Refusal.DOCUMENT_CONFLICTED, detail, advice)
    if found.body is None:
        raise sessions.refusal(Refusal.UNREADABLE, f"document {found.name or found.id} cannot be read with this key")


@app.command("list")
def list_documents(
    deleted: Annotated[bool, typer.Option("--deleted", help="Deleted ones, too.")] = False,
    after: Annotated[str, typer.Option(metavar="ID", help="Only what comes after this document.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Documents by name."""
    with _daemon() as client:
        _print_page(client.documents(after=after, limit=limit, deleted=deleted), as_json)


@app.command()
def history(name: Name, as_json: AsJson = False) -> None:
    """The versions of a document that are kept here, the newest first."""
    with _daemon() as client:
        versions = client.history(name)
    if as_json:
        print_list([msgspec.to_builtins(version) for version in versions])
    else:
        _print_versions(versions)


@app.command()
def conflicts(as_json: AsJson = False) -> None:
    """Documents of which several versions stand side by side, with all of these."""
    with _daemon() as client:
        found = list(_conflicts(client))
    if as_json:
        print_list([msgspec.to_builtins(one) for one in found])
        return
    for document in found:
        console().print(plain(document.name or document.id), style="bold")
        _print_versions(document.versions)
    if not found:
        console().print("no document is in conflict")


def _conflicts(client: "FeedClient") -> "Iterator[Document]":
    after: str | None = ""
    while after is not None:
        page = client.documents(after=after, limit=CONFLICTS_AT_ONCE, conflicts=True)
        yield from (client.document(one.id) for one in page.documents)
        after = page.next_after


@app.command()
def resolve(
    name: Name,
    body: Annotated[str | None, typer.Argument(metavar="[BODY]", help="The text; - reads it from stdin.")] = None,
    keep: Annotated[str | None, typer.Option(metavar="ID", help="Keep this version; a beginning will do.")] = None,
    remove: Annotated[bool, typer.Option("--delete", help="Delete the document.")] = False,
    seen: Seen = None,
    as_json: AsJson = False,
) -> None:
    """End a conflict: with a text, with one of the versions, or with the deletion."""
    if sum((body is not None, keep is not None, remove)) != 1:
        raise Failure(ExitCode.USAGE, "usage", "give a text, or --keep, or --delete, and one of them only.")
    text = None if body is None else _text(body)
    with _daemon() as client:
        _print_edited(client.resolve(name, text, keep=keep, delete=remove, seen=seen), as_json)


@app.command()
def follow(
    after: Annotated[
        str | None,
        typer.Option(
            metavar="CURSOR", help="From here in the device's history on: the cursor of a change, or a position."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What happens to documents, from now on; until interrupted. With --json one change a line."""
    with _daemon() as client:
        for change in client.changes(after=after):
            if as_json:
                print_json(msgspec.to_builtins(change))
            else:
                document = change.document
                said = _preview(document.body) if document.status == "ok" else document.status
                console().print(f"{change.outcome}  {plain(document.name or document.id)}  {said}")
            sys.stdout.flush()


@contextmanager
def _daemon() -> "Iterator[FeedClient]":
    from holdfast.device.feed_client import FeedClient  # here, because every command would pay for it

    home = find_home()
    with sessions.failures(home), FeedClient(home=home.path) as client:
        yield client


def _text(given: str) -> str:
    """A document's text; its bytes as they are, whatever the terminal's language."""
    raw = standard_input().buffer.read() if given == "-" else os.fsencode(given)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the text must be UTF-8, and its byte {error.start} is not. Nothing was changed."
        raise Failure(ExitCode.USAGE, "usage", message) from error


def _print_text(text: str) -> None:
    """A document's text: for a terminal in its letters, for a file or a program as the bytes that it has."""
    if sys.stdout.isatty():
        sys.stdout.write(text)
    else:
        sys.stdout.buffer.write(text.encode())


def _print_edited(document: "Document", as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(document))
    else:
        version = document.versions[0].id[:SHOWN_ID_CHARACTERS] if document.versions else ""
        console().print(f"{plain(document.name or document.id)}: {document.status}, version {version}")


def _print_page(page: "Page", as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(page))
        return
    rows = [
        (plain(one.name or one.id), one.status, str(one.versions), show_time(one.changed_at)) for one in page.documents
    ]
    print_table(("name", "status", "versions", "changed"), rows, right=("versions",))
    if page.next_after is not None:
        print(f"… more: --after {plain(page.next_after)}")


def _print_versions(versions: "tuple[DocumentVersion, ...]") -> None:
    rows = [
        (
            version.id[:SHOWN_ID_CHARACTERS],
            version.status,
            show_time(version.created_at),
            "here" if version.own else "elsewhere",
            "(deleted)" if version.operation == "del" else _preview(version.body),
        )
        for version in versions
    ]
    print_table(("version", "status", "made", "where", "text"), rows)


def _preview(body: str | None) -> str:
    line = "(not readable)" if body is None else plain(" ".join(body.split()))
    return line if len(line) <= PREVIEW_CHARACTERS else line[: PREVIEW_CHARACTERS - 1] + "…"
