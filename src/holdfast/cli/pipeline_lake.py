"""`holdfast pipeline report|show|search|sql|trace|verify`: what a lake says, without Spark."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from holdfast.cli import output
from holdfast.cli.at_lake import AsOfText, LakePath, explained, open_shelf, plain, print_rows, with_batch
from holdfast.cli.output import AsJson, ExitCode, Failure, console, print_json, print_table, show_time
from holdfast.protocol import keys
from holdfast.protocol.refusal import Refused
from holdfast.store import files

if TYPE_CHECKING:
    from holdfast.pipeline.shelf import Shelf

ROWS_SHOWN = 20
SHOWN_CHARACTERS_MAX = 160
"""How much of the words or id that were not found is repeated in the message."""


def report(
    lake: LakePath,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write the page. Default: LAKE/report.html.")
    ] = None,
    as_of: AsOfText = None,
    as_json: AsJson = False,
) -> None:
    """One page with the balance, the findings and the times to delivery; it needs nothing but itself."""
    with explained():
        from holdfast.pipeline import report as reports

        told = reports.gather(with_batch(_with_fates(open_shelf(lake, as_of))))
        if as_json:
            print_json(plain(told))
            return
        target = out or lake / "report.html"
        files.replace(target.absolute(), reports.page(told, show_time).encode())
        console().print(f"✓ {target}")
        _say_removed(told["removed"])


def _say_removed(tables: list[str]) -> None:
    """Print which tables are missing in an answer."""
    if tables:
        console().print(
            f"· left out, because their files have been removed since: {', '.join(tables)}",
            highlight=False,
            markup=False,
        )


def _with_fates(shelf: "Shelf") -> "Shelf":
    """The shelf of a relay's lake; an owner's index, which has other tables, is refused."""
    if "message_fate" not in shelf.tables:
        message = f"{shelf.lake.path} is an index of messages: ask it with `search`, `show` or `sql`"
        raise Failure(ExitCode.USAGE, "usage", message)
    return shelf


def show(
    lake: LakePath,
    table: Annotated[str | None, typer.Argument(help="A table; without one, all of them are listed.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many rows.")] = ROWS_SHOWN,
    as_of: AsOfText = None,
    as_json: AsJson = False,
) -> None:
    """The tables of the lake, or the rows of one."""
    with explained():
        shelf = with_batch(open_shelf(lake, as_of))
        if table is None:
            _list_tables(shelf, as_json=as_json)
            return
        if table not in shelf.tables or not shelf.tables[table].is_stored:
            raise Failure(ExitCode.NOT_FOUND, "table_unknown", f"there is no table {table}; `pipeline show` lists them")
        rows = shelf.query(table, shelf.last_run().versions.get(table), f"SELECT * FROM {{rows}} LIMIT {limit}")  # noqa: S608 - a number
        names = (
            list(rows[0]) if rows else shelf.tables[table].schema.fieldNames()
        )  # an earlier version may have had other columns
    print_rows(names, rows, as_json=as_json)


def _list_tables(shelf: "Shelf", *, as_json: bool) -> None:
    versions = shelf.last_run().versions
    tables = [table for name, table in sorted(shelf.tables.items()) if table.is_stored]
    removed = shelf.removed(versions)
    rows = {one.name: None if one.name in removed else shelf.rows(one.name, versions.get(one.name)) for one in tables}
    if as_json:
        told = [
            {"table": one.name, "rows": rows[one.name], "version": versions.get(one.name), "meaning": one.meaning}
            for one in tables
        ]
        print_json({"tables": told})
    else:
        print_table(
            ("table", "rows", "meaning"),
            [(one.name, _count(rows[one.name]), one.meaning) for one in tables],
            right=("rows",),
        )


def _count(rows: int | None) -> str:
    return "removed" if rows is None else f"{rows:,}"


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A question in DuckDB's SQL.")],
    lake: LakePath,
    as_of: AsOfText = None,
    as_json: AsJson = False,
) -> None:
    """Ask the lake; every table is there under its name, as the last complete batch left it."""
    with explained():
        names, rows = with_batch(open_shelf(lake, as_of)).ask(query)
    print_rows(names, rows, as_json=as_json)


def search(
    words: Annotated[
        list[str], typer.Argument(metavar="WORDS…", help="What to look for; cook* is any word that begins so.")
    ],
    lake: LakePath,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many messages.")] = ROWS_SHOWN,
    as_of: AsOfText = None,
    as_json: AsJson = False,
) -> None:
    """Messages with these words, the best first; in a relay's lake, which knows none, those whose names and ids have them all."""
    with explained():
        from holdfast.pipeline import searching

        shelf, asked = with_batch(open_shelf(lake, as_of)), " ".join(words)
        is_own = "search_posting" in shelf.tables
        found = (searching.search_messages if is_own else searching.search_metadata)(shelf, asked, limit)
    if as_json:
        print_json({"scope": "messages" if is_own else "metadata", "hits": plain(found)})
        raise typer.Exit(ExitCode.OK if found else ExitCode.NOT_FOUND)
    if not found:
        raise Failure(ExitCode.NOT_FOUND, "nothing_found", f"nothing in this lake has {asked[:SHOWN_CHARACTERS_MAX]}")
    if is_own:
        for hit in found:
            _print_hit(hit)
    else:
        names = ["at", "mesh", "sender", "destination_ref", "message_id", "client_message_id"]
        print_rows(names, found, as_json=False)


