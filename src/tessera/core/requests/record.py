"""The record of a fallback: what a pod asked for, and what it was given in its place. The one place that reads, writes and undoes it.

A pod whose GPU request fallback replaced carries two annotations:

    gpu-webhook.k8s.io/fallback: 3g.30gb->2g.20gb,2g.20gb->1g.10gb       what became of what, in container order
    gpu-webhook.k8s.io/asked: {"main":{"nvidia.com/mig-3g.30gb":"1"}}     its GPU requests as they came, by container

A pod whose requests are too long for an annotation carries the first one alone. That one is ambiguous where several profiles
became the same one: then the largest counts, since it can do the others' work. A pod's author can write both annotations.
So `asked` counts for a container only where it agrees with the record and with the number of devices that the container has now.

The mark of a pod that was decided about by what was free at that moment: its GPU requests as decided, by container.

    gpu-webhook.k8s.io/decided-when: {"main":{"nvidia.com/mig-1g.10gb":"1"}}

The API server sends a pod again that another webhook has changed since. By then something else may be free, and the pod's own room is taken. So
what a mark agrees with is kept. A pod's author can write a mark, too: all it says is that what is free does not matter.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.pod import Amounts, Container, Pod
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import is_any_gpu, of_short, short

RECORD_ANNOTATION: Final = "gpu-webhook.k8s.io/fallback"
ASKED_ANNOTATION: Final = "gpu-webhook.k8s.io/asked"
# on a pod template, and on the pods that are made from it: it was decided about when its workload was created
DECIDED_ANNOTATION: Final = "gpu-webhook.k8s.io/decided"
MARK_ANNOTATION: Final = "gpu-webhook.k8s.io/decided-when"  # `mark` says what it means

# entries of a record that are read and kept: the webhook's have one for each of 8 profiles at most, a claim has 32 requests
_MOST_RECORDED: Final = 32
LONGEST: Final = 4096  # bytes of `asked`, which is ASCII; longer texts are neither written nor read
_COUNT: Final = r'"[^"\\]{1,80}":"[1-9][0-9]{0,5}"'
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)  # of a container: a DNS label
_ENTRY: Final = rf'"({_NAME.pattern})":\{{({_COUNT}(?:,{_COUNT})*)\}}'
_TEXT: Final = re.compile(rf"\{{{_ENTRY}(?:,{_ENTRY})*\}}", re.ASCII)

Replaced = tuple[str, str]  # what was asked for, and what was given
Asked = Mapping[str, Mapping[str, int]]  # container → GPU resource → how many, never zero


# The text of the record


def written(replaced: Iterable[Replaced]) -> str:
    """The text for some replacements, given by short names: each once, in their order."""
    return ",".join(dict.fromkeys(f"{old}->{new}" for old, new in replaced))


def recorded(record: str) -> Iterator[Replaced]:
    """The replacements of a record, as resources; entries that fallback would not write are left out."""
    if not record:  # nearly always, and an entry without a meaning takes long
        return
    for entry in record.split(",", _MOST_RECORDED)[:_MOST_RECORDED]:
        old, arrow, new = entry.partition("->")
        try:
            pair = of_short(old), of_short(new)
        except InvalidInput:
            continue
        if arrow and f"{short(pair[0])}->{short(pair[1])}" == entry:
            yield pair


def record_with(earlier: str, replaced: Sequence[Replaced]) -> str:
    """A record with what is new at its end; of what was recorded before, as much as is read again."""
    if not earlier:
        return written(replaced)
    new = list(dict.fromkeys(replaced))
    before = [(short(old), short(given)) for old, given in recorded(earlier)]
    kept = [one for one in dict.fromkeys(before) if one not in new]
    return written([*kept[: _MOST_RECORDED - len(new)], *new])


def asked_first(record: str) -> str:
    """What a record's pod asked for before fallback, as text: `3g.30gb, 2g.20gb`."""
    return ", ".join(dict.fromkeys(short(old) for old, _ in recorded(record)))


