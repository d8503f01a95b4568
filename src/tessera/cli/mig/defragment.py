"""`tessera mig defragment`: the fewest pods whose end, or move, makes room for a demand. Advice only."""

from typing import Any, Final

import click

from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.help import Command
from tessera.cli.common.options import ClusterChoice, cluster_options, selector_option
from tessera.cli.common.output import Output, output_option, table, warn
from tessera.cli.common.reading import files_option, mig_parted_option, read_inventory
from tessera.cli.mig.planning import demand_argument, read_demand
from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.core.planning.changes import profile_counts
from tessera.core.planning.summary import explain_advice
from tessera.core.resources import short
from tessera.core.text import first_of
from tessera.inventory.defragment import Defragmentation, PodMove, defragment_inventory, make_room
from tessera.protocol.mig.operator import MigManagerConfig
from tessera.solver import highs

_MOST_ADVICE: Final = 999  # of one profile: advice beyond that is too long to follow
_MOST_CARDS: Final = 3  # cards, of many


@click.command("defragment", cls=Command)
@demand_argument
@files_option(group="Cards")
@selector_option("Only nodes with such labels.", group="Cards")
@mig_parted_option(group="Cards")
@output_option("table")
@cluster_options
def command(
    demand: str,
    sources: tuple[str, ...],
    selector: str,
    mig_manager: MigManagerConfig | None,
    output: Output,
    cluster: ClusterChoice,
) -> ExitCode:
    """Name the pods that must end, or move, to make room for a demand: the fewest possible.

    For each pod it names another node that could take it and has all its requests free. Room that exists already, on free
    or differently cut cards, counts and costs no pod. This is advice: nothing changes.

    \b
    Examples:
      tessera mig defragment 3g.71gb=2
      tessera mig defragment 7g.141gb=1 -l pool=training

    \b
    Exit code 3: there is not that much room, even if every pod ended.
    """
    wanted = read_demand(demand, 0.0, _MOST_ADVICE)
    inventory = defragment_inventory(LabelSelector.parse(selector))
    inventory.mig_manager = mig_manager
    read_inventory(inventory, cluster, sources)
    return _print_advice(make_room(wanted, inventory, highs), output)


def _print_advice(room: Defragmentation, output: Output) -> ExitCode:
    """Name the pods whose end makes room. The answer is no when there is no room even if every pod ends."""
    warn(*room.skipped)
    if any(move.card is not None for move in room.moves):
        warn("which devices each pod holds is not known: assuming that pods are on as few cards as possible")
    if any(card.bundle for card in room.cards):
        warn(
            "mig-manager cuts whole cards, and on which cards pods are is not known: a card counts as free only when no pod can be on it"
        )
    output.show(lambda: _advice_document(room), lambda _: _advice_lines(room))
    return ExitCode.NO if room.advice.left_out else ExitCode.DONE


def _advice_lines(room: Defragmentation) -> list[str]:
    rows: list[tuple[str, ...]] = [("NODE", "CARD", "POD", "HOLDS", "COULD MOVE TO")]
    rows += [
        (move.node, "?" if move.card is None else str(move.card), move.pod, _holds(move), move.to or "-")
        for move in room.moves
    ]
    places = [room.places[card.card] for card in room.advice.cleared]
    cards = first_of([f"{node} card {number}" for node, number in places], _MOST_CARDS)
    lines = [*explain_advice(room.advice), *([f"on {cards}"] if cards else [])]
    return [*lines, "", *table(rows)] if room.moves else lines


def _holds(move: PodMove) -> str:
    return " + ".join(f"{short(resource)} ×{number}" for resource, number in move.holds.items())


def _advice_document(room: Defragmentation) -> dict[str, Any]:
    advice = room.advice
    return {
        "demand": profile_counts(advice.wanted),
        "served": profile_counts(advice.served),
        "leftOut": profile_counts(advice.left_out),
        "optimal": not any(advice.gaps[:2]),
        "explanation": explain_advice(advice),
        "pods": [
            {
                "pod": move.pod,
                "node": move.node,
                "card": move.card,
                "holds": move.holds,
                "couldMoveTo": move.to,
            }
            for move in room.moves
        ],
        "cards": [
            {
                "node": room.places[card.card][0],
                "card": room.places[card.card][1],
                "product": room.cards[card.card].layout.product.name,
                "room": profile_counts(card.room),
                "pods": card.pods,
            }
            for card in advice.cleared
        ],
    }
