"""Which Java Spark gets."""

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from holdfast.pipeline import java, session
from holdfast.pipeline.session import SessionSettings


def make_java(folder: Path, version: str) -> Path:
    """A program that says of itself what a Java does."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(("version", "expected"), [("17.0.15", 17), ("25", 25), ("1.8.0_402", 8)])
def test_a_java_is_known_by_what_it_says(tmp_path: Path, version: str, expected: int) -> None:
    assert java.major(make_java(tmp_path, version) / "bin" / "java") == expected


def test_what_is_no_java_has_no_version(tmp_path: Path) -> None:
    assert java.major(tmp_path / "nothing") is None
    assert java.major(Path("/bin/false")) is None


def test_the_named_java_comes_before_the_one_on_the_path(tmp_path: Path) -> None:
    named, found = make_java(tmp_path / "named", "21"), make_java(tmp_path / "found", "17.0.1")
    environment = {"JAVA_HOME": str(named), "PATH": str(found / "bin")}
    assert java.java_home(environment, tmp_path) == named
    assert java.java_home({"PATH": str(found / "bin")}, tmp_path) == found


def test_an_old_java_is_passed_over_for_the_packaged_one(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    home = java.java_home({"JAVA_HOME": str(old), "PATH": str(old / "bin")}, tmp_path / "cache")
    assert home == tmp_path / "cache" / "java"
    assert (java.major(home / "bin" / "java") or 0) >= java.JAVA_MAJOR_MIN


def test_the_launcher_drops_the_module_that_the_packaged_java_lacks_and_nothing_else(tmp_path: Path) -> None:
    launcher = java.java_home({"PATH": ""}, tmp_path) / "bin" / "java"
    told = subprocess.run(
        [launcher, "--add-modules=jdk.incubator.vector", "-Dword=two words", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0
    assert "word = two words" in told.stderr


@pytest.mark.parametrize("rows", [None, 0])
@pytest.mark.parametrize("find", [java.java_home, lambda _, cache: java._packaged_home(cache)])
def test_java_starts_with_what_it_is_told(
    tmp_path: Path, rows: int | None, find: Callable[[Mapping[str, str], Path], Path]
) -> None:
    options = session.java_options(SessionSettings(rows=rows), {})
    program = find(os.environ, tmp_path) / "bin" / "java"
    told = subprocess.run([program, *options.split(), "-version"], capture_output=True, text=True, check=False)
    assert (told.returncode, "collector" in told.stderr, "GC" in options) == (0, False, True), told.stderr


@pytest.mark.parametrize("rows", [None, 0])
def test_a_collector_that_the_user_chose_is_the_only_one(tmp_path: Path, rows: int | None) -> None:
    settings = SessionSettings(rows=rows)
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions  -Xss4m -XX:+UseG1GC\n")
    for chosen in ({"SPARK_CONF_DIR": str(tmp_path)}, {"JDK_JAVA_OPTIONS": "-XX:+UseZGC"}):
        assert "GC" not in session.java_options(settings, chosen)
