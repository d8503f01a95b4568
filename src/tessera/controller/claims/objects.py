"""Pods, templates and claims, as little of them as the bridge needs."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from tessera.core.requests.alternatives import (
    ALTERNATIVES_ANNOTATION,
    CLAIM,
    Alternatives,
    carried,
    read,
)
from tessera.core.requests.record import RECORD_ANNOTATION, record_with
from tessera.kube.watch.resource import Key
from tessera.protocol.kubernetes.dra import decode_claim
from tessera.protocol.kubernetes.objects import decoder

MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "tessera-controller"
UNUSED_ANNOTATION: Final = "gpu-webhook.k8s.io/unused-since"  # of a template
_MARK: Final = ALTERNATIVES_ANNOTATION.encode()


class _MetaIn(msgspec.Struct, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 # as in the API
    annotations: dict[str, str] | None = None
    deletionTimestamp: str | None = None  # noqa: N815


class _PodClaimIn(msgspec.Struct, gc=False):
    name: str = ""
    resourceClaimTemplateName: str | None = None  # noqa: N815


class _PodSpecIn(msgspec.Struct, gc=False):
    nodeName: str | None = None  # noqa: N815
    resourceClaims: list[_PodClaimIn] | None = None  # noqa: N815


class _PodIn(msgspec.Struct, gc=False):
    metadata: _MetaIn
    spec: _PodSpecIn | None = None


class _NamedIn(msgspec.Struct, gc=False):
    metadata: _MetaIn


class _TemplateIn(msgspec.Struct, gc=False):
    spec: dict[str, Any] | None = None


_pod: Final = decoder(_PodIn)
_named: Final = decoder(_NamedIn)
_template: Final = decoder(_TemplateIn)


@dataclass(frozen=True, slots=True)
class BridgedPod:
    """A pod whose request the webhook has made a claim."""

    key: Key
    uid: str
    template: str
    text: str | None  # of its alternatives; None: what it carries is not what its template is named by
    waits: bool  # no node has it yet, and it is not being deleted
    record: str = ""  # of the fallback, as much of it as is read

    @property
    def alternatives(self) -> Alternatives | None:
        """What its claim may be served with: read when it is needed, since it takes many times the memory of its text."""
        return None if self.text is None else read(self.text)


@dataclass(frozen=True, slots=True)
class FoundPod:
    """A pod that was read; None for one that the bridge has nothing to do with."""

    key: Key
    pod: BridgedPod | None


@dataclass(frozen=True, slots=True)
class Template:
    """A template that the controller has made."""

    key: Key
    uid: str
    version: str
    unused_since: float | None = None  # Unix time
    leaves: bool = False  # it is being deleted


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a bridged pod."""

    key: Key
    pod_uid: str  # empty: of another pod
    results: tuple[str, ...] = ()


def read_pod(raw: bytes) -> FoundPod:
    """A pod."""
    if _MARK not in raw:  # nearly all pods
        metadata = _named(raw).metadata
        return FoundPod(Key(metadata.namespace, metadata.name), None)
    one = _pod(raw)
    metadata, spec = one.metadata, one.spec or _PodSpecIn()
    key, annotations = Key(metadata.namespace, metadata.name), metadata.annotations or {}
    claims = [claim for claim in spec.resourceClaims or () if claim.name == CLAIM]
    template = claims[0].resourceClaimTemplateName if claims else None
    text = annotations.get(ALTERNATIVES_ANNOTATION)
    if text is None or not template:
        return FoundPod(key, None)
    found = BridgedPod(
        key,
        metadata.uid,
        template,
        None if carried(annotations, [template]) is None else text,
        not spec.nodeName and metadata.deletionTimestamp is None,
        record_with(annotations.get(RECORD_ANNOTATION, ""), ()),
    )
    return FoundPod(key, found)


def read_template(raw: bytes) -> Template:
    """A template."""
    metadata = _named(raw).metadata
    since = (metadata.annotations or {}).get(UNUSED_ANNOTATION)
    key = Key(metadata.namespace, metadata.name)
    leaves = metadata.deletionTimestamp is not None
    return Template(key, metadata.uid, metadata.resourceVersion, _time(since), leaves)


def claim_spec_in(raw: bytes) -> object:
    """What claims of a template ask for."""
    return (_template(raw).spec or {}).get("spec")


def _time(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None  # written by another hand: it begins anew


def read_claim(raw: bytes) -> Claim:
    """A claim."""
    one = decode_claim(raw)
    ours = one.pod_claim == CLAIM
    key = Key(one.metadata.namespace, one.metadata.name)
    return Claim(key, one.pod_uid if ours else "", one.results if ours else ())
