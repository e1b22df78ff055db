"""`holdfast daemon` and `holdfast up`: one daemon per home, started, asked, stopped; and administration while it runs."""

import json
import os
import signal
import sqlite3
import stat
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from holdfast.cli import daemon_status
from holdfast.device.home import Home
from holdfast.device.ipc_documents import Health
from holdfast.device.ipc_link import NoDaemon
from holdfast.protocol.schedule import DAY, SECOND
from tests import ports
from tests.cli.person import PATIENCE_S, Person
from tests.relay.running import RunningRelay


def test_a_daemon_runs_in_the_foreground_until_it_is_told_to_stop(ann: Person) -> None:
    with ann.daemon() as process:
        health = ann.json("daemon", "status")
        assert (health["pid"], health["member_name"]) == (process.pid, "ann")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert not (ann.home / "daemon.sock").exists()
    assert "no daemon answers" in ann.fails(5, "daemon", "status")


def test_the_status_says_in_a_few_lines_how_it_stands(ann: Person) -> None:
    with ann.daemon():
        ann.until_connected()
        told = dict(line.split(maxsplit=1) for line in ann.says("daemon", "status").splitlines())
        assert told["member"] == "ann in Kitchen"
        assert ", connected for " in told["relay"]
        assert told["outbox"] == "0 waiting; 0 scheduled; 0 given up"
        assert told["inbox"].startswith("0 not acted on; 0 parked; 0 waited at the relay")
        assert "last error" not in told


_HEALTHY = Health(
    connected=True,
    since=0,
    detail="",
    relay="http://relay",
    last_error=None,
    last_error_at=None,
    pending_count=0,
    pressure="normal",
    pressure_of="outbox.rows_max",
    pressure_percent=3,
    queue_depth=0,
    inflight=0,
    oldest_waiting_at=None,
    oldest_waiting_s=None,
    oldest_waiting_reason=None,
    scheduled=0,
    dead=0,
    unapplied=0,
    parked=0,
    mesh="m",
    mesh_name="Kitchen",
    member="a",
    member_name="ann",
    member_pubkey="",
    log_id="",
    seq=0,
    epoch="",
    pid=7,
    started_at=0,
    uptime_s=7_300,
    daemon_version="1",
    schema_version=1,
)


def test_the_status_of_a_daemon_in_trouble_says_what_is_wrong_since_when_and_where_to_look() -> None:
    health = msgspec.structs.replace(
        _HEALTHY,
        connected=False,
        detail="no connection (Connection refused)",
        last_error="the disk is full",
        last_error_at=60 * SECOND,
        queue_depth=3,
        inflight=1,
        oldest_waiting_s=125,
        oldest_waiting_reason="queue_full: no room",
        scheduled=2,
        dead=1,
        unapplied=5,
        parked=4,
        pending_count=6,
        pressure="full",
        pressure_percent=97,
    )
    told = dict(daemon_status.lines(health, 3 * DAY))
    assert told == {
        "daemon": "process 7, up 2 h, Holdfast 1",
        "member": "ann in Kitchen",
        "relay": "http://relay, NOT CONNECTED for 3 d (since 1970-01-01T00:00:00.000Z): no connection (Connection refused)",
        "outbox": (
            "3 waiting (1 on their way), the oldest for 2 min (queue_full: no room); 2 scheduled; "
            "1 given up: holdfast outbox list --status dead"
        ),
        "inbox": ("5 not acted on; 4 parked: holdfast inbox --parked; 6 waited at the relay at the last connection"),
        "room": "full: 97 % of outbox.rows_max is used",
        "last error": "2 d ago (1970-01-01T00:01:00.000Z): the disk is full",
    }


def test_a_second_start_says_who_has_the_home(ann: Person) -> None:
    with ann.daemon() as process:
        for command in (("daemon", "run"), ("daemon", "up"), ("up",)):
            said = ann.fails(5, *command)
            assert f"process {process.pid}, since 20" in said, command
        assert json.loads(ann.fails(5, "daemon", "up", "--json"))["error"] == "daemon_failed"


def test_a_daemon_that_finds_its_database_damaged_says_which_file_that_is(ann: Person) -> None:
    database = ann.home / "device.db"
    whole = database.read_bytes()
    database.write_bytes(whole[:8192] + b"\x77" * 4096 + whole[12288:])
    assert ann.fails(4, "daemon", "up").startswith(f"holdfast: {database}: the file is damaged (")
    assert "\n  The rule: " in ann.run("check", database, code=4).stdout
    database.write_bytes(whole)


def test_a_daemon_goes_up_and_down_in_the_background(ann: Person) -> None:
    started = ann.json("daemon", "up")
    assert started == {"socket": str(ann.home / "daemon.sock")}
    pid = ann.json("daemon", "status")["pid"]
    assert os.getsid(pid) == pid, "it does not end with the terminal"
    assert stat.S_IMODE((ann.home / "daemon.log").stat().st_mode) == 0o600
    assert json.loads(ann.says("daemon", "logs").splitlines()[0])["event"] == "serving"
    assert ann.json("daemon", "down") == {"stopped": pid}
    assert "no daemon runs" in ann.fails(5, "daemon", "down")
    assert json.loads(ann.says("daemon", "logs", "-n", "1"))["event"] == "stopped"


def test_a_stale_note_of_a_daemon_stops_nobody_and_is_not_believed(ann: Person) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    note = ann.home / "daemon.pid"
    note.write_text(json.dumps({"pid": bystander.pid, "since": 0, "socket": "x"}))
    note.chmod(0o600)
    try:
        assert "no daemon runs" in ann.fails(5, "daemon", "down")
        assert bystander.poll() is None
        with ann.daemon() as process:
            assert ann.json("daemon", "status")["pid"] == process.pid
    finally:
        bystander.kill()
        bystander.wait()


