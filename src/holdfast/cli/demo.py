"""`holdfast demo`: the whole story, told by real processes that really die. Every step asks them whether it holds."""

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.status import Status

from holdfast.cli import demo_agents, demo_documents, demo_lake, demo_log, demo_mesh
from holdfast.cli.demo_story import State, Step, Told, tell
from holdfast.cli.demo_world import World
from holdfast.cli.output import AsJson, ExitCode, console, print_json, print_table

STEPS = (
    Step("kill -9 of a process that appends loses nothing that had returned", demo_log.survive),
    Step("kill -9 of a process that replays leaves the rest to the next one", demo_log.replay),
    Step("three homes meet in a mesh", demo_mesh.meet),
    Step("what is sent to somebody who is away waits at the relay", demo_mesh.send_to_somebody_away),
    Step("kill -9 of the relay loses nothing that it had taken", demo_mesh.kill_the_relay),
    Step("who comes back gets everything, once and in order, and the sender a receipt", demo_mesh.come_back),
    Step("an id stands for one message, however often it is sent", demo_mesh.say_twice),
    Step("a dead letter goes on under a new id", demo_mesh.requeue_a_dead_letter),
    Step("a note is the same in two homes", demo_documents.share_a_note),
    Step("two edits that did not know of each other are both kept, until somebody decides", demo_documents.disagree),
    Step("what an agent does here is seen there", demo_agents.watch_elsewhere),
    Step("every database keeps every rule", demo_mesh.keep_the_rules),
    Step("Spark rebuilds the fate of every message from the histories, and certifies it", demo_lake.certify),
    Step(
        "a row that somebody deletes from the relay's file is found, by kind and place", demo_lake.find_what_was_taken
    ),
)

_SIGNS = {State.HELD: "✓", State.FAILED: "✗", State.MISSING: "-", State.NOT_TRIED: " "}
_STYLES = {State.HELD: "green", State.FAILED: "bold red", State.MISSING: "yellow", State.NOT_TRIED: "dim"}


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave it running, and its files there to look at.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch it survive: a relay and three homes, killed, cut off and tampered with, and Spark's proof. Two minutes.

    Exit code 0 only if every step held, 4 if one did not, 5 if Spark is not installed.
    """
    raise typer.Exit(show(STEPS, keep=keep, as_json=as_json))


def show(steps: Sequence[Step], *, keep: bool, as_json: bool) -> ExitCode:
    """Tell a story in a directory of its own. One that does not hold leaves its files for whoever wants to know why."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    world, began_at = World(folder), time.monotonic()
    with _ended_by_signals(), _closed(world, keep=keep):
        if not as_json:
            console().print(f"Holdfast carries messages, never loses one silently, and can prove it. ({folder})\n")
        told = tell(steps, world, _Nobody() if as_json else _Terminal(len(steps)))
        code = _code(told)
        is_left = keep or code is not ExitCode.OK
        _print(world, told, time.monotonic() - began_at, code, keep=keep, is_left=is_left, as_json=as_json)
    if not is_left:
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _code(told: Sequence[Told]) -> ExitCode:
    states = {one.state for one in told}
    if State.FAILED in states:
        return ExitCode.VIOLATION
    return ExitCode.OK if states == {State.HELD} else ExitCode.UNAVAILABLE


@contextmanager
def _closed(world: World, *, keep: bool) -> Iterator[None]:
    """Whatever happens, nothing goes on running that nobody asked to keep, nor are its files left if that was cut short."""
    is_done = False
    try:
        yield
        is_done = True
    finally:
        if not (keep and is_done):
            for number in _ENDS:
                signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C would leave half of it running
            world.close()
        if not is_done:
            shutil.rmtree(world.folder, ignore_errors=True)  # secret keys are in it


