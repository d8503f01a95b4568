"""`tessera mig`: check, convert, draw, plan and apply MIG layouts."""

import click

from tessera.cli.mig import apply as mig_apply
from tessera.cli.mig import convert as mig_convert
from tessera.cli.mig import plan as mig_plan
from tessera.cli.mig import show as mig_show
from tessera.cli.mig import validate as mig_validate


@click.group()
def command() -> None:
    """Check, convert, draw, plan and apply MIG layouts.

    A layout says which MIG devices the cards of a node are cut into. It is read and written as a run.ai annotation
    (`run.ai/mig.config`), as a mig-parted file, or as plain counts such as 2g.20gb=2,3g.30gb=1.
    """


for _part in (mig_validate, mig_convert, mig_show, mig_plan, mig_apply):
    command.add_command(_part.command)
