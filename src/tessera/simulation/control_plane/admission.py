"""The admission step of an API server: a new pod gets its defaults, mutating webhooks are called, and what they left is checked.

Webhooks are called as their configurations say, over real HTTPS: a webhook's certificate must be signed by the configuration's
`caBundle` and bear the Service's name. `matchConditions` are not evaluated, so the API server sends every pod that rules and
selectors let through.
"""

import base64
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.resources import is_extended
from tessera.kube.access.cluster import Cluster, ServerAddress, Tls
from tessera.kube.errors import NOT_JSON, KubeError
from tessera.kube.rest.client import Client
from tessera.protocol.kubernetes.objects import LabelSelectorIn, decoder
from tessera.protocol.kubernetes.webhook import Rule, ServiceReference, Webhook, WebhookConfiguration
from tessera.simulation.control_plane.apiserver import Admitted, Target
from tessera.simulation.control_plane.kinds import MUTATING_WEBHOOKS, NAMESPACES, PODS
from tessera.simulation.control_plane.patches import json_patch
from tessera.simulation.control_plane.store import Document, StatusError, Store

_decode: Final = decoder(WebhookConfiguration)


@dataclass(frozen=True, slots=True)
class Called:
    """One call to a webhook and its answer, as an audit log would have it."""

    namespace: str
    name: str
    dry_run: bool
    allowed: bool
    message: str  # of a refusal
    annotations: Mapping[str, str]


class Webhooks:
    """Admission by the webhooks that the store's configurations name."""

    def __init__(
        self,
        store: Store,
        services: Mapping[tuple[str, str], tuple[str, int]],
        on_call: Callable[[Called], None],
    ) -> None:
        """`services` says where a Service (namespace, name) is reached: there is no cluster network."""
        self._store = store
        self._services = services
        self._on_call = on_call
        self._clients: dict[tuple[ServerAddress, Tls, int], Client] = {}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    async def admit(self, target: Target, document: Document, dry_run: bool) -> Admitted:
        """What an API server does with an object that is to be created."""
        if target.kind is not PODS:
            return Admitted(document)
        pod = with_defaults(document)
        warnings: list[str] = []
        left: dict[str, Document] = {}  # webhook → the object as it left it
        configurations = [_decode(stored.encoded) for stored in self._store.list(MUTATING_WEBHOOKS)]
        hooks = [hook for one in configurations for hook in one.webhooks or () if self._concerns(hook, pod)]
        for hook in hooks:
            pod = left[hook.name] = await self._call(hook, pod, dry_run, warnings)
        for hook in hooks:
            if hook.reinvocation_policy == "IfNeeded" and left[hook.name] != pod:
                pod = left[hook.name] = await self._call(hook, pod, dry_run, warnings)
        check(pod)
        return Admitted(pod, tuple(warnings))

    def _concerns(self, hook: Webhook, pod: Document) -> bool:
        metadata = pod.get("metadata") or {}
        name = metadata.get("namespace") or "default"
        namespace = self._store.get(NAMESPACES, name).document
        labels = {"kubernetes.io/metadata.name": name, **(namespace["metadata"].get("labels") or {})}
        return (
            any(map(_is_for_pods, hook.rules or ()))
            and _selects(hook.namespace_selector, labels)
            and _selects(hook.object_selector, metadata.get("labels") or {})
        )

    async def _call(self, hook: Webhook, pod: Document, dry_run: bool, warnings: list[str]) -> Document:
        try:
            answer = await self._ask(hook, _review(pod, dry_run))
        except TesseraError as error:
            if hook.failure_policy == "Ignore":
                return pod
            message = f'Internal error occurred: failed calling webhook "{hook.name}": failed to call webhook: {error}'
            raise StatusError(500, "InternalError", message) from error
        metadata, status, allowed = pod["metadata"], answer.get("status") or {}, bool(answer.get("allowed"))
        name = metadata.get("name") or metadata.get("generateName") or ""
        annotations, refusal = answer.get("auditAnnotations") or {}, str(status.get("message", ""))
        self._on_call(Called(metadata.get("namespace", ""), name, dry_run, allowed, refusal, annotations))
        warnings += map(str, answer.get("warnings") or ())
        if not allowed:
            message = (
                f'admission webhook "{hook.name}" denied the request: {refusal or "without explanation"}'
            )
            raise StatusError(
                int(status.get("code") or 403), str(status.get("reason") or "Forbidden"), message
            )
        if not answer.get("patch"):
            return pod
        try:
            operations = msgspec.json.decode(base64.b64decode(answer["patch"]))
        except (ValueError, TypeError, *NOT_JSON) as error:  # of base64 or of JSON
            message = f'webhook "{hook.name}": patch is no JSON: {error}'
            raise StatusError(500, "InternalError", message) from error
        return with_defaults(json_patch(pod, operations))

    async def _ask(self, hook: Webhook, review: Document) -> dict[str, Any]:
        service = hook.client_config.service or ServiceReference()
        client, query = self._client(hook, service), {"timeout": f"{hook.timeout_seconds}s"}
        body = await client.request("POST", service.path, query, body=review)
        try:
            answer = msgspec.json.decode(body)["response"]
            if answer["uid"] != review["request"]["uid"]:
                raise KubeError("the answer's uid is not the request's")
        except (KeyError, TypeError, *NOT_JSON) as error:
            raise KubeError(f"the answer is no AdmissionReview: {error!r}") from error
        return dict(answer)

    def _client(self, hook: Webhook, service: ServiceReference) -> Client:
        """The client for a webhook. As with the real API server, the webhook's certificate must be for the Service's name."""
        where = (service.namespace, service.name)
        if where not in self._services:
            raise KubeError(f'service "{service.name}" not found in namespace {service.namespace}')
        address = ServerAddress("https", *self._services[where])
        tls = Tls(
            ca=hook.client_config.ca_bundle or None, server_name=f"{service.name}.{service.namespace}.svc"
        )
        key = (address, tls, hook.timeout_seconds)
        if key not in self._clients:
            seconds = float(hook.timeout_seconds)
            self._clients[key] = Client(
                Cluster(address, tls), answer_timeout=seconds, user_agent="kube-apiserver-admission"
            )
        return self._clients[key]


