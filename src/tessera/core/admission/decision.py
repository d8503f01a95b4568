"""One pod, one decision: fallback, then injection, then one set of edits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

from tessera.core.admission import fallback, injection
from tessera.core.admission.fallback import AsAsked, FallbackPolicy, Permission, Unmatched, Wishes
from tessera.core.admission.injection import InjectionPolicy, Refusal
from tessera.core.admission.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Namespace
from tessera.core.kubernetes.pod import Amounts, Container, Pod
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.resources import WHOLE_GPU, is_any_gpu, is_whole_or_mig, of_short, short
from tessera.core.mig.profile import MIG_PREFIX, MigProfile
from tessera.core.text import escaped, quoted

POLICY_ANNOTATION: Final = "gpu-webhook.k8s.io/fallback-policy"
MIN_MEMORY_ANNOTATION: Final = "gpu-webhook.k8s.io/min-memory"
RECORD_ANNOTATION: Final = "gpu-webhook.k8s.io/fallback"
EXEMPT_LABEL: Final = ("gpu-webhook", "disabled")
MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
# what decisions are made by, beside the GPU type of injection
OWN_ANNOTATIONS: Final = (POLICY_ANNOTATION, MIN_MEMORY_ANNOTATION, RECORD_ANNOTATION, MIRROR_ANNOTATION)
MOST_GPUS: Final = 999_999  # of one resource in one container: no node has a million devices
WARNING_LENGTH: Final = 120  # kubectl and the API server cut longer ones

Section = Literal["requests", "limits"]
ContainerList = Literal["initContainers", "containers"]


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything the operator configured about decisions."""

    fallback: FallbackPolicy = field(default_factory=FallbackPolicy)
    injection: InjectionPolicy = field(default_factory=InjectionPolicy)
    gpu_resources: frozenset[str] = field(init=False)  # beyond nvidia.com/gpu and MIG
    annotations: tuple[str, ...] = field(init=False)  # of a pod: all that a decision reads or writes

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpu_resources", self.injection.gpu_resources())
        object.__setattr__(self, "annotations", (*OWN_ANNOTATIONS, *sorted(self.injection.annotations())))


@dataclass(frozen=True, slots=True)
class SetAmount:
    """Write a resource of a container."""

    containers: ContainerList
    index: int
    section: Section
    resource: str
    amount: Quantity


@dataclass(frozen=True, slots=True)
class DropAmount:
    """Take a resource of a container away."""

    containers: ContainerList
    index: int
    section: Section
    resource: str


@dataclass(frozen=True, slots=True)
class SetAnnotation:
    """Write an annotation of the pod."""

    key: str
    value: str


Edit = SetAmount | DropAmount | SetAnnotation


