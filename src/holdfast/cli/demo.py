"""`holdfast demo`: the whole story, told by real processes that really die."""

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import demo_log
from holdfast.cli.demo_story import console, fact


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the directory there to look at.")] = False,
) -> None:
    """Watch it survive: kill -9 of a log and of a relay, somebody away, a message sent twice, and the proof of it all."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    console.print(f"[bold]Holdfast[/] carries messages, never loses one silently, and can prove it. [dim]({folder})[/]")
    demo_log.tell(folder / "operations.db")
    # Clients and servers are large, and every other command starts without them.
    from holdfast.cli import demo_mesh

    with demo_mesh.opened(folder) as world:
        demo_mesh.tell(world)
        if importlib.util.find_spec("pyspark") is None:
            fact("the proof needs Spark: `make pipeline` installs it, and `make demo` does so by itself")
        else:
            from holdfast.cli import demo_lake

            demo_lake.tell(world)
    _end(folder, keep)


def _end(folder: Path, keep: bool) -> None:
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
        console.print("\nEverything held. With [cyan]--keep[/] the files stay, to look at with the same commands.")
        return
    console.print("\nEverything held, and is still there to look at:")
    for command in (
        f"log list {folder}/operations.db",
        f"check {folder}/relay/relay.db",
        f"pipeline show message_fate --lake {folder}/lake",
        f"pipeline report --lake {folder}/lake",
    ):
        console.print(f"  [cyan].venv/bin/holdfast {command}[/]", soft_wrap=True)