def _is_for_pods(rule: Rule) -> bool:
    """Whether a rule covers the creation of pods; the stand-in sends nothing else."""
    return (
        not {"*", "CREATE"}.isdisjoint(rule.operations or ())
        and not {"*", ""}.isdisjoint(rule.api_groups or ())
        and not {"*", "v1"}.isdisjoint(rule.api_versions or ())
        and not {"*", "*/*", "pods"}.isdisjoint(rule.resources or ())
    )


def _selects(selector: LabelSelectorIn | None, labels: Mapping[str, str]) -> bool:
    if selector is None:
        return True
    wanted = (selector.match_labels or {}).items()
    return wanted <= labels.items() and all(
        one.matches(labels.get(one.key)) for one in selector.match_expressions or ()
    )


def _review(pod: Document, dry_run: bool) -> Document:
    metadata = pod["metadata"]
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": str(uuid.uuid4()),
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": metadata.get("name", ""),
            "namespace": metadata.get("namespace", ""),
            "operation": "CREATE",
            "userInfo": {"username": "embedded", "groups": ["system:authenticated"]},
            "object": {"kind": "Pod", "apiVersion": "v1", **pod},
            "oldObject": None,
            "dryRun": dry_run,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }


# what the API server itself does to a pod: defaults before webhooks, checks after them

_CONTAINERS: Final = ("initContainers", "containers")


def with_defaults(pod: Document) -> Document:
    """The pod with what Kubernetes fills in: a limit without a request is one, a new pod is pending."""
    spec = dict(pod.get("spec") or {})
    for field in _CONTAINERS:
        if isinstance(spec.get(field), list):
            spec[field] = [_with_requests(one) for one in spec[field]]
    return {**pod, "spec": spec, "status": {**(pod.get("status") or {}), "phase": "Pending"}}


def _with_requests(container: Any) -> Any:
    resources = container.get("resources") if isinstance(container, dict) else None
    limits = resources.get("limits") if isinstance(resources, dict) else None
    if not isinstance(resources, dict) or not isinstance(limits, dict):
        return container
    requests = {**limits, **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "requests": requests}}


def check(pod: Document) -> None:
    """Refuse an invalid pod, in the words of the real API server."""
    name = (pod.get("metadata") or {}).get("name", "")
    spec = pod.get("spec") or {}
    if not isinstance(spec.get("containers"), list) or not spec["containers"]:
        raise _invalid(name, "spec.containers: Required value")
    for field in _CONTAINERS:
        for index, container in enumerate(spec.get(field) or ()):
            for error in _resource_errors(container.get("resources") or {}):
                raise _invalid(name, f"spec.{field}[{index}].resources.{error}")


def _resource_errors(resources: dict[str, Any]) -> Iterator[str]:
    requests, limits = (_amounts(resources.get(section) or {}, section) for section in ("requests", "limits"))
    for resource, amount in requests.items():
        limit = limits.get(resource)
        if not is_extended(resource):
            if limit is not None and amount > limit:
                yield (
                    f'requests: Invalid value: "{amount}": must be less than or equal to {resource} limit of {limit}'
                )
        elif limit is None:
            yield "limits: Required value: Limit must be set for non overcommitable resources"
        elif amount != limit:
            yield f'requests: Invalid value: "{amount}": must be equal to {resource} limit of {limit}'
        elif not amount.is_whole:
            yield f'requests[{resource}]: Invalid value: "{amount}": must be an integer'


def _amounts(section: dict[str, Any], name: str) -> dict[str, Quantity]:
    try:
        return {resource: Quantity.parse(amount) for resource, amount in section.items()}
    except InvalidInput as error:
        raise StatusError(
            400, "BadRequest", f"Pod in version v1 cannot be handled: {name}: {error}"
        ) from error


def _invalid(name: str, error: str) -> StatusError:
    return StatusError(422, "Invalid", f'Pod "{name}" is invalid: {error}')
