"""`tessera mig`: the commands that validate, convert, show, plan and apply MIG layouts, and what they share.

`sources` reads what a person names, `tiles` draws cards. What belongs here: options, texts, tables, colours. What a layout is, whether it fits
and how nodes get it is decided in `core.mig`, `core.planning`, `inventory` and `rollout`.
"""

from typing import Final

import click

from tessera.cli.app import LazyGroup, Table

COMMANDS: Final[Table] = {
    "validate": ("mig.layouts:validate", "Check that layouts fit their cards, and say why they do not."),
    "convert": ("mig.layouts:convert", "Write a layout in another format."),
    "show": ("mig.layouts:show", "Draw a node's cards as tiles, as wide as their memory slices."),
    "plan": ("mig.plan:command", "Plan how to re-cut the cluster's cards for the pods that wait."),
    "fit": ("mig.fit:command", "Fit a demand on the fewest cards."),
    "defragment": (
        "mig.defragment:command",
        "Name the pods that must end or move to make room for a demand.",
    ),
    "products": ("mig.products:command", "List the known cards and their profiles."),
    "apply": ("mig.apply:command", "Write a layout to nodes, and wait until they have it."),
}


@click.command(cls=LazyGroup, table=COMMANDS)
def command() -> None:
    """Validate, convert, show, plan and apply MIG layouts.

    A layout says which MIG devices the cards of a node are cut into. It is read and written as a run.ai annotation
    (`run.ai/mig.config`), as a mig-parted file, or as plain counts such as 2g.20gb=2,3g.40gb=1.
    """
