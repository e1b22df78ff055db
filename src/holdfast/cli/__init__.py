"""The command line, one file per noun. Programs are assembled here; the only folder that may import every other one."""

import os
import sys

HOOK_COMMANDS = frozenset({"install", "uninstall", "status", "doctor", "--help", "-h"})


def main() -> None:
    """The `holdfast` command. What must be quick is answered before anything large is imported."""
    if sys.argv[1:] == ["--version"]:
        from holdfast import __version__

        print(f"holdfast {__version__}")
        return
    if sys.argv[1:2] == ["hook"] and _is_event(sys.argv[2:]):
        from holdfast.hook.receiver import main as receive  # an agent waits for this one

        sys.exit(receive(sys.argv[2:]))
    from holdfast.cli.app import run

    run()


def _is_event(words: list[str]) -> bool:
    """Whether `holdfast hook` with these words is an agent's: a person at a terminal may have mistyped a command."""
    is_command = HOOK_COMMANDS.issuperset(words[:1]) or (not words[0].startswith("-") and os.isatty(0))
    return not is_command
