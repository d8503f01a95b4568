"""Pods, templates and claims as the cluster has them, indexed: a plan costs what is to be done, not what is there.

Pods, templates and claims, as little of them as the bridge needs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from sys import intern
from typing import Final

import msgspec
from msgspec.structs import replace

from tessera.core.cache import cache_short
from tessera.core.dra.slices import API_VERSION
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, CLAIM, Alternatives, carried, read
from tessera.core.requests.alternatives import read as read_alternatives
from tessera.core.requests.record import RECORD_ANNOTATION, record_with, written
from tessera.core.requests.tickets import TICKET_ANNOTATION, TicketKeys, kept
from tessera.core.resources import short
from tessera.kube.rest.client import path_of
from tessera.kube.watch.table import Key, Resource, read_key
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
    """A pod whose request the webhook has replaced, or converted to a claim."""

    key: Key
    uid: str = ""
    created: float = 0.0  # Unix time
    record: str = ""  # of what it was given in place of its request, as much of it as is read
    template: str = ""  # of its claim; empty: its request was not converted
    text: str | None = None  # of its alternatives; None: what it carries is not what its template is named by
    waits: bool = False  # no node has it yet, and it is not being deleted
    ticket: str = ""  # of the webhook, as it stands in the pod

    @classmethod
    def read(cls, raw: bytes) -> "FollowedPod | None":
        """A pod from its JSON; None where the webhook has written nothing of the kind into it."""
        if _MARK not in raw and _RECORD not in raw:  # nearly all pods
            return None
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
            template=intern(template),  # thousands of pods have the same
            text=None if carried(annotations, [template]) is None else intern(text),
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


_MOST_UNREPORTED: Final = 1000  # as many events as wait to be written


@dataclass(frozen=True, slots=True)
class Record:
    """Write what a pod got in place of what it asked for."""

    pod: FollowedPod
    taken: tuple[tuple[str, str], ...]  # as records have it: ("2g.20gb", "1g.10gb")
    text: str

    @property
    def key(self) -> Key:
        return self.pod.key


class ClaimState:
    """What the reconciler knows. Every change of an object updates the indexes; nothing else does."""

    def __init__(self) -> None:
        self.pods: dict[Key, FollowedPod] = {}  # those whose requests were converted
        self.templates: dict[Key, Template] = {}
        self.claims: dict[Key, PodsClaim] = {}
        self.users: Counter[Key] = Counter()  # by template: how many pods name it
        # by template: pods that cannot start without it, and may have it
        self.waiting: dict[Key, dict[Key, FollowedPod]] = {}
        self.keys: TicketKeys | None = None  # of tickets; None while they are not known
        self.refused: dict[Key, str] = {}  # pods that wait with no right ticket, and why it is not right
        self.replaced: dict[Key, str] = {}  # the UIDs of pods whose request the webhook has replaced
        self.unreported: dict[Key, FollowedPod] = {}  # of these, those that have no Event yet
        self.records: dict[Key, Record] = {}  # by claim: what its pod's annotation does not say yet
        # A claim can name any pod as its owner: only a pod of the claim's own namespace counts.
        self._pod_of: dict[Key, Key] = {}  # by namespace and UID
        self._claims_of: dict[Key, dict[Key, None]] = {}  # by namespace and UID of the pod

    def put_pod(self, pod: FollowedPod, *, since: float = 0.0) -> bool:
        """Take a pod, or its new state; whether there may be something to do.

        A pod whose request was replaced, and that was created before `since`, was reported then. Of thousands that come at
        once, the latest are reported.
        """
        if pod.record and not pod.template and self.replaced.get(pod.key) == pod.uid:
            return False
        known = self.remove_pod(pod.key)
        if pod.template:
            self._put_converted(pod)
            return True
        if not pod.record:
            return known
        self.replaced[pod.key] = pod.uid
        if pod.created < since:
            return known
        self.unreported[pod.key] = pod
        if len(self.unreported) > _MOST_UNREPORTED:
            del self.unreported[next(iter(self.unreported))]
        return True

    def _put_converted(self, pod: FollowedPod) -> None:
        template = Key(pod.key.namespace, pod.template)
        self.pods[pod.key] = pod
        self.users[template] += 1
        if pod.waits and pod.text is not None:
            why = self.keys and self.keys.why_wrong(pod.ticket, pod.key.namespace, pod.text, pod.created)
            if why:
                self.refused[pod.key] = why
            else:
                self.waiting.setdefault(template, {})[pod.key] = pod
        owner = Key(pod.key.namespace, pod.uid)
        self._pod_of[owner] = pod.key
        self._compare(owner)

    def remove_pod(self, key: Key) -> bool:
        """Forget a pod; whether its request was converted."""
        self.replaced.pop(key, None)
        self.unreported.pop(key, None)
        pod = self.pods.pop(key, None)
        if pod is None:
            return False
        template = Key(key.namespace, pod.template)
        self.users[template] -= 1
        if not self.users[template]:
            del self.users[template]
        self.refused.pop(key, None)
        waiting = self.waiting.get(template, {})
        if waiting.pop(key, None) is not None and not waiting:
            del self.waiting[template]
        owner = Key(key.namespace, pod.uid)
        if self._pod_of.get(owner) == key:
            del self._pod_of[owner]
        self._compare(owner)
        return True

    def use_keys(self, keys: TicketKeys) -> None:
        """Check tickets with these keys from now on."""
        if self.keys != keys:
            self.keys = keys
            for pod in list(self.pods.values()):
                self.put_pod(pod)

    def without_template(self) -> Iterator[tuple[FollowedPod, str]]:
        """The pods that wait with no right ticket, and for whom no template is there; and why it is not right."""
        for key, why in self.refused.items():
            if Key(key.namespace, self.pods[key].template) not in self.templates:
                yield self.pods[key], why

    def known_pods(self) -> Iterable[Key]:
        """The pods whose requests were converted or replaced."""
        return {**self.pods, **self.replaced}

    def put_claim(self, claim: PodsClaim) -> bool:
        """Take a claim, or its new state; whether it is, or was, of a converted pod."""
        known = self.remove_claim(claim.key)
        if not claim.pod_uid:
            return known
        owner = Key(claim.key.namespace, claim.pod_uid)
        self.claims[claim.key] = claim
        self._claims_of.setdefault(owner, {})[claim.key] = None
        self._compare(owner)
        return True

    def remove_claim(self, key: Key) -> bool:
        """Forget a claim; False where it is not known."""
        claim = self.claims.pop(key, None)
        if claim is None:
            return False
        owner = Key(key.namespace, claim.pod_uid)
        claims = self._claims_of[owner]
        del claims[key]
        if not claims:
            del self._claims_of[owner]
        self.records.pop(key, None)
        return True

    def put_template(self, template: Template) -> bool:
        self.templates[template.key] = template
        return True

    def remove_template(self, key: Key) -> bool:
        return self.templates.pop(key, None) is not None

    def _compare(self, owner: Key) -> None:
        """Work out what the annotation of a pod does not say yet of its claims."""
        pod = self.pods[self._pod_of[owner]] if owner in self._pod_of else None
        for key in self._claims_of.get(owner, ()):
            record = None if pod is None else record_of(pod, self.claims[key])
            if record is None:
                self.records.pop(key, None)
            else:
                self.records[key] = record


def record_of(pod: FollowedPod, claim: PodsClaim) -> Record | None:
    """What to write for a claim of a pod; None where its annotation says it, or there is nothing to say."""
    taken = _taken(pod.text, claim.results) if claim.results and pod.text is not None else ()
    if not taken or set(written(taken).split(",")) <= set(pod.record.split(",")):
        return None
    return Record(pod, taken, record_with(pod.record, taken))


# Thousands of claims got one of a few things in place of one of a few others.
@cache_short(256, 16 * 1024, lambda text, results: len(text) + sum(map(len, results)))
def _taken(text: str, results: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """What was asked and what was given in its place, as records have it."""
    found = read(text).taken(results)
    return tuple((short(asked), short(given)) for asked, given in found if asked != given)
