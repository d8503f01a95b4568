"""What would make a pod run: repairs, other places for it, the end of pods, cards that are cut in another way.

The smallest change comes first. A node's remedy has all that is needed there: a full node that is also cordoned must be
opened, and pods on it must end.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tessera.core.devices.capacity import PodUse
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.pod import Amounts, Pod
from tessera.core.kubernetes.quantity import ZERO, Quantity
from tessera.core.kubernetes.scheduling import CORDONED, NodeSelectorTerm, Requirement
from tessera.core.mig.known import KnownLayout, LayoutSource, UnknownLayout
from tessera.core.mig.layout import CardLayout, NodeLayout
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.kinds import NodeCards
from tessera.core.planning.planner import Plan, Question, plan
from tessera.core.planning.program import Solver
from tessera.core.resources import PODS, short
from tessera.core.text import age, first_of
from tessera.diagnosis.evidence import Evidence
from tessera.diagnosis.layouts.status import cut
from tessera.diagnosis.nodes import (
    Lack,
    NodeGroup,
    ObservedNode,
    PodRequest,
    Shortage,
    counted,
    gpus_of,
    why_closed,
)
from tessera.diagnosis.remedy import (
    Change,
    NodeFreed,
    NodeOffers,
    NodeOpened,
    PodAsks,
    PodsEnd,
    Remedy,
)
from tessera.inventory.defragment import Defragmentation, make_room
from tessera.inventory.pending import Pending
from tessera.kube.rest.client import is_name
from tessera.protocol.kubernetes.objects import seconds
from tessera.protocol.mig.documents import CONFIG_STATE, PARTED_CONFIG
from tessera.protocol.mig.rollouts import RolloutRecord

_MOST_NAMED: Final = 3
_MOST_ALTERNATIVES: Final = 3  # remedies of one kind


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds what is asked for."""

    pod: str
    node: str
    holds: Mapping[str, int]
    since: float  # Unix time; 0: it does not say
    ending: bool
    amounts: Amounts  # everything that it holds


def holders_of(seen: Evidence, gpus: Iterable[str], nodes: Iterable[str]) -> list[Holder]:
    """Who holds GPUs of these kinds on these nodes; who holds the most first, then who has the longest."""
    found, wanted, there = [], frozenset(gpus), frozenset(nodes)
    for use in seen.inventory.pods:
        if use.node not in there:
            continue
        if held := {r: n for r, n in gpus_of(use.amounts).items() if r in wanted}:
            name = f"{use.namespace}/{use.name}"
            since = seconds(seen.inventory.started.get(name) or use.created) or 0.0
            found.append(Holder(name, use.node, held, since, use.ending, use.amounts))
    return sorted(found, key=lambda one: (-sum(one.holds.values()), one.since, one.pod))


def _pods_end(pods: Sequence[Holder], node: str, now: float) -> str:
    told = [
        f"{one.pod} ({counted(one.holds)}, {'ending' if one.ending else age(now, one.since)})" for one in pods
    ]
    return f"{_some_end(len(pods))} on node {node}: {first_of(told, _MOST_NAMED)}"


def _some_end(number: int) -> str:
    return "a pod ends" if number == 1 else f"{number} pods end"


def on_nodes(seen: Evidence, request: PodRequest, groups: Sequence[NodeGroup]) -> list[Remedy]:
    """What to do on the nodes of these groups, one node of each; the fewest steps first."""
    names = [name for group in groups for name in group.nodes]
    holders: dict[str, list[Holder]] = {}
    for one in holders_of(seen, request.gpus, names):
        holders.setdefault(one.node, []).append(one)
    found = []
    for group in groups:
        tried = [
            steps
            for name in group.nodes
            for asks in request.choices
            if (steps := _steps(seen, seen.nodes.by_name[name], request.pod, asks, holders.get(name, [])))
        ]
        if tried:
            found.append(min(tried, key=_size))
    return [_together(steps) for steps in sorted(found, key=_size)[:_MOST_ALTERNATIVES]]


