"""AdmissionReview, `admission.k8s.io/v1`: request bytes in, response bytes out.

Decoding goes once over the bytes and stops at the fields that matter. What a decision depends on is also a key
(`AdmissionRequest.key`): two reviews with the same key get the same answer, but for its uid.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from tessera.core.admission.limits import MOST_AMOUNTS, MOST_CONTAINERS, BeyondLimits, at_most
from tessera.core.admission.outcome import Allowed, Decision, Denied, Observed
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.pod import Pod
from tessera.core.text import quoted
from tessera.protocol.admission.patch import Operation
from tessera.protocol.kubernetes.lean_pod import (
    LeanMetadata,
    LeanPod,
    LeanSpec,
    annotations_of,
    owner_of,
    pod_of,
)
from tessera.protocol.kubernetes.objects import ABSENT, OwnerReference, decoder, error_text, present

if TYPE_CHECKING:
    from tessera.core.admission.view.pods import Origin

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

# A review that is smaller can be large in no direction that matters; the usual one has some 6 KiB.
_SMALL: Final = 16 * 1024
# What is read of a larger one before it is refused, in bytes. Of annotations the API server takes 256 KiB, which JSON
# makes larger; the rest is names, resources, selectors and tolerations.
_MOST_ANNOTATIONS: Final = 512 * 1024
_MOST_SPEC: Final = 256 * 1024
# Bytes of a workload: a JobSet with ten templates has some 60 KiB.
_MOST_WORKLOAD: Final = 256 * 1024
# Objects in one review: each may become one here, of some 100 bytes. With managed fields a real one has 2,000.
_MOST_OBJECTS: Final = 100_000


class InvalidReview(InvalidInput):
    """Bytes that are no admission review (HTTP 400)."""


_ObjectIn = TypeVar("_ObjectIn")  # the object, read as a pod or unread


class _KindIn(msgspec.Struct, gc=False):
    group: str = ""
    kind: str = ""


class _RequestIn(msgspec.Struct, Generic[_ObjectIn], gc=False):
    uid: str = ""
    kind: _KindIn | None = None
    name: str | None = None
    namespace: str | None = None
    operation: str = ""
    subResource: str | None = None  # noqa: N815
    object: _ObjectIn = None  # type: ignore[assignment] # absent in a review without an object
    dryRun: bool | None = None  # noqa: N815


class _ReviewIn(msgspec.Struct, Generic[_ObjectIn], gc=False):
    kind: str = ""
    apiVersion: str = ""  # noqa: N815
    request: _RequestIn[_ObjectIn] | None = None


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_ReviewIn[LeanPod | None]).decode
_decode_raw: Final = msgspec.json.Decoder(_ReviewIn[msgspec.Raw]).decode
_decode_any: Final = decoder(object)
_decode_object: Final = decoder(dict[str, Any])
_UNREAD: Final = LeanPod()
_NO_META: Final = LeanMetadata()
_NO_SPEC: Final = LeanSpec()


class AdmissionRequest(msgspec.Struct, frozen=True, gc=False):
    """A review's request; `pod` is None when there is no new pod to decide about.

    `workload` is a new object of another kind, unread: its pod templates may be decided about.
    What comes from it raises `BeyondLimits` where that would be too much: of a pod with too many objects (`_UNREAD`)
    nothing was read at all.
    """

    uid: str
    namespace: str
    pod: LeanPod | None
    size: int = 0  # bytes of the whole review
    dry_run: bool = False
    workload: msgspec.Raw | None = None

    @property
    def name(self) -> str:
        metadata = (self.pod.metadata if self.pod else None) or _NO_META
        return metadata.name or metadata.generate_name or ""

    def key(self, annotations: Sequence[str]) -> tuple[object, ...]:
        """Everything of the request that a decision and its patch depend on, as bytes and texts.

        Of the spec that is all that was decoded, put together again, with what is absent as nothing at all.
        `annotations` names those that matter; pods of one template often have others, each its own.
        """
        pod = self.pod
        metadata, spec = (pod and pod.metadata) or _NO_META, (pod and pod.spec) or _NO_SPEC
        if self.size > _SMALL:
            self._check_size(metadata, spec)
        has, labels = annotations_of(metadata.annotations), metadata.labels
        return (
            self.namespace,
            pod is not None and pod.metadata is not None,
            bool(has) or present(metadata.annotations),
            *map(has.get, annotations),
            labels and (labels.queue, labels.managed, labels.podset),
            _encode(spec),
        )

    def owner(self) -> OwnerReference | None:
        """The controller that makes the pod, or else its first owner; None where it has none that can be read."""
        try:
            return owner_of(((self.pod and self.pod.metadata) or _NO_META).owner_references)
        except InvalidInput:  # the API server will say what is wrong with it
            return None

    def origin(self) -> "Origin":
        """By what the pod will be known when it is there."""
        from tessera.protocol.admission.viewed_pod import origin_of  # only where it is known what is free

        metadata = (self.pod and self.pod.metadata) or _NO_META
        name = metadata.generate_name or metadata.name or ""
        return origin_of(self.namespace, bytes(metadata.owner_references), name)

    def read(self) -> Pod:
        pod = self.pod or LeanPod()
        metadata, spec = pod.metadata or _NO_META, pod.spec or _NO_SPEC
        _check_containers(spec)
        if self.size > _SMALL:
            self._check_size(metadata, spec)
            at_most(len(_encode(spec)), _MOST_SPEC, "bytes of resources and selectors")
            every = (*(spec.init_containers or ()), *(spec.containers or ()))
            colons = sum(bytes(one.resources).count(b":") for one in every)  # two more in each than amounts
            at_most(colons - 2 * len(every), MOST_AMOUNTS, "requests and limits")
        return pod_of(pod, self.namespace)

    def read_workload(self) -> dict[str, Any]:
        """The workload as a document; `InvalidInput` for what is none."""
        raw = b"" if self.workload is None else self.workload
        at_most(memoryview(raw).nbytes, _MOST_WORKLOAD, "bytes", "the workload")
        return _decode_object(raw)

    def _check_size(self, metadata: LeanMetadata, spec: LeanSpec) -> None:
        if self.pod is _UNREAD:
            raise BeyondLimits(f"the review has more than {_MOST_OBJECTS:,} objects")
        at_most(memoryview(metadata.annotations).nbytes, _MOST_ANNOTATIONS, "bytes of annotations")
        _check_containers(spec)


def decode(body: bytes) -> AdmissionRequest:
    """Read a review; what is no review is refused in one sentence."""
    if not body:
        raise InvalidReview("empty body, expected an AdmissionReview")
    size = len(body)
    unread = size > _MOST_OBJECTS and body.count(b"{") > _MOST_OBJECTS  # counting is not free
    try:
        review = _decode_raw(body) if unread else _decode(body)
    except RecursionError as error:
        raise InvalidReview("nested too deeply for a Kubernetes object") from error
    except msgspec.ValidationError as error:
        return _not_a_pod(body, error)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidReview(f"not JSON: {error}") from error
    request = _checked(review.apiVersion, review.kind, review.request)
    if not _is_new(request):
        return AdmissionRequest(request.uid, request.namespace or "", None)
    if not _is_pod(request.kind):
        return _workload_of(request if unread else _decode_raw(body).request, size)
    pod = _UNREAD if unread else request.object
    metadata = (pod.metadata if pod else None) or _NO_META
    namespace = request.namespace or metadata.namespace or ""
    return AdmissionRequest(request.uid, namespace, pod, size, bool(request.dryRun))


def patchable_of(request: AdmissionRequest) -> Any:
    """What a patch is tried on: a review's pod as it came, without the parts that no patch of ours reaches into."""
    pod = request.pod or LeanPod()
    spec = pod.spec or _NO_SPEC
    document: dict[str, Any] = {
        "spec": {
            "initContainers": [_json("resources", one.resources) for one in spec.init_containers or ()],
            "containers": [_json("resources", one.resources) for one in spec.containers or ()],
        }
    }
    if pod.metadata:
        document["metadata"] = _json("annotations", pod.metadata.annotations)
    return document


