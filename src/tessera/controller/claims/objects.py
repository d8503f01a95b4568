"""Pods, templates and claims, as little of them as the bridge needs."""

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from tessera.core.dra.slices import API_VERSION
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, CLAIM, Alternatives, carried
from tessera.core.requests.alternatives import read as read_alternatives
from tessera.core.requests.record import RECORD_ANNOTATION, record_with
from tessera.core.requests.tickets import TICKET_ANNOTATION, kept
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.resource import Key, Resource, read_key
from tessera.protocol.kubernetes.dra import decode_claim
from tessera.protocol.kubernetes.lean_pod import annotations_of
from tessera.protocol.kubernetes.objects import decode_any, seconds
from tessera.protocol.kubernetes.pod import decode_pod

MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "tessera-controller"
UNUSED_ANNOTATION: Final = "gpu-webhook.k8s.io/unused-since"  # of a template
_MARK: Final = ALTERNATIVES_ANNOTATION.encode()
_RECORD: Final = RECORD_ANNOTATION.encode()
TEMPLATES: Final = Resource(
    "resourceclaimtemplates",
    path_of(API_VERSION, "resourceclaimtemplates"),
    labels=f"{MANAGED_LABEL}={MANAGER}",
    optional=True,
)


class FollowedPod(msgspec.Struct, frozen=True, gc=False):
    """A pod; only its key, unless the webhook has replaced its request or converted it to a claim."""

    key: Key
    uid: str = ""
    created: float = 0.0  # Unix time
    record: str = ""  # of what it was given in place of its request, as much of it as is read
    template: str = ""  # of its claim; empty: its request was not converted
    text: str | None = None  # of its alternatives; None: what it carries is not what its template is named by
    waits: bool = False  # no node has it yet, and it is not being deleted
    ticket: str = ""  # of the webhook, as it stands in the pod

    @classmethod
    def read(cls, raw: bytes) -> "FollowedPod":
        if _MARK not in raw and _RECORD not in raw:  # nearly all pods
            return cls(read_key(raw))
        one = decode_pod(raw)
        metadata = one.metadata
        annotations = annotations_of(metadata.annotations)
        found = cls(
            read_key(raw),
            metadata.uid,
            seconds(metadata.creation_timestamp) or 0.0,
            record_with(annotations.get(RECORD_ANNOTATION, ""), ()),
        )
        text, template = annotations.get(ALTERNATIVES_ANNOTATION), one.claim_templates.get(CLAIM)
        if text is None or not template:
            return found
        return replace(
            found,
            template=template,
            text=None if carried(annotations, [template]) is None else text,
            waits=not one.spec.node_name and metadata.deletion_timestamp is None,
            ticket=kept(annotations.get(TICKET_ANNOTATION, "")),
        )

    @property
    def alternatives(self) -> Alternatives | None:
        """What its claim may be served with: read when it is needed, since it takes many times the memory of its text."""
        return None if self.text is None else read_alternatives(self.text)


@dataclass(frozen=True, slots=True)
class Template:
    """A template that the controller has made."""

    key: Key
    uid: str
    version: str
    unused_since: float | None = None  # Unix time
    leaves: bool = False  # it is being deleted

    @classmethod
    def read(cls, raw: bytes) -> "Template":
        metadata = decode_any(raw).metadata
        # None, too, for what is no time: it counts again
        since = seconds((metadata.annotations or {}).get(UNUSED_ANNOTATION))
        key = Key(metadata.namespace, metadata.name)
        leaves = metadata.deletion_timestamp is not None
        return cls(key, metadata.uid, metadata.resource_version, since, leaves)


@dataclass(frozen=True, slots=True)
class PodsClaim:
    """A claim, and the converted pod that it was made for."""

    key: Key
    pod_uid: str  # empty: of another pod
    results: tuple[str, ...] = ()

    @classmethod
    def read(cls, raw: bytes) -> "PodsClaim":
        one = decode_claim(raw)
        ours = one.pod_claim == CLAIM
        key = Key(one.metadata.namespace, one.metadata.name)
        return cls(key, one.pod_uid if ours else "", one.results if ours else ())
