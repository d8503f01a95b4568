"""Layouts that would make a pod run: those that the planner proposes, and why it proposes none for some nodes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from tessera.core.devices.capacity import PodUse
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.pod import Amounts, Pod
from tessera.core.kubernetes.quantity import ZERO
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement
from tessera.core.mig.known import KnownLayout, LayoutSource, UnknownLayout
from tessera.core.mig.layout import CardLayout, NodeLayout
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.kinds import NodeCards
from tessera.core.planning.planner import Plan, Question, plan
from tessera.core.planning.program import Solver
from tessera.core.text import first_of
from tessera.diagnosis.evidence import Evidence
from tessera.diagnosis.node_remedies import MOST_NAMED, asks_about, some_end
from tessera.diagnosis.nodes import (
    PodRequest,
    gpus_of,
    why_closed,
)
from tessera.diagnosis.remedy import (
    NodeOffers,
    PodsEnd,
    Remedy,
)
from tessera.inventory.defragment import Defragmentation, make_room
from tessera.inventory.pending import Pending


def by_layout(seen: Evidence, pod: Pod, use: PodUse, solve: Solver) -> Iterator[Remedy]:
    """A layout that the planner proposes for this pod alone, beside everything that pods hold; else with pods that end."""
    profiles = _profiles_of(gpus_of(use.amounts))
    if not profiles or seen.unseen.keys() & {"nodes", "pods"}:
        return
    closed = {name for name, one in seen.nodes.by_name.items() if why_closed(pod, one.node)}
    waiting = replace(use, node="", record="", where=_elsewhere(pod, closed))
    pending = Pending(replace(seen.inventory, pods=[waiting]), "9")
    cards = pending.cards()
    if pending.waiting.wanted and cards.cards:
        found = plan(Question(pending.waiting.wanted, cards.cards, cards.places), solve)
        places = [place for place in cards.places if place.name in found.nodes]
        if pending.after(found, places).placed:
            for place in places:
                changed = [n for n in place.cards if found.cards[n] != found.present[n]]
                cut = "; ".join(f"card {n - place.cards.start}: {_cut(found.cards[n])}" for n in changed)
                text = f"node {place.name} is re-cut ({cut}{_known_from(seen, place)}); pods that run keep what they hold"
                form = "operator" if seen.inventory.gpus[place.name or ""].by_mig_manager else "runai"
                kept, command = _by(seen, place.name or "", f"tessera mig plan --from-pending -o {form}")
                yield Remedy(
                    "layout",
                    text + kept,
                    (command,),
                    (_offers(seen, place, found),),
                )
            return
    if not pending.waiting.to_plan:
        return
    usable = {name: gpus for name, gpus in seen.inventory.gpus.items() if name not in closed}
    try:
        room = make_room(profiles, replace(seen.inventory, gpus=usable), solve)
    except InvalidInput:
        return
    if room.moves and (node := _room_on(seen, room, use.amounts)):
        one = seen.nodes.by_name[node]
        freed = sum((Counter(move.holds) for move in room.moves), Counter[str]())
        if all(one.free(p.resource) + freed[p.resource] >= number for p, number in profiles.items()):
            return  # they hold the very devices that are asked for: no cut is needed, `on_nodes` names them
        names = first_of([f"{move.pod} on {move.node}" for move in room.moves], MOST_NAMED)
        asked = ",".join(f"{profile}={number}" for profile, number in profiles.items())
        ends = PodsEnd(tuple(move.pod for move in room.moves))
        counts = {p.resource: one.in_use(p.resource) + number for p, number in profiles.items()}
        kept, command = _by(seen, node, f"tessera mig plan --defragment {asked}")
        yield Remedy(
            "layout",
            f"{some_end(len(room.moves))} ({names}), and the node is re-cut{kept}",
            (command,),
            (ends, NodeOffers(node, counts)),
        )


def _by(seen: Evidence, node: str, command: str) -> tuple[str, str]:
    """Who re-cuts a node, in words where that is a MigLayout, and what to type: `mig apply` refuses what a MigLayout keeps."""
    keeper = seen.inventory.keeper(node)
    return (f"; MigLayout {keeper} keeps its layout", asks_about(keeper)) if keeper else ("", command)


def _known_from(seen: Evidence, place: NodeCards) -> str:
    """Where it is known from how a node is cut now, unless its annotations say so."""
    known = seen.inventory.known(place.name or "")
    by_annotation = (LayoutSource.MAPPING, LayoutSource.ANNOTATION)
    if isinstance(known, UnknownLayout) or known.source in by_annotation:
        return ""
    return f"; its present layout is known from: {known.source}"


def unknown_layouts(seen: Evidence, request: PodRequest) -> dict[str, str]:
    """The nodes that could be cut for a pod if it were known how they are cut, and why it is not: as what was not seen."""
    if not _profiles_of(gpus_of(request.choices[0])):
        return {}
    reasons: dict[str, list[str]] = {}
    for name, gpus in seen.inventory.gpus.items():
        node = seen.inventory.capacity[name]
        takes_layouts = (
            gpus.product and gpus.product.shapes and not seen.inventory.dra.pools.is_cut_on_demand(node)
        )
        if takes_layouts and not why_closed(request.pod, node):
            known = seen.inventory.known(name)
            if isinstance(known, UnknownLayout):
                reasons.setdefault(known.reason, []).append(name)
    return {
        f"how node{'s' * (len(names) > 1)} {first_of(names, MOST_NAMED)} {'are' if len(names) > 1 else 'is'} cut": why
        for why, names in reasons.items()
    }


def _offers(seen: Evidence, place: NodeCards, found: Plan) -> NodeOffers:
    """What a node offers once its cards are cut as planned."""
    name = place.name or ""
    known = seen.inventory.known(name)
    plain = isinstance(known, KnownLayout) and known.layout.plain
    cut = NodeLayout(tuple(found.cards[n] for n in place.cards), changing=True, plain=plain)
    resources = cut.resources(seen.inventory.gpus[name].strategy)
    return NodeOffers(name, {**dict.fromkeys(seen.nodes.by_name[name].has, 0), **resources})


def _elsewhere(pod: Pod, closed: Iterable[str]) -> Pod:
    """The pod, kept away from nodes that do not take it today."""
    names = Requirement("metadata.name", "NotIn", tuple(sorted(closed)))
    terms = (NodeSelectorTerm(),) if pod.required_terms is None else pod.required_terms
    return replace(pod, required_terms=tuple(replace(one, fields=(*one.fields, names)) for one in terms))


def _room_on(seen: Evidence, room: Defragmentation, asks: Amounts) -> str:
    """The one node on which all the room is made and on which the pod has all else; empty where there is none."""
    nodes = {room.places[one.card][0] for one in room.advice.cleared}
    if len(nodes) != 1 or room.advice.left_out:
        return ""
    (name,) = nodes
    ending = [one for one in seen.inventory.pods if f"{one.namespace}/{one.name}" in set(room.advice.pods)]
    usage = seen.inventory.capacity.usage(name)
    for resource in asks.keys() & usage.keys() - gpus_of(asks).keys():
        freed = (one.amounts.get(resource, ZERO) for one in ending)
        if sum(freed, usage[resource].available) < asks[resource]:
            return ""
    return name


def _cut(card: CardLayout) -> str:
    return " + ".join(f"{number} × {profile}" for profile, number in card.counts.items()) or "whole"


def _profiles_of(gpus: Mapping[str, int]) -> dict[MigProfile, int]:
    """The MIG profiles among GPUs; none where something else is asked for too, which no layout gives."""
    found = {MigProfile.of_resource(resource): number for resource, number in gpus.items()}
    return {} if None in found else {profile: n for profile, n in found.items() if profile is not None}
