"""The export and the operator's commands against a relay that runs."""

import http.client
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pytest

from tests.relay import scene, store
from tests.relay.running import ANSWER_S, RunningRelay, running
from tests.terminal import typed

MANY = 60_000  # some twenty megabytes: more than the kernel's buffers and the relay's together


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[RunningRelay]:
    data = tmp_path_factory.mktemp("exported") / "relay"
    data.mkdir(mode=0o700)
    scene.with_entries(store.where(data / "relay.db"), MANY)
    with running(data) as started:
        yield started


@pytest.fixture(scope="module")
def bearer(relay: RunningRelay) -> dict[str, str]:
    return {"authorization": f"Bearer {relay.token()}"}


def _reader(relay: RunningRelay) -> int:
    pid = relay.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (child,) = [child for child in children if b"exported" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return int(child)


def test_a_page_has_its_rows_and_says_so(relay: RunningRelay, bearer: dict[str, str]) -> None:
    answer = relay.ask("GET", "/v1/export/history?after=10&until=15&columns=seq", headers=bearer)
    found = pa.ipc.open_stream(answer.body).read_all()
    assert found.to_pydict() == {"seq": [11, 12, 13, 14, 15]}
    told = {name.decode(): value.decode() for name, value in found.schema.metadata.items()}
    for name in ("log_id", "as_of_seq", "until", "next_after", "rows"):
        assert answer.headers[f"holdfast-{name.replace('_', '-')}"] == told[name]
    assert answer.headers["content-length"] == str(len(answer.body))


def test_a_download_whose_reader_is_killed_does_not_look_whole(relay: RunningRelay, bearer: dict[str, str]) -> None:
    relay.ask("GET", "/v1/export/history?until=1", headers=bearer)
    connection = http.client.HTTPConnection(*relay.address, timeout=ANSWER_S)
    connection.request("GET", "/v1/export/history", headers=bearer)
    response = connection.getresponse()
    response.read(1)
    os.kill(_reader(relay), signal.SIGKILL)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        response.read()
    connection.close()
    answer = relay.ask("GET", "/v1/export/history", headers=bearer)
    assert pa.ipc.open_stream(answer.body).read_all().num_rows == MANY


def _command(*arguments: object) -> dict[str, Any]:
    done = typed("relay", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_running_relay_is_looked_at_and_backed_up(relay: RunningRelay, tmp_path: Path, on_store: str) -> None:
    assert _command("stats", "--data", relay.data, *store.options(relay.data))["seq"] == MANY
    if on_store == store.POSTGRES:
        return  # which has its own means for that
    assert _command("backup", tmp_path / "backup", "--data", relay.data)["seq"] == MANY
    restored = _command("restore", tmp_path / "backup", "--data", tmp_path / "there")
    assert restored["fork_seq"] == MANY
    with running(tmp_path / "there") as other:
        assert other.head_seq() == MANY + 1
        refused = typed("relay", "restore", tmp_path / "backup", "--data", other.data)
        assert (refused.returncode, "a relay is running" in refused.stderr) == (5, True)
