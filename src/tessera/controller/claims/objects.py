"""Pods, templates and claims, as little of them as the bridge needs."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tessera.core.requests.alternatives import (
    ALTERNATIVES_ANNOTATION,
    CLAIM,
    Alternatives,
    carried,
    read,
)
from tessera.core.requests.record import RECORD_ANNOTATION, record_with
from tessera.core.requests.tickets import TICKET_ANNOTATION, kept
from tessera.kube.watch.resource import Key
from tessera.protocol.kubernetes.dra import decode_claim
from tessera.protocol.kubernetes.lean_pod import annotations_of
from tessera.protocol.kubernetes.objects import decode_any, decode_named, decoder, seconds
from tessera.protocol.kubernetes.pod import decode_pod

MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "tessera-controller"
UNUSED_ANNOTATION: Final = "gpu-webhook.k8s.io/unused-since"  # of a template
_MARK: Final = ALTERNATIVES_ANNOTATION.encode()
_RECORD: Final = RECORD_ANNOTATION.encode()


_whole: Final = decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class ConvertedPod:
    """A pod whose request the webhook has converted to a claim."""

    key: Key
    uid: str
    template: str
    text: str | None  # of its alternatives; None: what it carries is not what its template is named by
    waits: bool  # no node has it yet, and it is not being deleted
    record: str = ""  # of the fallback, as much of it as is read
    ticket: str = ""  # of the webhook, as it stands in the pod
    created: float = 0.0  # Unix time

    @property
    def alternatives(self) -> Alternatives | None:
        """What its claim may be served with: read when it is needed, since it takes many times the memory of its text."""
        return None if self.text is None else read(self.text)


class ReplacedPod(NamedTuple):
    """A pod whose request the webhook has replaced."""

    uid: str
    record: str
    created: float  # Unix time


class PodReading(NamedTuple):
    """A pod that was read, if its request was converted or replaced."""

    key: Key
    pod: ConvertedPod | None
    replaced: ReplacedPod | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """A template that the controller has made."""

    key: Key
    uid: str
    version: str
    unused_since: float | None = None  # Unix time
    leaves: bool = False  # it is being deleted


@dataclass(frozen=True, slots=True)
class PodsClaim:
    """A claim, and the converted pod that it was made for."""

    key: Key
    pod_uid: str  # empty: of another pod
    results: tuple[str, ...] = ()


def read_pod(raw: bytes) -> PodReading:
    """A pod, if its request was converted to a claim, or replaced."""
    if _MARK not in raw and _RECORD not in raw:  # nearly all pods
        named = decode_named(raw).metadata
        return PodReading(Key(named.namespace, named.name), None)
    one = decode_pod(raw)
    metadata = one.metadata
    key, annotations = Key(metadata.namespace, metadata.name), annotations_of(metadata.annotations)
    template = one.claim_templates.get(CLAIM)
    text, record = (
        annotations.get(ALTERNATIVES_ANNOTATION),
        record_with(annotations.get(RECORD_ANNOTATION, ""), ()),
    )
    created = seconds(metadata.creation_timestamp) or 0.0
    if text is None or not template:
        return PodReading(key, None, ReplacedPod(metadata.uid, record, created) if record else None)
    found = ConvertedPod(
        key,
        metadata.uid,
        template,
        None if carried(annotations, [template]) is None else text,
        not one.spec.node_name and metadata.deletion_timestamp is None,
        record,
        kept(annotations.get(TICKET_ANNOTATION, "")),
        created,
    )
    return PodReading(key, found)


def read_template(raw: bytes) -> Template:
    """A template."""
    metadata = decode_any(raw).metadata
    since = seconds(
        (metadata.annotations or {}).get(UNUSED_ANNOTATION)
    )  # None, too, for what is no time: it counts again
    key = Key(metadata.namespace, metadata.name)
    leaves = metadata.deletion_timestamp is not None
    return Template(key, metadata.uid, metadata.resource_version, since, leaves)


def claim_spec_in(raw: bytes) -> object:
    """What claims of a template ask for, as it stands there."""
    spec = _whole(raw).get("spec")
    return spec.get("spec") if isinstance(spec, dict) else None


def read_claim(raw: bytes) -> PodsClaim:
    """A claim."""
    one = decode_claim(raw)
    ours = one.pod_claim == CLAIM
    key = Key(one.metadata.namespace, one.metadata.name)
    return PodsClaim(key, one.pod_uid if ours else "", one.results if ours else ())
