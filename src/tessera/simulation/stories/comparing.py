"""What is wrong about a scene, in words: how it was to end, set against how it did."""

from collections.abc import Mapping
from typing import Any

from tessera.core.kubernetes.quantity import Quantity
from tessera.core.requests.record import RECORD_ANNOTATION
from tessera.simulation.control_plane.store import Document
from tessera.simulation.stories.scenes import annotations_of, first_sentence, held_counts, runs, why_waiting
from tessera.simulation.stories.story import Counts, Ending, Refused, Runs, Waits


def refusal_wrong(ends: Ending, message: str) -> tuple[str, ...]:
    """What is wrong about a refusal."""
    if not isinstance(ends, Refused):
        return ("expected the pod to be admitted, but it was refused",)
    return tuple(f'expected the message to contain "{words}"' for words in ends.words if words not in message)


def pod_wrong(
    ends: Ending, pod: Document, claimed: Mapping[str, Counts], *, kubelets: bool
) -> tuple[str, ...]:
    """What is wrong about an admitted pod; without kubelets, no devices are handed out but those of claims."""
    record = annotations_of(pod).get(RECORD_ANNOTATION, "")
    wrong: list[str] = []
    if isinstance(ends, Refused):
        return ("expected the pod to be refused, but it was admitted",)
    if record != ends.fallback:
        wrong.append(f"expected fallback {ends.fallback or 'none'}, got {record or 'none'}")
    if isinstance(ends, Waits):
        waiting = why_waiting(pod)
        if first_sentence(waiting) != ends.because:
            wrong.append(f'expected it to wait because "{ends.because}", but it waits because "{waiting}"')
        return tuple(wrong)
    node, phase = pod["spec"].get("nodeName"), pod["status"].get("phase")
    if not runs(pod, kubelets=kubelets) or node != ends.on:
        wrong.append(f"expected it to run on {ends.on}, but it is {phase} on {node or 'no node'}")
    wrong += _contents_wrong(ends, pod)
    if claimed or kubelets:
        wrong += _devices_wrong(ends, claimed or held_counts(pod))
    return tuple(wrong)


def _devices_wrong(ends: Runs, held: Mapping[str, Counts]) -> list[str]:
    return [
        f"expected container {container} to hold {dict(counts)}, but it holds {held.get(container, {})}"
        for container, counts in ends.holds.items()
        if held.get(container, {}) != counts
    ]


def _contents_wrong(ends: Runs, pod: Document) -> list[str]:
    wrong = []
    for container in pod["spec"]["containers"]:
        limits = container.get("resources", {}).get("limits") or {}
        wanted = ends.limits.get(container["name"])
        if wanted is not None and _plain(limits) != _plain(wanted):
            wrong.append(
                f"expected container {container['name']} to have limits {dict(wanted)}, but it has {limits}"
            )
    has = annotations_of(pod)
    wrong += [
        f"expected annotation {key} to be {v}, got {has.get(key)}"
        for key, v in ends.annotations.items()
        if has.get(key) != v
    ]
    return wrong  # fmt: skip


def counts_wrong(node: str, wanted: Counts, found: Counts) -> tuple[str, ...]:
    """Resources that are not as they are to be; what is not there is zero of it."""
    names = [*wanted, *(name for name in found if name not in wanted)]
    return tuple(
        f"{node}: expected {name} {wanted.get(name, 0)}, got {found.get(name, 0)}"
        for name in names
        if wanted.get(name, 0) != found.get(name, 0)
    )


def _plain(amounts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(Quantity.parse(amount)) for name, amount in amounts.items()}
