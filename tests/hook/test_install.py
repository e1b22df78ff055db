"""Installing: our entries in somebody's settings, and out again as if they had never been there."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_test
from hypothesis import strategies as st

from holdfast.hook import agents, entries
from holdfast.hook.agents import NoSuchScope, Scope
from holdfast.hook.installer import Changed, Installer, NotInstalled, Unreadable
from holdfast.hook.json_text import parse
from holdfast.protocol import hook_event

COMMAND = agents.command_line("claude", "/usr/bin/python3", Path("/home/ann/.holdfast"))
EVENTS = agents.events("claude", hook_event.ALLOWED)

SETTINGS = """// my settings
{
    "model":   "opus",          // the good one
    "permissions": {"allow": ["Bash(ls:*)",
                              "Read"]},
    "hooks": {
        "Stop": [
            {"hooks": [{"type": "command", "command": "say 'done'"}]}
        ],
        "PreToolUse": [ { "matcher": "Bash", "hooks": [ { "type": "command", "command": "/opt/guard" } ] } ],
        "Unheard": []
    },
    "env": {}
}
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "agent" / "settings.json"
    path.parent.mkdir()
    path.write_text(SETTINGS)
    path.chmod(0o640)
    return path


@pytest.fixture
def installer(home: Path) -> Installer:
    return Installer(home)


def add(text: str) -> str:
    return entries.with_hooks(text, "claude", EVENTS, COMMAND)


def foreign(value: Any) -> Any:
    """Settings without whatever has our command in it."""
    if isinstance(value, dict):
        kept = {name: foreign(one) for name, one in value.items()}
        return {name: one for name, one in kept.items() if one is not None}
    if isinstance(value, list):
        return [
            one for one in map(foreign, value) if one not in (None, {"hooks": []}, {"timeout": 10, "type": "command"})
        ]
    return None if value == COMMAND else value


def test_our_entries_join_what_is_there_and_everything_else_stays_as_it_was_written(
    settings: Path, installer: Installer
) -> None:
    installer.install("claude", "hooks", settings, add)
    text = settings.read_text()
    assert sorted(entries.commands(text)) == sorted(EVENTS)
    value = parse(text).value
    assert [group["hooks"][0]["command"] for group in value["hooks"]["Stop"]] == ["say 'done'", COMMAND]
    rest = iter(text.splitlines())
    for line in SETTINGS.splitlines():  # each line still stands there, in order, but for a comma or a bracket
        assert any(line.rstrip(" }],") in found for found in rest), line
    value["hooks"] = {event: foreign(groups) for event, groups in value["hooks"].items()}
    value["hooks"] = {event: groups for event, groups in value["hooks"].items() if groups or event == "Unheard"}
    assert value == parse(SETTINGS).value


def test_uninstalling_gives_back_the_very_bytes(settings: Path, installer: Installer) -> None:
    installer.install("claude", "hooks", settings, add)
    installer.uninstall("hooks", settings)
    assert settings.read_text() == SETTINGS
    assert settings.stat().st_mode & 0o777 == 0o640
    assert os.listdir(settings.parent) == ["settings.json"]
    assert installer.installs() == []


def test_the_settings_from_before_lie_beside_them_meanwhile(settings: Path, installer: Installer) -> None:
    done = installer.install("claude", "hooks", settings, add)
    assert done.backup == f"{settings}.before-holdfast"
    assert Path(done.backup).read_text() == SETTINGS
    assert Path(done.backup).stat().st_mode & 0o777 == settings.stat().st_mode & 0o777 == 0o640


def test_what_somebody_changed_meanwhile_is_kept(settings: Path, installer: Installer) -> None:
    installer.install("claude", "hooks", settings, add)
    settings.write_text(settings.read_text().replace('"opus"', '"sonnet"'))
    installer.uninstall("hooks", settings)
    assert settings.read_text() == SETTINGS.replace('"opus"', '"sonnet"')


def test_installing_twice_is_installing_once(settings: Path, installer: Installer) -> None:
    installer.install("claude", "hooks", settings, add)
    once = settings.read_text()
    installer.install("claude", "hooks", settings, add)
    assert settings.read_text() == once
    installer.uninstall("hooks", settings)
    assert settings.read_text() == SETTINGS


