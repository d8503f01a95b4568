"""`tessera mig plan --defragment`: whose end would make room."""

from collections.abc import Callable
from typing import Any, Final

import click

from tessera.cli.common.output import Output
from tessera.cli.common.terminal import table
from tessera.core.kubernetes.resources import short
from tessera.core.planning.summary import explain_advice
from tessera.core.text import first_of
from tessera.inventory.defragment import Defragmentation, Move, make_room
from tessera.inventory.inventory import Inventory
from tessera.protocol.mig.entries import read_counts
from tessera.solver import highs

_MOST: Final = 999  # of one profile: advice beyond that is too long to follow
_SHOWN: Final = 3  # cards, of many


def print_advice(counts: str, inventory: Inventory, read: Callable[[Inventory], None], output: Output) -> int:
    """Read a cluster, and say whose end makes room; exit code 1 when there is none, even if every pod ended."""
    wanted = read_counts(counts, "--defragment", _MOST)
    read(inventory)
    found = make_room(wanted, inventory, highs)
    for line in found.skipped:
        click.echo(line, err=True)
    if found.moves:
        click.echo(
            "which devices each pod holds is not known: assuming that pods are on as few cards as possible",
            err=True,
        )
    if output.is_document:
        output.print(_document(found))
    else:
        for line in _lines(found):
            click.echo(line)
    return int(bool(found.advice.left_out))


def _lines(found: Defragmentation) -> list[str]:
    rows: list[tuple[str, ...]] = [("NODE", "CARD", "POD", "HOLDS", "COULD MOVE TO")]
    rows += [(move.node, str(move.card), move.pod, _holds(move), move.to or "-") for move in found.moves]
    cards = [
        f"{node} card {number}" for node, number in (found.places[one.card] for one in found.advice.cleared)
    ]
    where = [f"on {first_of(cards, _SHOWN)}"]
    return [*explain_advice(found.advice), *where * bool(cards), *(["", *table(rows)] if found.moves else [])]


def _holds(move: Move) -> str:
    return " + ".join(f"{short(resource)} ×{number}" for resource, number in move.holds.items())


def _document(found: Defragmentation) -> dict[str, Any]:
    advice = found.advice
    return {
        "demand": {str(profile): count for profile, count in advice.wanted.items()},
        "served": {str(profile): count for profile, count in advice.served.items()},
        "leftOut": {str(profile): count for profile, count in advice.left_out.items()},
        "optimal": not any(advice.gaps[:2]),
        "explanation": explain_advice(advice),
        "pods": [
            {
                "pod": one.pod,
                "node": one.node,
                "card": one.card,
                "holds": dict(one.holds),
                "couldMoveTo": one.to,
            }
            for one in found.moves
        ],
        "cards": [
            {
                "node": found.places[one.card][0],
                "card": found.places[one.card][1],
                "product": found.cards[one.card].layout.product.name,
                "room": {str(profile): count for profile, count in one.room.items()},
                "pods": list(one.pods),
            }
            for one in advice.cleared
        ],
    }
