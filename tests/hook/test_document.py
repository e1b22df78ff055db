"""The page about hooks says what the code does."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from holdfast.cli.hook_process import HookService
from holdfast.hook.agent_sessions import EVENT_RETENTION_DAYS
from holdfast.hook.agent_settings import Programs
from holdfast.hook.layout import SPOOL_NAME
from holdfast.hook.settings import Settings
from holdfast.hook.statistics import Statistics
from holdfast.hook.webhook import REFUSALS_MAX
from holdfast.protocol import hook_event
from holdfast.protocol.hook_queue import CLASSES

TEXT = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this heading."""
    lines = TEXT[TEXT.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_names_of_events_are_those_of_the_tables() -> None:
    rows = {row[0].strip("`"): row[1:] for row in table("type")}
    assert {name: row[0] for name, row in rows.items()} == {name: kind.value for name, kind in CLASSES.items()}
    for place, agent in enumerate(hook_event.AGENTS, start=1):
        told = {(name, kind) for kind, row in rows.items() for name in row[place].split(", ") if name}
        known = set(hook_event.NAMES[agent].items())
        assert told - {("AfterTool with an error", "error")} == known
    assert list(rows)[:7] == [name for name in rows if name in hook_event.ALLOWED]


def test_every_setting_is_there_with_its_default() -> None:
    def shown(value: Any) -> str:
        return "none" if value in (None, ()) else f"`{msgspec.json.encode(value).decode()}`"

    told = {row[0].strip("`"): row[1] for row in table("setting")}
    assert told == {name: shown(value) for name, value in msgspec.structs.asdict(Settings()).items()}


def test_every_metric_is_there() -> None:
    told = {name.strip().strip("`") for row in table("metric") for name in row[0].split(",")}
    counted = {f"holdfast_hook_{name}" for name in Statistics(Settings()).counts}
    assert counted < told
    others = ("worker", "queue_depth", "stuck", "lag_p95_ms", "lag_p99_ms", "spool_bytes")
    adapters = {f"holdfast_agent_{name}" for name in ("delivered", "coalesced", "failed", "given_up")}
    assert told - counted == {f"holdfast_hook_{name}" for name in others} | adapters


def test_when_a_report_is_given_up_is_what_the_code_does() -> None:
    told = " ".join(TEXT.split())
    words = {5: "five", 7: "seven", 20: "twenty"}
    assert f"failed with it {words[Programs().attempts_max]} times (`attempts_max`)" in told
    assert f"does not take it within {words[EVENT_RETENTION_DAYS]} days" in told
    assert f"After {words[REFUSALS_MAX]} answers of 4xx it is given up" in told


def test_the_service_shows_that_it_does_not_work_and_what_waits_meanwhile(tmp_path: Path) -> None:
    (tmp_path / SPOOL_NAME).write_bytes(b"seven c")
    device = SimpleNamespace(home=SimpleNamespace(path=tmp_path))

    async def scene() -> dict[str, int]:
        return HookService(device, is_clock_right=lambda: True).counts()  # type: ignore[arg-type]  # it has not begun

    assert asyncio.run(scene()) == {"hook_worker": 0, "hook_spool_bytes": 7}
