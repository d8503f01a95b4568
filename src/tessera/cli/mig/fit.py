"""`tessera mig fit`: how to cut the fewest cards for a demand. The cards are of products, or of nodes in files."""

from dataclasses import replace
from typing import Final

import click

from tessera.cli.common import completing
from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.help import Command
from tessera.cli.common.options import option
from tessera.cli.common.output import Output, output_option, warn
from tessera.cli.mig.plan_output import DRAWN, More, print_plan
from tessera.cli.mig.planning import PlanLimits, demand_argument, plan_options, read_demand
from tessera.cli.mig.sources import cards_option
from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import product_named
from tessera.core.mig.known import KnownLayout, UnknownLayout
from tessera.core.planning.demand import most_wanted
from tessera.core.planning.kinds import CardToCut, NodeCards, QueuedProfile, card_of
from tessera.core.planning.planner import Plan
from tessera.core.resources import is_any_gpu
from tessera.inventory.inventory import Inventory
from tessera.inventory.pending import skipped_nodes, uncut, way_of
from tessera.kube.object_files import called, objects_in
from tessera.protocol.mig.nodes import GpuNode

_MOST_DEMAND: Final = 9999  # of one profile: a plan beyond that is too long to read
_DAY: Final = 86400.0  # seconds: fallbacks of saved pods count this long, as for `mig plan`


@click.command("fit", cls=Command)
@demand_argument
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
    "--from DIR|FILE",
    "The cards of nodes saved with kubectl; - is standard input. Repeatable.",
    "sources",
    multiple=True,
    group="Cards",
)
@option(
    "--keep",
    "With --from: keep the devices of the nodes' present layouts, and cut only what is free next to them.",
    group="Cards",
)
@plan_options
@output_option(*DRAWN)
def command(
    demand: str,
    products: tuple[str, ...],
    cards: int | None,
    sources: tuple[str, ...],
    keep: bool,
    limits: PlanLimits,
    output: Output,
) -> ExitCode:
    """Fit a demand on the fewest cards, or as much of it as possible.

    The demand is counts of profiles, as an argument or in a file, or what the pods in a file wait for. The cards are those
    of a product, or of saved nodes: cards that hold devices already are filled before empty ones are cut. The plan is the best
    there is, unless it says otherwise. `tessera mig plan` plans for the pods of a cluster, on its own cards.

    \b
    Examples:
      tessera mig fit 2g.20gb=5,3g.40gb=2 --product A100-80GB --cards 4
      tessera mig fit 1g.18gb=20,3g.71gb=6 --product H200
      tessera mig fit demand.yaml --product H200=4 --product A30=8 -o json
      kubectl get pods -A -o json | tessera mig fit - --product H200
      kubectl get nodes -o json > nodes.json
      tessera mig fit 2g.35gb=9 --from nodes.json --keep -o runai

    \b
    Exit code 3: some of the demand is left out.
    """  # fmt: skip
    if bool(products) == bool(sources):
        raise click.UsageError("give the cards in one way: --product H200 --cards 4, or --from FILE")
    if products and (keep or limits.max_nodes or limits.max_cards or limits.mig_manager):
        raise click.UsageError("use --keep, --max-nodes, --max-cards and --mig-parted only with --from")
    if sources and cards:
        raise click.UsageError("use --cards only with --product")
    if products and output.form == "operator":
        raise click.UsageError(
            "-o operator prints commands for nodes: use it with --from, not with --product"
        )
    wanted = read_demand(demand, _DAY, _MOST_DEMAND)
    if not wanted and not output.is_document:
        return ExitCode.DONE
    inventory = Inventory(is_any_gpu, mig_manager=limits.mig_manager)
    if products:
        usable = _product_cards(products, cards, sum(wanted.values()))
        places = [NodeCards(None, range(len(usable)))]
    else:
        places, usable = _node_cards(inventory, sources, keep=keep)
    needed = most_wanted(wanted, {})
    asked = {QueuedProfile(profile): count for profile, count in wanted.items()}
    solution = limits.solve(asked, usable, places, needed)
    if products and cards is None and not any("=" in product for product in products):
        places, solution = _trim_unused(solution)
    changes = limits.changes(solution, places, inventory.mig_manager, needed)
    return print_plan(changes, places, output, More(mig_manager=inventory.mig_manager))


def _product_cards(products: tuple[str, ...], cards: int | None, enough: int) -> list[CardToCut]:
    """Cards of products that were named, each with a number; without a number as many as are enough."""
    usable: list[CardToCut] = []
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
        usable += [CardToCut(product_named(name))] * (int(number) if separator else cards or enough)
    return usable


def _node_cards(
    inventory: Inventory, files: tuple[str, ...], *, keep: bool
) -> tuple[list[NodeCards], list[CardToCut]]:
    """The cards of nodes; nodes with unknown cards are skipped, with a warning, and to keep devices, those with unknown layouts."""
    places: list[NodeCards] = []
    usable: list[CardToCut] = []
    skipped: dict[str, list[str]] = {}
    inventory.take(objects_in(files))
    for node in inventory.gpus.values():
        if not node.label:
            continue
        try:
            cards = _cards(node, inventory.known(node.name), keep=keep)
        except InvalidInput as error:
            skipped.setdefault(str(error), []).append(node.name)
            continue
        places.append(NodeCards(node.name, range(len(usable), len(usable) + len(cards)), way=way_of(node)))
        usable += cards
    warn(*skipped_nodes(skipped))
    if not usable:
        why = "no node has cards that could be cut" if skipped else "no node with GPUs"
        raise InvalidInput(f"{called(*files)}: {why}")
    return places, usable


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


def _trim_unused(solution: Plan) -> tuple[list[NodeCards], Plan]:
    """The plan without the cards at its end that were not counted and are not needed."""
    count = max((number + 1 for number in solution.used), default=0)
    trimmed = replace(
        solution,
        cards=solution.cards[:count],
        kept=solution.kept[:count],
        present=solution.present[:count],
    )
    return [NodeCards(None, range(count))], trimmed
