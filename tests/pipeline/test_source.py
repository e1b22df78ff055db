"""The Spark source against a relay that runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.relay.running import RunningRelay, running


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    data = tmp_path_factory.mktemp("relay") / "data"
    with running(data) as found:
        found.found_mesh("anna", "ben")
        for number in range(20):
            body = f"message {number}".encode()
            assert found.publish(found.person("anna").message(found.person("ben"), body)).status == 201
        yield found


@pytest.fixture(scope="module")
def token_file(relay: RunningRelay, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(relay.token())
    return path


def read(spark: SparkSession, relay: RunningRelay, token_file: Path, **options: object) -> DataFrame:
    reader = spark.read.format("holdfast").option("url", relay.url).option("token_file", str(token_file))
    for name, value in {"table": "history", **options}.items():
        reader = reader.option(name, str(value))
    return reader.load()


def test_a_read_gives_every_entry_once(spark: SparkSession, relay: RunningRelay, token_file: Path) -> None:
    rows = read(spark, relay, token_file).select("seq", "kind", "export_log_id", "as_of_seq").collect()
    assert [row.seq for row in rows] == list(range(1, relay.head_seq() + 1))
    assert {row.as_of_seq for row in rows} == {relay.head_seq()}