def _json(name: str, raw: msgspec.Raw) -> dict[str, Any]:
    return {} if raw is ABSENT else {name: _decode_any(raw)}


def wrap(uid: str, answer_tail: bytes) -> bytes:
    """An answer from the request's uid and the part that does not depend on it."""
    return b"".join((_HEAD, _encode(uid), b",", answer_tail))


_HEAD: Final = f'{{"apiVersion":"{API_VERSION}","kind":"{KIND}","response":{{"uid":'.encode()


def tail(decision: Decision | Observed, operations: Sequence[Operation]) -> bytes:
    """The part of an answer that is the same for every review with the same key."""
    if isinstance(decision, Denied):
        return refusal(decision.message, 403, "Forbidden")
    answer: dict[str, object] = {"allowed": True}
    if operations:
        answer["patchType"] = "JSONPatch"
        answer["patch"] = base64.b64encode(msgspec.json.encode(operations)).decode("ascii")
    return _finish(answer, decision.warnings, decision.audit)


def refusal(message: str, code: int, reason: str) -> bytes:
    status = {"code": code, "reason": reason, "message": message}
    return _finish({"allowed": False, "status": status}, (), {})


ALLOWED: Final = Allowed("")


def _finish(answer: dict[str, object], warnings: Sequence[str], audit: Mapping[str, str]) -> bytes:
    if warnings:
        answer["warnings"] = list(warnings)
    if audit:
        answer["auditAnnotations"] = dict(audit)
    return msgspec.json.encode(answer)[1:] + b"}"


def _checked(api_version: str, kind: str, request: Any) -> Any:
    if kind != KIND:
        raise InvalidReview(f"kind: {_shown(kind)} is not {KIND}")
    if api_version != API_VERSION:
        raise InvalidReview(f"apiVersion: {_shown(api_version)} is not {API_VERSION}")
    if request is None:
        raise InvalidReview("request: missing")
    if not request.uid:
        raise InvalidReview("request.uid: missing")
    return request


def _not_a_pod(body: bytes, error: msgspec.ValidationError) -> AdmissionRequest:
    """A review whose object does not look like a pod: fine unless it claims to be one that is created."""
    try:
        review = _decode_raw(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):  # no review either
        raise InvalidReview(error_text(error)) from error
    request = _checked(review.apiVersion, review.kind, review.request)
    if not _is_new(request):
        return AdmissionRequest(request.uid, "", None)
    if _is_pod(request.kind):
        raise InvalidReview(error_text(error)) from error
    return _workload_of(request, len(body))


def _is_new(request: Any) -> bool:
    return request.operation == "CREATE" and not request.subResource


def _is_pod(kind: _KindIn | None) -> bool:
    return kind is None or (kind.kind == "Pod" and not kind.group)


def _workload_of(request: Any, size: int) -> AdmissionRequest:
    workload = request.object if request.object is not None and present(request.object) else None
    return AdmissionRequest(request.uid, request.namespace or "", None, size, bool(request.dryRun), workload)


def _check_containers(spec: LeanSpec) -> None:
    at_most(len(spec.containers or ()) + len(spec.init_containers or ()), MOST_CONTAINERS, "containers")


def _shown(text: str) -> str:
    return quoted(text) if text else "missing, it"