def test_a_home_without_a_mesh_has_no_daemon(resident: Callable[[str], Person]) -> None:
    nobody = resident("nobody")
    for command in ("run", "up"):
        assert "there is no home at" in nobody.fails(3, "daemon", command)
    assert not nobody.home.exists()


def test_the_port_is_opened_on_demand_and_takes_the_token(ann: Person) -> None:
    started = ann.json("daemon", "up", "--port", "0")
    token = (ann.home / "local-token").read_text().strip()
    try:
        for header, status in ((f"Authorization: Bearer {token}", "200"), ("Authorization: Bearer x", "401")):
            curl = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", header, started["url"] + "/v1/health"]
            assert subprocess.run(curl, capture_output=True, text=True, check=True).stdout == status
    finally:
        ann.run("daemon", "down")


def test_a_daemon_whose_member_was_revoked_ends_with_a_code_of_its_own(ann: Person, ben: Person) -> None:
    """A supervisor must not start it again: nothing would change until somebody has decided something."""
    with ben.daemon() as process:
        ben.until_connected()
        ann.run("member", "revoke", "ben")
        assert process.wait(PATIENCE_S) == 6
    assert "revoked" in ben.home.with_suffix(".log").read_text()


def test_the_mesh_is_administered_while_the_daemon_has_the_home(
    resident: Callable[[str], Person], ann: Person, town_relay: RunningRelay
) -> None:
    with ann.daemon():
        ann.until_connected()
        joined = resident("ben")
        joined.run("mesh", "join", ann.json("mesh", "invite")["invite"], "--as", "ben")
        assert [member["name"] for member in ann.json("member", "list")] == ["ann", "ben"]
        assert ann.json("mesh", "show")["members"] == 2
        assert ann.json("topic", "create", "news") == {"topic": "news", "key_epoch": 1}
        assert ann.json("topic", "subscribe", "news") == {"topic": "news", "subscribed": True, "key": "ready"}
        assert "no topic nowhere" in ann.fails(3, "topic", "subscribe", "nowhere")
        assert "may only have letters" in ann.fails(2, "topic", "create", "!")
        assert "no member nobody" in ann.fails(3, "member", "revoke", "nobody")
        assert ann.json("member", "rename", "Ann")["name"] == "Ann"
        assert ann.json("daemon", "status")["member_name"] == "Ann"
        has_mesh = ann.fails(4, "mesh", "create", "Another", "--relay", town_relay.url)
        assert "a home has one mesh" in has_mesh
        assert ann.json("topic", "unsubscribe", "news") == {"topic": "news", "subscribed": False}
    assert [topic["subscribed"] for topic in ann.json("topic", "list")] == [False], "and without it"


def test_relay_and_daemon_run_in_one_process_and_the_mesh_is_there_again_next_time(
    resident: Callable[[str], Person], tmp_path: Path
) -> None:
    solo, meshes = resident("solo"), []
    for options in (("--relay-port", ports.port()), ()):
        with (tmp_path / "up.log").open("ab") as log:
            process = subprocess.Popen(
                solo.command("up", *options), env=solo.environment, stdout=subprocess.PIPE, stderr=log
            )
        assert process.stdout is not None
        try:
            first = json.loads(process.stdout.readline())
            solo.until_connected()
            shown = solo.json("mesh", "show")
            assert shown["relay"] == first["relay"]
            meshes.append((shown["mesh"], shown["relay"], shown["member"]))
            friend = member_of_running(resident(f"friend-{len(meshes)}"), solo)
            assert friend.home.name in [one["name"] for one in solo.json("member", "list")]
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, (tmp_path / "up.log").read_text()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    assert meshes[0] == meshes[1]
    port = meshes[0][1].rpartition(":")[2]
    for other in ("0", "1"):
        assert f"use --relay-port {port}, or leave it out" in solo.fails(4, "up", "--relay-port", other)


def member_of_running(person: Person, admin: Person) -> Person:
    person.run("mesh", "join", admin.json("mesh", "invite")["invite"], "--as", person.home.name)
    return person


def test_a_home_whose_mesh_is_elsewhere_is_told_so(ben: Person, ann: Person) -> None:
    home = Home(ben.home)
    membership = home.membership()
    assert membership is not None
    for relay, is_here in ((membership.relay, True), ("https://relay.example", False)):
        home.keep(msgspec.structs.replace(membership, relay=relay))
        said = ben.fails(4, "up", "--relay-port", "0")
        assert "holdfast daemon run" in said
        assert ("name the same directory again with --data" in said) == is_here, "a relay of our own may lie elsewhere"
        assert not (ben.home / "relay").exists(), "no relay and no key of an operator was made for it"


def test_a_recovery_says_when_the_history_could_not_be_kept(ann: Person) -> None:
    with closing(sqlite3.connect(ann.home / "device.db")) as database, database:
        database.execute("DELETE FROM history WHERE seq = 1")
    said = " ".join(ann.says("daemon", "recover").split())
    assert "The history begins anew, because its entries no longer fit together or tell of rows that are lost." in said


def test_a_killed_daemon_leaves_a_home_that_the_next_one_takes(ann: Person) -> None:
    with ann.daemon() as process:
        ann.until_connected()
        sent = ann.json("send", "ann", "to myself")
        process.kill()
        process.wait()
    with pytest.raises(NoDaemon), ann.client() as client:
        client.health()
    with ann.daemon():
        assert ann.json("trace", sent["client_message_id"])["sent"]["client_message_id"] == sent["client_message_id"]
