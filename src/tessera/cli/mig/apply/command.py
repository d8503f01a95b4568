"""`tessera mig apply`: give nodes a layout, and see that they take it."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from tessera.cli.common import completing
from tessera.cli.common.cluster import ClusterChoice, cluster_options, selector_option
from tessera.cli.common.options import Duration
from tessera.cli.common.terminal import Style
from tessera.cli.mig.apply.output import describe, summary
from tessera.cli.mig.sources import product_option, read_text
from tessera.core.mig.geometry import Product
from tessera.kube.object_files import naming
from tessera.protocol.kubernetes.selector import LabelSelector
from tessera.protocol.mig import documents as mig
from tessera.rollout.changes import Change, Wanted
from tessera.rollout.rollout import MaxUnavailable, Rollout, refusal
from tessera.rollout.targets import changes_of
from tessera.serving.ending import until_signalled

if TYPE_CHECKING:
    from tessera.kube.rest.client import Client

_DRY_RUNS: Final = ("none", "client", "server")


class _BareDryRun(click.Command):
    """A command whose `--dry-run` alone means `--dry-run=client`, as with kubectl: the next word is a node, not its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = args[: args.index("--")] if "--" in args else args
        for at, word in enumerate(options):
            if word == "--dry-run" and (options[at + 1 : at + 2] or [""])[0] not in _DRY_RUNS:
                args[at] = "--dry-run=client"
        return super().parse_args(ctx, args)


@click.command("apply", cls=_BareDryRun)
@click.argument("layout", metavar="FILE|COUNTS|NAME", shell_complete=completing.counts_or_files)
@click.argument("nodes", nargs=-1, metavar="[NODE]...", shell_complete=completing.nodes)
@selector_option("Choose nodes by their labels, instead of by name.")
@click.option("--config", metavar="NAME", help="The configuration to use, if the file has several.")
@click.option(
    "--label",
    is_flag=True,
    help=f"Write the label {mig.PARTED_CONFIG}, for NVIDIA's MIG manager: the argument names one of its configurations.",
)
@click.option(
    "--mig-parted",
    "parted",
    metavar="FILE",
    help="With --label: the MIG manager's configuration file, to check that the layout fits.",
)
@click.option(
    "--product",
    callback=product_option,
    metavar="NAME",
    shell_complete=completing.names(completing.product_names),
    help="The cards' product, if the nodes' labels do not name it.",
)
@click.option(
    "--cards", type=click.IntRange(1, 1024), help="How many cards a node has, if its labels do not say so."
)
@click.option(
    "--dry-run",
    type=click.Choice(_DRY_RUNS),
    default="none",
    show_default=True,
    help="Only show what would change: `client`, or without a value; `server` also asks the API server whether it would take it.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--max-unavailable",
    default="1",
    show_default=True,
    metavar="N|N%",
    help="How many nodes to change at a time.",
)
@click.option(
    "--timeout",
    type=Duration(),
    default="5m",
    show_default=True,
    help="How long a node may take to show its new layout.",
)
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until the nodes show their new layout."
)
@cluster_options
def command(
    layout: str,
    nodes: tuple[str, ...],
    selector: str,
    config: str | None,
    label: bool,
    parted: str | None,
    product: Product | None,
    cards: int | None,
    dry_run: str,
    yes: bool,
    max_unavailable: str,
    timeout: float,
    wait: bool,
    cluster: ClusterChoice,
) -> int:
    """Write a MIG layout to nodes: show what changes first, and write it when you agree.

    The layout goes into the annotation run.ai/mig.config, which Tessera's device plugin reads; with --label the name of
    a configuration goes into the label nvidia.com/mig.config, for NVIDIA's MIG manager. The command refuses a layout that does not
    fit a node's cards. It changes nodes one after the other; each must show the new layout, in its state and in
    what it offers, before the next. A node that does not gets its old layout back, and the rest stays as it is. The same
    command again continues where it stopped.

    \b
    tessera mig apply 2g.20gb=2,3g.40gb=1 gpu-1 gpu-2
    tessera mig apply layout.yaml -l pool=training --max-unavailable 25% --yes
    tessera mig apply layout.yaml -l pool=training --dry-run
    tessera mig apply all-balanced gpu-1 --label --mig-parted mig-parted.yaml

    \b
    Exit codes: 0 done, 1 some nodes did not take it or you did not agree, 2 bad input, 130 interrupted.
    """  # fmt: skip
    if bool(nodes) == bool(selector.strip()):
        raise click.UsageError("no nodes chosen: give names, or -l SELECTOR")
    if (parted and not label) or (config and label):
        raise click.UsageError("use --mig-parted only with --label, and --config only without it")
    if dry_run == "none" and not yes and (layout == "-" or not sys.stdin.isatty()):
        raise click.UsageError(
            "no terminal to ask for confirmation: use --yes, or --dry-run to see what would change"
        )
    wanted = _wanted(layout, config, parted, product, cards, label=label)
    chosen = LabelSelector.parse(selector)
    with naming("--max-unavailable"):
        at_once = MaxUnavailable.parse(max_unavailable)
    changes = cluster.run(lambda client: changes_of(client, wanted, nodes, chosen))
    style = Style.of(sys.stdout)
    for line in describe(changes, style):
        click.echo(line, color=style.enabled)
    if wanted.document is None:
        click.echo(
            f"not checked: what {wanted.config} is is not known here; give its file with --mig-parted FILE",
            err=True,
        )
    to_write = [change for change in changes if not change.written]
    if dry_run != "none":
        return cluster.run(lambda client: _dry_run(client, to_write)) if dry_run == "server" else 0
    if to_write and not yes and not _agreed(len(to_write)):
        click.echo("nothing was changed", err=True)
        return 1
    from tessera.serving.ending import Signalled

    try:
        return cluster.run(
            lambda client: _roll_out(client, changes, at_once.of(len(changes)), timeout if wait else None)
        )
    except Signalled:
        raise KeyboardInterrupt from None


def _wanted(
    layout: str,
    config: str | None,
    parted: str | None,
    product: Product | None,
    cards: int | None,
    *,
    label: bool,
) -> Wanted:
    if label and parted is None:
        return Wanted(None, layout, label=True)
    where, text = read_text(parted or layout)
    name = layout if label else config
    return Wanted(mig.read(text, where), name, label=label, product=product, cards=cards, text=text)


def _agreed(number: int) -> bool:
    return click.confirm(f"Change {number} node{'s' if number > 1 else ''}?", err=True)


async def _dry_run(client: "Client", changes: Sequence[Change]) -> int:
    refused = 0
    for change in changes:
        if why := await refusal(client, change):
            click.echo(f"{change.node}: {why}", err=True)
            refused += 1
        else:
            click.echo(f"{change.node}: the API server would accept it")
    return int(refused > 0)


async def _roll_out(client: "Client", changes: Sequence[Change], at_once: int, timeout: float | None) -> int:
    rollout = Rollout(
        client, at_once=at_once, timeout=timeout, report=lambda line: click.echo(line, err=True)
    )
    try:
        await until_signalled(rollout.run(changes))
    finally:  # also when interrupted: the operator wants to know what is where
        for line in summary(rollout.outcomes.values()):
            click.echo(line)
    return int(not rollout.succeeded)
