"""`tessera webhook` whose certificates last seconds: one more option, which the command that users have does not need."""

import json
import sys
from typing import Any

import click

from tessera.cli.app import run
from tessera.cli.webhook import command
from tessera.webhook.certificates.rotation import Policy


def _policy(_: click.Context, __: click.Parameter, text: str) -> Policy:
    fields: dict[str, Any] = json.loads(text)
    return Policy(**fields)


if __name__ == "__main__":
    command.params.append(click.Option(["--certificate-policy"], required=True, callback=_policy))
    sys.exit(run(sys.argv[1:]))
