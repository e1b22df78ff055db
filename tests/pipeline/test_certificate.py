"""A certificate holds as long as nobody changed a value, and only as long."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # likewise
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # likewise
import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline import content, upkeep
from holdfast.pipeline.certificate import KEY_FILE, PROVED, Certificate, KeyExposed, KeyLost, lake_key, signed_digest
from holdfast.pipeline.delta_table import live_files
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.pages import Place
from holdfast.pipeline.verify import verify
from holdfast.protocol import keys
from tests.pipeline import lakes
from tests.pipeline.toys import TOYS
from tests.pipeline.worlds import generated

PROOF = lakes.with_what_they_need(*PROVED)
FLIPS = 40 if "HOLDFAST_CRASH_CYCLES" in os.environ else 1  # bytes of a file, in its last two thirds


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with generated(tmp_path_factory.mktemp("world"), 120) as world:
        yield world.place


@pytest.fixture(scope="module")
def certified(spark: SparkSession, place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of two batches."""
    path = tmp_path_factory.mktemp("certified") / "lake"
    lakes.run(spark, path, place, tables=PROOF, entries_max=300)
    lakes.run(spark, path, place, tables=PROOF)
    return path


def wrong(path: Path) -> list[str]:
    """What is wrong with a lake, whose certificates are read one after the other: so each seam between two reads is looked at, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.pipeline.verify.BATCHES_TOGETHER", 1)
        return verify(lakes.shelf_of(path, PROOF))


def test_an_untouched_lake_is_as_certified(certified: Path) -> None:
    assert wrong(certified) == []


@pytest.mark.parametrize("name", PROVED)
def test_one_changed_value_in_any_column_shows(certified: Path, tmp_path: Path, name: str) -> None:
    rows = lakes.shelf_of(certified, PROOF).rows(name, None if name not in PROOF else _version(certified, name))
    assert rows > 0
    for column in PROOF[name].schema.fieldNames():
        copy = tmp_path / column
        shutil.copytree(certified, copy)
        file = _largest(copy, name)
        if column == PROOF[name].partition_by:
            _move_to_another_day(copy, name, file)
            expected = "is not where the log says"
        else:
            _rewrite(file, partial(_with_one_other, column=column))
            expected = (
                "a value is not what was certified"  # by the rows; that the file is another shows whatever changed
            )
        assert any(expected in one for one in wrong(copy)), f"{name}.{column}"
        shutil.rmtree(copy)


def test_one_changed_value_in_a_table_that_is_computed_shows(certified: Path, tmp_path: Path) -> None:
    others = [name for name, table in PROOF.items() if table.is_stored and name not in PROVED]
    changed = [name for name in others if lakes.shelf_of(certified, PROOF).rows(name, _version(certified, name))]
    assert len(changed) > 1
    for name in changed:
        copy = tmp_path / name
        shutil.copytree(certified, copy)
        file = _largest(copy, name)
        column = next(column for column in PROOF[name].schema.fieldNames() if column != PROOF[name].partition_by)
        _rewrite(file, partial(_with_one_other, column=column))
        assert wrong(copy) == [f"{name}: {file.relative_to(Lake(copy).root(name))} is not what was certified"]


def test_another_file_in_the_place_of_a_certified_one_shows(certified: Path, tmp_path: Path) -> None:
    """One that is what its name says, and the log names it."""
    shutil.copytree(certified, tmp_path / "lake")
    file = _largest(tmp_path / "lake", "extent")
    other = file.with_name(content.name_for("batch-00000002-", _largest(tmp_path / "lake", "history")))
    shutil.copy(_largest(tmp_path / "lake", "history"), other)
    for entry in (file.parent / "_delta_log").glob("*.json"):
        entry.write_text(entry.read_text().replace(file.name, other.name))
    assert "extent has other files than were certified" in wrong(tmp_path / "lake")


@pytest.mark.parametrize(("name", "column"), [("history", "kind"), ("message_fate", "outcome"), ("receipt", "status")])
def test_a_file_that_tells_others_another_value_than_the_digest_shows(
    certified: Path, tmp_path: Path, name: str, column: str
) -> None:
    """DuckDB does not tell the names of columns apart by case, and the digest does."""
    shutil.copytree(certified, tmp_path / "lake")
    file = _largest(tmp_path / "lake", name)
    _write_beside(file, column)
    assert wrong(tmp_path / "lake") == [
        f"{name}: {file.relative_to(tmp_path / 'lake' / name)} is not what was certified"
    ]


def test_an_older_certificate_without_the_files_of_the_tables_that_prove_holds_for_their_rows(
    certified: Path, tmp_path: Path
) -> None:
    shutil.copytree(certified, tmp_path / "lake")
    certify_as_before(tmp_path / "lake")
    assert wrong(tmp_path / "lake") == []
    shutil.copytree(tmp_path / "lake", tmp_path / "other")
    _rewrite(_largest(tmp_path / "other", "history"), partial(_with_one_other, column="chain"))
    assert wrong(tmp_path / "other") == ["history: a value is not what was certified"]
    for file in live_files(_handle(tmp_path / "lake", "message_fate")):
        _write_beside(file, "outcome")
    assert "the balance does not hold" in wrong(tmp_path / "lake")


@pytest.mark.parametrize("name", PROVED)
def test_a_row_taken_away_or_repeated_shows(certified: Path, tmp_path: Path, name: str) -> None:
    def shorter(table: Any) -> Any:
        return table.slice(1)

    def longer(table: Any) -> Any:
        return pa.concat_tables([table, table.slice(0, 1)])

    for change in (shorter, longer):
        copy = tmp_path / change.__name__
        shutil.copytree(certified, copy)
        _rewrite(_largest(copy, name), change)
        assert any("rows" in one for one in wrong(copy))


def test_two_values_that_changed_places_show(certified: Path, tmp_path: Path) -> None:
    def swapped(table: Any) -> Any:
        chains = table.column("chain").to_pylist()
        chains[0], chains[1] = chains[1], chains[0]
        return table.set_column(table.schema.get_field_index("chain"), "chain", [chains])

    shutil.copytree(certified, tmp_path / "lake")
    file = _largest(tmp_path / "lake", "history")
    _rewrite(file, swapped)
    changed = f"history: {file.relative_to(tmp_path / 'lake' / 'history')} is not what was certified"
    assert wrong(tmp_path / "lake") == ["history: a value is not what was certified", changed]


def test_a_changed_certificate_shows(certified: Path, tmp_path: Path) -> None:
    def other(old: str, new: str) -> Callable[[Any], Any]:
        def change(table: Any) -> Any:
            documents = [text.replace(old, new) for text in table.column("document").to_pylist()]
            return table.set_column(table.schema.get_field_index("document"), "document", [documents])

        return change

    for number, (old, new) in enumerate(
        (('"violations":0', '"violations":1'), ('"open":', '"open":1'), ('"batch":1', '"batch":3'), ("{", "["))
    ):
        copy = tmp_path / str(number)
        shutil.copytree(certified, copy)
        for file in live_files(_handle(copy, "certificate")):
            _rewrite(file, other(old, new))
        assert any("not signed" in one for one in wrong(copy)), (old, new)


@pytest.mark.parametrize("column", ["number", "at"])
def test_another_number_or_time_beside_a_certificate_shows(certified: Path, tmp_path: Path, column: str) -> None:
    shutil.copytree(certified, tmp_path / "lake")
    first = sorted(live_files(_handle(tmp_path / "lake", "certificate")))[0]

    def earlier(table: Any) -> Any:
        field = table.schema.field(column)
        less = pc.subtract(table.column(column).cast(pa.int64()), 1).cast(field.type)
        return table.set_column(table.schema.get_field_index(column), field, less)

    _rewrite(first, earlier)
    assert wrong(tmp_path / "lake") == [f"certificate 1: its {column} in `certificate` is not what was certified"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_batch_that_is_written_down_otherwise_than_certified_shows(
    certified: Path, tmp_path: Path, number: int
) -> None:
    file = sorted(live_files(_handle(certified, "run")))[number - 1]
    for column in ("at", "entries", "ranges", "heads", "versions"):
        copy = tmp_path / column
        shutil.copytree(certified, copy)
        _rewrite(copy / file.relative_to(certified), partial(_with_one_other, column=column))
        assert f"batch {number}: its {column} in `run` are not what was certified" in wrong(copy)


def test_a_batch_that_is_not_written_down_shows(certified: Path, tmp_path: Path) -> None:
    shutil.copytree(certified, tmp_path / "lake")
    first = sorted(live_files(_handle(tmp_path / "lake", "run")))[0]
    _rewrite(first, lambda table: table.slice(0, 0))
    assert wrong(tmp_path / "lake") == ["2 batches are certified, and `run` has 1, or others than these"]


def test_a_changed_byte_of_what_is_certified_shows_or_changes_nothing(certified: Path, tmp_path: Path) -> None:
    """In rows, in the logs of their tables, in certificates, and in the list of batches."""
    computed = [name for name, table in PROOF.items() if table.is_stored and name not in PROVED]
    names, copy = (*PROVED, "certificate", "run", *(computed if FLIPS > 1 else computed[:2])), tmp_path / "copy"
    shutil.copytree(certified, copy)
    before, found = _certified_rows(copy, names), 0
    files = [path for name in names for path in sorted(Lake(copy).root(name).rglob("*")) if path.is_file()]
    for path in files:
        content = path.read_bytes()
        for position in range(len(content) // 3, len(content), max(len(content) // FLIPS, 1)):
            path.write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
            is_found = bool(wrong(copy))
            found += is_found
            assert is_found or _certified_rows(copy, names) in (before, None), f"{path}, byte {position}"
        path.write_bytes(content)
    assert found > len(files) / 4


def _certified_rows(path: Path, names: Sequence[str]) -> dict[str, list[str]] | None:
    """What whoever asks the lake is told; None if that is an error: readers are not equally strict about the form of a file."""
    tables = {name: table for name, table in PROOF.items() if name in names}
    try:
        return lakes.contents(path, tables, without=())
    except duckdb.Error:
        return None


def test_a_missing_certificate_shows(certified: Path, tmp_path: Path) -> None:
    for number in range(2):
        copy = tmp_path / str(number)
        shutil.copytree(certified, copy)
        file = sorted(live_files(_handle(copy, "certificate")))[number]
        _rewrite(file, lambda table: table.slice(0, 0))
        assert wrong(copy)


def test_another_key_than_the_pinned_one_shows(certified: Path) -> None:
    shelf = lakes.shelf_of(certified, PROOF)
    key = shelf.certificates(None, 1)[0].pubkey
    assert verify(shelf, key) == []
    assert len(verify(shelf, key[::-1])) == 2


def test_compaction_and_vacuum_leave_the_certificate_good(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    path = tmp_path / "lake"
    for _ in range(4):
        lakes.run(spark, path, place, tables=TOYS, entries_max=50)
    shelf = lakes.shelf_of(path, TOYS)
    assert upkeep.compact(shelf.lake, shelf.tables, shelf.last_run(), small_files_max=1)
    lakes.run(spark, path, place, tables=TOYS, entries_max=50)
    before = lakes.contents(path, TOYS)
    lake = Lake(path)
    removed = [
        file
        for table in TOYS.values()
        if table.is_stored
        for file in lake.vacuum(table, [_version(path, table.name)], hours=0)
    ]
    assert any(file.startswith("day=") for file in removed)
    assert verify(lakes.shelf_of(path, TOYS)) == []
    assert lakes.contents(path, TOYS) == before


def test_the_key_is_its_owners_alone(tmp_path: Path) -> None:
    assert lake_key(tmp_path) == lake_key(tmp_path)
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / KEY_FILE).chmod(0o640)
    with pytest.raises(KeyExposed):
        lake_key(tmp_path)


def test_no_other_key_signs_for_one_that_is_gone(tmp_path: Path) -> None:
    key = tmp_path / KEY_FILE
    signed = Certificate("{}", keys.public_key(lake_key(tmp_path)), b"")
    assert lake_key(tmp_path, signed) == lake_key(tmp_path)
    key.unlink()
    with pytest.raises(KeyLost, match="is not there"):
        lake_key(tmp_path, signed)
    assert not key.exists()
    lake_key(tmp_path)  # another one, as of another lake
    with pytest.raises(KeyLost, match="its public key is"):
        lake_key(tmp_path, signed)


def _version(path: Path, name: str) -> int:
    return lakes.shelf_of(path).last_run().versions[name]


def _handle(path: Path, name: str) -> Any:
    return Lake(path).delta(name, _version(path, name))


def _largest(path: Path, name: str) -> Path:
    return max(live_files(_handle(path, name)), key=lambda file: (file.stat().st_size, file.name))


def _rewrite(file: Path, change: Callable[[Any], Any]) -> None:
    table = pq.ParquetFile(file).read()
    pq.write_table(change(table).cast(table.schema), file)


def _write_beside(file: Path, column: str) -> None:
    """Add another column of the same name in capitals before one, with a value that is not its."""
    table = pq.ParquetFile(file).read()
    place = table.schema.get_field_index(column)
    other = pa.array(["other"] * table.num_rows)
    pq.write_table(table.add_column(place, column.upper(), other), file)


def certify_as_before(path: Path) -> None:
    """Let the last certificate say nothing of the files of the tables that prove, signed with the lake's own key."""
    key = lake_key(Lake(path).private)

    def older(table: Any) -> Any:
        (row,) = table.to_pylist()
        said = json.loads(row["document"])
        said["files"] = {name: listed for name, listed in said["files"].items() if name not in PROVED}
        row["document"] = json.dumps(said)
        row["signature"] = keys.sign(key, signed_digest(row["document"]), bytes(keys.AUX_BYTES))
        return pa.Table.from_pylist([row], table.schema)

    _rewrite(sorted(live_files(_handle(path, "certificate")))[-1], older)


