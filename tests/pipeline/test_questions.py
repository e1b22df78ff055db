"""What a lake is asked, by people who mean well and others: it answers, or says why not, and never changes. No Spark."""

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from holdfast.cli import pipeline, pipeline_lake, pipeline_upkeep
from holdfast.cli.at_lake import open_shelf, then
from holdfast.cli.output import ExitCode, Failure
from holdfast.pipeline import balance, certificate, failures, kind, questions, records, searching
from holdfast.pipeline.backfill import to_rebuild
from holdfast.pipeline.lake import Lake, LakeMisnamed, LakeOther, TableTaken, VersionMissing
from holdfast.pipeline.outcome import Outcome
from holdfast.pipeline.questions import NoQuestion, NoValue
from holdfast.pipeline.search.search_message import search_message
from holdfast.pipeline.shelf import AsOf, Run, Shelf, Vacuumed
from holdfast.pipeline.table import Table, load_search
from holdfast.store.faults import FileMissing
from tests.pipeline.test_as_of import TABLES, row_of
from tests.pipeline.test_lake import BEGAN_AT, MADE, add, rows
from tests.pipeline.twins import letters
from tests.terminal import typed

BATCHES = 2


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake of one table and its records, with a key that is nobody else's."""
    lake = Lake(tmp_path_factory.mktemp("lakes") / "a lake's")
    lake.create()
    certificate.lake_key(lake.private)
    for number in range(1, BATCHES + 1):
        add(lake, MADE, number, rows(number * 10, 10))
        _record(lake, number)
    return lake


def _record(lake: Lake, number: int, *names: str) -> None:
    versions = [{"table": name, "version": number} for name in names or ("made",)]
    row = {
        "number": number,
        "at": records.as_time(number),
        "entries": 0,
        "ranges": [],
        "heads": [],
        "versions": versions,
    }
    lake.commit(records.RUN, number, lake.stage_rows(records.RUN, records.arrow_rows(records.RUN, [row])))


def shelf_of(lake: Lake, as_of: AsOf | None = None) -> Shelf:
    return Shelf(lake, {"made": MADE}, as_of)


def index(path: Path, *texts: str, apart: timedelta = timedelta(seconds=1)) -> Shelf:
    """An owner's lake with these messages, the last one the newest."""
    lake = Lake(path)
    lake.create()
    kind.make_own(lake)
    messages = [_message(seq, text, BEGAN_AT + seq * apart) for seq, text in enumerate(texts, start=1)]
    found = {"search_message": messages, "search_posting": letters.search_posting(messages)}
    tables = kind.tables_of(lake)
    for name, held in found.items():
        add(lake, tables[name], 1, held)
    _record(lake, 1, *found)
    return Shelf(lake, tables)


def _message(seq: int, text: str, at: datetime) -> dict[str, Any]:
    place = {"origin": "device:mesh-1/ann", "log_id": b"L" * 16, "seq": seq, "at": at, "day": at.date()}
    names = {"direction": "received", "peer": "ben", "peer_name": None, "mesh": "mesh-1", "topic": None}
    said = {"message_id": None, "client_message_id": f"m-{seq}", "text": text, "words": len(letters.words(text))}
    return {**place, **names, **said}


def contents(lake: Lake) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in lake.path.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "question",
    [
        "SELECT count(*) AS n FROM made",
        "FROM made SELECT count(*) AS n;",
        "WITH one AS (SELECT * FROM made) SELECT count(*) AS n FROM one",
    ],
)
def test_a_question_is_answered(lake: Lake, question: str) -> None:
    assert shelf_of(lake).ask(question) == (["n"], [{"n": 20}])


def test_columns_of_one_name_keep_their_own_values(lake: Lake) -> None:
    names, (row,) = shelf_of(lake).ask(
        "SELECT one.n, one.n_1, two.n, three.n FROM (SELECT 1 AS n, 2 AS n_1) AS one, (SELECT 3 AS n) AS two, (SELECT 4 AS n) AS three"
    )
    assert (names, list(row.values())) == (["n", "n_1", "n_2", "n_3"], [1, 2, 3, 4])
    assert list(row) == names


