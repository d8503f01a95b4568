"""`tessera controller` whose patience, rate and waits are shorter than users may set them.

One more option, which the command that users have does not need.
"""

import json
import sys

import click

from tessera.cli.app import run
from tessera.cli.controller import command
from tessera.controller.patience.reconciler import Pace


def _pace(_: click.Context, __: click.Parameter, text: str) -> Pace:
    return Pace(**json.loads(text))


if __name__ == "__main__":
    command.params.append(click.Option(["--pace"], required=True, callback=_pace))
    sys.exit(run(sys.argv[1:]))
