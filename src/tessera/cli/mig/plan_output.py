"""What `tessera mig plan` and `tessera mig fit` print: a plan as a table, a document or the layouts to apply.

A plan in the words of NVIDIA's operator: what to type so that mig-manager cuts the nodes.

Configurations that mig-manager has already need only a label. New ones go into its ConfigMap first; the operator puts its own back as it was, so
there a copy is made, and the ClusterPolicy named after it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.output import Output, table, warn
from tessera.core.kubernetes.blocked import Block
from tessera.core.mig.layout import NodeLayout, named_cards
from tessera.core.planning.changes import NodeChange, Way, difference, profile_counts, total
from tessera.core.planning.configurations import Configs, PlanChanges, parted_entries
from tessera.core.planning.demand import Demand
from tessera.core.planning.kinds import NodeCards
from tessera.core.planning.planner import Plan
from tessera.core.planning.summary import counted, explain_plan, explain_served, in_words
from tessera.core.planning.waiting import DemandGroup, PlanEffect, WaitingGroups
from tessera.core.text import first_of, nodes_named
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.documents import PARTED_CONFIG
from tessera.protocol.mig.edited import edited, entries_text, own_copy
from tessera.protocol.mig.entries import write_parted
from tessera.protocol.mig.operator import CONFIG_KEY, MigManagerConfig
from tessera.protocol.mig.plans import card_document, node_document

_AT_ONCE: Final = 100  # nodes in one command: shells and people have limits
_MOST_NAMED: Final = 3
_SYNC: Final = 120  # seconds: the kubelet's sync period of a minute, and as long as it may keep a copy


def commands(changes: PlanChanges, manager: MigManagerConfig | None) -> Iterator[str]:
    """The commands for nodes of mig-manager; for others, where their layouts are."""
    nodes = [node for node in changes.nodes if node.way is Way.MIG_MANAGER]
    others = [node.name for node in changes.nodes if node.way is Way.ANNOTATION]
    if others:
        yield f"# not by mig-manager, see -o runai: {first_of(others, _MOST_NAMED)}"
    if changes.new:
        yield from _added(changes.new, manager)
        yield f"sleep {_SYNC}  # mig-manager's file follows the ConfigMap a minute or two later: a label that comes earlier ends in the state failed"
    for name, some in _by_configuration(nodes).items():
        for start in range(0, len(some), _AT_ONCE):
            yield f"kubectl label node {' '.join(some[start : start + _AT_ONCE])} {PARTED_CONFIG}={name} --overwrite"


def _by_configuration(nodes: Sequence[NodeChange]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(node.configuration or "", []).append(node.name)
    return found


def _added(new: Configs, manager: MigManagerConfig | None) -> Iterator[str]:
    if manager is None or manager.document is None or not manager.namespace:
        where = "mig-manager's file, which is not known here"
        if manager is not None:
            where = (
                str(manager)
                if manager.document
                else f"mig-manager's file, which is not known here: {manager.error}"
            )
        yield f"# add to mig-configs in {where}"
        yield from (f"#   {line}" for line in entries_text(new).splitlines())
        return
    if manager.owned:
        yield f"# the operator owns {manager}, and would undo what is added to it: a copy of your own"
        yield from own_copy(manager, new)
        return
    yield f"# new configurations in {manager}"
    yield f"kubectl patch configmap -n {manager.namespace} {manager.name} --type merge --patch-file /dev/stdin <<'END'"
    yield "data:"
    yield f"  {CONFIG_KEY}: |2"  # four columns: two of the key, and two more
    yield from (
        f"    {line}".rstrip() for line in edited(manager.text, new, (), str(manager)).text.splitlines()
    )
    yield "END"


# what a layout as an annotation is for nodes of each way
_UNREAD: Final = {
    Way.ANNOTATION: (),
    Way.MIG_MANAGER: (
        "# NVIDIA's mig-manager cuts this node, and does not read such a layout: see -o operator",
    ),
}


@dataclass(frozen=True, slots=True)
class More:
    """What is printed beside the plan: sentences, and fields of the document; and what is known of mig-manager."""

    sentences: Sequence[str] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    mig_manager: MigManagerConfig | None = None


def print_plan(changes: PlanChanges, places: Sequence[NodeCards], output: Output, more: More) -> ExitCode:
    """Print a plan as it was asked for. The answer is no when it leaves some of the demand out."""
    places = [place for place in places if place.cards]
    if changes.plan.left_out and not output.is_document and output.form != "table":
        warn(*explain_served(changes.plan))  # layouts do not say what they do not serve
    output.show(lambda: document(changes, places, more), lambda _: DRAWN[output.form](changes, places, more))
    return ExitCode.NO if changes.plan.left_out else ExitCode.DONE


def _table(changes: PlanChanges, places: Sequence[NodeCards], more: More) -> Iterable[str]:
    plan, rows = changes.plan, list[tuple[str, ...]]()
    for place in places:
        alike: dict[tuple[str, ...], list[int]] = {}
        for number in place.cards:
            row: tuple[str, ...] = (
                plan.cards[number].product.short_name,
                _devices(plan, number),
                _removed(plan, place, number),
            )
            alike.setdefault(row, []).append(number - place.cards.start)
        for row, numbers in alike.items():
            cards = named_cards(numbers).removeprefix("cards ").removeprefix("card ")
            rows.append((place.name or "", cards, *row))
    heading: tuple[str, ...] = ("NODE", "CARDS", "PRODUCT", "DEVICES", "REMOVED")
    if not any(place.name for place in places):
        heading, rows = heading[1:-1], [row[1:-1] for row in rows]
    sentences = [*explain_plan(changes), *more.sentences]
    return [*sentences, "", *table([heading, *rows])] if rows else sentences


def _devices(plan: Plan, number: int) -> str:
    kept = Counter(instance.profile for instance in plan.kept[number])
    fills = plan.filled(number)
    new = Counter(instance.profile for instance in plan.cards[number].instances) - kept - fills
    texts = [f"{profile} ×{kept[profile]} (stays)" for profile in sorted(kept)]
    texts += [f"{profile} ×{new[profile]}" for profile in sorted(new)]
    return " + ".join(texts + [f"{profile} ×{fills[profile]} (fills)" for profile in sorted(fills)]) or "-"


def _removed(plan: Plan, place: NodeCards, number: int) -> str:
    before = plan.present[number]
    if before is None:
        return "not known" if place.name else "-"
    less, _ = difference(before, plan.cards[number], cleared=place.way is Way.MIG_MANAGER)
    return counted(total([less])).replace(", ", " + ") or "-"


def document(changes: PlanChanges, places: Sequence[NodeCards], more: More) -> dict[str, Any]:
    """A plan for scripts, and for `tessera mig apply --plan`."""
    plan, nodes = changes.plan, changes.nodes
    cards = [
        card_document(
            number - place.cards.start,
            plan.cards[number],
            plan.present[number],
            plan.kept[number],
            place.name or "",
        )
        for place in places
        for number in place.cards
    ]
    return {
        "demand": profile_counts(plan.demand),
        "served": profile_counts(plan.served),
        "leftOut": profile_counts(plan.left_out),
        "objective": plan.objective.value,
        "optimal": plan.optimal,
        "gap": plan.gaps[0],
        "explanation": [*explain_plan(changes), *more.sentences],
        "cost": {"nodes": plan.nodes, "cards": changes.cards},
        **more.fields,
        "removed": total(node.removed for node in nodes),
        "added": total(node.added for node in nodes),
        "filled": changes.filled,
        "nodes": [node_document(node) for node in nodes],
        "configurations": {name: [*map(write_parted, entries)] for name, entries in changes.new.items()},
        "cards": cards,
    }


def demand_document(demand: Demand) -> dict[str, Any]:
    """Where a demand comes from."""
    return {
        "waiting": profile_counts(demand.waiting),
        "fellBack": profile_counts(demand.fell_back),
        "rejected": profile_counts(demand.rejected),
    }


def waiting_document(waiting: WaitingGroups, outcome: PlanEffect) -> dict[str, Any]:
    return {
        "onFreeDevices": [_group(group) for group in waiting.free if group.waits],
        "notHelped": [{**_group(group), "reason": reason} for group, reason in waiting.hopeless],
        "placed": [_group(group) for group in outcome.placed],
        "stillWaiting": [_group(group) for group in outcome.still_waiting],
    }


def blocked_document(blocked: Mapping[str, Block]) -> list[dict[str, Any]]:
    """The pods that wait for something else, by why."""
    return [
        {"reason": str(block), "pods": pods}
        for block in Block
        if (pods := [name for name, found in blocked.items() if found is block])
    ]


def _group(group: DemandGroup) -> dict[str, Any]:
    devices = {str(profile): count * len(group.names) for profile, count in group.devices.items()}
    return {"devices": devices, "pods": group.names, **({"rejected": True} if group.rejected else {})}


def _runai(changes: PlanChanges, places: Sequence[NodeCards], _: More) -> Iterable[str]:
    """One annotation for each node that changes, or for cards of no node."""
    nodes = changes.nodes
    layouts = [
        (node.layout, [f"# node {node.name}", f"# {summary(node)}", *_UNREAD[node.way]]) for node in nodes
    ]
    if layouts:
        layouts[0][1].extend(_in_all(nodes))
    layouts += [(_imagined(changes.plan, place), []) for place in places if not place.name]
    for number, (layout, comments) in enumerate(layouts):
        if number:
            yield "---"
        yield from comments
        yield from mig.write(mig.document_of(layout)).rstrip("\n").split("\n")
    yield from _not_written(changes)


def _parted(changes: PlanChanges, places: Sequence[NodeCards], _: More) -> Iterable[str]:
    """One file with a configuration for each node that changes, named after it."""
    yield from _comments(changes)
    configs = {node.name: parted_entries(node.layout) for node in changes.nodes}
    for place in places:
        if not place.name:
            configs[mig.SELECTED] = parted_entries(_imagined(changes.plan, place))
    if configs:
        yield from mig.write(mig.MigDocument(mig.Format.MIG_PARTED, configs)).rstrip("\n").split("\n")


def _operator(changes: PlanChanges, _: Sequence[NodeCards], more: More) -> Iterable[str]:
    """The commands for mig-manager."""
    yield from _comments(changes)
    yield from commands(changes, more.mig_manager)


def _comments(changes: PlanChanges) -> Iterable[str]:
    yield from (f"# node {node.name}: {summary(node)}" for node in changes.nodes)
    yield from (*_in_all(changes.nodes), *_not_written(changes))


def _in_all(nodes: Sequence[NodeChange]) -> list[str]:
    if len(nodes) < 2:
        return []
    return [f"# in all: {in_words(total(one.removed for one in nodes), total(one.added for one in nodes))}"]


def _not_written(changes: PlanChanges) -> Iterable[str]:
    """A layout says what becomes of all cards of a node, so there is none where it is not known what they have now."""
    if changes.unknown:
        yield f"# no layout for {nodes_named(changes.unknown)}: how the cards are cut now is not known"


def _imagined(plan: Plan, place: NodeCards) -> NodeLayout:
    return NodeLayout(tuple(plan.cards[number] for number in place.cards))


def summary(node: NodeChange) -> str:
    """What a node loses and gets, in one line."""
    fills = counted(profile_counts(node.filled))
    return in_words(node.removed, node.added) + (f" (beside the demand: {fills})" if fills else "")


DRAWN: Final[dict[str, Callable[[PlanChanges, Sequence[NodeCards], More], Iterable[str]]]] = {
    "table": _table,
    "runai": _runai,
    "mig-parted": _parted,
    "operator": _operator,
}
