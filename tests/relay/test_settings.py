"""Settings: from a file, then the environment; whatever is wrong is named with its place and what to do."""

from pathlib import Path

import msgspec
import pytest

from holdfast.protocol.schedule import DedupeMode
from holdfast.relay.settings import Limits, Retention, Settings, SettingsInvalid, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "relay.toml"


def test_without_anything_there_are_the_defaults() -> None:
    assert load(None, {"PATH": "/bin", "HOLDFAST_HOME": "/x"}) == Settings()


def test_the_environment_changes_what_the_file_says(file: Path) -> None:
    file.write_text('port = 1\nname = "ours"\n[limits]\nmessages_per_s = 5\n[retention]\nqueue_ttl_days = 3\n')
    found = load(
        file,
        {
            "HOLDFAST_RELAY_PORT": "2",
            "HOLDFAST_RELAY_LIMITS__CONNECTIONS_MAX": "7",
            "HOLDFAST_RELAY_RETENTION__DEDUPE_MODE": "permanent",
            "HOLDFAST_RELAY_OPERATORS": "npub1a, npub1b",
            "HOLDFAST_RELAY_PUBLIC_URL": "https://relay.example",
        },
    )
    assert found == Settings(
        port=2,
        name="ours",
        public_url="https://relay.example",
        operators=("npub1a", "npub1b"),
        limits=Limits(messages_per_s=5.0, connections_max=7),
        retention=Retention(queue_ttl_days=3, dedupe_mode=DedupeMode.PERMANENT),
    )


def test_every_setting_can_be_written_down_and_read_back(file: Path) -> None:
    lines = []
    for table in ("", "limits", "retention", "mesh"):
        lines.append(f"[{table}]" if table else "")
        values = msgspec.to_builtins(getattr(Settings(), table) if table else Settings())
        for name, value in values.items():
            if not isinstance(value, dict) and value is not None:
                lines.append(f"{name} = {msgspec.json.encode(value).decode()}")
    file.write_text("\n".join(lines))
    assert load(file, {}) == Settings()


@pytest.mark.parametrize(
    ("text", "environment", "fault"),
    [
        ("prot = 1", {}, "{file}: prot: there is no such setting. Did you mean port?"),
        (
            "[limits]\nconections_max = 1",
            {},
            "limits.conections_max: there is no such setting. Did you mean limits.conn",
        ),
        ("[xyzzy]\nq = 1", {}, "xyzzy.q: there is no such setting. There are: feed.bootstrap_timeout_s, "),
        ("limits = 1", {}, "{file}: limits: there is no such setting."),
        ("[port]\nhigh = 1", {}, "{file}: port.high: there is no such setting. Did you mean port?"),
        ("port = 65536", {}, "{file}: port is 65536: expected int <= 65535. Correct it, or leave it out for 7447."),
        ("port = '1'", {}, "{file}: port is '1': expected int, got str. "),
        ("[limits]\nconnections_max = 0", {}, "limits.connections_max is 0: expected int >= 1. "),
        ("[limits]\nframe_bytes_max = 65536", {}, "limits.frame_bytes_max is 65536: expected int >= 66560. "),
        ("[limits]\nidle_timeout_s = 0", {}, "limits.idle_timeout_s is 0: expected float >= 0.1. "),
        ("[retention]\ndedupe_retention_days = 6", {}, "retention.dedupe_retention_days is 6: expected int >= 7. "),
        ("[retention]\ndedupe_mode = 'never'", {}, "retention.dedupe_mode is 'never': invalid enum value 'never'. "),
        (
            "log_level = 'loud'",
            {},
            "log_level is 'loud': invalid enum value 'loud'. Correct it, or leave it out for 'info'",
        ),
        ("public_url = 'relay.example'", {}, "public_url is 'relay.example': expected str matching regex"),
        ("port = ", {}, "{file}: this is not TOML (Invalid value"),
        ("", {"HOLDFAST_RELAY_PORT": "many"}, "HOLDFAST_RELAY_PORT is 'many': expected int, got str. "),
        ("", {"HOLDFAST_RELAY_LIMITS_PORT": "1"}, "HOLDFAST_RELAY_LIMITS_PORT: there is no such setting."),
        (
            "store = 'postgresql://host/db?sslpassword=key'",
            {},
            "store has an sslpassword, which would be shown to everybody on this machine: write it",
        ),
        (
            "[mesh]\ntopics_max = 20000",
            {},
            "the document of a mesh could have 13792400 bytes, and clients read no more than 8388608: lower mesh.members_max,",
        ),
        ("[limits]\nbodies_bytes_max = 70000", {}, "raise it to at least limits.request_bytes_max, which is 8388608."),
    ],
)
def test_what_is_wrong_is_named(file: Path, text: str, environment: dict[str, str], fault: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingsInvalid) as invalid:
        load(file, environment)
    assert fault.replace("{file}", str(file)) in str(invalid.value)


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(SettingsInvalid, match="the settings cannot be read"):
        load(file, {})
