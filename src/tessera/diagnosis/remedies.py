"""What would make a pod run: a policy, a quota, a layout, the end of a pod, or something mended. The smallest change first."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tessera.core.admission.decision import Decision, Mode, Policy, Rewrite, decide
from tessera.core.admission.observe import MODE_LABEL
from tessera.core.admission.offers import Offers
from tessera.core.admission.wishes import MIN_MEMORY_ANNOTATION, POLICY_ANNOTATION
from tessera.core.devices.capacity import PodUse
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Namespace
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.quantity import InvalidQuantity, Quantity
from tessera.core.mig.layout import CardLayout
from tessera.core.planning.planner import Question, plan
from tessera.core.planning.program import Solver
from tessera.core.text import first_of
from tessera.diagnosis.evidence import Evidence
from tessera.diagnosis.nodes import Lack, NodeGroup, counted, gpus_of, profiles_of
from tessera.inventory.defragment import make_room
from tessera.inventory.pending import Pending
from tessera.inventory.report import amount
from tessera.protocol.kubernetes.metadata import seconds

_MOST_NAMED: Final = 3
# the API server's words for a pod that a quota does not let in (k8s.io/apiserver, plugin resourcequota)
_EXCEEDED: Final = re.compile(
    r"exceeded quota: (?P<quota>[^,\s]+), requested: (?P<asked>\S+), used: (?P<used>\S+), limited: (?P<hard>\S+)"
)


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that would make the pod run, and what to type for it."""

    kind: str  # mend, policy, quota, layout, pod-ends, change
    text: str
    commands: tuple[str, ...] = ()


# A policy


def by_policy(pod: Pod, offers: Offers, policy: Policy) -> Iterator[Remedy]:
    """The one setting or annotation without which admission would give the pod something that nodes offer."""
    if isinstance(decide(pod, offers, policy), Rewrite):
        return
    namespace = offers.namespaces.get(pod.namespace)
    for text, other_pod, other_space, other_policy, commands in _variants(pod, namespace, policy):
        tried = _decided(other_pod, offers, other_space, other_policy)
        if isinstance(tried, Rewrite) and tried.replaced:
            yield Remedy("policy", f"{text}: {_gets(tried)}", commands)
            return
    # last, since it is another team's to give
    free = decide(pod, offers, replace(policy, fallback=replace(policy.fallback, respects_quota=False)))
    if isinstance(free, Rewrite) and free.replaced:
        names = ", ".join(one.name for one in offers.quotas.get(pod.namespace, ()))
        wanted = ", ".join(new for _, new in free.replaced)
        text = f"a quota of namespace {pod.namespace} ({names}) leaves room for {wanted}: {_gets(free)}"
        yield Remedy("quota", text, (f"kubectl describe resourcequota -n {pod.namespace}",))


def by_enforcing(pod: Pod, offers: Offers, policy: Policy) -> Iterator[Remedy]:
    """What the webhook would do if it did more than observe."""
    tried = decide(pod, offers, policy)
    if isinstance(tried, Rewrite) and tried.replaced:
        command = f"kubectl label --overwrite namespace {pod.namespace} {MODE_LABEL}={Mode.ENFORCE.value}"
        text = f"the webhook acts in namespace {pod.namespace}: {_gets(tried)}"
        yield Remedy("policy", text, (command,))


def _gets(tried: Rewrite) -> str:
    gets = ", ".join(f"{new} in place of {old}" for old, new in tried.replaced)
    return f"it gets {gets} when it is created anew"


def _decided(pod: Pod, offers: Offers, namespace: Namespace | None, policy: Policy) -> Decision:
    known = offers.namespaces.get(pod.namespace)
    try:
        if namespace is not None:
            offers.put_namespace(namespace)
        return decide(pod, offers, policy)
    finally:
        if known is not None:
            offers.put_namespace(known)


