"""Injection: the CPU, memory and extras that a pod's GPUs need, in exact arithmetic.

The rules are gpuinjector's: so much per GPU for a GPU type. CPU, memory and ephemeral storage are counted for the
pod, less what its containers without a GPU ask for, and the rest is shared out by GPU count; extended resources go
to each container by its own GPUs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, Literal

from tessera.core.kubernetes.pod import Container, Pod, why_pod_level_broken
from tessera.core.kubernetes.quantity import Number, Quantity
from tessera.core.resources import is_any_gpu, short
from tessera.core.text import first_of, quoted
from tessera.core.values import value

GPU_TYPE_ANNOTATION: Final = "task.bkbcs.tencent.com/gpu-type"

# What is shared between a pod's containers, and the smallest part of it that a share is counted in.
SHARED: Final[Mapping[str, Fraction]] = {
    "cpu": Fraction(1, 1000),  # millicores
    "memory": Fraction(1),  # bytes
    "ephemeral-storage": Fraction(1),
}
# A smaller share is none: a cpu limit of 0 is no limit at all, and in less than a mebibyte no process starts.
LEAST: Final[Mapping[str, Fraction]] = {
    "cpu": Fraction(1, 1000),
    "memory": Fraction(2**20),
    "ephemeral-storage": Fraction(2**20),
}
_MOST_NAMED: Final = 3  # in one warning, which kubectl cuts at 120 characters


@dataclass(frozen=True, slots=True)
class InjectionRule:
    """What one GPU of a type brings with it."""

    per_gpu: tuple[tuple[str, Quantity], ...]  # resource → coefficient × unit
    annotations: Mapping[str, str] = field(default_factory=dict)


Rules = Mapping[str, Mapping[str, InjectionRule]]  # GPU type → GPU resource → rule


@dataclass(frozen=True, slots=True)
class InjectionPolicy:
    """All rules: by default, by namespace, and the namespaces that are left out."""

    default: Rules = field(default_factory=dict)
    by_namespace: Mapping[str, Rules] = field(default_factory=dict)
    skipped_namespaces: frozenset[str] = frozenset()

    def rules(self, namespace: str, gpu_type: str) -> dict[str, InjectionRule]:
        """The rules for a type: the namespace's where it has one for the resource, else the default."""
        own = self.by_namespace.get(namespace, {}).get(gpu_type, {})
        return {**self.default.get(gpu_type, {}), **own}

    def resources(self, namespace: str, gpu_type: str) -> frozenset[str]:
        """Every resource that the rules for a type may write."""
        rules = self.rules(namespace, gpu_type).values()
        return frozenset(name for rule in rules for name, _ in rule.per_gpu)

    def gpu_resources(self) -> frozenset[str]:
        """Every resource that some rule takes for a GPU."""
        every = (self.default, *self.by_namespace.values())
        return frozenset(resource for rules in every for one in rules.values() for resource in one)

    def annotations(self) -> frozenset[str]:
        """Every annotation that some rule reads or writes."""
        every = (self.default, *self.by_namespace.values())
        rules = (rule for types in every for one in types.values() for rule in one.values())
        return frozenset({GPU_TYPE_ANNOTATION}.union(*(rule.annotations for rule in rules)))


@value
class Untouched:
    """No rule concerns the pod."""

    warnings: tuple[str, ...] = ()  # when its annotation says that one should


@value
class Injected:
    """The pod as the rule makes it; the very same pod when it is so already."""

    pod: Pod
    gpu_type: str
    resource: str
    warnings: tuple[str, ...] = ()  # what a container had more of, or a GPU that has no rule


Refusal = Literal[
    "two_gpu_resources",
    "no_gpus",
    "others_ask_too_much",
    "share_of_nothing",
    "fraction_of_extended_resource",
    "pod_level_resources",
]


@value
class Refused:
    """The rule matches and cannot be followed; the message says what to change."""

    reason: Refusal
    message: str


