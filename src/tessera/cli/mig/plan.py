"""`tessera mig plan`: how to cut cards for a demand.

The cards that `tessera mig plan` is given: of products that are named, or of nodes in files.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Final

import click

from tessera.cli.common import completing
from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.help import Command
from tessera.cli.common.options import (
    NO_CLUSTER,
    ClusterChoice,
    Duration,
    cluster_options,
    option,
    selector_option,
)
from tessera.cli.common.output import Output, echo, output_option, warn, whoever_reads
from tessera.cli.common.reading import files_option, read_inventory
from tessera.cli.mig.applying import ApplyOptions, apply_plan
from tessera.cli.mig.plan_output import (
    DRAWN,
    More,
    blocked_document,
    demand_document,
    print_advice,
    print_plan,
    waiting_document,
)
from tessera.cli.mig.sources import cards_option, read_text
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.core.mig.geometry import PRODUCTS, product_named
from tessera.core.mig.known import KnownLayout, UnknownLayout
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import NodeChange
from tessera.core.planning.configurations import PlanChanges, changes_of
from tessera.core.planning.demand import most_wanted
from tessera.core.planning.kinds import CardToCut, NodeCards, QueuedProfile, card_of
from tessera.core.planning.planner import Objective, Plan, Question, plan
from tessera.core.planning.summary import explain_outcome, explain_waiting
from tessera.core.resources import is_any_gpu
from tessera.inventory.defragment import defragment_inventory, make_room
from tessera.inventory.inventory import Inventory
from tessera.inventory.pending import Pending, pending_inventory, skipped_nodes, uncut, way_of
from tessera.kube.object_files import called, objects_in
from tessera.protocol import yaml
from tessera.protocol.configuration.schema import shown
from tessera.protocol.kubernetes.objects import moment
from tessera.protocol.mig.entries import counts_of, looks_like_counts, read_counts
from tessera.protocol.mig.nodes import GpuNode
from tessera.protocol.mig.operator import MigManagerConfig, config_in
from tessera.solver import highs


def product_cards(products: tuple[str, ...], cards: int | None, enough: int) -> list[CardToCut]:
    """Cards of products that were named, each with a number; without a number as many as are enough."""
    found: list[CardToCut] = []
    for text in products:
        name, separator, number = text.partition("=")
        if separator and not (number.isascii() and number.isdigit() and 0 < int(number[:9]) <= 1024):
            raise InvalidInput(
                f"--product {text}: expected a number of cards from 1 to 1024, such as {name}=4"
            )
        if not separator and len(products) > 1:
            raise InvalidInput(f"--product {text}: with several products give the number of each: {text}=4")
        if separator and cards is not None:
            raise InvalidInput(f"--product {text} and --cards {cards}: give the number only once")
        found += [CardToCut(product_named(name))] * (int(number) if separator else cards or enough)
    return found


def node_cards(
    inventory: Inventory, files: tuple[str, ...], *, keep: bool
) -> tuple[list[NodeCards], list[CardToCut]]:
    """The cards of nodes; nodes with unknown cards are skipped, with a warning, and to keep devices, those with unknown layouts."""
    places: list[NodeCards] = []
    cards: list[CardToCut] = []
    skipped: dict[str, list[str]] = {}
    inventory.take(objects_in(files))
    for node in inventory.gpus.values():
        if not node.label:
            continue
        try:
            here = _cards(node, inventory.known(node.name), keep=keep)
        except InvalidInput as error:
            skipped.setdefault(str(error), []).append(node.name)
            continue
        places.append(NodeCards(node.name, range(len(cards), len(cards) + len(here)), way=way_of(node)))
        cards += here
    warn(*skipped_nodes(skipped))
    if not cards:
        why = "no node has cards that could be cut" if skipped else "no node with GPUs"
        raise InvalidInput(f"{called(*files)}: {why}")
    return places, cards


def _cards(node: GpuNode, known: KnownLayout | UnknownLayout, *, keep: bool) -> list[CardToCut]:
    if isinstance(known, KnownLayout):
        whole_only = node.by_mig_manager or not known.placed
        return [
            card_of(card.product, card.instances if keep else (), card, whole_only=whole_only)
            for card in known.layout.cards
        ]
    if keep:
        raise InvalidInput(known.reason)
    return [card_of(card.product) for card in uncut(node).cards]


_MOST_DEMAND: Final = 9999  # of one profile: a plan beyond that is too long to read
_MOST_ADVICE: Final = 999  # of one profile: advice beyond that is too long to follow


@click.command("plan", cls=Command)
@click.argument("demand", metavar="[COUNTS|FILE]", required=False, shell_complete=completing.counts_or_files)
@option(
    "--from-pending",
    "Take the demand from pods that wait for a node, that fell back, or that the webhook rejects.",
    group="Demand",
)
@option(
    "--since",
    "With --from-pending: count fallbacks of pods created within this time.",
    type=Duration(),
    default="24h",
    group="Demand",
)
@option(
    "--defragment COUNTS",
    "Instead of a plan: name the fewest pods that must end, or move, to make room for these devices. Advice only.",
    group="Demand",
)
@option(
    "--product NAME[=N]",
    "The cards' product, and how many there are. Repeatable.",
    "products",
    multiple=True,
    shell_complete=completing.names(completing.product_names),
    group="Cards",
)
@cards_option(
    "How many cards there are of the one product.", show_default="as many as are needed", group="Cards"
)
@option(
    "--keep",
    "With a demand and --from: keep the devices of the nodes' present layouts, and cut only what is free beside them.",
    group="Cards",
)
@option(
    "--leave-rest", "Do not fill the rest of a card that is cut with what is most in demand.", group="Plan"
)
@option(
    "--mig-parted FILE",
    "The configurations of NVIDIA's mig-manager, instead of those of the cluster's ConfigMap.",
    "parted",
    group="Cards",
)
@files_option(group="Cards")
@selector_option("With --from-pending or --defragment: only nodes with such labels.", group="Cards")
@option(
    "--objective",
    "What to maximize if not all of the demand fits.",
    type=click.Choice([one.value for one in Objective]),
    default="devices",
    group="Plan",
)
@option("--max-nodes N", "Change at most this many nodes.", type=click.IntRange(1), group="Plan")
@option("--max-cards N", "Cut at most this many cards.", type=click.IntRange(1), group="Plan")
@option(
    "--apply",
    "With --from-pending: apply the plan to the cluster's nodes, after a question.",
    group="Applying",
)
@option("-y, --yes", "With --apply: do not ask for confirmation.", group="Applying")
@output_option(*DRAWN)
@cluster_options
def command(
    demand: str | None,
    products: tuple[str, ...],
    cards: int | None,
    keep: bool,
    leave_rest: bool,
    parted: str | None,
    from_pending: bool,
    since: float,
    sources: tuple[str, ...],
    selector: str,
    objective: str,
    max_nodes: int | None,
    max_cards: int | None,
    defragment: str | None,
    apply: bool,
    yes: bool,
    output: Output,
    cluster: ClusterChoice,
) -> ExitCode:
    """Plan how to cut cards: serve a demand on the fewest cards, or as much of it as possible.

    The demand is counts of profiles, as an argument or in a file, or what a cluster's pods wait for. Cards that hold
    devices already are filled before empty ones are cut. The plan is the best there is, unless it says otherwise.

    With --from-pending free devices go to waiting pods first, as the scheduler could do it, and the plan is for
    the rest. The cards are the cluster's, unless --product says otherwise. Devices that pods hold stay. If it is
    not known which ones of a profile they are, all devices of that profile stay on the node; others may be re-cut.
    NVIDIA's mig-manager cuts a card only as a whole: on its nodes a card with a device that stays is not cut.

    Every form of output says what is removed and what is added. -o operator prints the commands for NVIDIA's mig-manager: new
    configurations where none of its own will do, and labels.

    --apply gives the nodes their layouts as `tessera mig apply --plan` does.

    \b
    Examples:
      tessera mig plan 2g.20gb=5,3g.40gb=2 --product A100-80GB --cards 4
      tessera mig plan 1g.18gb=20,3g.71gb=6 --product H200
      tessera mig plan demand.yaml --product H200=4 --product A30=8 -o json
      tessera mig plan --from-pending --max-nodes 3
      tessera mig plan --from-pending --apply
      tessera mig plan --defragment 3g.71gb=2
      kubectl get nodes -o json > nodes.json
      tessera mig plan 2g.35gb=9 --from nodes.json --keep -o runai

    \b
    Exit code 3: some of the demand is left out. With --apply exit code 1: a node did not take its layout.
    """  # fmt: skip
    if from_pending + (demand is not None) + (defragment is not None) != 1:
        raise click.UsageError(
            "give the demand, in one way: counts such as 2g.20gb=5, a file, --from-pending or --defragment"
        )
    of_cluster = from_pending and not (products or sources or parted)
    how = _how(yes=yes, allowed=apply and of_cluster and output.form == "table") if apply or yes else None
    live = from_pending or defragment is not None
    if not live and (selector or cluster != NO_CLUSTER):
        raise click.UsageError(
            "use -l, --kubeconfig, --context and --as only with --from-pending or --defragment"
        )
    if (max_nodes or max_cards) and (products or not (from_pending or sources)):
        raise click.UsageError("use --max-nodes and --max-cards only with --from-pending or --from")
    configs = config_in(*reversed(read_text(parted))) if parted else None
    if defragment is not None:
        if products or not (output.is_document or output.form == "table"):
            raise click.UsageError("--defragment takes a cluster's cards, and -o table, json or yaml")
        demanded = read_counts(defragment, "--defragment", _MOST_ADVICE)
        _check_known(demanded, "--defragment")
        inventory = defragment_inventory(LabelSelector.parse(selector))
        inventory.mig_manager = configs
        read_inventory(inventory, cluster, sources)
        return print_advice(make_room(demanded, inventory, highs), output)
    ask = partial(Question, objective=Objective(objective), most_nodes=max_nodes, most_cards=max_cards)
    pending = _pending(cluster, sources, selector, since, configs) if from_pending else None
    if pending and not products:
        with whoever_reads() if how and how.yes else nullcontext():
            code, changed = _print_pending(pending, ask, output, fill=not leave_rest)
        applied = apply_plan(changed, cluster, how) if how and changed else ExitCode.DONE
        return applied or code
    wanted = pending.demand.all if pending else _read_demand(demand or "")
    if not wanted and not output.is_document:
        return ExitCode.DONE
    inventory = Inventory(is_any_gpu, mig_manager=configs)
    places, given = node_cards(inventory, sources, keep=keep) if sources and not pending else ([], [])
    if products:
        more = product_cards(products, cards, sum(wanted.values()))
        places.append(NodeCards(None, range(len(given), len(given) + len(more))))
        given += more
    elif not sources:
        raise click.UsageError("no cards given: --product H200 --cards 4, or --from FILE")
    needed = pending.most_wanted() if pending else most_wanted(wanted, {})
    asked = {QueuedProfile(profile): count for profile, count in wanted.items()}
    found = plan(ask(asked, given, places, fill=None if leave_rest else needed), highs)
    if products and cards is None and not any("=" in product for product in products):
        places, found = _needed(places, found)
    changes = _changes(found, places, inventory.mig_manager, needed, max_cards)
    return print_plan(changes, places, output, More(mig_manager=inventory.mig_manager))


def _how(*, yes: bool, allowed: bool) -> ApplyOptions:
    """How a plan is applied; what is planned for other cards, or printed for scripts, is not."""
    if not allowed:
        raise click.UsageError(
            "use --apply and --yes only with --from-pending, the cluster's own cards and -o table"
        )
    how = ApplyOptions(yes=yes)
    how.check("leave --apply out to see the plan")
    return how


def _changes(
    found: Plan,
    places: Sequence[NodeCards],
    configs: MigManagerConfig | None,
    needed: Sequence[MigProfile],
    max_cards: int | None,
) -> PlanChanges:
    existing = configs.document.configs if configs and configs.document else {}
    changes = changes_of(found, places, existing, needed, as_planned=max_cards is not None)
    if changes.new and configs and configs.error:
        warn(f"mig-manager's configurations are not known: {configs.error}")
    return changes


def _pending(
    cluster: ClusterChoice,
    sources: Sequence[str],
    selector: str,
    since: float,
    configs: MigManagerConfig | None,
) -> Pending:
    inventory = pending_inventory(LabelSelector.parse(selector))
    inventory.mig_manager = configs
    read_inventory(inventory, cluster, sources)
    now = time.time()
    pending = Pending(inventory, moment(now - since), now=now)
    warn(*pending.words())
    return pending


def _print_pending(
    pending: Pending, ask: Callable[..., Question], output: Output, *, fill: bool
) -> tuple[ExitCode, Sequence[NodeChange]]:
    """A plan for the cluster's own cards; nodes that have nothing to do with it are left out of it. The exit code, and what changes."""
    if not pending.demand.all and not output.is_document:
        return ExitCode.DONE, ()
    cards = pending.cards()
    warn(*cards.skipped)
    if pending.demand.all and not cards.cards:
        raise InvalidInput("no node has cards that could be cut; give cards: --product H200 --cards 4")
    warn(*explain_waiting(pending.waiting))
    if not pending.waiting.wanted and output.form == "table":
        echo(["no layout is needed"])
        return ExitCode.DONE, ()
    needed = pending.most_wanted()
    question = ask(pending.waiting.wanted, cards.cards, cards.places, fill=needed if fill else None)
    found = plan(question, highs)
    changes = _changes(found, cards.places, pending.mig_manager, needed, question.most_cards)
    found = changes.plan
    used = set(found.nodes)
    places = [place for place in cards.places if place.name in used]
    outcome = pending.after(found, places)
    fields = {
        "cost": {"nodes": found.nodes, "cards": changes.cards, "podsToEnd": []},
        "asked": demand_document(pending.demand),
        "waiting": {
            **waiting_document(pending.waiting, outcome),
            "blocked": blocked_document(pending.blocked),
        },
    }
    more = More(explain_outcome(outcome), fields, pending.mig_manager)
    return print_plan(changes, places, output, more), changes.nodes


