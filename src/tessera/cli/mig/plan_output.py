"""What `tessera mig plan` prints: a plan as a table, a document or the layouts to apply; and the advice of `--defragment`."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tessera.cli.common.output import Output, table, warn
from tessera.core.kubernetes.resources import short
from tessera.core.mig.layout import NodeLayout, entries_of, named_cards
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.demand import Demand
from tessera.core.planning.kinds import NodeCards
from tessera.core.planning.planner import Plan
from tessera.core.planning.summary import explain_advice, explain_plan
from tessera.core.planning.waiting import Group, PlanEffect, Waiting
from tessera.core.text import first_of
from tessera.inventory.defragment import Defragmentation, Move
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.documents import convert

_SHOWN: Final = 3  # cards, of many


@dataclass(frozen=True, slots=True)
class More:
    """What is printed beside the plan: sentences, and fields of the document."""

    sentences: Sequence[str] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)


NO_MORE: Final = More()


def print_plan(plan: Plan, places: Sequence[NodeCards], output: Output, more: More = NO_MORE) -> int:
    """Print a plan as it was asked for; exit code 1 when it leaves some of the demand out."""
    places = [place for place in places if place.cards]
    output.show(lambda: _document(plan, places, more), lambda _: DRAWN[output.form](plan, places, more))
    return int(bool(plan.left_out))


def _table(plan: Plan, places: Sequence[NodeCards], more: More) -> Iterable[str]:
    rows: list[tuple[str, ...]] = []
    for place in places:
        alike: dict[tuple[str, str], list[int]] = {}
        for number in place.cards:
            row = (plan.cards[number].product.short_name, _devices(plan, number))
            alike.setdefault(row, []).append(number - place.cards.start)
        for row, numbers in alike.items():
            cards = named_cards(numbers).removeprefix("cards ").removeprefix("card ")
            rows.append((place.name or "", cards, *row))
    heading: tuple[str, ...] = ("NODE", "CARDS", "PRODUCT", "DEVICES")
    if not any(place.name for place in places):
        heading, rows = heading[1:], [row[1:] for row in rows]
    sentences = [*explain_plan(plan), *more.sentences]
    return [*sentences, "", *table([heading, *rows])] if rows else sentences


def _devices(plan: Plan, number: int) -> str:
    kept = Counter(instance.profile for instance in plan.kept[number])
    new = Counter(instance.profile for instance in plan.cards[number].instances) - kept
    texts = [f"{profile} ×{kept[profile]} (stays)" for profile in sorted(kept)]
    return " + ".join(texts + [f"{profile} ×{new[profile]}" for profile in sorted(new)]) or "-"


def _document(plan: Plan, places: Sequence[NodeCards], more: More) -> dict[str, Any]:
    return {
        "demand": _counts(plan.demand),
        "served": _counts(plan.served),
        "leftOut": _counts(plan.left_out),
        "objective": plan.objective.value,
        "optimal": plan.optimal,
        "gap": plan.gaps[0],
        "explanation": [*explain_plan(plan), *more.sentences],
        "cost": {"nodes": plan.nodes, "cards": len(plan.used)},
        **more.fields,
        "cards": [_card(plan, place, number) for place in places for number in place.cards],
    }


def _card(plan: Plan, place: NodeCards, number: int) -> dict[str, Any]:
    layout = plan.cards[number]
    return {
        **({"node": place.name} if place.name else {}),
        "card": number - place.cards.start,
        "product": layout.product.name,
        "migEnabled": layout.mig_enabled,
        "devices": [
            {
                "profile": str(instance.profile),
                "position": instance.position,
                "size": instance.size,
                **({"stays": True} if instance in plan.kept[number] else {}),
            }
            for instance in layout.instances
        ],
    }


def demand_document(demand: Demand) -> dict[str, Any]:
    """Where a demand comes from."""
    return {
        "waiting": _counts(demand.waiting),
        "fellBack": _counts(demand.fell_back),
        "rejected": _counts(demand.rejected),
    }


def waiting_document(waiting: Waiting, outcome: PlanEffect) -> dict[str, Any]:
    return {
        "onFreeDevices": [_group(group) for group in waiting.free if group.waits],
        "notHelped": [{**_group(group), "reason": reason} for group, reason in waiting.hopeless],
        "placed": [_group(group) for group in outcome.placed],
        "stillWaiting": [_group(group) for group in outcome.still_waiting],
    }


def _group(group: Group) -> dict[str, Any]:
    devices = {str(profile): count * len(group.names) for profile, count in group.devices.items()}
    return {"devices": devices, "pods": group.names, **({"rejected": True} if group.rejected else {})}


def _counts(counts: Mapping[MigProfile, int]) -> dict[str, int]:
    return {str(profile): count for profile, count in counts.items()}


def _runai(plan: Plan, places: Sequence[NodeCards], _: More) -> Iterable[str]:
    """One annotation for each node."""
    for number, place in enumerate(places):
        if number:
            yield "---"
        if place.name:
            yield f"# node {place.name}"
        yield mig.write(_layouts(plan, [place], mig.SELECTED)).rstrip("\n")


def _parted(plan: Plan, places: Sequence[NodeCards], _: More) -> Iterable[str]:
    """One file with a configuration for each node, named after it."""
    return [mig.write(convert(_layouts(plan, places), mig.Format.MIG_PARTED).document).rstrip("\n")]


def _layouts(plan: Plan, places: Sequence[NodeCards], name: str | None = None) -> mig.MigDocument:
    layouts = [NodeLayout(tuple(plan.cards[number] for number in place.cards)) for place in places]
    names = [name or place.name or mig.SELECTED for place in places]
    return mig.MigDocument(mig.Format.RUNAI, dict(zip(names, map(entries_of, layouts), strict=True)))


DRAWN: Final[dict[str, Callable[[Plan, Sequence[NodeCards], More], Iterable[str]]]] = {
    "table": _table,
    "runai": _runai,
    "mig-parted": _parted,
}


def print_advice(found: Defragmentation, output: Output) -> int:
    """Name the pods whose end makes room; exit code 1 when there is no room even if every pod ends."""
    warn(*found.skipped)
    if found.moves:
        warn("which devices each pod holds is not known: assuming that pods are on as few cards as possible")
    output.show(lambda: _advice_document(found), lambda _: _advice_lines(found))
    return int(bool(found.advice.left_out))


def _advice_lines(found: Defragmentation) -> list[str]:
    rows: list[tuple[str, ...]] = [("NODE", "CARD", "POD", "HOLDS", "COULD MOVE TO")]
    rows += [(move.node, str(move.card), move.pod, _holds(move), move.to or "-") for move in found.moves]
    places = [found.places[one.card] for one in found.advice.cleared]
    cards = first_of([f"{node} card {number}" for node, number in places], _SHOWN)
    lines = [*explain_advice(found.advice), *([f"on {cards}"] if cards else [])]
    return [*lines, "", *table(rows)] if found.moves else lines


def _holds(move: Move) -> str:
    return " + ".join(f"{short(resource)} ×{number}" for resource, number in move.holds.items())


def _advice_document(found: Defragmentation) -> dict[str, Any]:
    advice = found.advice
    return {
        "demand": _counts(advice.wanted),
        "served": _counts(advice.served),
        "leftOut": _counts(advice.left_out),
        "optimal": not any(advice.gaps[:2]),
        "explanation": explain_advice(advice),
        "pods": [
            {"pod": one.pod, "node": one.node, "card": one.card, "holds": one.holds, "couldMoveTo": one.to}
            for one in found.moves
        ],
        "cards": [
            {
                "node": found.places[one.card][0],
                "card": found.places[one.card][1],
                "product": found.cards[one.card].layout.product.name,
                "room": _counts(one.room),
                "pods": one.pods,
            }
            for one in advice.cleared
        ],
    }
