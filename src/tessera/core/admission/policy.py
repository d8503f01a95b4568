"""What holds for a decision: what the operator configured, and what a pod and its namespace say in annotations. The stricter holds.

A pod can never allow itself what its namespace forbids. Whatever is forbidden keeps the words of who forbids it, for
messages and explanations.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Final, TypeVar

from tessera.core.admission.injection import InjectionPolicy
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Namespace
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.quantity import Format, Quantity
from tessera.core.mig.profile import MigProfile
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION
from tessera.core.requests.record import (
    ASKED_ANNOTATION,
    DECIDED_ANNOTATION,
    MARK_ANNOTATION,
    RECORD_ANNOTATION,
)
from tessera.core.requests.tickets import TICKET_ANNOTATION
from tessera.core.text import quoted, seconds_in
from tessera.core.values import value

POLICY_ANNOTATION: Final = "gpu-webhook.k8s.io/fallback-policy"
MIN_MEMORY_ANNOTATION: Final = "gpu-webhook.k8s.io/min-memory"
WHEN_ANNOTATION: Final = "gpu-webhook.k8s.io/fallback-when"
PATIENCE_ANNOTATION: Final = "gpu-webhook.k8s.io/patience"

# No profile is smaller, and "20", which is 20 bytes, was meant as something else.
LEAST_MEMORY: Final = Quantity.parse("1Gi")
# Seconds. The scheduler takes some of them for a pod that can be placed, and for one that preempts others.
LEAST_PATIENCE: Final = 30.0

MODE_LABEL: Final = "gpu-webhook"  # of a namespace: observe, enforce, or disabled
DRA_ANNOTATION: Final = "gpu-webhook.k8s.io/dra"  # of a namespace: its own choice


class Dra(Enum):
    """What is done about what DRA offers (`fallback.dra`)."""

    OFF = "off"  # it does not count
    EXTENDED_RESOURCES = "extended-resources"  # it counts as offered, and requests stay what they are
    FIRST_AVAILABLE = "first-available"  # requests become claims, and the scheduler falls back


class When(Enum):
    """When a pod gets something else than it asks for (`fallback.when`)."""

    MISSING = "missing"  # when no node offers it
    FULL = "full"  # when no node has it free now, too


class Mode(Enum):
    """Whether decisions are carried out, or reported only (`observe`)."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


class Permission(Enum):
    """What a pod or its namespace allows (`gpu-webhook.k8s.io/fallback-policy`)."""

    NEVER = "never"
    SMALLER = "smaller"
    LARGER = "larger"
    ANY = "any"


Choice = TypeVar("Choice", bound=Enum)


@value
class Minimum:
    """The least memory that a replacement may have."""

    amount: Quantity
    source: str

    def __str__(self) -> str:
        return f"{self.amount} ({self.source})"


@value
class Constraints:
    """What is forbidden, each with the setting that forbids it (empty: it is allowed); and the least memory."""

    never: str = ""
    no_smaller: str = ""
    no_larger: str = ""
    minimum: Minimum | None = None

    def also(self, permission: Permission, source: str) -> "Constraints":
        """These, and the directions that one more annotation forbids."""
        reason = f"{source} fallback-policy is `{permission.value}`"
        return Constraints(
            self.never or (reason if permission is Permission.NEVER else ""),
            self.no_smaller or (reason if permission is Permission.LARGER else ""),
            self.no_larger or (reason if permission is Permission.SMALLER else ""),
            self.minimum,
        )

    def at_least(self, minimum: Minimum) -> "Constraints":
        """These, with the larger of both minima."""
        if self.minimum is not None and self.minimum.amount >= minimum.amount:
            return self
        return Constraints(self.never, self.no_smaller, self.no_larger, minimum)


_MODES: Final = {one.value: one for one in Mode}
NO_CONSTRAINTS: Final = Constraints()
DECIDED_BEFORE: Final = Constraints(never="decided when its workload was created")


def constraints_of(pod: Pod, namespace: Namespace | None) -> Constraints:
    """What a pod's annotations and its namespace's say together; `InvalidInput` for what means nothing."""
    constraints = DECIDED_BEFORE if DECIDED_ANNOTATION in pod.annotations else NO_CONSTRAINTS
    for where, source, annotation, text in _fallback_annotations(pod, namespace):
        if annotation == POLICY_ANNOTATION:
            constraints = constraints.also(_one_of(Permission, where, text), source)
        else:
            constraints = constraints.at_least(Minimum(_memory(where, text), f"{source} min-memory"))
    return constraints


