"""`tessera controller` whose Lease, autopilot and patience are quicker than users may have them.

More options, which the command that users have does not need.
"""

import json
import sys
from typing import Any

import click

from tessera.cli.app import run
from tessera.cli.controller import command
from tessera.controller.layouts.auto.looking import SOONEST
from tessera.controller.leader import LeaseTimes
from tessera.controller.patience.reconciler import Pace


def _read(kind: type[Any]) -> Any:
    """A callback that makes an option's JSON a value of this type."""
    return lambda context, parameter, text: kind(**json.loads(text))


if __name__ == "__main__":
    command.params.append(click.Option(["--lease"], default="{}", callback=_read(LeaseTimes)))
    command.params.append(click.Option(["--pace"], default="{}", callback=_read(Pace)))
    command.params.append(click.Option(["--soonest"], type=float, default=SOONEST))
    sys.exit(run(sys.argv[1:]))
