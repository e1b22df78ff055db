"""Whether this is a CI job: its machine is gone tomorrow, and a home that stays behind is nobody's."""

from collections.abc import Mapping
from typing import Annotated

import typer

from holdfast.cli.output import ExitCode, Failure
from holdfast.protocol.refusal import REFUSALS, Refusal

VARIABLES = ("CI", "GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "JENKINS_URL")
PERSISTENT = "HOLDFAST_PERSISTENT"
"""In the place of --persistent, for a whole job."""

Persistent = Annotated[bool, typer.Option("--persistent", help="Also in a CI job: this machine stays.")]

_NO = {"", "0", "false"}


def variable_in(environment: Mapping[str, str]) -> str | None:
    """The environment variable that shows that this is a CI job, if there is one."""
    return next((name for name in VARIABLES if environment.get(name, "").lower() not in _NO), None)


def refuse(environment: Mapping[str, str], *, persistent: bool) -> None:
    """Refuse to start something lasting in a CI job, unless `persistent` is given."""
    found = variable_in(environment)
    if found is None or persistent or environment.get(PERSISTENT, "").lower() not in _NO:
        return
    row = REFUSALS[Refusal.PERSISTENT_IN_CI]
    message = f"this is a CI job ({found} is set). {row.sentence}"
    raise Failure(ExitCode.USAGE, str(Refusal.PERSISTENT_IN_CI), message)
