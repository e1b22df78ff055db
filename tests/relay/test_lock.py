"""One relay per data directory, until its process ends."""

import fcntl
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.relay.lock import RelayRunning, hold
from holdfast.store import faults

LOCK_LOOK_S = 0.05  # longer than anybody looks
HOLDER = """
import sys
from pathlib import Path
from holdfast.relay.lock import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_kept_out_until_the_first_one_is_dead(tmp_path: Path) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    with pytest.raises(RelayRunning, match=f"process {first.pid}"), hold(tmp_path):
        pass
    first.kill()
    first.communicate()
    with hold(tmp_path):
        assert (tmp_path / "relay.pid").read_text() == f"{os.getpid()}\n"


def test_a_lock_is_let_go_whatever_happens_inside(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold(tmp_path):
        raise ZeroDivisionError
    with hold(tmp_path):
        pass
    assert stat.S_IMODE((tmp_path / "relay.pid").stat().st_mode) == 0o600


def test_the_same_process_does_not_get_it_twice(tmp_path: Path) -> None:
    with hold(tmp_path), pytest.raises(RelayRunning), hold(tmp_path):
        pass


def test_who_only_asks_where_a_relay_runs_keeps_none_from_starting(tmp_path: Path) -> None:
    with hold(tmp_path):
        pass
    with (tmp_path / "relay.pid").open("rb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        threading.Timer(LOCK_LOOK_S, fcntl.flock, (asking, fcntl.LOCK_UN)).start()
        with hold(tmp_path):
            pass


def test_a_directory_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(faults.DirectoryMissing), hold(tmp_path / "nothing"):
        pass
