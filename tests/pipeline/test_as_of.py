"""A lake as it was: what files and logs still tell is told, what they do not is said, and nothing is made up. No Spark."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from holdfast.cli import at_lake, pipeline_lake, pipeline_upkeep
from holdfast.cli.output import ExitCode, Failure
from holdfast.pipeline import archive, balance, catalog, certificate, records, report
from holdfast.pipeline.certificate import Facts
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.schema import Field, Plain, Struct
from holdfast.pipeline.shelf import AsOf, NotThen, Shelf, Vacuumed
from holdfast.pipeline.table import Table
from tests.pipeline.test_lake import add

TABLES = catalog.shown(catalog.RELAYS)
KEPT = ("history", "message_fate", "receipt", "breach")
REPLACED = ("fate_open", "sequence_gap", "delivery_slo")
BATCHES = 3
DAY = date(2026, 1, 1)
VALUES: dict[str, Any] = {
    "string": "x",
    "long": 1,
    "integer": 1,
    "boolean": True,
    "binary": b"x",
    "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
    "date": DAY,
}


def row_of(table: Table, **values: Any) -> dict[str, Any]:
    """A row with something in every column."""
    return {field.name: values.get(field.name, VALUES.get(field.dataType.typeName(), [])) for field in table.schema}


def batch(lake: Lake, number: int, tables: dict[str, Table] = TABLES) -> None:
    """A batch that leaves a row in every table."""
    every = {**tables, **{one.name: one for one in records.RECORDS}}
    for name in (*KEPT, *REPLACED):
        ids = {"message_id": f"m{number}", "key": f"{name}-{number}", "kind": "accepted", "is_violation": True}
        add(lake, every[name], number, [row_of(every[name], seq=number, **ids)])
    versions = {name: handle.version() for name in (*KEPT, *REPLACED) if (handle := lake.delta(name)) is not None}
    found = Shelf(lake, tables).findings(versions)
    facts = Facts(number, number, [], [], versions, {}, {}, found, balance.zero(), [])
    before = Shelf(lake, tables).certificate(number - 1)
    made = certificate.write(facts, before, certificate.lake_key(lake.private))
    _record(lake, records.CERTIFICATE, number, **vars(made))
    versions["certificate"] = number
    listed = [{"table": name, "version": version} for name, version in versions.items()]
    _record(lake, records.RUN, number, entries=1, ranges=[], heads=[], versions=listed)


def _record(lake: Lake, table: Table, number: int, **values: Any) -> None:
    row = {"number": number, "at": records.as_time(number), **values}
    lake.commit(table, number, lake.stage_rows(table, records.arrow_rows(table, [row])))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake of some batches."""
    found = Lake(tmp_path_factory.mktemp("made") / "lake")
    found.create()
    for number in range(1, BATCHES + 1):
        batch(found, number)
    return found


@pytest.fixture
def lake(made: Lake, tmp_path: Path) -> Lake:
    """A copy of it, to be changed."""
    return Lake(shutil.copytree(made.path, tmp_path / "lake"))


