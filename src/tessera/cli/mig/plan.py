"""`tessera mig plan`: how to cut cards for a demand."""

from dataclasses import replace
from typing import Final

import click

from tessera.cli.common import completing
from tessera.cli.common.cluster import ClusterChoice, cluster_options
from tessera.cli.common.duration import Duration
from tessera.cli.mig.plan_output import OUTPUTS, Place, write_plan
from tessera.cli.mig.sources import read_text
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.resources import is_any_gpu
from tessera.core.mig.layout import NodeLayout, resolve
from tessera.core.mig.product import product_named
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.planner import Card, Objective, Plan, plan
from tessera.inventory.inventory import Inventory
from tessera.inventory.pending import Pending, passed, uncut
from tessera.kube.object_files import called, objects_in
from tessera.protocol import yaml
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.counts import looks_like_counts, read_counts
from tessera.protocol.mig.nodes import GpuNode

_MOST_DEMAND: Final = 9999  # of one profile: a plan beyond that nobody reads


@click.command("plan")
@click.argument("demand", metavar="[COUNTS|FILE]", required=False, shell_complete=completing.files)
@click.option(
    "--product",
    "products",
    multiple=True,
    metavar="NAME[=N]",
    shell_complete=completing.names(completing.product_names),
    help="The cards' product, and how many there are. Repeatable.",
)
@click.option(
    "--cards",
    type=click.IntRange(1, 1024),
    show_default="as many as are needed",
    help="How many cards there are of the one product.",
)
@click.option(
    "--nodes",
    "node_files",
    multiple=True,
    metavar="FILE",
    shell_complete=completing.files,
    help="Take the cards of these Node objects, as their labels tell them; others are passed over. Repeatable.",
)
@click.option(
    "--keep",
    is_flag=True,
    help="With --nodes: the devices of the nodes' present layouts stay, and serve others.",
)
@click.option(
    "--from-pending",
    is_flag=True,
    help="Take the demand from pods that wait for a node, and from those that fell back to something else.",
)
@click.option(
    "--since",
    type=Duration(),
    default="24h",
    show_default=True,
    help="With --from-pending: count fallbacks of pods that were made within that time.",
)
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="DIR|FILE",
    shell_complete=completing.files,
    help="With --from-pending: nodes and pods saved with kubectl, instead of a cluster. Repeatable.",
)
@click.option(
    "-l",
    "--selector",
    default="",
    metavar="SELECTOR",
    help="With --from-pending: only nodes with such labels.",
)
@click.option(
    "--objective",
    type=click.Choice([o.value for o in Objective]),
    default="devices",
    show_default=True,
    help="What counts where not all of it fits.",
)
@click.option("-o", "--output", type=click.Choice(list(OUTPUTS)), default="table", show_default=True)
@cluster_options
def command(
    demand: str | None,
    products: tuple[str, ...],
    cards: int | None,
    node_files: tuple[str, ...],
    keep: bool,
    from_pending: bool,
    since: float,
    sources: tuple[str, ...],
    selector: str,
    objective: str,
    output: str,
    cluster: ClusterChoice,
) -> int:
    """Plan how to cut cards, so that they serve a demand on the fewest of them, or the most of it.

    The demand is counts of profiles, as an argument or in a file, or what a cluster's pods wait for. Cards that hold
    devices already are filled before empty ones are cut. The plan is the best there is, unless it says otherwise.

    With --from-pending the cards are the cluster's, unless --product or --nodes says otherwise. Cards of nodes where no
    pod holds a GPU are cut anew; elsewhere every device stays, since only the node knows which ones are in use.

    \b
    tessera mig plan 2g.20gb=5,3g.30gb=2 --product H200-70GB --cards 4
    tessera mig plan 1g.18gb=20,3g.71gb=6 --product H200
    tessera mig plan demand.yaml --product H200=4 --product A30=8 -o json
    tessera mig plan --from-pending
    kubectl get nodes -o json > nodes.json
    tessera mig plan 2g.35gb=9 --nodes nodes.json --keep -o runai

    \b
    Exit codes: 0 all of it is served, 1 some is left out, 2 bad input.
    """  # fmt: skip
    if from_pending == (demand is not None):
        raise click.UsageError("say what is wanted: counts such as 2g.20gb=5, a file, or --from-pending")
    if not from_pending and (sources or selector or cluster != ClusterChoice()):
        raise click.UsageError("--from, -l, --kubeconfig and --context go with --from-pending")
    pending = Pending.read(cluster, sources, selector, since) if from_pending else None
    wanted = pending.demand.all if pending else _read_demand(demand or "")
    if pending:
        for line in pending.words():
            click.echo(line, err=True)
        if not wanted:
            return 0
    places, given = _node_cards(node_files, keep=keep) if node_files else ([], [])
    if products:
        more = _product_cards(products, cards, sum(wanted.values()))
        places.append(Place(None, range(len(given), len(given) + len(more))))
        given += more
    elif pending and not node_files:
        return _print_pending(pending, wanted, Objective(objective), output)
    elif not node_files:
        raise click.UsageError("say which cards there are: --product H200 --cards 4, or --nodes FILE")
    found = plan(wanted, given, Objective(objective))
    if products and cards is None and not any("=" in product for product in products):
        places, found = _needed(places, found)
    return _print(found, places, output)