def _size(steps: Sequence[Remedy]) -> tuple[int, int]:
    pods = sum(len(one.pods) for step in steps for one in step.changes if isinstance(one, PodsEnd))
    return len(steps), pods


def _together(steps: Sequence[Remedy]) -> Remedy:
    certain = all(step.changes for step in steps)
    return Remedy(
        steps[0].kind,
        ", and ".join(step.text for step in steps),
        tuple(dict.fromkeys(command for step in steps for command in step.commands)),
        tuple(change for step in steps for change in step.changes) if certain else (),
    )


def _steps(
    seen: Evidence, one: ObservedNode, pod: Pod, asks: Amounts, holders: Sequence[Holder]
) -> list[Remedy]:
    """All that must be done for a pod to run on a node; nothing where that is not known."""
    name = one.node.name
    shortages = list(one.shortages(pod, asks))
    steps: list[Remedy] = []
    missing: dict[str, int] = {}  # devices that pods must give back
    for short_of in shortages:
        resource, count = short_of.resource, int(asks[short_of.resource].value) if short_of.resource else 0
        match short_of.lack:
            case Lack.CLOSED:
                steps.append(_opened(seen, one, short_of.reason))
            case Lack.TAKEN:
                missing[resource] = count - one.free(resource)
            case Lack.TOO_FEW:
                fewer = one.has[resource]
                text = f"the pod asks for at most {fewer} × {short(resource)} on one node"
                steps.append(Remedy("change", text, changes=(PodAsks({resource: short_of.total}),)))
                missing[resource] = fewer - max(one.free(resource), 0)
            case Lack.OTHER:
                continue
            case Lack.UNKNOWN | Lack.MISSING:
                return []
            case _:
                gpus = seen.inventory.gpus.get(name)
                steps.append(
                    repair(one, short_of, count, by_operator=gpus is not None and gpus.by_mig_manager)
                )
    ending = _fewest(holders, missing)
    if ending is None:
        return []
    if ending:
        ends = PodsEnd(tuple(pod.pod for pod in ending))
        steps.append(Remedy("pod-ends", _pods_end(ending, name, seen.now), changes=(ends,)))
    if (rest := _other_resources(name, asks, shortages, ending)) is not None:
        steps.append(rest)
    return steps


def _opened(seen: Evidence, one: ObservedNode, reason: str) -> Remedy:
    """A node takes the pod. One that a rollout has cordoned is uncordoned by it: nobody else may, as long as its cards are cut."""
    name, cordoned = one.node.name, CORDONED in one.node.taints
    rollout, changes = seen.inventory.rollouts.get(name), (NodeOpened(name),)
    if not cordoned or not isinstance(rollout, RolloutRecord) or not rollout.uncordons:
        command = f"kubectl {'uncordon' if cordoned else 'describe node'} {name}"
        return Remedy("change", f"the pod may go to node {name}: {reason}", (command,), changes)
    owner = rollout.owner
    commands = (asks_about(owner.name),) if owner.uid and is_name(owner.name) else ()
    text = f"the pod may go to node {name} when its rollout ends ({cut(str(owner))}): {reason}"
    return Remedy("wait", text, commands, changes)


def asks_about(mig_layout: str) -> str:
    return f"tessera why miglayout/{mig_layout}"


