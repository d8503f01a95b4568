"""How a pod becomes a fallback search: what holds for it, what it can use, and what it needs after injection with each choice.

Injection shares out what a rule gives for all GPUs, and the shares add up to it. So sums over the containers say what the pod needs, and a
choice takes as long for two hundred containers as for two. Where sums do not say it, injection itself is asked.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tessera.core.admission import injection
from tessera.core.admission.fallback.search import MOST_PROFILES, Choice, FallbackSearch, usable_offers
from tessera.core.admission.injection import (
    GPU_TYPE_ANNOTATION,
    LEAST,
    SHARED,
    InjectionRule,
    running_containers,
)
from tessera.core.admission.limits import Work
from tessera.core.admission.policy import Policy, constraints_of, patience_of
from tessera.core.admission.view.usable import Usable
from tessera.core.admission.view.view import NOTHING_ELSE, ClusterView, Needs
from tessera.core.kubernetes.node import is_other
from tessera.core.kubernetes.pod import Container, Pod, needs
from tessera.core.kubernetes.quantity import Number
from tessera.core.kubernetes.quota import Allowance
from tessera.core.mig.profile import MigProfile
from tessera.core.requests.record import apply
from tessera.core.resources import MIG_PREFIX, WHOLE_GPU

_SUM_STEPS: Final = 20  # for each choice, and for each group of containers: some 6 µs
_INJECTION_STEPS: Final = 100  # for each container: some 30 µs
_ANOTHER: Final = MIG_PREFIX + "another"  # stands for every profile that no rule is about


def ask(pod: Pod, asked: Mapping[str, MigProfile], view: ClusterView, policy: Policy) -> FallbackSearch:
    """The search for a pod whose limits are complete; `InvalidInput` for annotations without a meaning."""
    namespace = view.namespaces.get(pod.namespace)
    constraints = constraints_of(pod, namespace)
    if policy.fallback.full_enabled:
        patience_of(pod, namespace, policy.fallback)  # here it is only refused
    gpu_type = pod.annotations.get(GPU_TYPE_ANNOTATION)
    injects = gpu_type is not None and bool(policy.gpu_resources)
    quotas = view.quotas.get(pod.namespace) if policy.fallback.respects_quota else None
    # what injection writes makes a pod more than best effort
    allowance = Allowance(quotas, pod, qos_known=not injects) if quotas else None
    if gpu_type is None or not injects:
        return FallbackSearch(pod, view, policy.fallback, constraints, asked=asked, allowance=allowance)
    # what injection writes and no node has is warned of, the second time that the pod comes, too
    written = policy.injection.resources(pod.namespace, gpu_type)

    def wanted(every: Needs) -> Needs:
        return {name: n for name, n in every.items() if name not in written or view.has_anywhere(name)}

    wants = wanted(needs(pod, is_other))
    search = FallbackSearch(
        pod, view, policy.fallback, constraints, asked=asked, wanted=wants, allowance=allowance
    )
    if not gpu_type or pod.namespace in policy.injection.skipped_namespaces:
        return search
    rules = policy.injection.rules(pod.namespace, gpu_type)
    sums = InjectedSums(pod, search.moments, asked, rules)

    def needs_with(choice: Choice, work: Work) -> Needs:
        found = sums.needs_with(choice, work)
        if found is None:
            work.spend(_INJECTION_STEPS * (len(pod.containers) + len(pod.init_containers)))
            by = dict.fromkeys(asked, _ANOTHER) | dict(choice)
            outcome = injection.inject(apply(pod, by), policy.injection)
            found = needs(outcome.pod, is_other) if isinstance(outcome, injection.Injected) else NOTHING_ELSE
        return wanted(found)

    running = list(running_containers(pod))
    stays = any(name in rules and name not in asked for one in running for name in one.resources())
    pairs = frozenset(_pairs(running, asked, search.usable, rules))
    search.expect(pairs, needs_with, lambda to, some: wanted(sums.at_least(to, some)), stays=stays)
    return search


def _pairs(
    running: list[Container], asked: Mapping[str, MigProfile], usable: Usable, rules: Mapping[str, object]
) -> Iterator[tuple[str, str]]:
    """What can be chosen that injection goes by: profiles that become a resource with a rule.

    A rule counts what runs as long as the pod does. With two resources that have a rule nothing is injected.
    """
    counted = [one for one in asked if any(container.asked(one) for container in running)]
    for to in rules:
        # what is not offered is chosen for nothing, and may stay beside what is; too many profiles all stay as they are
        if to in usable.most and len(asked) <= MOST_PROFILES:
            yield from ((one, to) for one in counted)
        elif to in counted and len(asked) > 1:
            yield to, to


def too_many_whole_gpus(pod: Pod, view: ClusterView, policy: Policy) -> Iterator[str]:
    """A word about whole GPUs that no node has so many of: fallback leaves them alone, and the pod would wait for ever."""
    if not any(one.asked(WHOLE_GPU) for one in pod.all_containers()):
        return
    need = needs(pod, WHOLE_GPU.__eq__).get(WHOLE_GPU, 0)
    nodes = view.for_pod(pod, policy.fallback.transient_taints)
    most = usable_offers(pod, view, policy.fallback, nodes).most.get(WHOLE_GPU, 0)
    if most < need:
        has = f"more than {most}" if most else "any"
        yield f"{WHOLE_GPU}: {need}: no node that this pod can use has {has}; the pod stays as it is and waits"


@dataclass(slots=True)
class _Group:
    """Containers that run together and have the same GPU resources."""

    least: dict[str, Number]  # GPU resource → the least that one of them has
    total: dict[str, Number]  # all of them
    asked: dict[str, Number] = field(default_factory=dict)  # what they ask for of all that rules write


class InjectedSums:
    """The sums over one pod's containers."""

    def __init__(
        self,
        pod: Pod,
        moments: list[dict[str, Number]],
        asked: Collection[str],
        rules: Mapping[str, InjectionRule],
    ) -> None:
        self._pod, self._asked, self._rules = pod, asked, rules
        *self._starting, self._running = moments

    @cached_property
    def _groups(self) -> list[_Group] | None:
        """None: sums do not say what such a pod needs."""
        pod = self._pod
        if pod.pod_requests or pod.pod_limits:
            return None  # which injection may not exceed
        begins = any(not one.restartable for one in pod.init_containers)
        written = {name for rule in self._rules.values() for name, _ in rule.per_gpu}
        known = {*self._asked, *self._rules}
        groups: dict[frozenset[str], _Group] = {}
        for one in running_containers(pod):
            requests, limits = (
                {} if known.isdisjoint(section) else {r: n.number for r, n in section.items() if r in known}
                for section in (one.requests, one.limits)
            )
            if requests and requests != limits:
                return None
            gpus = {resource: number for resource, number in limits.items() if number}
            if gpus and one.restartable and begins:
                return None  # its own share counts while others start
            group = groups.get(same := frozenset(gpus))
            if group is None:
                group = groups[same] = _Group(dict(gpus), dict.fromkeys(gpus, 0))
            for resource, number in gpus.items():
                group.least[resource] = min(group.least[resource], number)
                group.total[resource] += number
            for name in written:
                if (amount := one.asked(name)) is not None:
                    group.asked[name] = group.asked.get(name, 0) + amount.number
        return list(groups.values())

    @cached_property
    def _staying(self) -> set[str]:
        """The resources with a rule that no choice takes away."""
        return {name for group in self._groups or () for name in group.total if name not in self._asked}

    def needs_with(self, choice: Choice, work: Work) -> Needs | None:
        """What the pod needs besides GPUs with a choice; nothing where nothing can be injected, None where sums do not say it."""
        groups = self._groups
        if groups is None:
            return None
        work.spend(_SUM_STEPS * (1 + len(groups)))
        staying = self._staying
        targets = staying.union(to for _, to in choice)
        if len(targets) != 1:
            return NOTHING_ELSE
        (to,) = targets
        if choice and is_other(to):
            return None
        sources = staying.union(one for one, _ in choice)
        having = [group for group in groups if not sources.isdisjoint(group.total)]
        others = [group for group in groups if sources.isdisjoint(group.total)]
        number = sum([n for group in having for r, n in group.total.items() if r in sources])
        least = min([sum([n for r, n in group.least.items() if r in sources]) for group in having])
        after = dict(self._running)
        for name, per_gpu in self._rules[to].per_gpu:
            if not per_gpu:
                continue
            total, taken = per_gpu.number * number, sum([group.asked.get(name, 0) for group in others])
            if name in SHARED:
                if taken > total:
                    return NOTHING_ELSE
                units = -(-(total - taken) // SHARED[name])
                if units * least // number * SHARED[name] < LEAST[name]:
                    return None  # the smallest share may be too small
                total = units * SHARED[name]
            elif not per_gpu.is_whole:
                return None
            after[name] = total + taken
        return needs(self._pod, is_other, [*self._starting, after])

    def at_least(self, to: str, sources: Collection[str]) -> Needs:
        """What the pod needs at least of what a rule writes while these profiles, or more, become a resource; nothing where sums do not say it.

        No other resource with a rule is chosen beside it.
        """
        groups, found = self._groups, dict[str, Number]()
        if groups is None or self._staying or is_other(to):
            return NOTHING_ELSE
        number = sum([n for group in groups for r, n in group.total.items() if r in sources])
        least = min([n for group in groups for n in group.least.values()])
        for name, per_gpu in self._rules[to].per_gpu:
            found[name] = total = per_gpu.number * number
            if name in SHARED:  # the more GPUs, the larger the shares: none is refused then
                asked = [group.asked.get(name, 0) for group in groups]
                taken = sum(
                    [
                        n
                        for n, group in zip(asked, groups, strict=True)
                        if group.total.keys().isdisjoint(sources)
                    ]
                )
                if min(asked) < 0 or (total - taken) * least < LEAST[name] * number:
                    return NOTHING_ELSE
            elif not per_gpu.is_whole:
                return NOTHING_ELSE
        return found