def inject(pod: Pod, policy: InjectionPolicy) -> Untouched | Injected | Refused:
    """Give a pod's GPU containers what their GPUs need. GPU counts are whole numbers, not negative."""
    gpu_type = pod.annotations.get(GPU_TYPE_ANNOTATION)
    if not gpu_type or pod.namespace in policy.skipped_namespaces:
        return Untouched()
    rules = policy.rules(pod.namespace, gpu_type)
    running = list(running_containers(pod))
    names = dict.fromkeys(r for container in running for r in container.resources())
    named = [r for r in rules if r in names]
    warnings = tuple(_without_rule(gpu_type, rules, [r for r in names if is_any_gpu(r)]))
    if not named:
        return Untouched(warnings)
    asked = [resource for resource in named if any(container.asked(resource) for container in running)]
    if len(asked) > 1:
        return Refused(
            "two_gpu_resources",
            f"GPU type {gpu_type}: the pod asks for {' and '.join(asked)}, and rules exist for each of them; "
            "ask for one of them only",
        )
    if not asked:
        return Refused(
            "no_gpus",
            f"GPU type {gpu_type}: the pod asks for 0 of {named[0]}; ask for at least 1, or remove the annotation "
            f"{GPU_TYPE_ANNOTATION}",
        )
    outcome = _follow(pod, gpu_type, asked[0], rules[asked[0]])
    return outcome if isinstance(outcome, Refused) else replace(outcome, warnings=warnings + outcome.warnings)


def _without_rule(gpu_type: str, rules: Mapping[str, InjectionRule], gpus: list[str]) -> Iterator[str]:
    """What a person should hear whose pod is annotated, and gets nothing."""
    if not rules:
        yield f"GPU type {quoted(gpu_type)} has no rule, nothing is injected ({GPU_TYPE_ANNOTATION})"
    elif unknown := [short(resource) for resource in gpus if resource not in rules]:
        yield (
            f"GPU type {gpu_type} has no rule for {', '.join(unknown)}: nothing is injected for it; "
            f"there are rules for {', '.join(map(short, rules))}"
        )
    elif not gpus:
        known = ", ".join(map(short, rules))
        yield f"GPU type {gpu_type}: no container asks for {known}, for which there are rules; nothing is injected"


def _follow(pod: Pod, gpu_type: str, resource: str, rule: InjectionRule) -> Injected | Refused:
    running = list(running_containers(pod))
    gpus = [amount.number if (amount := container.asked(resource)) else 0 for container in running]
    written: list[dict[str, Quantity]] = [{} for _ in running]
    for name, per_gpu in rule.per_gpu:
        if not per_gpu:
            continue  # a coefficient of 0 is no share
        amounts = (_shares if name in SHARED else _multiples)(name, per_gpu, running, gpus)
        if isinstance(amounts, Refused):
            return replace(amounts, message=f"GPU type {gpu_type}: {amounts.message}")
        for here, count, amount in zip(written, gpus, amounts, strict=True):
            if count:
                here[name] = amount
    changed = _with_running(pod, [_write(c, amounts) for c, amounts in zip(running, written, strict=True)])
    if (broken := why_pod_level_broken(pod, changed, [name for name, _ in rule.per_gpu])) is not None:
        return Refused("pod_level_resources", f"GPU type {gpu_type}: {broken}")
    if any(pod.annotations.get(key) != value for key, value in rule.annotations.items()):
        changed = replace(changed, annotations={**pod.annotations, **rule.annotations})
    lowered = [text for c, amounts in zip(running, written, strict=True) for text in _lowered(c, amounts)]
    warning = f"GPU type {gpu_type} lowers {first_of(lowered, _MOST_NAMED)}"
    return Injected(changed, gpu_type, resource, (warning,) if lowered else ())


