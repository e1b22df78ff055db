"""A program that is started with other settings than the last time says which; what they are is written down nowhere."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from holdfast.cli import settings_seen
from holdfast.hook.agent_settings import AgentSettings, Webhook
from holdfast.relay.settings import Limits, Settings

SECRET = "whsec_" + "A" * 32


def told(folder: Path, whose: str, found: Settings | AgentSettings) -> list[str]:
    with capture_logs() as logs:
        settings_seen.tell(folder, whose, found)
    return [name for line in logs for name in line.get("settings", [line["event"]])]


def test_only_what_has_changed_since_the_last_start_is_told(tmp_path: Path) -> None:
    assert told(tmp_path, "relay", Settings()) == []
    assert told(tmp_path, "relay", Settings()) == []
    other = Settings(name="another", limits=Limits(messages_per_s=5.0))
    assert sorted(told(tmp_path, "relay", other)) == ["relay.limits.messages_per_s", "relay.name"]
    assert told(tmp_path, "relay", other) == []


def test_programs_of_one_directory_do_not_meet(tmp_path: Path) -> None:
    assert told(tmp_path, "relay", Settings(log_level="error")) == []
    assert told(tmp_path, "agents", AgentSettings(log=True)) == []
    assert told(tmp_path, "relay", Settings(log_level="info")) == ["relay.log_level"]


def test_no_value_is_written_down(tmp_path: Path) -> None:
    settings_seen.tell(
        tmp_path, "agents", AgentSettings(webhooks=(Webhook(name="w", url="https://x.example/", secret=SECRET),))
    )
    path = tmp_path / settings_seen.FILE_NAME
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any(word in path.read_text() for word in (SECRET, "x.example"))


@pytest.mark.parametrize("content", [b"", b"{}", b'{"digests": {}, "digest": "0"}', b"\xff"])
def test_a_damaged_note_is_told_and_written_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / settings_seen.FILE_NAME).write_bytes(content)
    assert told(tmp_path, "relay", Settings()) == ([] if content == b"{}" else ["settings_unknown_before"])
    assert told(tmp_path, "relay", Settings(name="another")) == ["relay.name"]