@pytest.mark.parametrize(
    "question",
    [
        "SHOW TABLES",
        "DESCRIBE made",
        "EXPLAIN FROM made",
        'SELECT day AS "copy" FROM made -- no copy',
        "EXPLAIN SELECT 'copy' AS \"insert\" FROM made",
        "PIVOT made ON day USING count(*)",
    ],
)
def test_questions_about_tables_are_answered(lake: Lake, question: str) -> None:
    assert shelf_of(lake).ask(question)[1]


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1 AS seq) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)",
        "EXPLAIN ANALYZE COPY (SELECT 1 AS seq) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)",
        "SELECT 1; COPY (SELECT 1 AS seq) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)",
        "COPY (FROM (PIVOT made ON day USING count(*))) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)",
        "EXPLAIN ANALYZE COPY (FROM (PIVOT made ON day USING count(*))) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)",
        "CREATE TABLE other AS PIVOT made ON day USING count(*)",
        "EXPORT DATABASE '{lake}/made'",
        "ATTACH '{lake}/other.db'",
        "CREATE TABLE made AS SELECT 1",
        "SET allowed_directories = ['/']",
        "WITH one AS (COPY (SELECT 1 AS seq) TO '{lake}/.holdfast/duckdb/one') FROM one",
        "/* */ COPY (FROM (PIVOT made ON day USING count(*))) TO '{lake}/.holdfast/duckdb/one'",
        "-- one\nEXPLAIN ANALYZE COPY (SELECT 1 AS seq) TO '{lake}/.holdfast/duckdb/one'",
        "/* */ EXPLAIN ANALYZE CREATE TABLE other AS SELECT 1",
        "SELECT day AS copy FROM made",
        "",
        ";",
    ],
)
def test_whatever_is_no_question_is_refused_and_changes_nothing(lake: Lake, statement: str) -> None:
    before = contents(lake)
    file = next(lake.root("made").rglob("*.parquet"))
    quoted = {"file": str(file).replace("'", "''"), "lake": str(lake.path).replace("'", "''")}
    with pytest.raises(NoQuestion, match="read, never changed"):
        shelf_of(lake).ask(statement.format(**quoted))
    assert contents(lake) == before


@pytest.mark.parametrize(
    "question",
    [
        "WITH one AS (COPY (SELECT 1 AS seq) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)) FROM one",
        "WITH one AS (COPY made TO '{lake}/made/other.parquet') FROM one",
        "/* */ COPY (FROM (PIVOT made ON day USING count(*))) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)",
        "-- one\nEXPLAIN ANALYZE COPY made TO '{file}' (FORMAT parquet, USE_TMP_FILE false)",
        "FROM enable_logging(storage = 'file', storage_path = '{lake}/made')",
        "FROM enable_profiling(save_location = '{lake}/made/profile.txt')",
        "EXPLAIN ANALYZE SET allowed_directories = ['/']",
        "FROM read_parquet('{file}')",
    ],
)
def test_what_only_looks_like_a_question_reaches_no_file(lake: Lake, question: str) -> None:
    before = contents(lake)
    file = next(lake.root("made").rglob("*.parquet"))
    quoted = {"file": str(file).replace("'", "''"), "lake": str(lake.path).replace("'", "''")}
    walled = questions.connect_walled(lake)  # which holds whatever the check of the SQL overlooks
    walled.register("made", records.arrow_schema(MADE).empty_table())
    with pytest.raises((duckdb.PermissionException, duckdb.InvalidInputException)):
        walled.sql(question.format(**quoted)).to_arrow_table()
    assert contents(lake) == before


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.create()
    add(lake, MADE, 1, rows(10, 10))
    _record(lake, 1)
    next(lake.root("made").rglob("*.parquet")).unlink()
    with pytest.raises(FileMissing, match="made"):
        shelf_of(lake).ask("FROM made")


