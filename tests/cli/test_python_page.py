"""What the page about Python shows is what happens: its programs run, in their order, and print what it says."""

import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.cli.person import Person, founder, member_of
from tests.relay.running import RunningRelay

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()

PROGRAM = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
READERS = {"bob.run(": "bob", "alice.inbox(": "alice"}
"""Who reads what somebody else has sent, which may still be on its way."""


def test_the_programs_of_the_page_print_what_it_says(
    town_relay: RunningRelay, resident: Callable[[str], Person], tmp_path: Path
) -> None:
    people = {"alice": founder(resident("alice"), town_relay.url)}
    people["bob"] = member_of(resident("bob"), people["alice"])
    programs = PROGRAM.findall(PAGE)
    assert len(programs) == PAGE.count("```python\n") == PAGE.count("```text\n") == 6, (
        "no program is hidden from this test"
    )
    with ExitStack() as daemons:
        for person in people.values():
            daemons.enter_context(person.daemon())
            person.until_connected(len(people))
        for program, expected in programs:
            for word, name in READERS.items():
                if word in program:
                    people[name].until(lambda client: client.inbox(unapplied=True).messages)
            done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
            assert done.stdout == expected, done.stderr
            assert done.returncode == 0, done.stderr


def test_every_name_and_every_method_is_on_the_page() -> None:
    import holdfast

    clients = (holdfast.Client, holdfast.FeedClient)
    methods = {name for client in clients for name in vars(client) if not name.startswith("_")}
    named = {name for name in holdfast.__all__ if not name.startswith("_")} | methods
    elsewhere = (Path(__file__).parents[2] / "docs" / "operation-log.md").read_text()
    assert sorted(name for name in named if not re.search(rf"`{name}\b", PAGE + elsewhere)) == []
    log = {name for name in vars(holdfast.OperationLog) if not name.startswith("_")}
    assert sorted(name for name in log if not re.search(rf"`{name}\b", elsewhere)) == []