def repair(one: ObservedNode, short_of: Shortage, count: int, *, by_operator: bool) -> Remedy:
    """What must be repaired on a node that would offer enough then; `by_operator`: NVIDIA's GPU operator looks after it."""
    name, resource = one.node.name, short_of.resource
    manager = f"kubectl get pods -A -l app=nvidia-mig-manager --field-selector spec.nodeName={name}"
    match short_of.lack:
        case Lack.PLUGIN_UNAVAILABLE:
            label = (
                "app=nvidia-device-plugin-daemonset"
                if by_operator
                else "app.kubernetes.io/component=device-plugin"
            )
            command = f"kubectl get pods -A -o wide -l {label} --field-selector spec.nodeName={name}"
            counts = {resource: max(one.capacity.get(resource, 0), one.in_use(resource) + count)}
            text = f"the device plugin of node {name} comes back"
        case Lack.UNHEALTHY:
            command, counts = f"kubectl describe node {name}", {resource: one.capacity[resource]}
            text = f"the unhealthy devices of node {name} recover, or the card is replaced"
        case Lack.LAYOUT_PENDING if by_operator:
            command, counts = manager, {**one.desired}
            text = (
                f"mig-manager is done with {one.layout.config if one.layout else 'its work'} on node {name}"
            )
        case Lack.LAYOUT_PENDING:
            command, counts = f"kubectl get pods -A --field-selector spec.nodeName={name}", {**one.desired}
            text = f"the pods that hold old devices of node {name} end: {short_of.reason}"
        case _ if by_operator:
            text = (
                f"node {name} gets a configuration that mig-manager can make; its log says why it could not"
            )
            return Remedy(
                "mend", text, (manager, f"kubectl get node {name} -L {PARTED_CONFIG},{CONFIG_STATE}")
            )
        case _:
            text = f"node {name} gets a layout that it can take"
            return Remedy("mend", text, (f"tessera mig validate --cluster {name}",))
    return Remedy("mend", text, (command,), (NodeOffers(name, counts),))


def _fewest(holders: Sequence[Holder], missing: Mapping[str, int]) -> list[Holder] | None:
    """The fewest pods that hold so much; None where they do not hold enough."""
    left, chosen = dict(missing), list[Holder]()
    for one in holders:
        if any(left.get(r, 0) > 0 for r in one.holds):
            chosen.append(one)
            left = {r: n - one.holds.get(r, 0) for r, n in left.items()}
    return chosen if all(n <= 0 for n in left.values()) else None


def _other_resources(
    name: str, asks: Amounts, shortages: Sequence[Shortage], ending: Sequence[Holder]
) -> Remedy | None:
    """What else is short on a node when some of its pods have ended: cpu, memory, places for pods …"""
    fewer: dict[str, Quantity] = {}
    free: dict[str, Quantity] = {}
    reasons = []
    for one in shortages:
        if one.lack is not Lack.OTHER:
            continue
        need = asks[one.resource]
        left = sum((pod.amounts.get(one.resource, ZERO) for pod in ending), one.free)
        if not left < need:
            continue
        reasons.append(one.reason)
        if one.total < need:
            fewer[one.resource] = one.total
        if left < min(need, one.total):
            free[one.resource] = min(need, one.total)
    if not reasons:
        return None
    changes: list[Change] = [PodAsks(fewer)] if fewer else []
    changes += [NodeFreed(name, free)] if free else []
    ways = ["the pod asks for less"] if fewer or PODS not in free else []
    ways += [f"pods on node {name} end"] if free else []
    text = f"{(' and ' if fewer else ', or ').join(ways)} ({', '.join(reasons)})"
    return Remedy("change", text, (f"kubectl describe node {name}",), tuple(changes))


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
                kept, command = _by(seen, place.name or "", f"tessera mig plan -o {form}")
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
        names = first_of([f"{move.pod} on {move.node}" for move in room.moves], _MOST_NAMED)
        asked = ",".join(f"{profile}={number}" for profile, number in profiles.items())
        ends = PodsEnd(tuple(move.pod for move in room.moves))
        counts = {p.resource: one.in_use(p.resource) + number for p, number in profiles.items()}
        kept, command = _by(seen, node, f"tessera mig defragment {asked}")
        yield Remedy(
            "layout",
            f"{_some_end(len(room.moves))} ({names}), and the node is re-cut{kept}",
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
        f"how node{'s' * (len(names) > 1)} {first_of(names, _MOST_NAMED)} {'are' if len(names) > 1 else 'is'} cut": why
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