_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Somebody who ends us, or closes the terminal, ends what we started."""

    def end(number: int, frame: object) -> NoReturn:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Nobody:
    """Watches for a program, which gets everything at the end."""

    def begin(self, number: int, step: Step) -> None:
        pass

    def end(self, number: int, told: Told) -> None:
        pass


class _Terminal:
    """Says what is tried, and what was seen; the former only where it can be taken back."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._console: Console = console()
        self._status: Status | None = None

    def begin(self, number: int, step: Step) -> None:
        if self._console.is_terminal:
            self._status = self._console.status(f"{number}/{self._count} {step.claim} …")
            self._status.start()

    def end(self, number: int, told: Told) -> None:
        if self._status is not None:
            self._status.stop()
        self._console.print(f"{_SIGNS[told.state]} {told.claim}", style=_STYLES[told.state])
        self._console.print(f"    {told.seen}", style="dim" if told.state is State.HELD else "none")


def _print(
    world: World, told: Sequence[Told], seconds: float, code: ExitCode, *, keep: bool, is_left: bool, as_json: bool
) -> None:
    commands = {"try": _to_try(world, told) if is_left else [], "stop": _to_stop(world) if keep else []}
    if as_json:
        _print_json(world, told, seconds, code, commands, is_left=is_left)
        return
    rows = [(str(n), one.state.value, _shown_s(one), one.claim) for n, one in enumerate(told, 1)]
    console().print()
    print_table(("step", "", "seconds", "claim"), rows, right=("step", "seconds"))
    held = sum(one.state is State.HELD for one in told)
    console().print(f"\n{held} of {len(told)} steps held, in {seconds:.0f} s.")
    if not is_left:
        console().print(
            "Everything has ended and is removed. With --keep it goes on, to look at with the same commands."
        )
    for title, lines in (("To try next:", commands["try"]), ("To end it:", commands["stop"])):
        if lines:
            console().print(f"\n{title}")
        for line in lines:
            console().print(f"  {line}", style="cyan")


def _print_json(
    world: World, told: Sequence[Told], seconds: float, code: ExitCode, commands: dict[str, Any], *, is_left: bool
) -> None:
    steps = [{**one._asdict(), "state": one.state.value, "seconds": round(one.seconds, 3)} for one in told]
    paths = {"relay": world.data, "alice": world.alice, "bob": world.bob, "carol": world.carol, "lake": world.lake}
    print_json(
        {
            "ok": code is ExitCode.OK,
            "seconds": round(seconds, 3),
            "steps": steps,
            "folder": str(world.folder) if is_left else None,
            "paths": {name: str(path) for name, path in paths.items()} if is_left else {},
            "relay_url": world.url,
            "relay_pid": world.relay_pid,
            **commands,
        }
    )


def _shown_s(told: Told) -> str:
    return "" if told.state is State.NOT_TRIED else f"{told.seconds:.1f}"


def _program() -> str:
    """How somebody who stands here calls us."""
    program = Path(sys.executable).with_name("holdfast")
    if shutil.which("holdfast") == str(program):
        return "holdfast"
    return str(program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program)


def _to_try(world: World, told: Sequence[Told]) -> list[str]:
    holdfast = _program()
    commands = [
        f"{holdfast} log list {world.folder / demo_log.LOG} --limit 5",
        f"{holdfast} check {world.data / 'relay.db'}",
        f"HOLDFAST_HOME={world.bob} {holdfast} inbox --limit 5",
        f"HOLDFAST_HOME={world.alice} {holdfast} trace {world.sent[0] if world.sent else 'ID'}",
        f"HOLDFAST_HOME={world.carol} {holdfast} outbox list",
        f"{holdfast} console --data {world.data}",
        f"{holdfast} pipeline report --lake {world.lake}",
        f"{holdfast} doctor --home {world.alice} --data {world.data} --lake {world.lake}",
    ]
    return commands if told[-1].state is State.HELD else commands[:2]


def _to_stop(world: World) -> list[str]:
    downs = [f"{_program()} daemon down --home {home}" for home in world.homes if (home / "daemon.sock").exists()]
    return [*downs, f"kill {world.relay_pid}", f"rm -r {world.folder}"]