@dataclass(frozen=True, slots=True)
class Admit:
    """The pod is fine as it is."""

    reason: str
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The pod is admitted with these edits."""

    edits: tuple[Edit, ...]
    reason: str
    replaced: tuple[tuple[str, str], ...] = ()  # fallbacks as the record has them: ("2g.20gb", "1g.10gb")
    gpu_type: str | None = None  # of the injection rule, when one was followed
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=dict)


Code = Literal["not_offered", "too_many_profiles", "bad_annotation", "bad_quantity", Refusal]


REJECTIONS: Final[tuple[str, ...]] = get_args(Code)


@dataclass(frozen=True, slots=True)
class Reject:
    """The pod is refused; the message says what to change, the code counts it."""

    code: Code
    message: str


Decision = Admit | Rewrite | Reject


def decide(pod: Pod, offers: Offers, policy: Policy) -> Decision:
    """Decide about one pod that is about to be created."""
    namespace = offers.namespaces.get(pod.namespace)
    if (at_once := _at_once(pod, namespace, policy)) is not None:
        return at_once
    asks_for_mig = bool(fallback.asked_profiles(pod))
    try:
        wishes = wishes_of(pod, namespace) if asks_for_mig else Wishes()
    except InvalidInput as error:
        return Reject("bad_annotation", str(error))

    warnings: tuple[str, ...] = ()
    reasons: list[str] = []
    replaced: tuple[tuple[str, str], ...] = ()
    changed = pod
    outcome = fallback.choose(pod, offers, policy.fallback, wishes)
    if isinstance(outcome, Unmatched):
        waits = outcome.never or not policy.fallback.reject_unmatched
        if not waits:
            return Reject("too_many_profiles" if outcome.too_many else "not_offered", _unmatched(outcome))
        why = "its fallback-policy is never" if outcome.never else "unmatched pods are let through"
        warnings = (
            _fit(f"{_asked(outcome)}: no node offers it now; the pod stays as it is and waits ({why})"),
        )
        reasons.append(f"{_unmatched(outcome)}; {why}")
    elif not isinstance(outcome, AsAsked):
        changed = fallback.apply(pod, outcome.by)
        replaced = tuple((short(old), short(new)) for old, new in outcome.by.items())
        changed = replace(changed, annotations={**pod.annotations, RECORD_ANNOTATION: _record(pod, replaced)})
        warnings = tuple(
            _fit(f"GPU fallback {old}->{new}: no node that this pod can use offers {old} as asked")
            for old, new in replaced
        )
        reasons += [f"{old} is not offered, {new} is the first that is" for old, new in replaced]
    elif asks_for_mig:
        reasons.append("what it asks for is offered")

    complete = complete_limits(changed, policy.gpu_resources)
    if complete is not changed:
        reasons.append("limits added where a GPU request had none")
    injected = injection.inject(complete, policy.injection)
    gpu_type = None
    if isinstance(injected, injection.Refused):
        return Reject(injected.reason, injected.message)
    warnings += tuple(map(_fit, injected.warnings))
    if isinstance(injected, injection.Injected):
        gpu_type = injected.gpu_type
        reasons.append(f"resources of GPU type {gpu_type} injected per {short(injected.resource)}")
        complete = injected.pod
    warnings += tuple(map(_fit, _misspelt(pod)))
    audit = _audit(replaced, gpu_type)
    edits = tuple(difference(pod, complete))
    reason = "; ".join(reasons) or _untouched(pod)
    if not edits:
        return Admit(reason, warnings, audit)
    return Rewrite(edits, reason, replaced, gpu_type, warnings, audit)


def _at_once(pod: Pod, namespace: Namespace | None, policy: Policy) -> Decision | None:
    """The decision where nothing needs to be chosen."""
    if MIRROR_ANNOTATION in pod.annotations:
        return Admit("a mirror pod: its kubelet runs it already")
    if namespace is not None and namespace.labels.get(EXEMPT_LABEL[0]) == EXEMPT_LABEL[1]:
        return Admit(f"namespace {pod.namespace} is exempt ({'='.join(EXEMPT_LABEL)})")
    bad = _bad_count(pod, policy.gpu_resources)
    return Reject("bad_quantity", bad) if bad is not None else None


def wishes_of(pod: Pod, namespace: Namespace | None) -> Wishes:
    """What the pod's annotations say about fallback, or else its namespace's."""

    def said(key: str) -> tuple[str, str] | None:
        if key in pod.annotations:
            return f"metadata.annotations[{key}]", pod.annotations[key]
        if namespace is not None and key in namespace.annotations:
            return f"namespace {namespace.name}, metadata.annotations[{key}]", namespace.annotations[key]
        return None

    permission, min_memory = Permission.ANY, None
    if (policy := said(POLICY_ANNOTATION)) is not None:
        where, text = policy
        try:
            permission = Permission(text)
        except ValueError:
            choices = ", ".join(one.value for one in Permission)
            raise InvalidInput(f"{where}: {quoted(text)} is not one of {choices}") from None
    if (memory := said(MIN_MEMORY_ANNOTATION)) is not None:
        where, text = memory
        try:
            min_memory = Quantity.parse(text)
        except InvalidInput:
            raise InvalidInput(f"{where}: {quoted(text)} is not an amount of memory such as 20Gi") from None
    return Wishes(permission, min_memory)


def complete_limits(pod: Pod, gpu_resources: frozenset[str]) -> Pod:
    """Give each GPU request its limit: Kubernetes refuses an extended resource whose limit is not its request."""

    def complete(container: Container) -> Container:
        missing = {
            resource: amount
            for resource, amount in container.requests.items()
            if resource not in container.limits and (is_whole_or_mig(resource) or resource in gpu_resources)
        }
        return replace(container, limits={**container.limits, **missing}) if missing else container

    return pod.map_containers(complete)


def difference(before: Pod, after: Pod) -> Iterator[Edit]:
    """The edits that turn one pod into the other, which has the same containers."""
    lists: tuple[tuple[ContainerList, tuple[Container, ...], tuple[Container, ...]], ...] = (
        ("initContainers", before.init_containers, after.init_containers),
        ("containers", before.containers, after.containers),
    )
    for name, old, new in lists:
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            if one is not other:
                yield from _section_difference(name, index, "requests", one.requests, other.requests)
                yield from _section_difference(name, index, "limits", one.limits, other.limits)
    if before.annotations is not after.annotations:
        for key, value in after.annotations.items():
            if before.annotations.get(key) != value:
                yield SetAnnotation(key, value)


def _section_difference(
    name: ContainerList, index: int, section: Section, old: Amounts, new: Amounts
) -> Iterator[Edit]:
    for resource in old:
        if resource not in new:
            yield DropAmount(name, index, section, resource)
    for resource, amount in new.items():
        if old.get(resource) != amount:
            yield SetAmount(name, index, section, resource, amount)


def _bad_count(pod: Pod, gpu_resources: frozenset[str]) -> str | None:
    """What is wrong with a number of GPUs, before anything is computed with it."""
    for container in pod.all_containers():
        for resource in container.resources():
            if is_any_gpu(resource) or resource in gpu_resources:
                for amount in (container.requests.get(resource), container.limits.get(resource)):
                    if amount is not None and not (amount.is_whole and 0 <= amount.value <= MOST_GPUS):
                        return (
                            f"container {container.name} asks for {escaped(str(amount), 20)} of {resource}; GPUs are "
                            f"asked for in whole numbers from 0 to {MOST_GPUS}"
                        )
    return None


def _misspelt(pod: Pod) -> Iterator[str]:
    """What a person should hear about a slice that no node can be cut into, whatever else happens to the pod."""
    asked = {name: None for one in pod.all_containers() for name in one.resources() if one.asked(name)}
    for resource in asked:
        if resource.startswith(MIG_PREFIX) and MigProfile.of_resource(resource) is None:
            yield f"{quoted(resource)} is no MIG profile such as {MIG_PREFIX}1g.10gb: nothing is done about it"


def _untouched(pod: Pod) -> str:
    """Why there was nothing to do."""
    if any(one.asked(WHOLE_GPU) for one in pod.all_containers()):
        return "asks for whole GPUs, which nothing takes the place of"
    return "asks for nothing that is configured here"


def _record(pod: Pod, replaced: tuple[tuple[str, str], ...]) -> str:
    """The record with what is new at its end; what was recorded at an earlier admission stays."""
    entries = [f"{old}->{new}" for old, new in replaced]
    earlier = pod.annotations.get(RECORD_ANNOTATION, "").split(",")
    return ",".join(dict.fromkeys([entry for entry in earlier if _is_entry(entry)] + entries))


def _is_entry(text: str) -> bool:
    old, arrow, new = text.partition("->")
    try:
        return bool(arrow) and short(of_short(old)) == old and short(of_short(new)) == new
    except InvalidInput:
        return False


def _audit(replaced: tuple[tuple[str, str], ...], gpu_type: str | None) -> Mapping[str, str]:
    audit = {}
    if replaced:
        audit["fallback"] = ",".join(f"{old}->{new}" for old, new in replaced)
    if gpu_type is not None:
        audit["injection"] = gpu_type
    return audit


def _asked(outcome: Unmatched) -> str:
    return ", ".join(f"{resource}: {count}" for resource, count in outcome.asked)


def _unmatched(outcome: Unmatched) -> str:
    if outcome.too_many:
        return f"asked for {_asked(outcome)}: too many different profiles to place together; ask for fewer"
    tried = ", ".join(map(short, outcome.tried)) or "nothing else, since nothing else is allowed"
    if outcome.tried == (WHOLE_GPU,):
        tried += " and found no other profile"
    usable = _listed(outcome.usable)
    where = f"the nodes that this pod can use offer {usable}"
    if outcome.usable != outcome.anywhere:
        where += f", the whole cluster {_listed(outcome.anywhere)}"
    return f"asked for {_asked(outcome)}, which no node that this pod can use offers; tried {tried}; {where}"


def _listed(counts: tuple[tuple[str, int], ...]) -> str:
    return (
        ", ".join(f"{short(r)} (up to {n} a node)" if n < fallback.UNLIMITED else short(r) for r, n in counts)
        or "no GPU at all"
    )


def _fit(warning: str) -> str:
    return warning if len(warning) <= WARNING_LENGTH else warning[: WARNING_LENGTH - 1] + "…"