def test_what_a_question_does_not_hold_in_memory_lies_in_the_lake_where_nobody_else_looks(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_little(lake: Lake) -> duckdb.DuckDBPyConnection:
        open_ones.append(connection(lake).execute("SET memory_limit = '60MB'").execute("SET threads = 1"))
        return open_ones[-1]

    monkeypatch.chdir(tmp_path)
    open_ones: list[duckdb.DuckDBPyConnection] = []  # closed ones tidy up
    connection = questions.connect
    monkeypatch.setattr(questions, "connect", with_little)
    asked = shelf_of(lake)
    many = "SELECT repeat(md5(n::VARCHAR), 5) AS word FROM range(400_000) AS of(n) ORDER BY word"
    assert asked.ask(f"SELECT count(DISTINCT word) AS n FROM ({many})")[1] == [{"n": 400_000}]
    assert (list(tmp_path.iterdir()), list((lake.private / "duckdb").iterdir()) != []) == ([], True)
    assert lake.private.stat().st_mode & 0o077 == 0


def test_no_question_reads_the_key_that_signs(lake: Lake) -> None:
    path = str(lake.private / certificate.KEY_FILE).replace("'", "''")
    with pytest.raises(duckdb.PermissionException) as refused:
        shelf_of(lake).ask(f"SELECT * FROM read_text('{path}')")
    assert failures.told(refused.value) is not None


WRONG: dict[str, tuple[str, ExitCode, str]] = {
    "a table that there is not": ("FROM histry", ExitCode.NOT_FOUND, 'Did you mean "history"?'),
    "a word that is none": ("SELEC 1", ExitCode.USAGE, "LINE 1: SELEC 1\n        ^"),
    "a column that there is not": ("SELECT sek FROM history", ExitCode.USAGE, 'Candidate bindings: "seq"'),
    "a statement that is no question": ("DROP TABLE history", ExitCode.USAGE, "read, never changed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_question_is_told_in_full(lake: Lake, name: str) -> None:
    question, code, message = WRONG[name]
    done = typed("pipeline", "sql", question, "--lake", lake.path)
    assert (done.returncode, done.stdout, message in done.stderr) == (code, "", True), done.stderr


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["to people", "to programs"])
def test_nothing_in_an_answer_or_a_failure_moves_the_cursor(lake: Lake, options: list[str]) -> None:
    value = (
        "'a' || chr(27) || chr(155) || chr(8238) || 'z'"  # escape, its one-character form, and a turn of the direction
    )
    for question in (f"SELECT {value} AS found", f"SELECT ({value})::INTEGER", f"SELECT error({value})"):
        done = typed("pipeline", "sql", question, "--lake", lake.path, *options)
        said = done.stdout + done.stderr
        assert all(line.isprintable() for line in said.splitlines()), ascii(said)
        if options and done.stdout:
            assert json.loads(done.stdout)["rows"] == [{"found": "a\x1b\x9b\u202ez"}]


def test_numbers_that_json_does_not_have_are_told_as_text(lake: Lake) -> None:
    done = typed(
        "pipeline", "sql", "SELECT 'nan'::DOUBLE AS none, [-1 / 0] AS few, 0.5 AS half", "--lake", lake.path, "--json"
    )
    told = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert told["rows"] == [{"none": "nan", "few": ["-inf"], "half": "0.5"}]


@pytest.mark.parametrize(
    "value",
    [
        "DATE '20000-01-01'",
        "DATE 'infinity'",
        "[TIMESTAMPTZ '20000-01-01']",
        "TIMESTAMP_NS '2026-01-01 00:00:00.000000001'",
    ],
)
def test_a_value_that_cannot_be_shown_is_told_and_can_be_asked_for_as_text(lake: Lake, value: str) -> None:
    with pytest.raises(NoValue, match="CAST"):
        shelf_of(lake).ask(f"SELECT {value}")
    assert shelf_of(lake).ask(f"SELECT CAST({value} AS VARCHAR) AS found")[0] == ["found"]


@pytest.mark.parametrize(
    "words", [["show"], ["report"], ["sql", "FROM run"], ["search", "x"], ["trace", "x"], ["backfill"]]
)
def test_a_lake_without_a_batch_says_so(tmp_path: Path, words: list[str]) -> None:
    Lake(tmp_path / "lake").create()  # which is all that a run leaves whose token is not good
    done = typed("pipeline", *words, "--lake", tmp_path / "lake")
    assert (done.returncode, done.stdout) == (ExitCode.NOT_FOUND, "")
    assert "there is no batch in this lake yet" in done.stderr


def test_an_index_that_was_set_aside_is_begun_again_as_an_index(tmp_path: Path) -> None:
    own = index(tmp_path / "own", "tea").lake
    pipeline_upkeep.backfill(own.path, anew=True)
    with pytest.raises(Failure, match="`holdfast pipeline index` makes the first"):
        pipeline_lake.search(["tea"], own.path)
    with pytest.raises(LakeOther, match="index of messages"):
        kind.check_relays(own)
    assert searching.search_messages(open_shelf(tmp_path / "own.until-1"), "tea", 20)


def test_the_doctor_knows_an_index_that_is_well_from_one_that_is_not(tmp_path: Path) -> None:
    own, seen = index(tmp_path / "own", "tea").lake, []
    broken = row_of(records.BREACH, kind="rule_broken", key="search_posting", is_violation=True, detail="words")
    add(own, records.BREACH, 1, [])
    for number, held in ((2, []), (3, [broken])):
        add(own, records.BREACH, number, held)
        _record(own, number, "breach")
        told = json.loads(typed("doctor", "--home", tmp_path / "none", "--lake", own.path, "--json").stdout)
        seen += [(one["state"], one["what"], one["remedy"]) for one in told["findings"] if one["area"] == "lake"]
    (well, said, _), (ill, found, remedy) = seen
    assert (well, "no violation" in said) == ("ok", True)
    assert (ill, found) == ("wrong", "rule_broken: search_posting: words.")
    assert remedy.startswith("holdfast pipeline show breach --lake ")


SOURCES: dict[str, tuple[list[str], ExitCode, str]] = {
    "a relay's address that is none": (["--relay", "nourl"], ExitCode.USAGE, "address_wrong"),
    "a port that is none": (["--relay", "http://127.0.0.1:x"], ExitCode.USAGE, "address_wrong"),
    "a token in no file": (
        ["--relay", "http://127.0.0.1:9", "--token-file", "/nonexistent"],
        ExitCode.NOT_FOUND,
        "token_missing",
    ),
}


ALARMS = {"an open quote": "mail 'me", "no such program": "/nonexistent/alarm now", "nothing": " "}


@pytest.mark.parametrize("name", ALARMS)
def test_an_alarm_that_cannot_be_run_is_refused_before_there_is_a_violation(tmp_path: Path, name: str) -> None:
    options = ("--relay", "http://127.0.0.1:9", "--patience", "0", "--on-violation", ALARMS[name])
    done = typed("pipeline", "run", *options, "--lake", tmp_path / "lake")
    assert (done.returncode, "--on-violation is a command" in done.stderr) == (ExitCode.USAGE, True)


def test_what_an_alarm_prints_is_not_among_what_a_program_reads(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = Outcome(1, 0, 0, balance.zero(), 1, 1, 1, True, [], {}, {})
    for as_json in (True, False):
        pipeline._follow(iter([found]), Lake(tmp_path), None, ["echo", "alarm"], as_json=as_json)
        out, err = capfd.readouterr()
        assert ("alarm" in out, "alarm" in err) == (not as_json, as_json)


@pytest.mark.parametrize("name", SOURCES)
def test_a_run_that_names_no_source_makes_no_lake(tmp_path: Path, name: str) -> None:
    options, code, error = SOURCES[name]
    done = typed("pipeline", "run", *options, "--lake", tmp_path / "lake", "--json")
    assert (done.returncode, json.loads(done.stderr)["error"]) == (code, error)
    assert list(tmp_path.iterdir()) == []


def test_a_search_without_hits_says_so_once(lake: Lake) -> None:
    told, shown = (typed("pipeline", "search", "absent", "--lake", lake.path, *option) for option in ([], ["--json"]))
    assert (told.returncode, told.stdout, "has absent" in told.stderr) == (ExitCode.NOT_FOUND, "", True)
    assert (shown.returncode, json.loads(shown.stdout)["hits"], shown.stderr) == (ExitCode.NOT_FOUND, [], "")


ABSURD = ["\udcff", "é\udcff" * 1000, "%", "\x01", "x" * 1_000_000]


@pytest.mark.parametrize("absurd", ABSURD, ids=lambda text: ascii(text)[:12])
def test_absurd_words_are_looked_for_or_refused_in_words(lake: Lake, absurd: str) -> None:
    with suppress(searching.NothingAsked):
        assert searching.terms_of(shelf_of(lake), absurd)
    with suppress(duckdb.Error):  # which a person is told
        assert shelf_of(lake).ask(f"SELECT '{absurd}' AS found")[0] == ["found"]


def test_what_was_asked_in_vain_is_said_in_short(lake: Lake) -> None:
    with pytest.raises(searching.NothingAsked) as refused:
        searching.terms_of(shelf_of(lake), "?" * 1_000_000)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("name", ["a[1]", "a*", "a{b}", "50%", "a,b", "kind=b", "a\\b", "a\nb", "\udcff"], ids=ascii)
def test_a_path_that_readers_of_tables_misread_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(LakeMisnamed, match="letters"):
        Lake(tmp_path / name).create()
    assert list(tmp_path.iterdir()) == []


def test_a_lake_behind_a_link_is_read_and_set_aside_where_it_lies(tmp_path: Path) -> None:
    disk, link = tmp_path / "disk", tmp_path / "link"
    disk.mkdir()
    link.symlink_to(disk / "lake")
    lake = Lake(link)
    lake.create()
    certificate.lake_key(lake.private)
    add(lake, MADE, 1, rows(10, 10))
    _record(lake, 1)
    shelf = shelf_of(Lake(link))
    assert shelf.digest("made", shelf.files("made", 1)) == shelf_of(lake).digest("made", lake.files("made", 1))
    pipeline_upkeep.backfill(link, anew=True)
    assert ({one.name for one in disk.iterdir()}, link.is_symlink()) == ({"lake", "lake.until-1"}, True)
    assert shelf_of(Lake(disk / "lake.until-1")).rows("made", 1) == 10


NO_TIMES = ["2026-W01", "20260101T12", "2026-01-01 12:00", "2026-13-01", "٣", "0001-01-01T00:00+01:00"]


@pytest.mark.parametrize("text", ["9" * 5000, "yesterday", "\udcff", "-1", "1e5", "", *NO_TIMES])
def test_a_time_that_is_none_is_told(text: str) -> None:
    with pytest.raises(Failure, match="number of a batch or a time") as refused:
        then(text)
    assert len(str(refused.value)) < 200


def test_a_version_whose_log_is_gone_is_no_empty_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.create()
    for number in (1, 2):
        add(lake, MADE, number, rows(number, 1))
        _record(lake, number)
    (lake.root("made") / "_delta_log" / f"{0:020d}.json").unlink()
    (lake.root("made") / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(VersionMissing):
        Lake(lake.path).delta("made", 1)
    with pytest.raises(Vacuumed, match="batch 1"):
        shelf_of(Lake(lake.path), AsOf(number=1)).rows("made", 1)


@pytest.mark.parametrize(
    ("asked", "text", "shown"),
    [
        ("ΟΔΟΣ", "η οδος", ["οδος"]),
        ("İSTANBUL", "i̇stanbul'a", ["i̇stanbul"]),
        ("हिन्दी", "यह हिन्दी है", ["हिन्दी"]),
        ("un*", "Unter under_un", ["Unter", "under", "un"]),
    ],
)
def test_a_word_is_the_same_word_to_the_index_and_to_who_asks(
    lake: Lake, asked: str, text: str, shown: list[str]
) -> None:
    terms = searching.terms_of(shelf_of(lake), asked)
    found = searching.snippet(text, terms)
    assert [found.text[start:end] for start, end in found.matches] == shown


def test_what_has_more_of_the_words_comes_first_then_what_says_them_more_then_the_newest(tmp_path: Path) -> None:
    texts = ("of the tea and of others", "tea tea tea", "the the end", "the day", "the one", "the two")
    both, tea, *the = searching.search_messages(index(tmp_path / "own", *texts), "tea the", 20)
    assert [hit["snippet"] for hit in (both, tea, *the)] == [*texts[:3], *texts[:2:-1]]
    assert tea["score"] > both["score"], "else the scores alone would have done"
    assert the[1]["score"] == the[3]["score"]


def test_of_messages_that_came_at_one_time_the_last_one_is_the_newest(tmp_path: Path) -> None:
    own = index(tmp_path / "own", "tea one", "tea two", "tea three", apart=timedelta())  # a home stores several at once
    assert [hit["seq"] for hit in searching.search_messages(own, "tea", 20)] == [3, 2, 1]


def test_words_past_the_limit_are_refused_and_none_is_left_out(lake: Lake, tmp_path: Path) -> None:
    most = [f"w{number}" for number in range(searching.TERMS_MAX)]
    own = index(tmp_path / "own", most[-1], "of another")
    (hit,) = searching.search_messages(own, " ".join([*most, *most]), 20)
    assert hit["snippet"] == most[-1]
    assert searching.search_metadata(Shelf(own.lake, own.tables), " ".join([*most, *most]), 20) == []
    for path in (own.lake.path, lake.path):  # by its words, and by what a relay sees
        with pytest.raises(
            Failure, match=f"no more than {searching.TERMS_MAX} words .*TERMS_MAX.*these are 33"
        ) as refused:
            pipeline_lake.search([*most, "another"], path)
        assert (refused.value.code, refused.value.kind) == (ExitCode.USAGE, "TooManyAsked")


@pytest.mark.parametrize("asked", ["MEM*", "member-1", "member-* x", "member-** *"])
def test_a_beginning_is_looked_for_in_what_a_relay_sees_too(tmp_path: Path, asked: str) -> None:
    lake = Lake(tmp_path / "lake")
    lake.create()
    sent = row_of(TABLES["history"], origin="relay:r", kind="accepted", sender="member-1", message_id="m1")
    add(lake, TABLES["history"], 1, [sent])
    _record(lake, 1, "history")
    assert [hit["message_id"] for hit in searching.search_metadata(Shelf(lake, TABLES), asked, 20)] == ["m1"]
    with pytest.raises(searching.NothingAsked):
        searching.search_metadata(Shelf(lake, TABLES), "*", 20)


def test_a_trace_tells_what_a_restore_undid_and_the_receipts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake(tmp_path / "lake")
    lake.create()
    closed = {"message_id": "m", "outcome": "delivered"}
    told: dict[str, list[dict[str, Any]]] = {
        "history": [{"message_id": "m", "kind": "accepted", "event_id": b"e"}],
        "message_fate": [{**closed, "recipient": "ann"}, {**closed, "recipient": "ben"}],
        "fate_reopened": [{"message_id": "m", "recipient": "ann"}],
        "fate_repeated": [{**closed, "recipient": "ben", "outcome": "expired"}],
        "receipt": [{"event_id": b"e", "recipient": "ben", "status": "ok"}, {"event_id": b"other"}],
    }
    for name, held in told.items():
        add(lake, TABLES[name], 1, [row_of(TABLES[name], **values) for values in held])
    _record(lake, 1, *told)
    pipeline_lake.trace("m", lake.path)
    _, *after = capsys.readouterr().out.splitlines()
    fates = ["at ann: delivered", "at ben: delivered", "at ben: expired", "at ann: reopened"]
    assert after == [*fates, "ben signed a receipt: ok"]


def test_a_message_with_a_damaged_time_is_shown_without_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = index(tmp_path / "own", "tea", apart=datetime.min.replace(tzinfo=UTC) - BEGAN_AT)
    pipeline_lake.search(["tea"], own.lake.path)
    assert capsys.readouterr().out == "at no time        from ben  tea\n"


def test_an_index_is_known_for_one_before_its_first_batch_and_no_relays_lake_becomes_one(tmp_path: Path) -> None:
    own, relays = Lake(tmp_path / "own"), Lake(tmp_path / "relays")
    for one in (own, relays):
        one.create()
    relays.root("history").mkdir()
    kind.make_own(own)
    kind.make_own(own)
    assert "search_message" in kind.tables_of(own)
    with pytest.raises(LakeOther, match="index of messages"):
        kind.check_relays(own)
    with pytest.raises(LakeOther, match="a relay's"):
        kind.make_own(relays)
    assert "message_fate" in kind.tables_of(relays)


def test_what_was_taken_from_devices_is_not_thrown_away_to_be_computed_anew(lake: Lake) -> None:
    last = Run(1, 0, {}, {"history": 1, "search_message": 1, "search_posting": 1})
    with pytest.raises(TableTaken, match="still be searched"):
        to_rebuild(lake, load_search(), last, ["search_message"])
    other: dict[str, Table] = {**load_search(), "search_message": search_message}
    assert to_rebuild(lake, other, last, ["search_posting"]) == ("search_posting",)