def _shares(
    name: str, per_gpu: Quantity, running: list[Container], gpus: list[Number]
) -> list[Quantity] | Refused:
    """What is left of a shared resource for each container, by its GPUs."""
    number = sum(gpus)
    total = per_gpu * number
    others = [c.asked(name) for c, count in zip(running, gpus, strict=True) if not count]
    taken = sum(amount.number for amount in others if amount is not None)
    if taken > total.value:
        return Refused(
            "others_ask_too_much",
            f"the containers that have no GPU ask for {total.with_value(taken)} {name}, more "
            f"than the {total} that {_count(number)} × {per_gpu} allow; lower their requests",
        )
    parts = share(total.value - taken, gpus, SHARED[name])
    different = {id(part): part for part in parts}  # most containers have the same share
    too_small = {key for key, part in different.items() if part < LEAST[name]}
    for container, count, part in zip(running, gpus, parts, strict=True) if too_small else ():
        if count and id(part) in too_small:
            left = f"{total.with_value(part)} for container {container.name}, too little to run with"
            return Refused(
                "share_of_nothing",
                f"the containers that have no GPU ask for {total.with_value(taken)} of the {total} {name} that "
                f"{_count(number)} × {per_gpu} allow, and leave {left}; lower their requests"
                if taken
                else f"{_count(number)} × {per_gpu} {name} is {left}; raise the coefficient",
            )
    amounts = {key: total.with_value(part) for key, part in different.items()}
    return [amounts[id(part)] for part in parts]


def _multiples(
    name: str, per_gpu: Quantity, _running: list[Container], gpus: list[Number]
) -> list[Quantity] | Refused:
    """So much of an extended resource for each container as its GPUs need."""
    amounts = {count: per_gpu * count for count in gpus}
    for count, amount in amounts.items():
        if not amount.is_whole:
            return Refused(
                "fraction_of_extended_resource",
                f"{_count(count)} × {per_gpu} {name} is {amount}, and Kubernetes wants whole "
                "numbers of it; change the coefficient or the number of GPUs",
            )
    return [amounts[count] for count in gpus]


def share(rest: Number, weights: list[Number], unit: Fraction) -> list[Fraction]:
    """Share out by weight in whole units, the largest remainders first; earlier ones win a tie.

    The parts add up to the rest exactly; a rest that is no whole number of units is rounded up to one first, as
    Kubernetes rounds quantities.
    """
    units, all_weights = -(-rest // unit), sum(weights)
    parts, remainders = map(
        list, zip(*(divmod(units * weight, all_weights) for weight in weights), strict=True)
    )
    by_remainder = sorted(range(len(parts)), key=lambda i: -remainders[i])
    for i in by_remainder[: units - sum(parts)]:
        parts[i] += 1
    amounts = {part: part * unit for part in set(parts)}
    return [amounts[part] for part in parts]


def running_containers(pod: Pod) -> Iterator[Container]:
    """What runs as long as the pod does: its containers and its sidecars."""
    yield from (container for container in pod.init_containers if container.restartable)
    yield from pod.containers


def _with_running(pod: Pod, running: list[Container]) -> Pod:
    """The pod with its `running_containers` replaced; the very same pod when they are the same."""
    if all(new is old for new, old in zip(running, running_containers(pod), strict=True)):
        return pod
    rest = iter(running)
    init = tuple(next(rest) if container.restartable else container for container in pod.init_containers)
    return replace(pod, init_containers=init, containers=tuple(rest))


def _write(container: Container, amounts: Mapping[str, Quantity]) -> Container:
    has, most = container.requests, container.limits
    if amounts.keys() <= has.keys() and all(has[n] == amount == most.get(n) for n, amount in amounts.items()):
        return container
    return Container(container.name, {**has, **amounts}, {**most, **amounts}, container.restartable)


def _lowered(container: Container, amounts: Mapping[str, Quantity]) -> Iterator[str]:
    """What a container had more of than it gets."""
    for name, amount in amounts.items():
        if name not in container.requests and name not in container.limits:
            continue
        had = max(container.requests.get(name, amount), container.limits.get(name, amount))
        if had > amount:
            yield f"{name} of {container.name} from {had} to {amount}"


def _count(gpus: Number) -> str:
    return f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"
