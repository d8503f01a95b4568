"""A plan's outcome in sentences."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tessera.core.kubernetes.blocked import BLOCKED, Block
from tessera.core.mig.layout import named_cards
from tessera.core.mig.misfit import a, explain_misfit
from tessera.core.mig.placement import Wish
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import Counts, total
from tessera.core.planning.configurations import PlanChanges
from tessera.core.planning.defragment import Advice
from tessera.core.planning.planner import Objective, Plan
from tessera.core.planning.waiting import DemandGroup, PlanEffect, WaitingGroups
from tessera.core.text import counts_in_words, first_of, number_of

_SHOWN: Final = 3  # names, of many
_NOUNS: Final = {False: "waiting pod", True: "rejected pod"}  # by whether they were rejected


def explain_plan(changes: PlanChanges) -> list[str]:
    """What fits, whether more could, what is left out and why, what goes and comes, what is not needed."""
    plan = changes.plan
    used = set(plan.used)
    sentences = [*explain_served(plan), *explain_changes(changes)]
    spare = [
        number
        for number, card in enumerate(plan.cards)
        if number not in used and number not in plan.fixed and not card.instances
    ]
    if spare:
        noun = "empty card" if all(plan.present[number] for number in spare) else "card"
        sentences.append(f"not needed: {number_of(len(spare), noun) if plan.named else named_cards(spare)}")
    return sentences


def explain_served(plan: Plan) -> list[str]:
    """What fits, whether more could, what is left out and why."""
    asked, served = sum(plan.demand.values()), sum(plan.served.values())
    where = f"{len(set(plan.used))} of {number_of(len(plan.cards), 'card')}"
    if not plan.left_out:
        what = "the one device fits" if asked == 1 else f"all {asked} devices fit"
        return [f"{what} on {where}; {_fewest(plan)}"]
    measure = "devices" if plan.objective is Objective.DEVICES else "memory"
    limit = f"no plan serves more {measure}"
    if plan.gaps[0]:
        unit = "" if plan.objective is Objective.DEVICES else "GB of "
        limit = f"at most {plan.gaps[0]} {unit}{measure} more could be served"
    fit = "fits" if served == 1 else "fit"
    on = f", on {where}" if plan.cards else ""
    sentences = [f"{served} of {number_of(asked, 'device')} {fit}{on}; {limit}"]
    sentences += [
        f"left out: {profile} ×{count}, {_why(plan, profile)}" for profile, count in plan.left_out.items()
    ]
    if plan.fixed:
        sentences.append(f"not cut: {number_of(len(plan.fixed), 'card')}, because what is there must stay")
    return sentences


def explain_changes(changes: PlanChanges) -> list[str]:
    """What the plan removes and adds on nodes, and by which configurations of mig-manager."""
    nodes, sentences = changes.nodes, []
    if nodes:
        cards = number_of(changes.cards, "card")
        sentences.append(f"to change: {cards} of {_named([node.name for node in nodes], 'node')}")
        removed, added = total(node.removed for node in nodes), total(node.added for node in nodes)
        sentences.append(in_words(removed, added))
    if changes.unknown:
        names = _named(changes.unknown, "node")
        sentences.append(f"no layout is written for {names}: how the cards are cut now is not known")
    if fills := changes.filled:
        verb = "fills" if sum(fills.values()) == 1 else "fill"
        sentences.append(f"beside the demand: {counted(fills)} {verb} the rest of cut cards")
    by_name: dict[str, list[str]] = {}
    for node in nodes:
        if node.configuration:
            by_name.setdefault(node.configuration, []).append(node.name)
    for name, some in list(by_name.items())[:_SHOWN]:
        exists = "a new one (-o operator prints it)" if name in changes.new else "which exists"
        sentences.append(f"mig-manager's configuration of {_named(some, 'node')}: {name}, {exists}")
    if (more := len(by_name) - _SHOWN) > 0:
        sentences.append(f"mig-manager's configurations of other nodes: {more} more")
    if changes.beside:
        needless = f"{number_of(changes.beside, 'card')} more than the plan needs"
        alone = f"--max-cards {changes.cards - changes.beside} makes a new configuration for those alone"
        sentences.append(f"an existing configuration changes {needless}; {alone}")
    for name, one in list(changes.instead.items())[:_SHOWN]:
        serves = f"{name} serves {one.served} of {number_of(one.of, 'device')} and needs no new configuration"
        sentences.append(f"{serves}; it removes {counted(one.removed) or 'nothing'}")
    return sentences


def in_words(removed: Counts, added: Counts) -> str:
    """`removed: 1g.10gb ×7; added: 1g.10gb ×3, 4g.40gb ×1`."""
    return f"removed: {counted(removed) or 'nothing'}; added: {counted(added) or 'nothing'}"


def counted(counts: Counts) -> str:
    return ", ".join(f"{name} ×{count}" for name, count in counts.items())


def _fewest(plan: Plan) -> str:
    opened = len(plan.opened)
    if not opened:
        return "no empty card is cut"
    idle = any((present := plan.present[number]) and present.instances for number in plan.opened)
    cards = "idle cards" if idle else "cards" if not any(plan.kept) else "empty cards"
    gap = min(plan.gaps[2], opened)
    return f"at most {gap} {cards} fewer would suffice" if gap else f"fewer {cards} do not suffice"


def _why(plan: Plan, profile: MigProfile) -> str:
    if not plan.products:
        return "there are no cards"
    if any(product.shape(profile) for product in plan.products):
        return "no room was found for it" if plan.gaps[0] else "no room is left for it"
    if len(plan.products) == 1:
        return explain_misfit(plan.products[0], [Wish(profile)])
    names = " or ".join(product.short_name for product in plan.products)
    known = "; ".join(f"{a(product)} has {product.profile_names}" for product in plan.products)
    return f"no {names} has it; {known}"


def explain_waiting(waiting: WaitingGroups) -> list[str]:
    sentences = []
    free = [group for group in waiting.free if group.waits]
    if free:
        pods = sum(len(group.names) for group in free)
        could = f"{_kinds(free)} could go to free devices ({_devices(free)})"
        sentences.append(f"{could}: no layout is needed for {'it' if pods == 1 else 'them'}")
    alike: dict[str, list[DemandGroup]] = {}
    for group, reason in waiting.hopeless:
        alike.setdefault(reason, []).append(group)
    for reason, groups in alike.items():
        names = list(dict.fromkeys(name for group in groups for name in group.names))
        sentences.append(f"no layout helps {_named(names, 'pod')}, {_devices(groups)}: {reason}")
    return sentences


def explain_blocked(blocked: Mapping[str, Block]) -> list[str]:
    """Pods that wait for something else, and why."""
    names = {block: [name for name, found in blocked.items() if found is block] for block in Block}
    return [
        f"not planned for, since {BLOCKED[block]}: {_named(some, 'pod')}"
        for block, some in names.items()
        if some
    ]


def explain_outcome(outcome: PlanEffect) -> list[str]:
    """Whom a plan disturbs, and how many of the pods that it is for get a place."""
    both = [*outcome.placed, *outcome.still_waiting]
    if not both:
        return []
    placed = [
        f"{_pods(outcome.placed, rejected)} of {number_of(every, noun)}"
        for rejected, noun in _NOUNS.items()
        if (every := _pods(both, rejected))
    ]
    ends = "no pod must end first: pods keep what they hold"
    if not outcome.placed:
        ends = "pods keep what they hold; `tessera mig defragment` says which would have to end to make room"
    return [
        ends,
        f"with it {' and '.join(placed)} would get a place",
    ]


def _pods(groups: Iterable[DemandGroup], rejected: bool) -> int:
    return sum(len(group.names) for group in groups if group.rejected is rejected)


def _kinds(groups: Sequence[DemandGroup]) -> str:
    """`3 waiting pods and 1 rejected pod`."""
    counts = {noun: _pods(groups, rejected) for rejected, noun in _NOUNS.items()}
    return " and ".join(number_of(count, noun) for noun, count in counts.items() if count)


def explain_advice(advice: Advice) -> list[str]:
    asked, served, pods = sum(advice.wanted.values()), sum(advice.served.values()), len(advice.pods)
    room = "room for " + (f"all {asked} devices" if asked > 1 else "the one device")
    if served < asked:
        room = f"room for {served} of {number_of(asked, 'device')}"
    if not pods:
        sentences = [f"{room} is there; no pod must end"]
    else:
        fewer = "fewer do not suffice" if advice.certain else "fewer do not suffice for certain"
        if advice.gaps[1]:
            fewer = f"at most {advice.gaps[1]} fewer would suffice"
        sentences = [f"{room}: {number_of(pods, 'pod')} must end or move; {fewer}"]
    if served < asked:
        limit = (
            f"at most {advice.gaps[0]} more could get room" if advice.gaps[0] else "even if every pod ended"
        )
        left = ", ".join(f"{profile} ×{count}" for profile, count in advice.left_out.items())
        sentences.append(f"no room for {left}, {limit}")
    return sentences


def _devices(groups: Iterable[DemandGroup]) -> str:
    counts: Counter[MigProfile] = Counter()
    for group in groups:
        for profile, count in group.devices.items():
            counts[profile] += count * len(group.names)
    return counts_in_words(sorted(counts.items()))


def _named(names: Sequence[str], noun: str) -> str:
    """`node gpu-0`, `nodes gpu-0, gpu-1`, `312 nodes (gpu-0, gpu-1, gpu-2 and 309 more)`."""
    if len(names) == 1:
        return f"{noun} {names[0]}"
    shown = first_of(names, _SHOWN)
    return f"{noun}s {shown}" if len(names) <= _SHOWN else f"{len(names)} {noun}s ({shown})"
