"""The admission step of an API server: mutating webhooks, called as their configurations say.

Real HTTPS: a webhook's certificate must be signed by the configuration's `caBundle` and bear the Service's name.
`matchConditions` are not evaluated (there is no CEL here), so every pod that rules and selectors let through is sent.
"""

import base64
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tessera.core.errors import TesseraError
from tessera.core.kubernetes.scheduling import Requirement
from tessera.kube.access.cluster import Cluster, ServerAddress, Tls
from tessera.kube.errors import NOT_JSON, KubeError
from tessera.kube.rest.client import Client, Timeouts
from tessera.simulation.control_plane import pod_rules
from tessera.simulation.control_plane.apiserver import Admitted, Target
from tessera.simulation.control_plane.kinds import MUTATING_WEBHOOKS, NAMESPACES, PODS
from tessera.simulation.control_plane.patches import json_patch
from tessera.simulation.control_plane.store import Document, StatusError, Store

_OPERATORS: Final = {"In", "NotIn", "Exists", "DoesNotExist"}


@dataclass(frozen=True, slots=True)
class Called:
    """One call to a webhook and what it said, as an audit log would have it."""

    webhook: str
    namespace: str
    name: str
    dry_run: bool
    allowed: bool
    message: str = ""  # of a refusal
    warnings: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


