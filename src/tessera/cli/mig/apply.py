"""`tessera mig apply`: give nodes a layout, and see that they take it."""

from typing import Final

import click

from tessera.cli.common import completing
from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.help import Command
from tessera.cli.common.options import ClusterChoice, Duration, cluster_options, option, selector_option
from tessera.cli.common.output import warn
from tessera.cli.mig.applying import ApplyOptions, apply_changes, apply_plan
from tessera.cli.mig.sources import cards_option, mig_config_option, product_option, read_text
from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.core.mig.geometry import Product
from tessera.kube.object_files import naming
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.plans import read_plan
from tessera.rollout.change import Wanted, WhenInUse
from tessera.rollout.changes import changes_of
from tessera.rollout.rollout import Cordon, MaxUnavailable

_DRY_RUNS: Final = ("none", "client", "server")


class _BareDryRun(Command):
    """A command whose `--dry-run` alone means `--dry-run=client`, as with kubectl: the next word is a node, not its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = args[: args.index("--")] if "--" in args else args
        for at, word in enumerate(options):
            if word == "--dry-run" and (options[at + 1 : at + 2] or [""])[0] not in _DRY_RUNS:
                args[at] = "--dry-run=client"
        return super().parse_args(ctx, args)


@click.command("apply", cls=_BareDryRun)
@click.argument(
    "layout", metavar="[FILE|COUNTS|NAME]", required=False, shell_complete=completing.counts_or_files
)
@click.argument("nodes", nargs=-1, metavar="[NODE]...", shell_complete=completing.nodes)
@selector_option("Choose nodes by their labels, instead of by name.", group="Nodes")
@option(
    "--plan FILE",
    "Apply a plan that `tessera mig plan -o json` (or yaml) printed to the nodes that it names; - is standard input.",
    group="Layout",
)
@mig_config_option("The configuration to use, if the file has several.")
@option(
    "--label",
    f"Write the label {mig.PARTED_CONFIG}, for NVIDIA's MIG manager: the argument names one of its configurations.",
    group="Layout",
)
@option(
    "--mig-parted FILE",
    "With --label: the MIG manager's configuration file, to check that the layout fits, instead of its ConfigMap.",
    "parted",
    group="Layout",
)
@product_option("The cards' product, if the nodes' labels do not name it.", group="Layout")
@cards_option("How many cards a node has, if its labels do not say so.", group="Layout")
@option(
    "--dry-run",
    "Only show what would change: `client`, or without a value; `server` also asks the API server whether it would take it.",
    type=click.Choice(_DRY_RUNS),
    default="none",
    group="Rollout",
)
@option("-y, --yes", "Do not ask for confirmation.", group="Rollout")
@option("--max-unavailable N|N%", "How many nodes to change at a time.", default="1", group="Rollout")
@option(
    "--timeout",
    "How long a node may take to show its new layout.",
    type=Duration(),
    default="5m",
    group="Rollout",
)
@option("--wait/--no-wait", "Wait until the nodes show their new layout.", default=True, group="Rollout")
@option(
    "--when-in-use",
    "While pods hold devices that would go: `refuse` to change the node, or `wait` for the pods.",
    type=click.Choice([one.value for one in WhenInUse]),
    show_default="refuse where NVIDIA's MIG manager cuts, else wait",
    group="Rollout",
)
@option(
    "--cordon",
    "Cordon each node while it changes, and wait for pods that hold devices which would go.",
    group="Rollout",
)
@option("--drain", "The same, and evict these pods; PodDisruptionBudgets are respected.", group="Rollout")
@option(
    "--drain-timeout",
    "With --cordon or --drain: how long the pods may take to let go.",
    type=Duration(),
    default="30m",
    group="Rollout",
)
@cluster_options
def command(
    layout: str | None,
    nodes: tuple[str, ...],
    selector: str,
    plan: str | None,
    mig_config: str | None,
    label: bool,
    parted: str | None,
    product: Product | None,
    cards: int | None,
    dry_run: str,
    yes: bool,
    max_unavailable: str,
    timeout: float,
    wait: bool,
    when_in_use: str | None,
    cordon: bool,
    drain: bool,
    drain_timeout: float,
    cluster: ClusterChoice,
) -> ExitCode:
    """Give nodes a MIG layout: show what changes first, and write it when you agree.

    Each node gets the layout its own way. Where Tessera's device plugin or DRA driver cuts the cards, it goes into the
    annotation run.ai/mig.config. Where NVIDIA's MIG manager does (label nvidia.com/mig.config), the command takes the
    configuration that gives this layout, adds one to the MIG manager's ConfigMap if there is none, and writes its name
    into the label. --label writes a name that you give. --plan applies a whole plan.

    The command refuses a layout that does not fit a node's cards, and a node whose devices are in use and would go, where
    NVIDIA's MIG manager cuts. It changes nodes one after the other; each must show the new layout, in its
    state and in what it offers, before the next. A node that does not gets its old layout back, and the rest stays as it is.
    The same command again continues where it stopped.

    The command writes what it has begun into an annotation of the node. The same command continues it, even after a kill.
    With --cordon no new pods come to a node while it changes. A node that was cordoned before stays so.

    \b
    Examples:
      tessera mig apply 2g.20gb=2,3g.40gb=1 gpu-1 gpu-2
      tessera mig apply layout.yaml -l pool=training --max-unavailable 25% --yes
      tessera mig apply layout.yaml -l pool=training --dry-run
      tessera mig apply layout.yaml -l pool=training --drain --drain-timeout 1h
      tessera mig apply all-balanced gpu-1 --label
      tessera mig plan -o json > plan.json; tessera mig apply --plan plan.json
    """  # fmt: skip
    with naming("--max-unavailable"):
        at_once = MaxUnavailable.parse(max_unavailable)
    in_use = WhenInUse(when_in_use) if when_in_use else None
    if (cordon or drain) and not wait:
        raise click.UsageError(
            "--cordon and --drain uncordon the nodes at the end: use them without --no-wait"
        )
    if drain and in_use is WhenInUse.REFUSE:
        raise click.UsageError(
            "--drain evicts the pods that --when-in-use=refuse refuses a node for: use one of them"
        )
    cordoned = Cordon(drain, drain_timeout) if cordon or drain else None
    if cordoned is not None and in_use is None:
        in_use = WhenInUse.WAIT
    how = ApplyOptions(yes, dry_run, at_once, timeout if wait else None, in_use, cordoned)
    if plan is not None:
        if layout or selector.strip() or mig_config or label or parted or product or cards:
            raise click.UsageError(
                "--plan names nodes and layouts itself: use it without a layout, nodes, -l, --mig-config, --label, --mig-parted, --product and --cards"
            )
        how.check(stdin_read=plan == "-")
        where, text = read_text(plan)
        return apply_plan(read_plan(text, where), cluster, how)
    if layout is None:
        raise click.UsageError("no layout given: a file, counts such as 2g.20gb=2, or --plan FILE")
    if nodes and selector.strip():
        raise click.UsageError("give nodes by name or by -l SELECTOR, not by both")
    if not nodes and not selector.strip():
        raise click.UsageError("no nodes chosen: give names, or -l SELECTOR")
    if (parted and not label) or (mig_config and label):
        raise click.UsageError("use --mig-parted only with --label, and --mig-config only without it")
    how.check(stdin_read=layout == "-")
    if label and parted is None:
        wanted = Wanted(None, layout, label=True)
    else:
        where, text = read_text(parted or layout)
        document, name = mig.read(text, where), layout if label else mig_config
        wanted = Wanted(document, name, label=label, product=product, cards=cards, text=text)
    chosen = LabelSelector.parse(selector)
    changes = cluster.run(lambda client: changes_of(client, wanted, nodes, chosen))
    if any(change.expected is None for change in changes.changes):
        warn(
            f"not checked: the layouts of {wanted.config} are not known here; give its file with --mig-parted FILE"
        )
    return apply_changes(changes, cluster, how)