# The text of what was asked


def gpus_of(container: Container) -> dict[str, int]:
    """The GPUs that a container asks for, by resource; never zero of one."""
    requests = container.requests
    found = {r: int(amount.number) for r, amount in requests.items() if is_any_gpu(r)}
    for resource, amount in container.limits.items():
        if resource not in requests and is_any_gpu(resource):
            found[resource] = int(amount.number)
    return found if all(found.values()) else {resource: count for resource, count in found.items() if count}


def asked_of(pod: Pod) -> dict[str, dict[str, int]]:
    """The GPUs that each container of a pod asks for now."""
    containers = (*pod.init_containers, *pod.containers)
    return {one.name: gpus for one in containers if (gpus := gpus_of(one))}


def asked_text(asked: Asked) -> str:
    """The annotation for what was asked: compact JSON. Empty where it would be too long, or a name is none that a container can have."""
    if not asked or not all(map(_NAME.fullmatch, asked)):
        return ""
    text = ",".join(f'"{name}":{{{_counts(gpus)}}}' for name, gpus in asked.items())
    return f"{{{text}}}" if len(text) + 2 <= LONGEST else ""


def _counts(gpus: Mapping[str, int]) -> str:
    return ",".join(f'"{resource}":"{count}"' for resource, count in gpus.items())


def read_asked(text: str) -> dict[str, dict[str, int]] | None:
    """What an annotation says was asked; None for anything that the webhook would not write."""
    if len(text) > LONGEST or _TEXT.fullmatch(text) is None:
        return None
    found: dict[str, dict[str, int]] = {}
    for match in re.finditer(_ENTRY, text, re.ASCII):
        counts = (one.split('":"') for one in match[2][1:-1].split('","'))
        found[match[1]] = {resource: int(count) for resource, count in counts}
    if not all(is_any_gpu(resource) for gpus in found.values() for resource in gpus):
        return None
    return found if asked_text(found) == text else None


def _asked_with(earlier: str, came: Pod) -> str:
    """The annotation of a pod that came with `earlier`: entries of containers that it knows stay, other containers are added.

    Without entries that can be read, a record that the pod has already shows what its containers asked for.
    """
    known = read_asked(earlier) if earlier else None
    if known is None:
        return asked_text(asked_of(undone(came)))
    return asked_text({**known, **{name: gpus for name, gpus in asked_of(came).items() if name not in known}})


# What a decision writes


def with_record(came: Pod, replaced: Sequence[Replaced]) -> dict[str, str]:
    """The annotations of a pod that came so, now that some of its resources are replaced; they are given by short names."""
    earlier = came.annotations
    asked = _asked_with(earlier.get(ASKED_ANNOTATION, ""), came)
    annotations = {**earlier, RECORD_ANNOTATION: record_with(earlier.get(RECORD_ANNOTATION, ""), replaced)}
    if asked:
        annotations[ASKED_ANNOTATION] = asked
    return annotations


def with_later_containers(pod: Pod) -> Pod:
    """A pod whose record was written before, with the containers added that came since: they ask for what they asked for first."""
    earlier = pod.annotations.get(ASKED_ANNOTATION, "")
    known = read_asked(earlier) if pod.annotations.get(RECORD_ANNOTATION) and earlier else None
    if known is None or DECIDED_ANNOTATION in pod.annotations or known.keys() >= asked_of(pod).keys():
        return pod
    asked = _asked_with(earlier, pod)
    return replace(pod, annotations={**pod.annotations, ASKED_ANNOTATION: asked}) if asked else pod


# Undoing


def undone(pod: Pod) -> Pod:
    """A pod with what it asked for before fallback, as far as its annotations show it; the very same pod where they do not."""
    record = pod.annotations.get(RECORD_ANNOTATION)
    entries = tuple(recorded(record)) if record else ()
    if not entries:
        return pod
    asked = read_asked(pod.annotations.get(ASKED_ANNOTATION, "")) or {}

    def container(one: Container) -> Container:
        has = gpus_of(one)
        if one.name in asked and _agree(asked[one.name], has, entries):
            return _asking(one, asked[one.name])
        return renamed(one, {r: before for r in has if (before := _before(r, entries)) != r})

    return pod.map_containers(container)