def _with_one_other(table: Any, column: str) -> Any:
    """The table with another value in one row; in one that has a value, if any has."""
    values = table.column(column).to_pylist()
    row = next((index for index, value in enumerate(values) if value is not None), 0)
    kind = table.schema.field(column).type
    values[row] = _other(values[row], kind)
    return table.set_column(table.schema.get_field_index(column), column, pa.array(values, kind))


def _other(value: Any, kind: Any) -> Any:
    if pa.types.is_boolean(kind):
        return not value
    if pa.types.is_integer(kind):
        return (value or 0) + 1
    if pa.types.is_timestamp(kind):
        return (value or datetime(2026, 1, 1, tzinfo=UTC)) + timedelta(microseconds=1)
    if pa.types.is_date(kind):
        return (value or date(2026, 1, 1)) + timedelta(days=1)
    if pa.types.is_list(kind):
        return [*(value or []), _other(None, kind.value_type)]
    if pa.types.is_struct(kind):
        return {field.name: _other((value or {}).get(field.name), field.type) for field in kind}
    if pa.types.is_binary(kind):
        return bytes([*(value or b""), 0])
    return f"{value or ''} "


def _move_to_another_day(path: Path, name: str, file: Path) -> None:
    """Let the log say that a file's rows are of another day, wherever the file lies."""
    for entry in (Lake(path).root(name) / "_delta_log").glob("*.json"):
        text = entry.read_text()
        if file.name in text:
            day = file.parent.name.removeprefix("day=")
            entry.write_text(text.replace(f'"day":"{day}"', '"day":"2001-01-01"'))
