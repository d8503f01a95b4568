"""The mark of a pod that was decided about by what was free at that moment: its GPU requests as decided, by container.

    gpu-webhook.k8s.io/decided-when: {"main":{"nvidia.com/mig-1g.10gb":"1"}}

The API server sends a pod again that another webhook has changed since. By then something else may be free, and the pod's own room is taken. So
what a mark agrees with is kept. A pod's author can write a mark, too: all it says is that what is free does not matter.
"""

from enum import Enum
from typing import Final

from tessera.core.kubernetes.pod import Pod
from tessera.core.requests.record import LONGEST, MARK_ANNOTATION, asked_of, asked_text, read_asked

# bytes of a pod's requests as they came: what replaces them may have longer names
_MOST: Final = LONGEST // 2
_LONGEST_NAME, _LONGEST_COUNT = 70, 92  # bytes of a container, and of each of its resources


class Mark(Enum):
    """What a pod's mark says about the pod as it is now."""

    NONE = "none"  # there is no mark that the webhook would have written, or the containers in it ask for something else
    AGREES = "agrees"  # all that the pod asks for was decided
    EARLIER = "earlier"  # containers that ask for GPUs came since


def can_be_marked(pod: Pod) -> bool:
    """Whether a pod, whose limits are complete, has a mark that can be written, whatever its profiles become."""
    most = sum([_LONGEST_NAME + _LONGEST_COUNT * len(one.limits) for one in pod.all_containers()])
    return most <= _MOST or 0 < len(mark_text(pod)) <= _MOST


def mark_text(pod: Pod) -> str:
    """The mark of a pod; empty where it would be too long for an annotation."""
    return asked_text(asked_of(pod))


def mark_of(pod: Pod) -> Mark:
    text = pod.annotations.get(MARK_ANNOTATION)
    decided = read_asked(text) if text else None
    if decided is None:
        return Mark.NONE
    has = asked_of(pod)
    if any(has.get(name) != gpus for name, gpus in decided.items()):
        return Mark.NONE
    return Mark.AGREES if len(decided) == len(has) else Mark.EARLIER