def _variants(
    pod: Pod, namespace: Namespace | None, policy: Policy
) -> Iterator[tuple[str, Pod, Namespace | None, Policy, tuple[str, ...]]]:
    """The same question with one thing less in the way; last of all with no annotation in the way."""
    for key in (POLICY_ANNOTATION, MIN_MEMORY_ANNOTATION):
        if key in pod.annotations:
            yield f"the pod's annotation {key} goes", _without(pod, key), namespace, policy, ()
        if namespace is not None and key in namespace.annotations:
            command = f"kubectl annotate namespace {namespace.name} {key}-"
            yield (
                f"namespace {namespace.name}'s annotation {key} goes",
                pod,
                _bare(namespace, key),
                policy,
                (command,),
            )
    given = policy.fallback
    for setting, better in (
        ("fallback.enabled: true", replace(given, enabled=True)),
        ("fallback.downgrades: true", replace(given, downgrades=True)),
        ("fallback.upgrades: true", replace(given, upgrades=True)),
        ("fallback.wholeGPU: true", replace(given, whole_gpu=True)),
    ):
        if better != given:
            yield (
                f"{setting} in the webhook's configuration",
                pod,
                namespace,
                replace(policy, fallback=better),
                (),
            )
    keys = (POLICY_ANNOTATION, MIN_MEMORY_ANNOTATION)
    if namespace is not None and any(key in namespace.annotations for key in keys):
        text = f"the pod's and namespace {namespace.name}'s annotations of {keys[0].partition('/')[0]} go"
        yield text, _without(pod, *keys), _bare(namespace, *keys), policy, ()


def _without(pod: Pod, *keys: str) -> Pod:
    return replace(pod, annotations={key: text for key, text in pod.annotations.items() if key not in keys})


def _bare(namespace: Namespace, *keys: str) -> Namespace:
    kept = {key: text for key, text in namespace.annotations.items() if key not in keys}
    return Namespace(namespace.name, namespace.labels, kept)


# A quota


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A quota that did not let a pod in: what was asked, used and allowed, by the quota's own names."""

    quota: str
    asked: Mapping[str, str]
    used: Mapping[str, str]
    hard: Mapping[str, str]


def exceeded_in(message: str) -> Exceeded | None:
    """What the API server says when a quota is exceeded."""
    found = _EXCEEDED.search(message)
    if found is None:
        return None
    asked, used, hard = (_amounts(found[name]) for name in ("asked", "used", "hard"))
    return Exceeded(found["quota"], asked, used, hard)


def _amounts(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.rstrip(".").split(","))
    return {name: value for name, equals, value in pairs if equals}


def by_quota(one: Exceeded, namespace: str) -> Iterator[Remedy]:
    """The quota raised to what is used and asked for together."""
    try:
        needed = {
            name: Quantity.parse(one.used.get(name, "0")) + Quantity.parse(text)
            for name, text in one.asked.items()
        }
    except InvalidQuantity:
        return
    words = ", ".join(f"{name} from {one.hard.get(name, '0')} to {amount(n)}" for name, n in needed.items())
    hard = ", ".join(f'"{name}": "{amount(n)}"' for name, n in needed.items())
    patch = '{"spec": {"hard": {' + hard + "}}}"
    yield Remedy(
        "quota",
        f"quota {one.quota} is raised: {words}; or pods of namespace {namespace} that hold these end",
        (f"kubectl patch resourcequota -n {namespace} {one.quota} --type=merge -p '{patch}'",),
    )


# A layout


def by_layout(seen: Evidence, use: PodUse, pod: Pod, solve: Solver) -> Iterator[Remedy]:
    """A layout that the planner proposes for this pod alone, beside everything that pods hold; else with pods that end."""
    profiles = profiles_of(gpus_of(use.amounts))
    if not profiles or seen.unseen.keys() & {"nodes", "pods of other namespaces"}:
        return
    waiting = replace(use, node="", record="", where=pod)
    pending = Pending(replace(seen.inventory, pods=[waiting]), "9")
    cards = pending.cards()
    if pending.waiting.wanted and cards.cards:
        found = plan(Question(pending.waiting.wanted, cards.cards, cards.places), solve)
        found = cards.undisturbed(found)
        places = [place for place in cards.places if place.name in found.nodes]
        if pending.after(found, places).placed:
            for place in places:
                changed = [n for n in place.cards if found.cards[n] != cards.present[n]]
                cut = "; ".join(f"card {n - place.cards.start}: {_cut(found.cards[n])}" for n in changed)
                yield Remedy(
                    "layout",
                    f"node {place.name} is cut anew ({cut}); pods that run keep what they hold",
                    ("tessera mig plan --from-pending -o runai",),
                )
            return
    if not pending.waiting.to_plan:
        return
    try:
        room = make_room(profiles, seen.inventory, solve)
    except InvalidInput:
        return
    if room.moves:
        names = first_of([f"{move.pod} on {move.node}" for move in room.moves], _MOST_NAMED)
        asked = ",".join(f"{profile}={number}" for profile, number in profiles.items())
        yield Remedy(
            "layout",
            f"{_pods(len(room.moves))} ({names}), and the node is cut anew",
            (f"tessera mig plan --defragment {asked}",),
        )