def test_an_older_command_of_ours_is_replaced(settings: Path, installer: Installer) -> None:
    older = agents.command_line("claude", "/gone/bin/python", Path("/elsewhere"))
    settings.write_text(entries.with_hooks(SETTINGS, "claude", ["Stop", "SessionEnd"], older))
    installer.install("claude", "hooks", settings, add)
    found = entries.commands(settings.read_text())
    assert {command for commands in found.values() for command in commands} == {COMMAND}
    assert sorted(found) == sorted(EVENTS)


def test_settings_that_were_not_there_are_gone_again_with_their_directory(tmp_path: Path, installer: Installer) -> None:
    path = tmp_path / "new" / "settings.json"
    done = installer.install("claude", "hooks", path, add)
    assert (done.backup, done.made_directory) == (None, True)
    assert sorted(json.loads(path.read_text())["hooks"]) == sorted(EVENTS)
    installer.uninstall("hooks", path)
    assert not path.parent.exists()


def test_a_directory_that_somebody_uses_by_now_stays(tmp_path: Path, installer: Installer) -> None:
    path = tmp_path / "new" / "settings.json"
    installer.install("claude", "hooks", path, add)
    (path.parent / "other").touch()
    installer.uninstall("hooks", path)
    assert os.listdir(path.parent) == ["other"]


def test_a_link_stays_a_link(settings: Path, installer: Installer, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(settings)
    installer.install("claude", "hooks", link, add)
    assert link.is_symlink()
    assert entries.commands(settings.read_text())
    installer.uninstall("hooks", link)
    assert (link.is_symlink(), settings.read_text()) == (True, SETTINGS)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"hooks": []}', '{"hooks": {"Stop": {}}}', "\xff", '{"hooks": {}, "hooks": {}}', "null"]
)
def test_settings_that_cannot_be_understood_are_left_alone(text: str, settings: Path, installer: Installer) -> None:
    settings.write_bytes(text.encode("latin-1"))
    with pytest.raises(Unreadable):
        installer.install("claude", "hooks", settings, add)
    assert settings.read_bytes() == text.encode("latin-1")
    assert installer.installs() == []


def test_settings_that_change_while_we_look_are_left_alone(settings: Path, installer: Installer) -> None:
    def interfering(text: str) -> str:
        settings.write_text("{}")
        return add(text)

    with pytest.raises(Changed):
        installer.install("claude", "hooks", settings, interfering)
    assert settings.read_text() == "{}"
    installer.uninstall("hooks", settings)
    assert settings.read_text() == "{}"


def test_where_nothing_is_installed_nothing_is_removed(settings: Path, installer: Installer, tmp_path: Path) -> None:
    for path in (settings, tmp_path / "none.json"):
        with pytest.raises(NotInstalled):
            installer.uninstall("hooks", path)
    assert settings.read_text() == SETTINGS


def test_what_was_installed_from_another_home_can_be_removed_all_the_same(settings: Path, installer: Installer) -> None:
    settings.write_text(add(SETTINGS))
    installer.uninstall("hooks", settings)
    assert settings.read_text() == SETTINGS


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1 // why\n}',
        '{"a": 1, // why\n}',
        "{ // nothing yet\n}",
        '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x"}]} // mine\n]}}',
        '{\r\n  "a": 1\r\n}\r\n',
        '{"a": "http://b"}',
        '{\n\t"a": 1,\n}\n',
    ],
)
def test_comments_line_ends_and_last_commas_stand_neither_in_our_way_nor_we_in_theirs(text: str) -> None:
    added = add(text)
    assert sorted(entries.commands(added)) == sorted(EVENTS)
    assert entries.without_hooks(added) == text
    assert "\r" not in text or added.count("\n") == added.count("\r\n")