class Webhooks:
    """Admission by the webhooks that the store's configurations name."""

    def __init__(
        self,
        store: Store,
        services: Mapping[tuple[str, str], tuple[str, int]],
        on_call: Callable[[Called], None] = lambda _: None,
    ) -> None:
        """`services` says where a Service (namespace, name) is reached: there is no cluster network."""
        self._store = store
        self._services = services
        self._on_call = on_call
        self._clients: dict[str, tuple[str, Client]] = {}  # webhook → its configuration, and who calls it

    def close(self) -> None:
        """Let go of connections."""
        for _, client in self._clients.values():
            client.close()
        self._clients.clear()

    async def admit(self, target: Target, document: Document, dry_run: bool) -> Admitted:
        """What an API server does with an object that is to be created."""
        if target.kind is not PODS:
            return Admitted(document)
        pod = pod_rules.with_defaults(document)
        warnings: list[str] = []
        left: dict[str, Document] = {}  # webhook → the object as it left it
        hooks = [hook for stored in self._store.list(MUTATING_WEBHOOKS) for hook in _hooks(stored.document)]
        hooks = [hook for hook in hooks if self._concerns(hook, pod)]
        for hook in hooks:
            pod = left[hook["name"]] = await self._call(hook, pod, dry_run, warnings)
        for hook in hooks:
            if hook.get("reinvocationPolicy") == "IfNeeded" and left[hook["name"]] != pod:
                pod = left[hook["name"]] = await self._call(hook, pod, dry_run, warnings)
        pod_rules.check(pod)
        return Admitted(pod, tuple(warnings))

    def _concerns(self, hook: Document, pod: Document) -> bool:
        name = (pod.get("metadata") or {}).get("namespace") or "default"
        try:
            namespace = self._store.get(NAMESPACES, name).document
        except StatusError:
            raise StatusError(404, "NotFound", f'namespaces "{name}" not found') from None
        labels = {"kubernetes.io/metadata.name": name, **(namespace["metadata"].get("labels") or {})}
        return (
            any(_rule_matches(rule) for rule in hook.get("rules") or ())
            and _selects(hook.get("namespaceSelector"), labels)
            and _selects(hook.get("objectSelector"), (pod.get("metadata") or {}).get("labels") or {})
        )

    async def _call(self, hook: Document, pod: Document, dry_run: bool, warnings: list[str]) -> Document:
        name, metadata = str(hook["name"]), pod["metadata"]
        try:
            answer = await self._ask(hook, _review(pod, dry_run))
        except TesseraError as error:
            if hook.get("failurePolicy", "Fail") == "Ignore":
                return pod
            message = (
                f'Internal error occurred: failed calling webhook "{name}": failed to call webhook: {error}'
            )
            raise StatusError(500, "InternalError", message) from error
        said = tuple(map(str, answer.get("warnings") or ()))
        status = answer.get("status") or {}
        self._on_call(
            Called(
                name,
                metadata.get("namespace", ""),
                metadata.get("name") or metadata.get("generateName") or "",
                dry_run,
                bool(answer.get("allowed")),
                str(status.get("message", "")),
                said,
                answer.get("auditAnnotations") or {},
            )
        )
        warnings.extend(said)
        if not answer.get("allowed"):
            reason = status.get("message") or "without explanation"
            message = f'admission webhook "{name}" denied the request: {reason}'
            raise StatusError(
                int(status.get("code") or 403), str(status.get("reason") or "Forbidden"), message
            )
        if not answer.get("patch"):
            return pod
        try:
            operations = msgspec.json.decode(base64.b64decode(answer["patch"]))
        except (ValueError, TypeError, *NOT_JSON) as error:  # of base64 or of JSON
            raise StatusError(500, "InternalError", f'webhook "{name}": patch is no JSON: {error}') from error
        return pod_rules.with_defaults(json_patch(pod, operations))

    async def _ask(self, hook: Document, review: Document) -> dict[str, Any]:
        client, path = self._client(hook)
        seconds = int(hook.get("timeoutSeconds") or 10)
        body = await client.request("POST", path, {"timeout": f"{seconds}s"}, body=review)
        try:
            answer = msgspec.json.decode(body)["response"]
            if answer["uid"] != review["request"]["uid"]:
                raise KubeError("the answer's uid is not the request's")
        except (KeyError, TypeError, *NOT_JSON) as error:
            raise KubeError(f"the answer is no AdmissionReview: {error!r}") from error
        return dict(answer)

    def _client(self, hook: Document) -> tuple[Client, str]:
        settings = hook["clientConfig"]
        service = settings.get("service") or {}
        where = (str(service.get("namespace")), str(service.get("name")))
        if where not in self._services:
            raise KubeError(f'service "{where[1]}" not found in namespace {where[0]}')
        host, port = self._services[where]
        fingerprint = repr((settings, host, port, hook.get("timeoutSeconds")))
        known = self._clients.get(hook["name"])
        if known is None or known[0] != fingerprint:
            if known is not None:
                known[1].close()
            bundle = base64.b64decode(settings.get("caBundle") or "")
            cluster = Cluster(
                ServerAddress("https", host, port),
                # as the real one: the Service's name is what the certificate must be for
                Tls(ca=bundle or None, server_name=f"{where[1]}.{where[0]}.svc"),
            )
            timeouts = Timeouts(answer=float(hook.get("timeoutSeconds") or 10))
            known = (fingerprint, Client(cluster, timeouts=timeouts, user_agent="kube-apiserver-admission"))
            self._clients[hook["name"]] = known
        return known[1], str(service.get("path") or "/")


def _hooks(configuration: Document) -> list[Document]:
    return list(configuration.get("webhooks") or ())


def _rule_matches(rule: Document) -> bool:
    """Whether a rule speaks of pods that are created; nothing else is sent here."""
    return (
        not {"*", "CREATE"}.isdisjoint(rule.get("operations") or ())
        and not {"*", ""}.isdisjoint(rule.get("apiGroups") or ())
        and not {"*", "v1"}.isdisjoint(rule.get("apiVersions") or ())
        and not {"*", "*/*", "pods"}.isdisjoint(rule.get("resources") or ())
    )


def _selects(selector: Document | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector, as objects carry it, lets these labels through."""
    selector = selector or {}
    wanted = [Requirement(key, "In", (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
    for one in selector.get("matchExpressions") or ():
        if one["operator"] not in _OPERATORS:
            raise StatusError(
                500, "InternalError", f'"{one["operator"]}" is not a valid label selector operator'
            )
        wanted.append(Requirement(one["key"], one["operator"], tuple(one.get("values") or ())))
    return all(one.matches(labels.get(one.key)) for one in wanted)


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