def as_created(pod: Pod) -> Pod:
    """A pod of a cluster as its creator sent it, as far as that is known: before fallback, and without the scheduler's node.

    One that was made from a template that was decided about came as it is.
    """
    before = pod if DECIDED_ANNOTATION in pod.annotations else undone(pod)
    if MARK_ANNOTATION in before.annotations:
        unmarked = {name: text for name, text in before.annotations.items() if name != MARK_ANNOTATION}
        before = replace(before, annotations=unmarked)
    return replace(before, node_name="") if before.node_name else before


def _before(resource: str, entries: Sequence[Replaced]) -> str:
    """What became a resource, by way of others too: the largest of several; the resource itself where nothing did."""
    later, found = {resource}, dict[MigProfile, str]()
    for old, new in reversed(entries):
        profile = MigProfile.of_resource(old)
        if new in later and profile is not None:  # fallback replaces profiles alone
            later.add(old)
            found[profile] = old
    return found[max(found)] if found else resource


def _agree(asked: Mapping[str, int], has: Mapping[str, int], entries: Sequence[Replaced]) -> bool:
    """Whether a container that asked for this can have that by now, by its record: as many devices, of types that became these."""
    became = {resource: _after(resource, entries) for resource in asked}
    return (
        sum(asked.values()) == sum(has.values())
        and all(count <= sum(has.get(r, 0) for r in became[old]) for old, count in asked.items())
        and all(count <= sum(asked[old] for old in asked if new in became[old]) for new, count in has.items())
    )


def _after(resource: str, entries: Sequence[Replaced]) -> set[str]:
    """What a resource may have become, itself included."""
    found = {resource}
    for old, new in entries:
        if old in found:
            found.add(new)
    return found


def _asking(container: Container, gpus: Mapping[str, int]) -> Container:
    """A container with other GPUs, in each section that has some."""
    amounts = {resource: Quantity(count) for resource, count in gpus.items()}

    def section(given: Amounts) -> Amounts:
        rest = {r: amount for r, amount in given.items() if not amount or not is_any_gpu(r)}
        return given if len(rest) == len(given) else {**rest, **amounts}

    return _with_sections(container, section(container.requests), section(container.limits))


# Replacing


def apply(pod: Pod, by: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> Pod:
    """The pod with its resources replaced; `annotations` take the place of its own, where they are given."""
    return pod.map_containers(lambda one: renamed(one, by), annotations)


def renamed(container: Container, by: Mapping[str, str]) -> Container:
    """A container with its resources replaced, in requests and in limits; a key that is there already is added to."""
    if by.keys().isdisjoint(container.requests) and by.keys().isdisjoint(container.limits):
        return container

    def section(amounts: Amounts) -> Amounts:
        if not any(amounts.get(resource) for resource in by):
            return amounts
        replaced = {r: amount for r, amount in amounts.items() if r not in by or not amount}
        for resource, to in by.items():
            if moved := amounts.get(resource):
                replaced[to] = replaced[to] + moved if to in replaced else moved
        return replaced

    # a limit without a request is one: where its new name is requested too, the request grows as the limit does
    requests, limits = container.requests, container.limits
    if not limits.keys() <= requests.keys():
        named = {by.get(r, r) if amount else r for r, amount in requests.items()}
        implied = {
            r: amount
            for r, amount in limits.items()
            if amount and r not in requests and by.get(r, r) in named
        }
        requests = {**requests, **implied} if implied else requests
    return _with_sections(container, section(requests), section(limits))


def _with_sections(one: Container, requests: Amounts, limits: Amounts) -> Container:
    if requests is one.requests and limits is one.limits:
        return one
    return Container(one.name, requests, limits, one.restartable)


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