OURS = json.dumps({"hooks": [{"type": "command", "command": COMMAND}]})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"hooks": {"Stop": [\n  %s,\n  // my linter\n  {"hooks": []}\n]}}', '{"hooks": {"Stop": [\n  // my linter\n  {"hooks": []}\n]}}'),
        ('{"hooks": {"Stop": [%s,],}, "b": 2}', '{"b": 2}'),
        ('{"hooks": {"Stop": [\n  // mine\n  %s]}}', '{"hooks": {"Stop": [\n  // mine\n  ]}}'),
        ('{"hooks": {"Stop": [{"hooks": []}, // mine\n%s]}}', '{"hooks": {"Stop": [{"hooks": []} // mine\n]}}'),
    ],
)  # fmt: skip
def test_what_people_wrote_around_our_entries_stays(before: str, after: str) -> None:
    assert entries.without_hooks(before % OURS) == after
    parse(after)


NAMES = st.sampled_from(["Stop", "PreToolUse", "Other", "SessionStart"])
GROUPS = st.lists(
    st.builds(lambda command: {"hooks": [{"type": "command", "command": command}]}, st.text(max_size=6)),
    min_size=1,
    max_size=2,
)
ANY = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4) | st.lists(st.booleans()), max_size=3)


@settings_of_test(deadline=None, max_examples=60)
@given(
    rest=ANY,
    hooks=st.none() | st.dictionaries(NAMES, GROUPS, min_size=1, max_size=3),
    indent=st.sampled_from([None, 1, 2, 4, "\t"]),
    end=st.sampled_from(["", "\n", "\n\n"]),
)
def test_any_settings_come_back_as_they_were(rest: Any, hooks: Any, indent: Any, end: str) -> None:
    value = {name: one for name, one in rest.items() if name != "hooks"} | ({} if hooks is None else {"hooks": hooks})
    text = json.dumps(value, indent=indent, ensure_ascii=False) + end
    added = add(text)
    assert sorted(entries.commands(added)) == sorted(EVENTS)
    assert entries.without_hooks(added) == text


SPACES = st.lists(st.sampled_from([" ", "\n", "\n  ", "/* c */", "// c\n", ' // "c" {\n']), max_size=2).map("".join)


@settings_of_test(deadline=None, max_examples=50)
@given(mine=st.lists(st.booleans(), min_size=1, max_size=4), data=st.data())
def test_comments_and_commas_anywhere_cost_nobody_an_entry(mine: list[bool], data: st.DataObject) -> None:
    def space() -> str:
        return data.draw(SPACES)

    groups = [json.dumps({"hooks": [{"command": f"http://{n}" if own else COMMAND}]}) for n, own in enumerate(mine)]
    items = f",{space()}".join(groups) + data.draw(st.sampled_from(["", ","])) + space()
    text = f'{space()}{{{space()}"hooks":{space()}{{"Stop": [{space()}{items}]{space()}}}{space()}, "z": 1}}'
    kept = [json.loads(group) for group, own in zip(groups, mine, strict=True) if own]
    without = entries.without_hooks(text)
    value = parse(without).value
    assert (value.get("hooks", {}).get("Stop", []), value["z"]) == (kept, 1)
    assert without.count("c ") + without.count("c\n") == text.count("c ") + text.count("c\n") or not kept
    again = entries.with_hooks(without, "claude", ["Stop"], COMMAND)
    assert entries.commands(again) == {"Stop": [COMMAND]}
    assert parse(entries.without_hooks(again)).value == value


CONFIG = """# mine
model = "gpt-5"

[tui]
notifications = true
"""
WORDS = [*agents.arguments("codex", "/usr/bin/python3", Path("/home/ann/.holdfast")), "--notify"]


