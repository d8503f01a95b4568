"""`tessera controller` with a Lease that holds for a few seconds, or an autopilot that looks every second.

Two more options, which the command that users have does not need.
"""

import json
import sys

import click

from tessera.cli.app import run
from tessera.cli.controller import command
from tessera.controller.layouts.auto.demand import SOONEST
from tessera.controller.leader import LeaseTimes


def _lease(_: click.Context, __: click.Parameter, text: str) -> LeaseTimes:
    return LeaseTimes(**json.loads(text))


if __name__ == "__main__":
    command.params.append(click.Option(["--lease"], default="{}", callback=_lease))
    command.params.append(click.Option(["--soonest"], type=float, default=SOONEST))
    sys.exit(run(sys.argv[1:]))