def _read_demand(argument: str) -> dict[MigProfile, int]:
    where, text = read_text(argument)
    if looks_like_counts(text):
        found = read_counts(text, where, _MOST_DEMAND)
    else:
        document = yaml.load(text, where)
        if not isinstance(document, dict):
            raise InvalidInput(f"{where}: expected counts such as 2g.20gb=5,3g.40gb=2, or a map of them")
        counts = {name: count if isinstance(count, str) else shown(count) for name, count in document.items()}
        found = counts_of([f"{name}={count}" for name, count in counts.items()], where, _MOST_DEMAND)
    _check_known(found, where)
    if not found:
        warn("the demand is empty: no layout is needed")
    return found


def _check_known(demand: Iterable[MigProfile], where: str) -> None:
    """Refuse profiles that no known product has."""
    known = {profile for product in PRODUCTS for profile in product.profiles}
    if unknown := [str(profile) for profile in demand if profile not in known]:
        names = ", ".join(unknown)
        raise InvalidInput(f"{where}: no known card has {names}; `tessera mig products` lists the profiles")


def _needed(places: list[NodeCards], found: Plan) -> tuple[list[NodeCards], Plan]:
    """The plan without the cards at its end that were not counted and are not needed."""
    start = places[-1].cards.start
    count = max((number + 1 for number in found.used if number >= start), default=start)
    trimmed = replace(
        found, cards=found.cards[:count], kept=found.kept[:count], present=found.present[:count]
    )
    return [*places[:-1], NodeCards(None, range(start, count))], trimmed
