"""`holdfast inbox` and `holdfast mentions`: what arrived, and what was done about it."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli import asking
from holdfast.cli.following import Following
from holdfast.cli.output import AsJson, ExitCode, Failure, console, plain, print_json, print_table, show_time

if TYPE_CHECKING:
    from holdfast.device.ipc_documents import InboxPage, Message

PREVIEW_CHARACTERS = 60

app = typer.Typer(help="What arrived, in the order of arrival.", invoke_without_command=True)

After = Annotated[int, typer.Option(metavar="N", help="Only what arrived after this number.")]
Limit = Annotated[int, typer.Option(min=1, max=500, help="How many.")]


@app.callback()
def inbox(
    context: typer.Context,
    after: After = 0,
    limit: Limit = 50,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what arrived since: 2026-11-15T09:30:00Z, or -10m.")
    ] = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only what was posted to this topic.")] = None,
    sender: Annotated[str | None, typer.Option("--from", metavar="WHO", help="Only what this member sent.")] = None,
    unapplied: Annotated[bool, typer.Option(help="Only what still waits for an application.")] = False,
    parked: Annotated[bool, typer.Option(help="Only what was parked because its handler kept failing.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what arrives.")] = False,
    as_json: AsJson = False,
) -> None:
    """What arrived, in the order of arrival. With --follow and --json one message a line."""
    if context.invoked_subcommand is not None:
        return
    with asking.daemon() as client:
        filters: dict[str, Any] = {
            "since": None if since is None else asking.read_past(since, "--since"),
            "topic": topic,
            "sender": sender,
            "unapplied": unapplied,
            "parked": parked,
        }
        if follow:
            for message in Following(client, filters, after).messages():
                _print_followed(message, as_json)
        else:
            _print_page(client.inbox(after=after, limit=limit, **filters), as_json)


@app.command()
def ack(
    messages: Annotated[list[str], typer.Argument(metavar="ID...", help="Messages that you have acted on.")],
    as_json: AsJson = False,
) -> None:
    """Say that you have acted on messages; their traces say so, too."""
    with asking.daemon() as client:
        done = client.ack(*messages)
    if as_json:
        print_json(msgspec.to_builtins(done))
    else:
        console().print(f"{len(done.applied)} applied" + (f", {len(done.already)} before" if done.already else ""))
    if done.unknown:
        unknown = ", ".join(plain(name) for name in done.unknown)
        raise Failure(ExitCode.NOT_FOUND, "not_found", f"not in the inbox: {unknown}.")


def mentions(after: After = 0, limit: Limit = 50, as_json: AsJson = False) -> None:
    """Messages that mention you."""
    with asking.daemon() as client:
        _print_page(client.mentions(after=after, limit=limit), as_json)


def _print_followed(message: "Message", as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(message))
    else:
        console().print("  ".join(_row(message)[1:]))
    sys.stdout.flush()


def _print_page(page: "InboxPage", as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(page))
        return
    columns = ("arrival", "received", "id", "from", "state", "message")
    print_table(columns, [_row(message) for message in page.messages], right=("arrival",))
    if page.next_after is not None:
        print(f"… more: --after {page.next_after}")


def _row(message: "Message") -> tuple[str, ...]:
    where = message.sender_name if message.topic is None else f"{message.sender_name} @{message.topic}"
    return (
        str(message.arrival),
        show_time(message.received_at),
        message.id,
        plain(where),
        _state(message),
        _preview(message),
    )


def _state(message: "Message") -> str:
    marks: Iterable[tuple[str, object]] = (("applied", message.applied_at), ("parked", message.parked_at))
    return next((name for name, at in marks if at is not None), message.status)


def _preview(message: "Message") -> str:
    text = message.body if message.body is not None else "" if message.body_base64 is None else "(not text)"
    line = plain(" ".join(text.split()))
    return line if len(line) <= PREVIEW_CHARACTERS else line[: PREVIEW_CHARACTERS - 1] + "…"
