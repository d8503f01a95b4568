"""`tessera webhook` and `tessera certs run` with certificates that last seconds, and a clock that may be wrong.

More options, which the commands that users have do not need.
"""

import json
import sys
import time
from typing import Any

import click

from tessera.cli.app import run
from tessera.cli.certs import run as certs_run
from tessera.cli.webhook import command
from tessera.kube.clock import Clock
from tessera.webhook.certificates.rotation import RotationPolicy


class WrongClock(Clock):
    """The machine's clock, and some seconds."""

    def __init__(self, ahead: float) -> None:
        self._ahead = ahead

    def wall(self) -> float:
        return time.time() + self._ahead


def _policy(_: click.Context, __: click.Parameter, text: str) -> RotationPolicy:
    fields: dict[str, Any] = json.loads(text)
    return RotationPolicy(**fields)


def _clock(_: click.Context, __: click.Parameter, ahead: float) -> WrongClock:
    return WrongClock(ahead)


if __name__ == "__main__":
    for one in (command, certs_run):
        one.params.append(click.Option(["--certificate-policy"], required=True, callback=_policy))
    command.params.append(click.Option(["--certificate-clock"], type=float, default=0.0, callback=_clock))
    sys.exit(run(sys.argv[1:]))
