"""How fallback is asked about a pod: by what holds for it, and with room for what injection will add to each choice."""

from collections.abc import Mapping, Sequence
from typing import Final

from tessera.core.admission import injection
from tessera.core.admission.constraints import constraints_of
from tessera.core.admission.fallback.search import FallbackSearch, apply, usable_offers
from tessera.core.admission.injection import GPU_TYPE_ANNOTATION
from tessera.core.admission.limits import Work
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.view import ClusterView, Needs
from tessera.core.kubernetes.node import Offer, is_other
from tessera.core.kubernetes.pod import Pod, needs
from tessera.core.kubernetes.quota import Allowance
from tessera.core.mig.profile import MigProfile

_INJECTION_STEPS: Final = 100  # for each container: some 30 µs


def ask(pod: Pod, asked: Mapping[str, MigProfile], offers: ClusterView, policy: Policy) -> FallbackSearch:
    """What fallback is asked about a pod whose limits are complete; `InvalidInput` for annotations without a meaning."""
    constraints = constraints_of(pod, offers.namespaces.get(pod.namespace))
    gpu_type = pod.annotations.get(GPU_TYPE_ANNOTATION)
    injects = gpu_type is not None and bool(policy.gpu_resources)
    quotas = offers.quotas.get(pod.namespace) if policy.fallback.respects_quota else None
    # what injection writes makes a pod more than best effort
    allowance = Allowance(quotas, pod, qos_known=not injects) if quotas else None
    if gpu_type is None or not injects:
        return FallbackSearch(pod, offers, policy.fallback, constraints, asked=asked, allowance=allowance)
    work = Work()
    # what injection writes and no node has is warned of, the second time that the pod comes, too
    written = policy.injection.resources(pod.namespace, gpu_type)

    def wanted(of: Pod) -> Needs:
        every = needs(of, is_other).items()
        return {name: n for name, n in every if name not in written or offers.has_anywhere(name)}

    def fits(by: Mapping[str, str], fitting: Sequence[Offer]) -> bool:
        """Whether what injection adds to a choice still fits on one of its nodes."""
        work.spend(_INJECTION_STEPS * (len(pod.containers) + len(pod.init_containers)))
        injected = injection.inject(apply(pod, by), policy.injection)
        if not isinstance(injected, injection.Injected):
            return True
        holding = set(usable_offers(pod, offers, policy.fallback, wanted(injected.pod), work))
        return any(one in holding for one in fitting)

    return FallbackSearch(
        pod,
        offers,
        policy.fallback,
        constraints,
        wanted(pod),
        fits,
        asked=asked,
        work=work,
        allowance=allowance,
    )