def when_of(pod: Pod, namespace: Namespace | None, configured: "FallbackPolicy") -> When:
    """What holds for a pod: its annotation, its namespace's, or else the configuration; `InvalidInput` for one without a meaning.

    Annotations count only where the operator has the webhook follow pods.
    """
    if not configured.full_enabled:
        return When.MISSING
    found = _nearest(WHEN_ANNOTATION, pod, namespace)
    return configured.when if found is None else _one_of(When, *found)


def patience_of(
    pod: Pod, namespace: Namespace | None, configured: "FallbackPolicy", least: float = LEAST_PATIENCE
) -> float | None:
    """After how many seconds a pod that waits is evicted, by the same rule; None: never. Less than the least counts as that."""
    found = _nearest(PATIENCE_ANNOTATION, pod, namespace)
    try:
        seconds = configured.patience if found is None else patience_in(found[1])
    except InvalidInput as error:
        raise InvalidInput(f"{found[0] if found else ''}: {error}") from None
    return max(seconds, least) if seconds else None


def patience_in(text: str) -> float | None:
    """The seconds of a duration, or none for `off`; `InvalidInput` for what is neither."""
    return None if text == "off" else seconds_in(text) or None


def _nearest(annotation: str, pod: Pod, namespace: Namespace | None) -> tuple[str, str] | None:
    """Where an annotation stands and what it says: the pod's, or else its namespace's."""
    place = f"metadata.annotations[{annotation}]"
    if annotation in pod.annotations:
        return place, pod.annotations[annotation]
    if namespace is not None and annotation in namespace.annotations:
        return f"namespace {namespace.name}, {place}", namespace.annotations[annotation]
    return None


def mode_in(namespace: Namespace | None, configured: Mode) -> Mode:
    """What holds in a namespace: its label, or else the configuration."""
    return configured if namespace is None else _MODES.get(namespace.labels.get(MODE_LABEL, ""), configured)


def mode_source(namespace: Namespace | None) -> str:
    """Which setting gives a namespace its mode."""
    value = namespace.labels.get(MODE_LABEL, "") if namespace is not None else ""
    if namespace is None or value not in _MODES:
        return "the configuration's mode"
    return f"namespace {namespace.name}, label {MODE_LABEL}={value}"


def dra_in(namespace: Namespace | None, configured: Dra) -> Dra:
    """What holds in a namespace; `InvalidInput` for an annotation without a meaning."""
    text = namespace.annotations.get(DRA_ANNOTATION) if namespace is not None else None
    if namespace is None or text is None:
        return configured
    return _one_of(Dra, f"namespace {namespace.name}, metadata.annotations[{DRA_ANNOTATION}]", text)


def may_claim(namespace: Namespace | None, configured: Dra) -> bool:
    """Whether requests of a namespace may become claims; `dra_in` reports an annotation without a meaning."""
    text = namespace.annotations.get(DRA_ANNOTATION) if namespace is not None else None
    return (text or configured.value) == Dra.FIRST_AVAILABLE.value


def is_bridge_on(namespaces: Iterable[Namespace], configured: Dra) -> bool:
    """Whether requests of some namespace may become claims."""
    return any(may_claim(one, configured) for one in (None, *namespaces))


def counts_dra(namespace: Namespace | None, configured: Dra) -> bool:
    """Whether what DRA offers counts in a namespace; `dra_in` reports an annotation without a meaning."""
    text = namespace.annotations.get(DRA_ANNOTATION) if namespace is not None else None
    return (text or configured.value) != Dra.OFF.value


def _fallback_annotations(pod: Pod, namespace: Namespace | None) -> Iterator[tuple[str, str, str, str]]:
    """Every annotation there is: where it stands, whose it is, its name and its value."""
    for annotation in (POLICY_ANNOTATION, MIN_MEMORY_ANNOTATION):
        place = f"metadata.annotations[{annotation}]"
        if annotation in pod.annotations:
            yield place, "the pod's", annotation, pod.annotations[annotation]
        if namespace is not None and annotation in namespace.annotations:
            name = f"namespace {namespace.name}"
            yield f"{name}, {place}", f"{name}'s", annotation, namespace.annotations[annotation]


