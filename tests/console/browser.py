"""Which browser there is on this machine."""

import os
import shutil

VARIABLE = "HOLDFAST_BROWSER"
PATIENCE_MS = 60_000  # for what a page must show
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """The program to start, if there is one."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    return next((found for name in NAMES if (found := shutil.which(name))), None)
