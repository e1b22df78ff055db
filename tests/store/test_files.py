"""Small files and names: whole, durable, and also where a file system has no second names."""

import errno
import os
from pathlib import Path

import pytest

from holdfast import OperationLog
from holdfast.store import faults, files


@pytest.fixture(params=["links", "no links"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory, once on a file system as on a memory stick."""

    def no_link(source: object, target: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    if request.param == "no links":
        monkeypatch.setattr(os, "link", no_link)
    return tmp_path


def _names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_a_new_file_is_whole_and_its_owners_alone(folder: Path) -> None:
    files.write_new(folder / "key", b"secret")
    assert (folder / "key").read_bytes() == b"secret"
    assert (folder / "key").stat().st_mode & 0o777 == 0o600
    assert _names(folder) == {"key"}


def test_a_directory_in_the_place_of_a_file_is_no_failure_of_the_disk(folder: Path) -> None:
    (folder / "report.html").mkdir()
    with pytest.raises(faults.FileThere):
        files.replace(folder / "report.html", b"page")
    assert _names(folder) == {"report.html"}


def test_a_file_that_is_there_is_never_replaced_by_a_new_one(folder: Path) -> None:
    files.write_new(folder / "key", b"first")
    with pytest.raises(faults.FileThere):
        files.write_new(folder / "key", b"second")
    with pytest.raises(faults.FileThere):
        files.create(folder / "key")
    assert (folder / "key").read_bytes() == b"first"
    assert _names(folder) == {"key"}


def test_a_file_that_is_replaced_is_the_one_or_the_other(folder: Path) -> None:
    files.replace(folder / "note", b"one")
    files.replace(folder / "note", b"two")
    assert (folder / "note").read_bytes() == b"two"
    assert _names(folder) == {"note"}


def test_a_log_lives_and_is_backed_up_there_too(folder: Path) -> None:
    with OperationLog(folder / "log") as log:
        log.append_next(b"a" * 32, b"x")
        log.backup(folder / "copy")
    with OperationLog(folder / "copy") as copy:
        assert len(copy.outbox()) == 1
    assert _names(folder) == {"log", "copy"}
