"""Which Java Spark gets."""

import os
import subprocess
import sys
from collections.abc import Mapping
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
    assert java.major(java.java_home(environment, tmp_path) / "bin" / "java") == 21
    assert java.major(java.java_home({"PATH": str(found / "bin")}, tmp_path) / "bin" / "java") == 17


def test_a_launcher_that_is_inherited_is_not_started_by_itself(tmp_path: Path) -> None:
    first = java.java_home({"JAVA_HOME": str(make_java(tmp_path / "named", "21")), "PATH": ""}, tmp_path / "cache")
    again = java.java_home({"JAVA_HOME": str(first), "PATH": ""}, tmp_path / "cache")
    assert again == first
    assert java.major(again / "bin" / "java") == 21


def test_an_old_java_is_passed_over_for_the_packaged_one(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    home = java.java_home({"JAVA_HOME": str(old), "PATH": str(old / "bin")}, tmp_path / "cache")
    assert home == tmp_path / "cache" / "java"
    assert (java.major(home / "bin" / "java") or 0) >= java.JAVA_MAJOR_MIN


def test_the_launcher_drops_what_the_packaged_java_lacks_and_nothing_else(tmp_path: Path) -> None:
    launcher = java.java_home({"PATH": ""}, tmp_path) / "bin" / "java"
    dropped = ["--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=ALL-UNNAMED"]
    told = subprocess.run(
        [launcher, *dropped, "-Dword=two words", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0
    assert "word = two words" in told.stderr
    assert "WARNING" not in told.stderr


def test_a_package_that_a_java_has_is_opened(tmp_path: Path) -> None:
    named = make_java(tmp_path / "named", "21")
    program = named / "bin" / "java"
    program.write_text(program.read_text() + 'echo "$@"\n')
    launcher = java.java_home({"JAVA_HOME": str(named), "PATH": ""}, tmp_path / "cache") / "bin" / "java"
    opened = ["--add-opens=java.base/java.net=ALL-UNNAMED", java.DROPPED_WHERE_UNKNOWN]
    told = subprocess.run([launcher, *opened, java.DROPPED, "-version"], capture_output=True, text=True, check=True)
    assert told.stdout.split() == [*opened, "-version"]


@pytest.mark.parametrize("rows", [None, 0])
@pytest.mark.parametrize("environment", [os.environ, {"PATH": ""}], ids=["the system's", "the packaged one"])
def test_java_starts_with_what_it_is_told(tmp_path: Path, rows: int | None, environment: Mapping[str, str]) -> None:
    options = session.java_options(SessionSettings(rows=rows), {})
    program = java.java_home(environment, tmp_path) / "bin" / "java"
    told = subprocess.run([program, *options.split(), "-version"], capture_output=True, text=True, check=False)
    assert (told.returncode, "collector" in told.stderr, "GC" in options) == (0, False, True), told.stderr


@pytest.mark.parametrize("rows", [None, 0])
def test_a_collector_that_the_user_chose_is_the_only_one(tmp_path: Path, rows: int | None) -> None:
    settings = SessionSettings(rows=rows)
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions  -Xss4m -XX:+UseG1GC\n")
    for chosen in ({"SPARK_CONF_DIR": str(tmp_path)}, {"JDK_JAVA_OPTIONS": "-XX:+UseZGC"}):
        assert "GC" not in session.java_options(settings, chosen)


def test_what_is_logged_is_the_users_choice_where_there_is_one(tmp_path: Path) -> None:
    ours = "-Dlog4j2.configurationFile=" + Path(session.__file__).with_name("log4j2.properties").as_uri()
    environment = {"SPARK_CONF_DIR": str(tmp_path)}
    assert ours in session.java_options(SessionSettings(), environment).split()
    (tmp_path / "log4j2.properties").write_text("rootLogger.level = info\n")
    assert "log4j2" not in session.java_options(SessionSettings(), environment)


@pytest.mark.parametrize("which", ["the system's", "the packaged one"])
def test_spark_starts_without_a_word(tmp_path: Path, which: str) -> None:
    environment = dict(os.environ)
    if which == "the packaged one":
        old = make_java(tmp_path / "old", "11.0.2")
        environment |= {"JAVA_HOME": str(old), "PATH": f"{old / 'bin'}:{environment['PATH']}"}
    program = (
        "import sys; from pathlib import Path; from holdfast.pipeline.session import SessionSettings, open_session; "
        "open_session(SessionSettings(rows=0), Path(sys.argv[1])).stop()"
    )
    told = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, env=environment)
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")
