"""What a pod asks for, whichever way it does: as an extended resource, or by the claim that the bridge made of that.

Everything that counts who waits, and for what, goes by this. A bridged pod counts as waiting for what it asked for first,
though any of its alternatives would do. When it has a node it counts with what its record says that it was given: the
controller writes the record when the claim is allocated. Where containers of one pod asked for the same and were given
different types, the record does not say who got which, and the last of them counts for all.
"""

from collections.abc import Mapping
from fractions import Fraction

from tessera.core.kubernetes.pod import Pod, requested
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.requests.alternatives import Alternatives, carried
from tessera.core.requests.record import RECORD_ANNOTATION, recorded, undone


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
        amount = Quantity(Fraction(number))
        total[resource] = total[resource] + amount if resource in total else amount
    return total
