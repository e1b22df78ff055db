"""`holdfast send`: a message to a member or a topic, on disk when the command ends."""

import os
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import asking
from holdfast.cli.output import AsJson, ExitCode, Failure, console, print_json, standard_input
from holdfast.device.ipc_link import SendUnanswered
from holdfast.protocol.fingerprint import Priority


def send(
    to: Annotated[str, typer.Argument(metavar="TO", help="A member's name, npub or key in hex, or @TOPIC.")],
    body: Annotated[str, typer.Argument(metavar="BODY", help="The message; - reads it from stdin.")],
    client_message_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Your own id: the same command again sends nothing twice."),
    ] = None,
    reply_to: Annotated[str | None, typer.Option(metavar="ID", help="The id of the message that this answers.")] = None,
    priority: Annotated[Priority, typer.Option(help="How urgent it is.")] = Priority.NEXT,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Not before: 2026-11-15T09:30:00Z, or without --id +10m, +2h, +1d."),
    ] = None,
    expires: Annotated[str | None, typer.Option(metavar="TIME", help="Worthless after; as --at.")] = None,
    mention: Annotated[list[str] | None, typer.Option(metavar="WHO", help="A member to mention; repeatable.")] = None,
    object_id: Annotated[str | None, typer.Option(metavar="HEX", help="The object that it is about: 32 bytes.")] = None,
    meta: Annotated[str | None, typer.Option(metavar="JSON", help="A JSON object that travels sealed, too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send a message. It is on this machine's disk when the command ends; the daemon sees to the rest."""
    times = _times({"--at": at, "--expires": expires}, is_repeatable=client_message_id is not None)
    message = _body(body)
    with asking.daemon() as client:
        try:
            sent = client.send(
                to,
                message,
                client_message_id=client_message_id,
                object_id=object_id,
                priority=priority.value,
                meta=_meta(meta),
                reply_to=reply_to,
                mentions=mention or (),
                expires_at=times.get("--expires"),
                not_before=times.get("--at"),
            )
        except SendUnanswered as lost:
            raise asking.in_doubt(lost, times) from lost
    if as_json:
        print_json({name: value for name in sent.__struct_fields__ if (value := getattr(sent, name)) is not None})
    elif sent.duplicate:
        console().print(f"sent before: the relay has {sent.client_message_id}")
    else:
        console().print(f"{sent.status} as {sent.client_message_id}")


def _body(text: str) -> str:
    """The message; its bytes as they are, whatever the terminal's language."""
    raw = standard_input().buffer.read() if text == "-" else os.fsencode(text)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the body must be UTF-8, and its byte {error.start} is not. Nothing was sent."
        raise Failure(ExitCode.USAGE, "usage", message) from error


def _times(given: dict[str, str | None], *, is_repeatable: bool) -> dict[str, int]:
    """The times that were given, by option. One that is repeated must mean the same: the id stands for all of the request."""
    times = {option: text for option, text in given.items() if text is not None}
    for option, text in times.items():
        if is_repeatable and asking.is_relative(text):
            message = f"{option} {text} is another time whenever it is said. With --id give an absolute one"
            raise Failure(ExitCode.USAGE, "usage", f"{message}, such as 2026-11-15T09:30:00Z.")
    return {option: asking.read_time(text, option) for option, text in times.items()}


def _meta(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = msgspec.json.decode(os.fsencode(text))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Failure(ExitCode.USAGE, "usage", f"--meta is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise Failure(ExitCode.USAGE, "usage", "--meta is not a JSON object.")
    return found