def _print_hit(hit: dict[str, Any]) -> None:
    whom = f"{'from' if hit['direction'] == 'received' else 'to'} {hit['peer_name'] or hit['peer']}"
    where = f" on @{hit['topic']}" if hit["topic"] and hit["direction"] == "received" else ""
    at = "at no time" if hit["at"] is None else f"{hit['at']:%Y-%m-%d %H:%M}"  # of a damaged message
    told = Text(output.plain(f"{at:16}  {whom}{where}  "))
    shown = Text(output.plain(hit["snippet"]))  # of the same length, so the matches stay where they are
    for start, end in hit["matches"]:
        shown.stylize("bold", start, end)
    console().print(told + shown)


def trace(
    name: Annotated[str, typer.Argument(metavar="ID", help="A message's id at the relay, or its client_message_id.")],
    lake: LakePath,
    as_of: AsOfText = None,
    as_json: AsJson = False,
) -> None:
    """Everything that is known of one message, even if relay and devices have deleted it since."""
    with explained():
        from holdfast.pipeline import archive

        found = archive.trace(with_batch(_with_fates(open_shelf(lake, as_of))), name)
    if found is None:
        raise Failure(
            ExitCode.NOT_FOUND,
            "message_unknown",
            f"no history in this lake tells of a message {name[:SHOWN_CHARACTERS_MAX]}",
        )
    if as_json:
        print_json(plain(found))
        return
    for entry in found["entries"]:
        whom = entry["recipient"] or entry["destination_ref"] or ""
        at = "at no time" if entry["at"] is None else f"{entry['at']:%Y-%m-%d %H:%M:%S}"  # of a damaged entry
        line = f"{at:19}  {entry['kind']}  {whom}  {entry['reason'] or ''}".rstrip()
        console().print(output.plain(f"{line}  ({entry['origin']}, {entry['seq']})"))
    for fate in found["fates"]:
        console().print(output.plain(f"at {fate['recipient']}: {fate['outcome']}"))
    for receipt in found["receipts"]:
        console().print(output.plain(f"{receipt['recipient']} signed a receipt: {receipt['status']}"))
    _say_removed(found["removed"])


def _public_key(text: str) -> str:
    """A key in hex; a text that is none is a slip of the pen, and no violation."""
    try:
        return text if keys.is_public_key(text) else keys.read_npub(text)
    except Refused as refused:
        message = f"--pubkey takes a public key, hex in small letters or npub1…: {refused.detail}."
        raise Failure(ExitCode.USAGE, "usage", message) from refused


def verify(
    lake: LakePath,
    pubkey: Annotated[
        str | None, typer.Option(help="The key that must have signed, hex or npub; else the first certificate's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read every row again and compare it with the certificates. Exit code 4 if anything is not as certified.

    Also lists the histories that were not compared yet with what is there now: `run` does that once it has caught up.
    """
    signer = None if pubkey is None else _public_key(pubkey)
    with explained():
        from holdfast.pipeline.verify import verify as check

        shelf = open_shelf(lake)
        wrong = check(shelf, signer)
        last = shelf.last_run().number
        uncompared = (
            None if wrong else shelf.uncompared(last)
        )  # what a certificate says counts only if all of it is right
    if as_json:
        print_json({"batch": last, "ok": not wrong, "wrong": wrong, "uncompared": uncompared})
    for one in [] if as_json else wrong:
        console().print(output.plain(f"✗ {one}"))
    if wrong:
        raise typer.Exit(ExitCode.VIOLATION)
    if not as_json:
        console().print(f"✓ every row is as certified, up to batch {last}")
        for origin in uncompared or ():
            console().print(f"· not compared yet with what is there now: {origin}", highlight=False, markup=False)