def _print(found: Plan, places: list[Place], output: str) -> int:
    for line in write_plan(found, places, output):
        click.echo(line)
    return int(bool(found.left_out))


def _print_pending(pending: Pending, wanted: dict[MigProfile, int], objective: Objective, output: str) -> int:
    """A plan for the cluster's own cards; nodes that have nothing to do with it are left out of it."""
    cards = pending.cards()
    for line in cards.passed_over:
        click.echo(line, err=True)
    if not cards.cards:
        raise InvalidInput(
            "no node has cards that could be cut; say which cards there are: --product H200 --cards 4"
        )
    found = cards.undisturbed(plan(wanted, cards.cards, objective))
    places = [place for place in cards.places if any(number in found.used for number in place.cards)]
    return _print(found, places, output)


def _read_demand(argument: str) -> dict[MigProfile, int]:
    where, text = read_text(argument)
    if looks_like_counts(text):
        return read_counts(text, where, _MOST_DEMAND)
    document = yaml.load(text, where)
    if not isinstance(document, dict):
        raise InvalidInput(f"{where}: expected counts such as 2g.20gb=5,3g.30gb=2, or a map of them")
    return read_counts(" ".join(f"{name}={count}" for name, count in document.items()), where, _MOST_DEMAND)


def _product_cards(products: tuple[str, ...], cards: int | None, enough: int) -> list[Card]:
    found: list[Card] = []
    for text in products:
        name, separator, number = text.partition("=")
        if separator and not (number.isascii() and number.isdigit() and 0 < int(number[:9]) <= 1024):
            raise InvalidInput(
                f"--product {text}: expected a number of cards from 1 to 1024, such as {name}=4"
            )
        if not separator and len(products) > 1:
            raise InvalidInput(f"--product {text}: with several products say how many of each: {text}=4")
        if separator and cards is not None:
            raise InvalidInput(f"--product {text} and --cards {cards}: say the number once")
        found += [Card(product_named(name))] * (int(number) if separator else cards or enough)
    return found


def _node_cards(files: tuple[str, ...], *, keep: bool) -> tuple[list[Place], list[Card]]:
    """The cards of nodes; those of which nothing is known are passed over, and that is told."""
    places: list[Place] = []
    cards: list[Card] = []
    passed_over = []
    for file in files:
        inventory = Inventory(is_any_gpu)
        inventory.take(objects_in([file]))
        for node in inventory.gpus.values():
            if not node.label:
                continue
            try:
                layout = _node_layout(node, keep=keep)
            except InvalidInput as error:
                passed_over.append(passed(node.name, str(error)))
                continue
            places.append(Place(node.name, range(len(cards), len(cards) + len(layout.cards))))
            cards += [Card(card.product, card.instances) for card in layout.cards]
    for line in passed_over:
        click.echo(line, err=True)
    if not cards:
        why = "no node has cards that could be cut" if passed_over else "no node with GPUs"
        raise InvalidInput(f"{called(*files)}: {why}")
    return places, cards


def _node_layout(node: GpuNode, *, keep: bool) -> NodeLayout:
    layout = uncut(node)
    if not keep or not node.layout:
        return layout
    wanted = mig.read(node.layout, mig.RUNAI_CONFIG).select()
    return resolve(wanted, [card.product for card in layout.cards])


def _needed(places: list[Place], found: Plan) -> tuple[list[Place], Plan]:
    """The plan without the cards at its end that nobody counted and nobody needs."""
    start = places[-1].cards.start
    count = max((number + 1 for number in found.used if number >= start), default=start)
    trimmed = replace(found, cards=found.cards[:count], kept=found.kept[:count])
    return [*places[:-1], Place(None, range(start, count))], trimmed
