"""How the demo speaks: numbered chapters, facts, and verdicts that end it when one does not hold."""

from itertools import count

from rich.console import Console

console = Console(highlight=False)

_numbers = count(1)


def chapter(title: str, text: str) -> None:
    console.print(f"\n[bold]{next(_numbers)}. {title}[/]  {text}")


def fact(text: str) -> None:
    console.print(f"  · {text}", markup=False)


def verdict(holds: bool, good: str, bad: str) -> None:
    """Say what was shown; one that was not ends the demo with status 1."""
    if not holds:
        console.print(f"  ✗ {bad}", style="bold red", markup=False)
        raise SystemExit(1)
    console.print(f"  ✓ {good}", style="green", markup=False)
