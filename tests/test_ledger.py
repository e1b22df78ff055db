"""The page about what was run says what the book says, and a run is added to those before."""

import json
from pathlib import Path
from typing import Literal

import pytest

from tests import ledger

PAGE = "# Page\n\n<!-- crash -->\n<!-- end of crash -->\nand on\n"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ledger, "BOOK", tmp_path / "book.json")
    monkeypatch.setattr(ledger, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path / "page.md"


def test_the_page_is_what_the_book_makes_of_it() -> None:
    text = ledger.PAGE.read_text()
    assert ledger.told(ledger.read(), text) == text


def test_runs_are_added_up_and_told(page: Path) -> None:
    run = {"runs": 2, "failed": 1, "seconds": 3, "numbers": {"kills": 500}}
    for _ in range(3):
        ledger.add("crash", {"tests/crash/test_kill.py::test_it_is_there": run})
    text = page.read_text()
    assert "| it is there (`crash/test_kill.py`) | 6 | 3 | 1,500 kills |" in text
    assert text.startswith("# Page")
    assert text.endswith("and on\n")


def _report(which: int, outcome: Literal["passed", "failed"]) -> pytest.TestReport:
    name = f"tests/test_one.py::test_some[{which}]"
    return pytest.TestReport(
        name, ("", 0, ""), {}, outcome, None, "call", user_properties=[("kills", which)], duration=1.0
    )


def test_what_a_test_counts_is_in_the_book_whichever_way_it_ended(page: Path) -> None:
    listener = ledger.Ledger("crash")
    listener.pytest_runtest_logreport(_report(1, "passed"))
    listener.pytest_runtest_logreport(_report(2, "failed"))
    assert json.loads(ledger.BOOK.read_text())["crash"].keys() == {"tests/test_one.py::test_some"}
    (found,) = ledger.read()["crash"].values()
    assert (found["runs"], found["failed"], found["numbers"]) == (2, 1, {"kills": 3})


def test_a_page_without_a_place_is_refused(page: Path) -> None:
    with pytest.raises(ValueError, match="no place for fuzz"):
        ledger.note("fuzz", {})
