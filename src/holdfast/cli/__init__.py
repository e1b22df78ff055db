"""The command line, one file per noun. Programs are assembled here; the only folder that may import every other one."""

import sys


def main() -> None:
    """The `holdfast` command. What must be quick is answered before anything large is imported."""
    if sys.argv[1:] == ["--version"]:
        from holdfast import __version__

        print(f"holdfast {__version__}")
        return
    from holdfast.cli.app import run

    run()