def _cut(card: CardLayout) -> str:
    return " + ".join(f"{number} × {profile}" for profile, number in card.counts.items()) or "whole"


# A pod that ends


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds what is asked for."""

    pod: str
    node: str
    holds: Mapping[str, int]
    since: float  # Unix time; 0: it does not say
    ending: bool = False


def holders_of(seen: Evidence, gpus: Mapping[str, int], nodes: Sequence[str]) -> list[Holder]:
    """Who holds GPUs of these kinds on these nodes; who holds the most first, then who has the longest."""
    found = []
    for use in seen.inventory.pods:
        held = {r: n for r, n in gpus_of(use.amounts).items() if r in gpus}
        if held and use.node in nodes:
            name = f"{use.namespace}/{use.name}"
            since = seconds(seen.inventory.started.get(name) or use.created) or 0.0
            found.append(Holder(name, use.node, held, since, use.ending))
    return sorted(found, key=lambda one: (-sum(one.holds.values()), one.since, one.pod))


def by_end(seen: Evidence, asks: Mapping[str, Quantity], taken: Sequence[str]) -> Iterator[Remedy]:
    """The fewest pods of one node whose end makes room there."""
    gpus, best = gpus_of(asks), list[Holder]()
    holders = holders_of(seen, gpus, taken)
    for name in sorted(taken):
        usage = seen.inventory.capacity.usage(name)
        missing = {r: n - int(usage[r].available.value) for r, n in gpus.items() if r in usage}
        chosen = []
        for one in (one for one in holders if one.node == name):
            if any(missing.get(r, 0) > 0 for r in one.holds):
                chosen.append(one)
                missing = {r: n - one.holds.get(r, 0) for r, n in missing.items()}
        if chosen and all(n <= 0 for n in missing.values()) and (not best or len(chosen) < len(best)):
            best = chosen
    if best:
        told = ", ".join(
            f"{one.pod} ({counted(one.holds)}, {'ending' if one.ending else age(seen.now, one.since)})"
            for one in best[:_MOST_NAMED]
        )
        more = f" and {len(best) - _MOST_NAMED} more" if len(best) > _MOST_NAMED else ""
        yield Remedy("pod-ends", f"{_pods(len(best))} on node {best[0].node}: {told}{more}")


def _pods(number: int) -> str:
    return "a pod ends" if number == 1 else f"{number} pods end"


def age(now: float, since: float) -> str:
    """How long something has been so: `for 3 h`."""
    if not since:
        return "since when is not known"
    passed = max(0, int(now - since))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= length:
            return f"for {passed // length} {unit}"
    return f"for {passed} s"


# Something mended


def by_mending(groups: Sequence[NodeGroup]) -> Iterator[Remedy]:
    """What to look at on nodes that would have room if they were well, or if the pod asked for less."""
    for group in groups:
        node = group.nodes[0]
        where = f"node {first_of(group.nodes, _MOST_NAMED)}"
        describe = f"kubectl describe node {node}"
        match group.lack:
            case Lack.AWAY:
                plugins = f"kubectl get pods -A -o wide -l app.kubernetes.io/component=device-plugin --field-selector spec.nodeName={node}"
                yield Remedy("mend", f"the device plugin of {where} comes back", (plugins,))
            case Lack.ILL:
                yield Remedy(
                    "mend", f"the ill devices of {where} recover, or the card is replaced", (describe,)
                )
            case Lack.LAYOUT_PENDING:
                pods = f"kubectl get pods -A --field-selector spec.nodeName={node}"
                yield Remedy(
                    "mend", f"the pods that hold old devices of {where} end: {group.reason}", (pods,)
                )
            case Lack.LAYOUT_FAILED:
                yield Remedy(
                    "mend",
                    f"{where} gets a layout that it can take",
                    (f"tessera mig validate --cluster {node}",),
                )
            case Lack.OTHER:
                yield Remedy(
                    "change", f"the pod asks for less, or pods on {where} end ({group.reason})", (describe,)
                )
            case Lack.CLOSED:
                yield Remedy("change", f"the pod may go to {where}: {group.reason}", (describe,))
            case Lack.TOO_FEW:
                yield Remedy("change", f"the pod asks for fewer on one node ({group.reason})")
            case _:
                continue
