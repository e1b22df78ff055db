"""The operator's page names every setting of a daemon with its default, and every code with which one ends for good."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.device import settings
from holdfast.device.daemon import FINAL
from holdfast.device.settings import ClonePolicy, OutboxSettings, Settings
from holdfast.protocol.refusal import Refusal
from holdfast.store.settings import SettingsInvalid

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def _settings(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, str]]:
    for field in msgspec.structs.fields(struct):
        if isinstance(field.default, msgspec.Struct):
            yield from _settings(type(field.default), f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, "none" if field.default in (None, ()) else f"`{field.default}`"


def test_the_page_names_every_setting_with_its_default() -> None:
    part = PAGE.split("### Its settings")[1].split("###")[0]
    rows = re.findall(r"^\| `([a-z_.]+)` \| (none|`[^`]*`) \|", part, re.MULTILINE)
    assert dict(rows) == dict(_settings(Settings))


def test_the_page_names_every_refusal_that_ends_a_daemon_for_good() -> None:
    part = PAGE.split("Exit code **6**")[1].split("Tell your supervisor")[0]
    named = {
        code for row in re.findall(r"^\| (`.*`) \|", part, re.MULTILINE) for code in re.findall(r"`([a-z_]+)`", row)
    }
    assert named == {refusal.value for refusal in FINAL | {Refusal.HOST_CHANGED}}


def test_settings_come_from_the_file_and_then_from_the_environment(tmp_path: Path) -> None:
    assert settings.load(tmp_path, {"HOLDFAST_HOME": "/x"}) == Settings()
    (tmp_path / "daemon.toml").write_text('clone_policy = "warn"\n[outbox]\nrows_max = 70\n')
    environment = {"HOLDFAST_DAEMON_OUTBOX__ROWS_MAX": "80"}
    expected = Settings(clone_policy=ClonePolicy.WARN, outbox=OutboxSettings(rows_max=80))
    assert settings.load(tmp_path, environment) == expected
    assert settings.changed(Settings(), expected) == ["clone_policy", "outbox.rows_max"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("clone_polcy = 'warn'", "clone_polcy: there is no such setting. Did you mean clone_policy?"),
        ("[outbox]\nrows_max = 9", "outbox.rows_max is 9: expected int >= 10."),
        ("[outbox]\nmax_age_hours_override = 0", "max_age_hours_override is 0: expected int >= 1."),
        ("[disk]\nreserved_bytes = -1", "reserved_bytes is -1: expected int >= 0."),
        ("log_level = ", "this is not TOML"),
    ],
)
def test_a_setting_that_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "daemon.toml").write_text(text)
    with pytest.raises(SettingsInvalid, match=re.escape(fault)):
        settings.load(tmp_path, {})
