"""`holdfast generate`: a relay's data and some homes full of traffic that never was, to try the pipeline on."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from holdfast.cli.generate_founding import PRESENCES
from holdfast.cli.generate_home import HomeBook
from holdfast.cli.generate_people import Member, Mesh
from holdfast.cli.generate_relay import RelayBook
from holdfast.cli.generate_traffic import DAYS, Plan, Traffic
from holdfast.cli.output import AsJson, ExitCode, Failure, console, print_json
from holdfast.protocol import keys, ulid
from holdfast.protocol.envelope import EPOCH_BYTES
from holdfast.protocol.schedule import DAY
from holdfast.store import faults
from holdfast.store.world import wall_clock

DEVICES = 24
DEVICES_MAX = 1_000
DEVICES_PER_MESH = 8
HOMES = 4
QUEUE_MESSAGES_MAX = 1_000  # of a relay as it comes; small traffic gets small queues, so that some are full
REUSED = (
    "Contents and signatures of messages are a few that are used again and again, under ids of their own, so they prove nothing. "
    "Receipts, administration and the relay's anchors are truly signed, and histories truly chained."
)


def generate(
    messages: Annotated[int, typer.Option(min=1, max=100_000_000, help="How many messages are sent.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory to make.")],
    seed: Annotated[int, typer.Option(help="The same seed and end make the same bytes.")] = 0,
    devices: Annotated[
        int, typer.Option(min=2, max=DEVICES_MAX, help="How many members there are, in all meshes.")
    ] = DEVICES,
    homes: Annotated[
        int, typer.Option(min=0, max=DEVICES_MAX, help="How many of them have their home in DIR.")
    ] = HOMES,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How many days the traffic takes.")] = DAYS,
    ends_at: Annotated[datetime | None, typer.Option(help="When the traffic ends, in UTC; by default now.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a relay's data directory and homes, as some weeks of traffic would leave them.

    Contents and signatures of messages are a few used again and again, so they prove nothing; receipts,
    administration and anchors are truly signed, and histories truly chained. Nothing is sent anywhere.
    """
    end = wall_clock() if ends_at is None else round(ends_at.replace(tzinfo=UTC).timestamp()) * 1_000_000
    made = make(out, messages, Random(seed), devices, min(homes, devices), end, days=days, as_json=as_json)  # noqa: S311 - nothing here is secret
    if as_json:
        print_json(made)
        return
    console().print(
        f"✓ {out}: {made['messages']:,} messages accepted, {made['receipts']:,} receipts, {made['entries']:,} entries in the relay's history"
    )
    for home in made["homes"]:
        console().print(f"  home {home}")
    console().print(f"  {REUSED}")


def make(
    out: Path,
    messages: int,
    random: Random,
    devices: int,
    homes: int,
    end: int,
    *,
    days: int = DAYS,
    as_json: bool = False,
) -> dict[str, Any]:
    """Write everything below `out`, which must not be there yet; says what was made."""
    _make_directory(out)
    plan = Plan(messages, end - days * DAY, days * DAY)
    cap = min(QUEUE_MESSAGES_MAX, max(10, messages // 50))
    with ExitStack() as stack:
        relay = stack.enter_context(RelayBook(out / "relay", random, cap, plan.starts_at))
        (out / "homes").mkdir(mode=0o700)
        meshes = _meshes(out, relay, random, devices, homes, stack)
        with _progress(messages, as_json) as told:
            Traffic(plan, relay, meshes, random).run(told)
    names = [member.name for mesh in meshes for member in mesh.members if member.home is not None]
    return {
        "relay": str(out / "relay"),
        "homes": [str(out / "homes" / name) for name in names],
        "messages": relay.counts["accepted"],
        "receipts": relay.counts["receipt"],
        "entries": relay.counts["entries"],
        "note": REUSED,
    }


def _make_directory(out: Path) -> None:
    try:
        out.mkdir(mode=0o700)
    except FileExistsError as error:
        raise Failure(ExitCode.VIOLATION, "FileThere", f"{out} is there already. Give a directory to make.") from error
    except FileNotFoundError as error:
        raise faults.DirectoryMissing(str(out)) from error


def _meshes(out: Path, relay: RelayBook, random: Random, devices: int, homes: int, stack: ExitStack) -> list[Mesh]:
    """Members in meshes of about eight, and homes for some of every mesh."""
    count = max(1, round(devices / DEVICES_PER_MESH))
    meshes = [Mesh(relay.mint(), f"mesh {number}", relay.at) for number in range(count)]
    for number in range(devices):
        mesh = meshes[number % count]
        home = None
        if number < homes:
            home = stack.enter_context(HomeBook(out / "homes" / f"member-{number}", random, relay.at))
        mesh.members.append(_member(mesh, number, home, random, relay))
    return meshes


def _member(mesh: Mesh, number: int, home: HomeBook | None, random: Random, relay: RelayBook) -> Member:
    secret = random.randbytes(keys.SECRET_BYTES) if home is None else home.secret
    place = len(mesh.members)
    return Member(
        mesh=mesh,
        member=ulid.mint(relay.at, random.randbytes(ulid.RANDOM_BYTES)),
        name=f"member-{number}",
        role="member" if place else "admin",
        secret=secret,
        key=keys.public_key(secret),
        epoch=random.randbytes(EPOCH_BYTES) if home is None else home.epoch,
        presence=PRESENCES[place % len(PRESENCES)],
        home=home,
    )


@contextmanager
def _progress(messages: int, as_json: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere."""
    if as_json or not sys.stderr.isatty():
        yield lambda sent: None
        return
    from rich.console import Console

    with Progress(
        "generating", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)
    ) as bar:
        task = bar.add_task("messages", total=messages)
        yield lambda sent: bar.advance(task, sent)