def _one_of(kind: type[Choice], where: str, text: str) -> Choice:
    try:
        return kind(text)
    except ValueError:
        choices = ", ".join(one.value for one in kind)
        raise InvalidInput(f"{where}: {quoted(text)} is not one of {choices}") from None


def _memory(where: str, text: str) -> Quantity:
    try:
        amount = Quantity.parse(text)
    except InvalidInput:
        raise InvalidInput(f"{where}: {quoted(text)} is not an amount of memory such as 20Gi") from None
    if amount < LEAST_MEMORY:
        raise InvalidInput(f"{where}: {too_little_memory(text)}")
    return amount


def too_little_memory(text: str) -> str:
    """Why so little memory is a slip, and what was probably meant."""
    meant = f"; did you mean {text}Gi?" if text.isascii() and text.isdigit() and len(text) < 6 else ""
    return f"{quoted(text)} is less than 1Gi, which every profile has{meant}"


# What the operator configured

GIB: Final = 2**30
GRACE: Final = 120.0  # a plugin restarts within seconds, a whole operator within a minute
MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
# what decisions are made by, beside the GPU type of injection
OWN_ANNOTATIONS: Final = (
    POLICY_ANNOTATION,
    MIN_MEMORY_ANNOTATION,
    DECIDED_ANNOTATION,
    RECORD_ANNOTATION,
    ASKED_ANNOTATION,
    ALTERNATIVES_ANNOTATION,
    TICKET_ANNOTATION,
    MIRROR_ANNOTATION,
)
OF_FULL: Final = (
    WHEN_ANNOTATION,
    PATIENCE_ANNOTATION,
    MARK_ANNOTATION,
)  # and by these, where pods are followed


@dataclass(frozen=True, slots=True)
class FallbackPolicy:
    """What the operator allows."""

    enabled: bool = True
    downgrades: bool = True
    upgrades: bool = True
    whole_gpu: bool = True
    max_whole_gpus: int = 1  # in a pod, in place of profiles that are less than a card
    min_memory: Quantity | None = None  # of a replacement
    min_memory_fraction: Fraction = Fraction(0)  # of what was asked for
    chains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # resource → resources, in order
    autoscaled: frozenset[str] = frozenset()  # resources that the autoscaler can bring
    reject_unmatched: bool = True
    grace: float = GRACE  # seconds for which what is gone from a node still counts
    transient_taints: tuple[str, ...] = ()  # beside those of Kubernetes, autoscalers and GPU vendors
    respects_quota: bool = True  # a replacement stays within the namespace's ResourceQuotas
    dra: Dra = Dra.EXTENDED_RESOURCES  # in namespaces that do not say it themselves
    when: When = When.MISSING  # of pods that do not say it, nor their namespaces
    full_enabled: bool = False  # pods are followed: annotations may say `full`
    patience: float | None = None  # seconds after which a pod that waits is evicted; None: never
    # of what has a hash: what is worked out by a configuration is kept by it
    hashed: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        settings = self.downgrades, self.upgrades, self.whole_gpu, self.max_whole_gpus
        object.__setattr__(self, "hashed", hash(settings))
        if self.when is When.FULL:
            object.__setattr__(self, "full_enabled", True)

    def __hash__(self) -> int:
        return self.hashed

    def minimums(self, profile: MigProfile) -> Iterator[Minimum]:
        """The least memory of what stands for a profile."""
        if self.min_memory is not None:
            yield Minimum(self.min_memory, "fallback.minMemory")
        if self.min_memory_fraction:
            least = profile.memory_gb * GIB * self.min_memory_fraction
            amount = Quantity(Fraction(-(-least.numerator // least.denominator)), Format.BINARY_SI)
            yield Minimum(amount, "fallback.minMemoryFraction")


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything the operator configured about decisions."""

    fallback: FallbackPolicy = field(default_factory=FallbackPolicy)
    injection: InjectionPolicy = field(default_factory=InjectionPolicy)
    mode: Mode = Mode.ENFORCE  # of namespaces that do not say it themselves
    gpu_resources: frozenset[str] = field(init=False)  # beyond nvidia.com/gpu and MIG
    annotations: tuple[str, ...] = field(init=False)  # of a pod: all that a decision reads or writes

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpu_resources", self.injection.gpu_resources())
        own = (*OWN_ANNOTATIONS, *(OF_FULL if self.fallback.full_enabled else ()))
        object.__setattr__(self, "annotations", (*own, *sorted(self.injection.annotations())))
