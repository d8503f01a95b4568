"""`tessera mig plan`: how to re-cut a cluster's cards for the pods that wait."""

import time
from collections.abc import Sequence
from contextlib import nullcontext

import click

from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.help import Command
from tessera.cli.common.options import ClusterChoice, Duration, cluster_options, option, selector_option
from tessera.cli.common.output import Output, echo, output_option, warn, whoever_reads
from tessera.cli.common.reading import files_option, read_inventory
from tessera.cli.mig.applying import ApplyOptions, apply_plan
from tessera.cli.mig.plan_output import (
    DRAWN,
    More,
    blocked_document,
    demand_document,
    print_plan,
    waiting_document,
)
from tessera.cli.mig.planning import PlanLimits, plan_options
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.core.planning.changes import NodeChange
from tessera.core.planning.summary import explain_outcome, explain_waiting
from tessera.inventory.pending import Pending, pending_inventory
from tessera.protocol.kubernetes.objects import moment


@click.command("plan", cls=Command)
@option(
    "--since",
    "Count fallbacks of pods created within this time.",
    type=Duration(),
    default="24h",
    group="Demand",
)
@files_option(group="Cards")
@selector_option("Only nodes with such labels.", group="Cards")
@plan_options
@option("--apply", "Apply the plan to the cluster's nodes, after a question.", group="Applying")
@option("-y, --yes", "With --apply: do not ask for confirmation.", group="Applying")
@output_option(*DRAWN)
@cluster_options
def command(
    since: float,
    sources: tuple[str, ...],
    selector: str,
    limits: PlanLimits,
    apply: bool,
    yes: bool,
    output: Output,
    cluster: ClusterChoice,
) -> ExitCode:
    """Plan how to re-cut the cluster's cards for the pods that wait.

    The demand is what pods without a node ask for, what pods that fell back had asked for, and what the webhook rejected.
    Free devices go to waiting pods first, as the scheduler could do it, and the plan is for the rest.
    The plan is the best there is, unless it says otherwise. It changes nothing without --apply.

    Devices that pods hold stay. If it is not known which ones of a profile they are, all devices of that profile
    stay on the node; others may be re-cut. NVIDIA's mig-manager cuts a card only as a whole: on its nodes a card with a
    device that stays is not cut.

    Every form of output says what is removed and what is added. -o operator prints the commands for NVIDIA's mig-manager: new
    configurations where none of its own will do, and labels.

    `tessera mig fit` plans for a demand that you name.

    --apply gives the nodes their layouts as `tessera mig apply --plan` does.

    \b
    Examples:
      tessera mig plan --max-nodes 3
      tessera mig plan --apply
      tessera mig plan -o json > plan.json; tessera mig apply --plan plan.json
      kubectl get nodes,pods -A -o json | tessera mig plan --from -

    Exit code 3: some of the demand is left out. With --apply exit code 1: a node did not take its layout.
    """  # fmt: skip
    if yes and not apply:
        raise click.UsageError("use --yes only with --apply")
    if apply and (sources or limits.mig_manager):
        raise click.UsageError("--apply writes to the cluster: use it without --from and --mig-parted")
    if apply and output.form != "table":
        raise click.UsageError("--apply shows the plan as a table: use it without -o, or with -o table")
    how = ApplyOptions(yes=yes) if apply else None
    if how:
        how.check("leave --apply out to see the plan")
    inventory = pending_inventory(LabelSelector.parse(selector))
    inventory.mig_manager = limits.mig_manager
    read_inventory(inventory, cluster, sources)
    now = time.time()
    pending = Pending(inventory, moment(now - since), now=now)
    warn(*pending.words())
    with whoever_reads() if yes else nullcontext():
        code, changes = _plan_for(pending, limits, output)
    applied = apply_plan(changes, cluster, how) if how and changes else ExitCode.DONE
    return applied or code


def _plan_for(pending: Pending, limits: PlanLimits, output: Output) -> tuple[ExitCode, Sequence[NodeChange]]:
    """Print the plan without the nodes that it leaves alone. Return the exit code, and what changes."""
    if not pending.demand.all and not output.is_document:
        return ExitCode.DONE, ()
    cards = pending.cards()
    warn(*cards.skipped)
    if pending.demand.all and not cards.cards:
        raise InvalidInput("no node has cards that could be cut; `tessera mig fit` plans for other cards")
    warn(*explain_waiting(pending.waiting))
    if not pending.waiting.wanted and output.form == "table":
        echo(["no layout is needed"])
        return ExitCode.DONE, ()
    needed = pending.most_wanted()
    solution = limits.solve(pending.waiting.wanted, cards.cards, cards.places, needed)
    changes = limits.changes(solution, cards.places, pending.mig_manager, needed)
    changed = set(changes.plan.nodes)
    places = [place for place in cards.places if place.name in changed]
    outcome = pending.after(changes.plan, places)
    fields = {
        "cost": {"nodes": changes.plan.nodes, "cards": changes.cards, "podsToEnd": []},
        "asked": demand_document(pending.demand),
        "waiting": {
            **waiting_document(pending.waiting, outcome),
            "blocked": blocked_document(pending.blocked),
        },
    }
    more = More(explain_outcome(outcome), fields, pending.mig_manager)
    return print_plan(changes, places, output, more), changes.nodes
