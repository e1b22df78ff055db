"""docs/tables.md is printed from the tables, and stays so."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.protocol import delivery, fate, hook_row, outbox
from holdfast.protocol.refusal import Refusal

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "tables.md"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools" / "tables.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_page_is_what_the_tables_say_now() -> None:
    result = run("--check")
    assert (result.returncode, result.stderr) == (0, ""), "run: python tools/tables.py"


def test_a_stale_page_is_found_and_left_as_it_is(tmp_path: Path) -> None:
    stale = tmp_path / "tables.md"
    stale.write_text(PAGE.read_text().replace("| `queue_full` | temporary |", "| `queue_full` | permanent |"))
    before = stale.read_bytes()
    result = run("--check", "--file", stale)
    assert result.returncode == 1
    assert "stale" in result.stderr
    assert stale.read_bytes() == before != PAGE.read_bytes()


def test_a_missing_page_is_found(tmp_path: Path) -> None:
    assert run("--check", "--file", tmp_path / "none.md").returncode == 1


def test_writing_the_page_makes_it_current(tmp_path: Path) -> None:
    page = tmp_path / "tables.md"
    assert run("--file", page).returncode == 0
    assert page.read_bytes() == PAGE.read_bytes()


@pytest.mark.parametrize("refusal", Refusal)
def test_every_refusal_is_on_the_page(refusal: Refusal) -> None:
    assert f"| `{refusal}` |" in PAGE.read_text()


def test_the_diagrams_show_every_move_that_changes_something() -> None:
    text = PAGE.read_text()
    for table in (outbox.TRANSITIONS, delivery.TRANSITIONS, hook_row.TRANSITIONS):
        for (state, signal), after in table.items():
            drawn = [line for line in text.splitlines() if line.strip().startswith(f"{state} --> {after}: ")]
            shown = {name for line in drawn for name in line.split(": ", 1)[1].split(", ")}
            assert (signal.replace("_", " ") in shown) is (str(state) != str(after))


def test_the_page_lists_every_fact_in_the_order_of_its_strength() -> None:
    text = PAGE.read_text()
    places = [text.index(f"| {place} | `{fact}` |") for place, fact in enumerate(fate.PRECEDENCE, start=1)]
    assert places == sorted(places)
    assert len(places) == len(fate.Fact)
