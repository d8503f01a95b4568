"""How a pod becomes a fallback search: what holds for it, what it can use, and what it needs after injection with each choice."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations
from typing import Final

from tessera.core.admission import injection
from tessera.core.admission.fallback.search import MOST_PROFILES, FallbackSearch
from tessera.core.admission.injection import GPU_TYPE_ANNOTATION
from tessera.core.admission.policy import Policy, constraints_of
from tessera.core.admission.view.usable import Usable
from tessera.core.admission.view.view import NOTHING_ELSE, ClusterView, Needs
from tessera.core.kubernetes.node import is_other
from tessera.core.kubernetes.pod import Pod, needs
from tessera.core.kubernetes.quota import Allowance
from tessera.core.mig.profile import MIG_PREFIX, MigProfile
from tessera.core.requests.record import apply

_INJECTION_STEPS: Final = 100  # for each container: some 30 µs
_ANOTHER: Final = MIG_PREFIX + "another"  # stands for every profile that no rule is about


def ask(pod: Pod, asked: Mapping[str, MigProfile], view: ClusterView, policy: Policy) -> FallbackSearch:
    """The search for a pod whose limits are complete; `InvalidInput` for annotations without a meaning."""
    constraints = constraints_of(pod, view.namespaces.get(pod.namespace))
    gpu_type = pod.annotations.get(GPU_TYPE_ANNOTATION)
    injects = gpu_type is not None and bool(policy.gpu_resources)
    quotas = view.quotas.get(pod.namespace) if policy.fallback.respects_quota else None
    # what injection writes makes a pod more than best effort
    allowance = Allowance(quotas, pod, qos_known=not injects) if quotas else None
    if gpu_type is None or not injects:
        return FallbackSearch(pod, view, policy.fallback, constraints, asked=asked, allowance=allowance)
    # what injection writes and no node has is warned of, the second time that the pod comes, too
    written = policy.injection.resources(pod.namespace, gpu_type)

    def wanted(of: Pod) -> Needs:
        every = needs(of, is_other).items()
        return {name: n for name, n in every if name not in written or view.has_anywhere(name)}

    search = FallbackSearch(
        pod, view, policy.fallback, constraints, asked=asked, wanted=wanted(pod), allowance=allowance
    )

    def wanted_with(choice: frozenset[tuple[str, str]]) -> Needs:
        search.work.spend(_INJECTION_STEPS * (len(pod.containers) + len(pod.init_containers)))
        by = dict.fromkeys(asked, _ANOTHER) | dict(choice)
        outcome = injection.inject(apply(pod, by), policy.injection)
        return wanted(outcome.pod) if isinstance(outcome, injection.Injected) else NOTHING_ELSE

    rules = policy.injection.rules(pod.namespace, gpu_type)
    choices = _choices(pod, asked, search.usable, rules)
    search.expect({choice: partial(wanted_with, choice) for choice in choices})
    return search


def _choices(
    pod: Pod, asked: Mapping[str, MigProfile], usable: Usable, rules: Mapping[str, object]
) -> Iterator[frozenset[tuple[str, str]]]:
    """What can be chosen that injection goes by: which of the profiles become one resource with a rule.

    A rule counts what runs as long as the pod does. With two resources that have a rule nothing is injected.
    """
    running = [one for one in asked if any(c.asked(one) for c in injection.running_containers(pod))]
    if any(
        name in rules and name not in asked
        for c in injection.running_containers(pod)
        for name in c.resources()
    ):
        yield frozenset()  # a resource with a rule stays, whatever is chosen
    for to in rules:
        # what is not offered is chosen for nothing, and may stay beside what is; too many profiles all stay as they are
        if to not in usable.most or len(asked) > MOST_PROFILES:
            if to in running and len(asked) > 1:
                yield frozenset({(to, to)})
            continue
        for number in range(1, len(running) + 1):
            for some in combinations(running, number):
                yield frozenset((one, to) for one in some)
