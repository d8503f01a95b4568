"""What a pod asks for, whichever way it does: as an extended resource, or by the claim that the bridge made of that.

Everything that counts who waits, and for what, goes by this. A bridged pod counts as waiting for what it asked for first,
though any of its alternatives would do. When it has a node it counts with what its record says that it was given: the
controller writes the record when the claim is allocated. Where containers of one pod asked for the same and were given
different types, the record does not say who got which, and the last of them counts for all.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Final

from tessera.core.kubernetes.pod import Container, Pod, needs, requested
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.mig.geometry import is_known
from tessera.core.mig.profile import MigProfile
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, Alternatives, carried
from tessera.core.requests.record import DECIDED_ANNOTATION, RECORD_ANNOTATION, recorded, undone
from tessera.core.resources import MIG_PREFIX, WHOLE_GPU, is_any_gpu, short
from tessera.core.text import escaped, quoted

MOST_GPUS: Final = 999_999  # of one resource in one container: no node has a million devices


def alternatives_of(pod: Pod) -> Alternatives | None:
    """What a bridged pod's claim may be served with; None for any other pod."""
    return carried(pod.annotations, pod.claims)


def asked(pod: Pod) -> dict[str, Quantity]:
    """Everything that a pod asks for: what it requests of its node, and what its claim stands for."""
    total = requested(pod)
    claim = alternatives_of(pod)
    if claim is None:
        return total
    given = dict(recorded(pod.annotations.get(RECORD_ANNOTATION, ""))) if pod.node_name else {}
    return _with_devices(total, claim.devices(given))


def asked_before_fallback(pod: Pod) -> dict[str, Quantity]:
    """The same as the pod came, before the webhook or the scheduler gave it something else; empty where nothing did."""
    if not pod.annotations.get(RECORD_ANNOTATION):  # nearly always
        return {}
    claim = alternatives_of(pod)
    if claim is not None:
        return _with_devices(requested(pod), claim.devices())
    before = undone(pod)
    return {} if before is pod else requested(before)


def _with_devices(total: dict[str, Quantity], devices: Mapping[str, int]) -> dict[str, Quantity]:
    for resource, number in devices.items():
        amount = Quantity(number)
        total[resource] = total[resource] + amount if resource in total else amount
    return total


# The numbers and names in a pod's GPU requests


def asked_profiles(pod: Pod) -> dict[str, MigProfile]:
    """The MIG resources that a pod asks for, not zero of them, in container order."""
    found: dict[str, MigProfile] = {}
    for container in (*pod.init_containers, *pod.containers):
        for section in (container.requests, container.limits):
            for resource in section:
                if resource.startswith(MIG_PREFIX) and resource not in found:
                    profile = MigProfile.of_resource(resource)
                    if profile is not None and container.asked(resource):
                        found[resource] = profile
    return found


def complete_limits(pod: Pod, gpu_resources: frozenset[str]) -> Pod:
    """Give each GPU request its limit: Kubernetes refuses an extended resource whose limit is not its request."""

    def complete(container: Container) -> Container:
        limits = container.limits
        missing = {
            resource: amount
            for resource, amount in container.requests.items()
            if resource not in limits and (_is_gpu(resource) or resource in gpu_resources)
        }
        if not missing:
            return container
        return Container(container.name, container.requests, {**limits, **missing}, container.restartable)

    return pod.map_containers(complete)


def _is_gpu(resource: str) -> bool:
    if resource.startswith(MIG_PREFIX):
        return "+" not in resource  # that may stand in no resource's name: the API server refuses it
    return is_any_gpu(resource)


def bad_count(pod: Pod, gpu_resources: frozenset[str]) -> str | None:
    """What is wrong with a number of GPUs, before anything is computed with it."""
    for container in (*pod.init_containers, *pod.containers):
        for section in (container.requests, container.limits):
            for resource, amount in section.items():
                number = amount.number
                if isinstance(number, int) and 0 <= number <= MOST_GPUS:
                    continue
                if is_any_gpu(resource) or resource in gpu_resources:
                    return (
                        f"container {container.name} asks for {escaped(str(amount), 20)} of {resource}; GPUs are "
                        f"asked for in whole numbers from 0 to {MOST_GPUS}"
                    )
    return None


def misspelt(pod: Pod) -> Iterator[str]:
    """What a person should hear about a slice that no node can be cut into, whatever else happens to the pod."""
    named = {
        name: None
        for one in (*pod.init_containers, *pod.containers)
        for section in (one.requests, one.limits)
        for name in section
        if name.startswith(MIG_PREFIX)
    }
    for resource in named:
        if is_any_gpu(resource) or not any(one.asked(resource) for one in pod.all_containers()):
            continue
        meant = resource.replace("+", ".")
        if is_any_gpu(meant):
            yield f"{quoted(resource)} is no resource name, did you mean {meant}? Nothing is done about it"
        else:
            yield f"{quoted(resource)} is no MIG profile such as {MIG_PREFIX}1g.10gb: nothing is done about it"


def why_untouched(pod: Pod) -> str:
    """Why there was nothing to do."""
    if any(one.asked(WHOLE_GPU) for one in pod.all_containers()):
        return "asks for whole GPUs, and fallback replaces only MIG profiles"
    return "asks for nothing that fallback or injection looks at"


# Demand: the GPUs that a pod asked for at first, and whether it is to get these


class DemandResult(IntEnum):
    """What becomes of what was asked for."""

    UNMET = 0  # the pod gets something else, or waits for what no node offers
    GOT = 1  # it is admitted as asked, or as a claim that prefers this
    REJECTED = 2


Label = tuple[str]  # a profile, `gpu` or `other`: as counters take it
Demand = tuple[tuple[Label, DemandResult, int], ...]  # with the number of devices


def demand_of(
    pod: Pod, replaced: Iterable[str] = (), *, rejected: bool = False, unmet: bool = False
) -> Demand:
    """What a pod asked for and what becomes of it, by what was decided; nothing of a pod that was counted before.

    The API server sends a pod again that another webhook has changed since. Then it has the record of its first admission.
    """
    annotations = pod.annotations
    record = annotations.get(RECORD_ANNOTATION, "")
    if ALTERNATIVES_ANNOTATION in annotations or (record and DECIDED_ANNOTATION not in annotations):
        return ()
    asked = {
        short(resource): number
        for resource, number in needs(undone(pod) if record else pod, is_any_gpu).items()
        if is_any_gpu(resource) and isinstance(number, int) and 0 < number <= MOST_GPUS
    }
    if rejected:
        return tuple((_label(name), DemandResult.REJECTED, number) for name, number in asked.items())
    others = {*replaced, *(short(old) for old, _ in recorded(record))}
    return tuple(
        (_label(name), DemandResult.UNMET if unmet or name in others else DemandResult.GOT, number)
        for name, number in asked.items()
    )


@lru_cache(maxsize=256)  # more than all cards have: one for all pods
def _label(name: str) -> Label:
    return (name if is_known(name) or name == short(WHOLE_GPU) else "other",)