@pytest.fixture(scope="module")
def vacuumed(made: Lake, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """One without any file that its last batch does not need."""
    path = shutil.copytree(made.path, tmp_path_factory.mktemp("vacuumed") / "lake")
    pipeline_upkeep.vacuum(path, hours=0)
    return Lake(path)


def shown(lake: Lake, as_of: str) -> Shelf:
    return at_lake.open_shelf(lake.path, as_of)


def asked(lake: Lake, as_of: str, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in shown(lake, as_of).ask(sql)[1]]


@pytest.mark.parametrize(
    "question",
    [
        "SELECT count(*) FROM history",
        "SELECT count(*) FROM message_fate JOIN history USING (message_id)",
        "WITH fate_open AS (SELECT 2 AS n) SELECT n FROM fate_open",
        "SELECT max(number) FROM run",
    ],
)
def test_a_question_that_needs_no_removed_file_is_answered(vacuumed: Lake, question: str) -> None:
    assert asked(vacuumed, "2", question)[-1] == (2,)


@pytest.mark.parametrize(
    "question",
    [
        "SELECT count(*) FROM fate_open",
        "FROM Main.FATE_OPEN",
        "SELECT count(*) FROM history WHERE message_id IN (SELECT message_id FROM fate_open)",
        "FROM query_table('fate_open')",
        "PIVOT fate_open ON mesh USING count(*)",
        "SELECT count(*) FROM fate_open WHERE seq IS NOT NULL",
    ],
)
def test_a_question_that_needs_a_removed_file_is_told_so_and_of_a_batch_that_has_it(
    vacuumed: Lake, question: str
) -> None:
    with pytest.raises(Vacuumed, match=r"fate_open: .*\(batch 2, while batch 3 can be shown\)"):
        shown(vacuumed, "2").ask(question)
    assert shown(vacuumed, "3").rows("fate_open", 3) == 1


def test_a_table_that_there_never_was_is_not_called_removed(vacuumed: Lake) -> None:
    with pytest.raises(duckdb.CatalogException, match="fate_closed"):
        shown(vacuumed, "2").ask("FROM fate_closed")


def test_what_is_asked_of_then_opens_no_other_file_either(vacuumed: Lake, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a\n1\n")
    key = vacuumed.private / certificate.KEY_FILE
    for other in (f"read_text('{key}')", f"read_csv('{tmp_path}/other.csv')", f"'{tmp_path}/other.csv'"):
        with pytest.raises(duckdb.Error, match="disabled"):
            shown(vacuumed, "2").ask(f"SELECT * FROM {other}")


def test_the_list_of_tables_tells_all_counts_but_those_of_removed_files(
    vacuumed: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline_lake.show(vacuumed.path, as_of="2", as_json=True)
    rows = {one["table"]: one["rows"] for one in json.loads(capsys.readouterr().out)["tables"]}
    assert {rows[name] for name in (*KEPT, "run", "certificate")} == {2}
    assert {rows[name] for name in REPLACED} == {None}
    pipeline_lake.show(vacuumed.path, as_of="2")
    lines = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines()}
    assert (lines["history"], lines["fate_open"]) == ("2", "removed")


def test_the_report_tells_what_it_can_and_never_that_there_was_nothing(vacuumed: Lake) -> None:
    told = report.gather(shown(vacuumed, "2"))
    assert told["removed"] == sorted(REPLACED)
    assert [one["key"] for one in told["findings"]] == ["breach-1", "breach-2"]
    assert (told["violations"], told["findings_removed"], told["latency"]) == (3, 1, [])
    assert {one["table"]: one["rows"] for one in told["tables"]}["sequence_gap"] is None
    page = report.page(told, str)
    assert "files of these tables have been removed since: delivery_slo, fate_open, sequence_gap." in page
    assert "1 were certified whose files have been removed since" in page
    assert "Nothing was delivered yet" not in page
    now = report.gather(shown(vacuumed, "3"))
    assert (now["removed"], now["violations"], now["findings_removed"], len(now["latency"])) == ([], 4, 0, 1)


def test_the_report_reads_the_last_certificate_however_many_there_are(
    made: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shelf, "certificates", None)  # those of a year of batches take gigabytes
    told = {batch: report.gather(shown(made, str(batch)))["certificate"] for batch in (1, 2, 3)}
    monkeypatch.undo()
    assert list(told.values()) == [one.hash for one in shown(made, "3").certificates(None, 3)]


def test_a_trace_tells_the_entries_though_what_was_open_is_gone(
    vacuumed: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    found = archive.trace(shown(vacuumed, "2"), "m2")
    assert found is not None
    assert ([one["seq"] for one in found["entries"]], found["removed"]) == ([2], ["fate_open"])
    assert len(found["fates"]) == 1
    pipeline_lake.trace("m2", vacuumed.path, as_of="2")
    assert "· left out, because their files have been removed since: fate_open" in capsys.readouterr().out
    assert archive.trace(shown(vacuumed, "1"), "m2") is None


def test_a_table_that_only_grows_is_shown_as_it_was_until_its_files_were_joined_and_removed(lake: Lake) -> None:
    pipeline_upkeep.compact(lake.path)
    batch(lake, 4)
    assert asked(lake, "2", "SELECT count(*) FROM history") == [(2,)]
    pipeline_upkeep.vacuum(lake.path, hours=0)
    with pytest.raises(Vacuumed, match=r"history: .*\(batch 2, while batch 4 can be shown\)"):
        shown(lake, "2").ask("FROM history")
    with pytest.raises(Failure, match="while batch 4 can be shown") as refused:
        pipeline_lake.show(lake.path, "history", as_of="2")
    assert refused.value.code is ExitCode.NOT_FOUND
    assert asked(lake, "4", "SELECT count(*) FROM history") == [(4,)]
    assert asked(lake, "2", "SELECT (SELECT max(number) FROM run), max(number) FROM certificate") == [(2, 2)]


def test_batches_after_a_compaction_are_shown_whatever_was_removed(lake: Lake) -> None:
    pipeline_upkeep.compact(lake.path)
    for number in (4, 5):
        batch(lake, number)
    pipeline_upkeep.vacuum(lake.path, hours=0)
    assert [asked(lake, str(number), "SELECT count(*) FROM history") for number in (4, 5)] == [[(4,)], [(5,)]]


@pytest.mark.parametrize("table", ["run", "certificate"])
def test_batches_that_came_later_are_none_of_then(lake: Lake, table: str) -> None:
    sql = f"SELECT max(number), count(*) FROM {table}"
    assert [asked(lake, str(number), sql) for number in (1, 2, 3)] == [[(1, 1)], [(2, 2)], [(3, 3)]]
    assert asked(lake, "1970-01-01T00:00:00.000002Z", sql) == [(2, 2)]
    assert shown(lake, "1").rows(table, shown(lake, "1").last_run().versions[table]) == 1
    _record(lake, records.CERTIFICATE, 4, document="{}", pubkey="", signature=b"")  # of a batch that was interrupted
    assert asked(lake, "2026-01-01", sql) == [(3, 3)]


@pytest.mark.parametrize("text", ["4", "999", "2026", "20260101"])
def test_a_batch_that_the_lake_does_not_have_is_refused(made: Lake, text: str) -> None:
    for ask in (pipeline_lake.show, pipeline_lake.report):
        with pytest.raises(Failure, match=rf"\(batch {text}, and the last one is 3\)") as refused:
            ask(made.path, as_of=text)
        assert (refused.value.code, refused.value.kind) == (ExitCode.NOT_FOUND, NotThen.__name__)
    with pytest.raises(Failure, match="the last one is 3"):
        pipeline_lake.sql("SELECT 1", made.path, as_of=text)


def test_of_a_lake_without_a_batch_nothing_is_told_as_of_then(tmp_path: Path) -> None:
    empty = Lake(tmp_path / "lake")
    empty.create()
    for then in ("1", "2026-01-01"):
        with pytest.raises(NotThen):
            shown(empty, then).last_run()


@pytest.mark.parametrize("text", ["2026-01-01", "9999-12-31T23:59", "2026-01-01T00:00:00.000001+01:00"])
def test_after_the_last_batch_a_lake_is_as_that_one_left_it(made: Lake, text: str) -> None:
    assert shown(made, text).last_run().number == BATCHES


def changed(name: str, *, without: str) -> dict[str, Table]:
    """The tables as a newer Holdfast might have them: one has a column more, and another one less."""
    kept: Any = [field for field in TABLES[name].schema.fields if field.name != without]
    columns: Any = Struct((*kept, Field("more", Plain("long"))))  # which answers like Spark's
    return {**TABLES, name: replace(TABLES[name], schema=columns)}


@pytest.mark.parametrize("name", ["message_fate", "fate_open"])
def test_before_its_columns_changed_a_table_is_shown_with_those_that_it_had(lake: Lake, name: str) -> None:
    after = changed(name, without="sender")
    staged = lake.stage_rows(after[name], records.arrow_rows(after[name], []))
    lake.rebuild(after[name], BATCHES, staged)
    lake.protect(after[name])
    batch(lake, 4, after)

    def then(number: int) -> Shelf:
        return Shelf(Lake(lake.path), after, AsOf(number=number))

    sql = f"SELECT message_id, more FROM {name} ORDER BY message_id DESC LIMIT 1"
    assert then(2).ask(sql)[1] == [{"message_id": "m2", "more": None}]
    assert then(4).ask(sql)[1] == [{"message_id": "m4", "more": 1}]
    versions = then(2).last_run().versions
    (row, *_) = then(2).query(name, versions[name], "SELECT * FROM {rows}")
    assert list(row) == [*after[name].schema.fieldNames(), "sender"]
    assert (row["sender"], row["more"]) == ("x", None)
    found = archive.trace(then(2), "m2")
    assert found is not None
    assert {one["message_id"] for one in found["fates"]} == {"m2"}


def test_a_table_of_other_columns_is_shown_before_it_is_computed_anew(made: Lake) -> None:
    newer = changed("fate_open", without="sender")
    assert Shelf(made, newer).ask("SELECT message_id, more FROM fate_open")[1] == [{"message_id": "m3", "more": None}]
