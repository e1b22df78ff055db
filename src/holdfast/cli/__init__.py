"""The command line, one file per noun. Programs are assembled here; the only folder that may import every other one."""

import sys

HOOK_COMMANDS = frozenset({"install", "uninstall", "status", "doctor", "--help", "-h"})


def main() -> None:
    """The `holdfast` command. What must be quick is answered before anything large is imported."""
    if sys.argv[1:] == ["--version"]:
        from holdfast import __version__

        print(f"holdfast {__version__}")
        return
    if sys.argv[1:2] == ["hook"] and not HOOK_COMMANDS.issuperset(sys.argv[2:3]):
        from holdfast.hook.receiver import main as receive  # an agent waits for this one

        sys.exit(receive(sys.argv[2:]))
    from holdfast.cli.app import run

    run()
