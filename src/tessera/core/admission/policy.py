"""What the operator configured about decisions, and which annotations of a pod decisions read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from tessera.core.admission.constraints import MIN_MEMORY_ANNOTATION, POLICY_ANNOTATION, Dra, Minimum, Mode
from tessera.core.admission.injection import InjectionPolicy
from tessera.core.kubernetes.quantity import Format, Quantity
from tessera.core.mig.profile import MigProfile
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION
from tessera.core.requests.record import ASKED_ANNOTATION, DECIDED_ANNOTATION, RECORD_ANNOTATION
from tessera.core.requests.tickets import TICKET_ANNOTATION

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
        object.__setattr__(self, "annotations", (*OWN_ANNOTATIONS, *sorted(self.injection.annotations())))
