"""`tessera mig apply`: give nodes a layout, and see that they take it."""

import difflib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import click

from tessera.cli.common import completing
from tessera.cli.common.cluster import ClusterChoice, cluster_options
from tessera.cli.common.options import Duration, option, selector_option
from tessera.cli.common.output import Style, echo, warn
from tessera.cli.mig.sources import cards_option, product_option, read_text
from tessera.core.mig.geometry import Product
from tessera.core.text import first_of, number_of
from tessera.kube.object_files import naming
from tessera.kube.rest.client import Client
from tessera.protocol.kubernetes.selector import LabelSelector
from tessera.protocol.mig import documents as mig
from tessera.rollout.changes import Change, Wanted, changes_of
from tessera.rollout.rollout import MaxUnavailable, NodeRollout, Rollout, refusal
from tessera.serving.ending import Signalled, until_signalled

_CONTEXT: Final = 2  # lines around a change: a layout has few
_MOST_NAMED: Final = 8  # nodes that change alike are named up to here, and counted beyond
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
@option("--config NAME", "The configuration to use, if the file has several.")
@option(
    "--label",
    f"Write the label {mig.PARTED_CONFIG}, for NVIDIA's MIG manager: the argument names one of its configurations.",
)
@option(
    "--mig-parted FILE",
    "With --label: the MIG manager's configuration file, to check that the layout fits.",
    "parted",
)
@product_option("The cards' product, if the nodes' labels do not name it.")
@cards_option("How many cards a node has, if its labels do not say so.")
@option(
    "--dry-run",
    "Only show what would change: `client`, or without a value; `server` also asks the API server whether it would take it.",
    type=click.Choice(_DRY_RUNS),
    default="none",
)
@option("-y, --yes", "Do not ask for confirmation.")
@option("--max-unavailable N|N%", "How many nodes to change at a time.", default="1")
@option("--timeout", "How long a node may take to show its new layout.", type=Duration(), default="5m")
@option("--wait/--no-wait", "Wait until the nodes show their new layout.", default=True)
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
    if label and parted is None:
        wanted = Wanted(None, layout, label=True)
    else:
        where, text = read_text(parted or layout)
        document, name = mig.read(text, where), layout if label else config
        wanted = Wanted(document, name, label=label, product=product, cards=cards, text=text)
    chosen = LabelSelector.parse(selector)
    with naming("--max-unavailable"):
        at_once = MaxUnavailable.parse(max_unavailable)
    changes = cluster.run(lambda client: changes_of(client, wanted, nodes, chosen))
    echo(_describe(changes, Style.of(sys.stdout)))
    if wanted.document is None:
        warn(
            f"not checked: the layouts of {wanted.config} are not known here; give its file with --mig-parted FILE"
        )
    to_write = [change for change in changes if not change.written]
    if dry_run != "none":
        return cluster.run(lambda client: _dry_run(client, to_write)) if dry_run == "server" else 0
    if to_write and not yes and not click.confirm(f"Change {number_of(len(to_write), 'node')}?", err=True):
        warn("nothing was changed")
        return 1
    try:
        return cluster.run(
            lambda client: _roll_out(client, changes, at_once.of(len(changes)), timeout if wait else None)
        )
    except Signalled:
        raise KeyboardInterrupt from None


async def _dry_run(client: Client, changes: Sequence[Change]) -> int:
    refused = 0
    for change in changes:
        if why := await refusal(client, change):
            warn(f"{change.node}: {why}")
            refused += 1
        else:
            click.echo(f"{change.node}: the API server would accept it")
    return int(refused > 0)


async def _roll_out(client: Client, changes: Sequence[Change], at_once: int, timeout: float | None) -> int:
    rollout = Rollout(client, at_once=at_once, timeout=timeout, report=warn)
    try:
        await until_signalled(rollout.run(changes))
    finally:  # also when interrupted: the operator wants to know what is where
        echo(_summary(rollout.outcomes.values()))
    return int(not rollout.succeeded)


def _describe(changes: Sequence[Change], style: Style) -> Iterator[str]:
    """What would change; nodes that change alike are listed together."""
    alike: dict[tuple[Any, ...], list[Change]] = {}
    for change in changes:
        if not change.written:
            key = (change.before, change.after, tuple(change.counts))
            alike.setdefault(key, []).append(change)
    for same in alike.values():
        yield style.bold(_nodes([change.node for change in same]))
        for line in _diff(same[0]):
            paint = {"-": style.bad, "+": style.good}.get(line[:1], style.dim)
            yield "  " + paint(line)
        for resource, before, after in same[0].counts:
            yield f"  {resource}: {before} → {after}"
        for change in same:
            for risk in change.risks:
                yield "  " + style.note(f"warning: {change.node}: {risk}")
    already = [change.node for change in changes if change.written]
    if already:
        yield f"{_nodes(already)}: no change, the layout is the same"


def _diff(change: Change) -> Iterator[str]:
    before, after = change.before, change.after
    if change.wanted.label:
        if before is not None:
            yield f"- {change.wanted.key}={before}"
        yield f"+ {change.wanted.key}={after}"
        return
    yield change.wanted.key
    lines = difflib.unified_diff((before or "").splitlines(), after.splitlines(), n=_CONTEXT, lineterm="")
    for line in list(lines)[2:]:  # without the names of files
        if not line.startswith("@@"):
            yield f"{line[:1]} {line[1:]}"


def _nodes(names: Sequence[str]) -> str:
    return f"node{'s' if len(names) > 1 else ''} {first_of(names, _MOST_NAMED)}"


def _summary(outcomes: Iterable[NodeRollout]) -> Iterator[str]:
    """What became of the nodes: a line for each with a reason, then how many ended in each way."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts[outcome.result] += 1
        if outcome.reason:
            yield f"{outcome.node}: {outcome.result}: {outcome.reason}"
    yield ", ".join(f"{number} {result}" for result, number in counts.items())