def test_notify_of_codex_is_one_line_before_everything_else(tmp_path: Path, installer: Installer) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    installer.install("codex", "notify", path, lambda text: entries.with_notify(text, WORDS))
    assert path.read_text().endswith(CONFIG)
    assert entries.notify(path.read_text()) == WORDS
    path.write_text(path.read_text() + "more = 1\n")
    installer.uninstall("notify", path)
    assert path.read_text() == CONFIG + "more = 1\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_notify_of_ours_that_somebody_spread_over_lines_goes_too(
    tmp_path: Path, installer: Installer, end: str
) -> None:
    path = tmp_path / "config.toml"
    mine = CONFIG.replace("\n", end)
    path.write_bytes(mine.encode())
    installer.install("codex", "notify", path, lambda text: entries.with_notify(text, WORDS))
    spread = f"{json.dumps(WORDS).replace(', ', f',{end}  ')[:-1]},{end}]"
    assert f"# holdfast{end}" in path.read_bytes().decode()
    path.write_bytes(f"notify = {spread}{end}{mine}".encode())
    assert entries.notify(path.read_text()) == WORDS
    installer.uninstall("notify", path)
    assert path.read_bytes().decode() == mine


def test_a_notify_of_ours_that_is_not_understood_is_not_said_to_be_gone(tmp_path: Path, installer: Installer) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'"notify" = {json.dumps(WORDS)}\n')
    with pytest.raises(Unreadable, match="by hand"):
        installer.uninstall("notify", path)
    assert entries.notify(path.read_text()) == WORDS


def test_installs_at_the_same_time_are_all_remembered(tmp_path: Path, home: Path) -> None:
    paths = [tmp_path / f"{number}.json" for number in range(12)]
    for path in paths:
        path.write_text(SETTINGS)
    with ThreadPoolExecutor(len(paths)) as pool:
        list(pool.map(lambda path: Installer(home).install("claude", "hooks", path, add), paths))
    assert sorted(one.path for one in Installer(home).installs()) == sorted(map(str, paths))


def test_somebody_elses_notify_is_not_touched(tmp_path: Path, installer: Installer) -> None:
    path = tmp_path / "config.toml"
    path.write_text('notify = ["beep"]\n' + CONFIG)
    with pytest.raises(entries.Taken, match="beep"):
        installer.install("codex", "notify", path, lambda text: entries.with_notify(text, WORDS))
    with pytest.raises(NotInstalled):
        installer.uninstall("notify", path)
    assert path.read_text() == 'notify = ["beep"]\n' + CONFIG


def test_every_agent_is_asked_for_what_is_stored_and_for_nothing_else() -> None:
    assert agents.events("gemini", hook_event.ALLOWED) == [
        "SessionStart",
        "BeforeAgent",
        "BeforeTool",
        "AfterTool",
        "Notification",
        "AfterAgent",
    ]
    assert agents.events("codex", hook_event.ALLOWED | {"session_end"})[-1] == "SessionEnd"
    assert "PostToolBatch" not in EVENTS
    assert {hook_event.NAMES["claude"][event] for event in EVENTS} == hook_event.ALLOWED


def test_times_are_in_the_agents_own_units() -> None:
    timeouts = {
        (agent, event): agents.group(agent, event, "x")["hooks"][0]["timeout"]
        for agent, event in (("claude", "Stop"), ("gemini", "AfterAgent"), ("codex", "SessionEnd"))
    }
    assert list(timeouts.values()) == [10, 10_000, 3]


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        (COMMAND, True),
        (WORDS, True),
        ("python /x/holdfast/hook/command.py --agent claude", True),
        ("cat /x/holdfast/hook/command.py", False),
        ("holdfast-like --agent claude", False),
        ("echo 'unbalanced", False),
        (7, False),
    ],
)
def test_our_commands_are_known_and_no_others(command: object, ours: bool) -> None:
    assert agents.is_ours(command) is ours


def test_settings_are_where_each_agent_looks_for_them(tmp_path: Path) -> None:
    environment = {"HOME": "/home/ann"}
    assert agents.settings_path("codex", Scope.USER, tmp_path, environment) == Path("/home/ann/.codex/hooks.json")
    moved = environment | {"CODEX_HOME": "/opt/codex"}
    assert agents.settings_path("codex", Scope.USER, tmp_path, moved) == Path("/opt/codex/hooks.json")
    assert agents.settings_path("claude", Scope.LOCAL, tmp_path, moved) == tmp_path / ".claude/settings.local.json"
    with pytest.raises(NoSuchScope, match="gemini has no settings of scope local; it has user, project"):
        agents.settings_path("gemini", Scope.LOCAL, tmp_path, moved)
