"""Pages taken over as files: every row of them, whatever is wrong with it, and nothing that no task has reported."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pytest

from holdfast.export.selection import HISTORY as EXPORTED
from holdfast.pipeline import few, pages, records, taking, times
from holdfast.pipeline.digest import Digest, of_files
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.pages import Page, Place
from holdfast.pipeline.tables.history import history
from holdfast.pipeline.tables.link import link
from holdfast.pipeline.taking import Form, Piece

LOG = b"A" * 16
NOON = int(datetime(2026, 1, 2, 12, tzinfo=UTC).timestamp() * 1_000_000)
DAY_US = 86_400_000_000
FIRST_DAY = "day=1970-01-01"
PIECE = Piece("relay:x", Place("http://127.0.0.1:1"), "history", None, True, 0, 4, LOG)


def row(seq: int | None, at: int | None = NOON, **values: Any) -> dict[str, Any]:
    return {"seq": seq, "at": at, "kind": "accepted", "recipients": [], "mentions": [], "detail": b"", **values}


def page(*rows: dict[str, Any]) -> Page:
    """A page as it may come from a damaged relay: whatever must be there may be missing."""
    schema = pa.schema([field.with_nullable(True) for field in EXPORTED.schema])
    return Page(LOG, 100, 100, 100, schema, pa.Table.from_pylist(list(rows), schema).to_batches())


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Page]:
    """What the relay says, page after page."""
    found: list[Page] = []
    monkeypatch.setattr(pages, "read_pages", lambda *_, **__: iter(found))
    return found


def take(folder: Path, *pieces: Piece) -> Digest:
    def no_spark() -> Any:
        raise AssertionError("so few are taken by the driver")

    return taking.take_history(no_spark, pieces or [PIECE], history.schema, folder / "history", folder / "links")


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def taken(folder: Path) -> list[dict[str, Any]]:
    found = few.read(history.schema, files(folder / "history"), "day")
    rows: list[dict[str, Any]] = found.drop_columns(["at"]).to_pylist()  # Python has no word for some of these times
    return rows


def certified(folder: Path) -> Digest:
    return of_files(files(folder / "history"), folder / "history", records.arrow_schema(history))


def test_entries_lie_by_day_with_their_origin_and_their_log(tmp_path: Path, told: list[Page]) -> None:
    told += [page(row(1), row(2, NOON + DAY_US)), page(row(3, NOON + DAY_US))]
    found = take(tmp_path)
    assert [file.parent.name for file in files(tmp_path / "history")] == ["day=2026-01-02", "day=2026-01-03"]
    assert [(one["origin"], one["log_id"], one["seq"]) for one in taken(tmp_path)] == [
        ("relay:x", LOG, 1),
        ("relay:x", LOG, 2),
        ("relay:x", LOG, 3),
    ]
    assert found == certified(tmp_path)
    links = few.read(link.schema, files(tmp_path / "links")).to_pylist()
    assert [(one["seq"], one["last_seq"]) for one in links if one["bytes"] is not None] == [(1, 2), (3, 3)]


DAMAGED: dict[str, dict[str, Any]] = {
    "a time that is missing": row(2, None),
    "a time before there were years": row(2, -(2**62)),
    "a time past the last year": row(2, 2**62),
    "the first moment past the known ones": row(2, times.MAX_US + 1),
    "a position that is missing": row(None),
    "lists that are missing": row(2, recipients=None, mentions=None),
    "values that are missing": row(2, kind=None, detail=None, chain=None),
    "a member that is missing": row(2, recipients=[{"member": None, "outcome": ""}], mentions=[None, ""]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_of_damaged_entries_none_is_lost_and_all_are_proved(tmp_path: Path, told: list[Page], name: str) -> None:
    told += [page(row(1), DAMAGED[name], row(3))]
    assert take(tmp_path) == certified(tmp_path) != Digest()
    found = taken(tmp_path)
    assert len(found) == 3
    assert {key: value for key, value in DAMAGED[name].items() if key != "at"}.items() <= _like(found, name).items()


def _like(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(one for one in found if one["seq"] == DAMAGED[name]["seq"])


@pytest.mark.parametrize("name", [name for name in DAMAGED if "time" in name or "moment" in name])
def test_a_time_that_is_of_no_day_lies_where_time_begins(tmp_path: Path, told: list[Page], name: str) -> None:
    told += [page(DAMAGED[name])]
    take(tmp_path)
    assert [file.parent.name for file in files(tmp_path / "history")] == [FIRST_DAY]


def test_the_first_and_the_last_known_moment_have_a_day(tmp_path: Path, told: list[Page]) -> None:
    told += [page(row(1, times.MAX_US), row(2, times.MIN_US))]
    take(tmp_path)
    assert [file.parent.name for file in files(tmp_path / "history")] == ["day=0001-01-02", "day=9999-12-30"]


def test_entries_that_come_in_no_order_lie_in_theirs(tmp_path: Path, told: list[Page]) -> None:
    told += [page(row(3), row(1), row(2), row(1))]
    take(tmp_path)
    assert [one["seq"] for one in taken(tmp_path)] == [1, 1, 2, 3]


def test_of_pages_without_rows_nothing_is_left(tmp_path: Path, told: list[Page]) -> None:
    told += [page(), page()]
    assert (take(tmp_path), files(tmp_path)) == (Digest(), [])


def test_a_file_that_is_full_and_days_without_end_leave_more_files_and_every_row(
    tmp_path: Path, told: list[Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few, "FILE_ROWS_MAX", 2)
    monkeypatch.setattr(taking, "FILES_OPEN_MAX", 2)
    told += [page(*(row(5 * number + one, NOON + DAY_US * one) for one in range(5))) for number in range(3)]
    assert take(tmp_path) == certified(tmp_path)
    assert sorted(one["seq"] for one in taken(tmp_path)) == [*range(15)]
    assert len(files(tmp_path / "history")) > 5


def test_what_an_attempt_has_left_that_nobody_reports_does_not_count(tmp_path: Path, told: list[Page]) -> None:
    form = Form(tmp_path / "history", few.arrow_schema(history.schema), tmp_path / "links", is_history=True)

    def torn() -> Iterator[Page]:
        yield page(row(1))
        raise pages.Unreachable("it went away")

    told += [page(row(1))]
    take(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "read_pages", lambda *_, **__: torn())
        with pytest.raises(pages.Unreachable):
            taking._taken(form, [PIECE])
    taking._taken(form, [PIECE])  # and one that was finished, and begun once more elsewhere
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) > len(files(tmp_path))
    assert [one["seq"] for one in taken(tmp_path)] == [1]


def test_entries_of_no_day_become_part_of_a_table_that_can_be_opened(tmp_path: Path, told: list[Page]) -> None:
    told += [page(row(1), *(DAMAGED[name] for name in DAMAGED if "time" in name or "moment" in name))]
    lake = Lake(tmp_path / "lake")
    lake.create()
    take(tmp_path)
    lake.commit(history, 1, tmp_path / "history")
    handle = Lake(tmp_path / "lake").delta("history")
    assert handle is not None
    assert handle.count() == 5


def test_an_export_without_a_column_is_refused(tmp_path: Path, told: list[Page]) -> None:
    whole = page(row(1))
    told += [
        replace(whole, schema=whole.schema.remove(2), batches=[one.drop_columns(["kind"]) for one in whole.batches])
    ]
    with pytest.raises(pages.SourceError, match="no column kind"):
        take(tmp_path)


def test_every_piece_belongs_to_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [replace(PIECE, after=number, until=number + 1) for number in range(7)]
    for most in (1, 2, 3, 7, 64):
        monkeypatch.setattr(taking, "SHARES_MAX", most)
        shares = taking._shared_out(pieces)
        assert [piece for share in shares for piece in share] == pieces
        assert len(shares) == min(most, 7)
        assert all(shares)
    assert taking._shared_out([]) == []
