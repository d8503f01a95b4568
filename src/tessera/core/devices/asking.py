"""What a pod asks for, whichever way it does: as an extended resource, or by the claim that the bridge made of that.

Everything that counts who waits, and for what, goes by this. A bridged pod counts as waiting for what it asked for first,
though any of its alternatives would do. When it has a node it counts with what its record says that it was given: the
controller writes the record when the claim is allocated. Where containers of one pod asked for the same and were given
different types, the record does not say who got which, and the last of them counts for all.
"""

from fractions import Fraction

from tessera.core.admission.alternatives import Alternatives, carried
from tessera.core.admission.decision import RECORD_ANNOTATION, recorded
from tessera.core.kubernetes.pod import Pod, requested
from tessera.core.kubernetes.quantity import Quantity


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
    for resource, number in claim.devices(given).items():
        amount = Quantity(Fraction(number))
        total[resource] = total[resource] + amount if resource in total else amount
    return total
