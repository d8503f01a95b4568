"""The admission step: real HTTPS to a webhook that a test wrote."""

import base64
import json
import ssl
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tessera.serving.address import Address
from tessera.serving.http_messages import Response
from tessera.serving.http_server import Server
from tessera.simulation.control_plane.admission import Webhooks
from tessera.simulation.control_plane.apiserver import Target
from tessera.simulation.control_plane.kinds import CONFIG_MAPS, MUTATING_WEBHOOKS, NAMESPACES, PODS
from tessera.simulation.control_plane.store import StatusError, Store
from tests.kube.certificates import PlainAuthority

AUTHORITY = PlainAuthority()
SERVICE = ("gpu", "hook")
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}


def pod(name="p", namespace="ml", **metadata):
    return {
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"containers": [{"name": "c"}]},
    }


class Hook:
    """A webhook that answers as the test sets it, and remembers what it was asked."""

    def __init__(self, **response):
        self.response = response
        self.asked = []

    async def answer(self, request):
        review = msgspec.json.decode(request.body)
        self.asked.append(review["request"])
        answer = {"uid": review["request"]["uid"], "allowed": True, **self.response}
        return Response(msgspec.json.encode({"response": answer}))


def patch(*operations):
    return {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(operations).encode()).decode()}


@asynccontextmanager
async def serving(hook, tmp_path, name="hook.gpu.svc", authority=AUTHORITY, **more):
    """The webhook behind a Service, in a configuration that trusts AUTHORITY."""
    pair = authority.issue(name, name)
    (tmp_path / "pair.pem").write_bytes(pair.certificate + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair.pem")
    store = Store()
    store.create(NAMESPACES, {"metadata": {"name": "ml", "labels": {"team": "ml"}}})
    service = {"namespace": SERVICE[0], "name": SERVICE[1], "path": "/mutate"}
    one = {
        "name": "test.k8s.io",
        "clientConfig": {"service": service, "caBundle": base64.b64encode(AUTHORITY.pem).decode()},
        "rules": [RULE],
        **more,
    }
    store.create(MUTATING_WEBHOOKS, {"metadata": {"name": "test"}, "webhooks": [one]})
    server = Server(hook.answer)
    await server.start(Address("127.0.0.1", 0), context)
    calls: list[Any] = []
    webhooks = Webhooks(store, {SERVICE: ("127.0.0.1", server.port)}, calls.append)
    try:
        yield webhooks, calls
    finally:
        webhooks.close()
        await server.stop()


async def admit(webhooks, document, kind=PODS, dry_run=False):
    return await webhooks.admit(Target(kind, "ml"), document, dry_run)


async def test_patch_and_warnings(tmp_path):
    """A patch is applied, warnings reach the client, and both are on record."""
    hook = Hook(
        warnings=["mind"],
        auditAnnotations={"a": "b"},
        **patch({"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}),
    )
    async with serving(hook, tmp_path) as (webhooks, calls):
        admitted = await admit(webhooks, pod(), dry_run=True)
    assert admitted.document["metadata"]["labels"] == {"x": "y"}
    assert admitted.warnings == ("mind",)
    (request,) = hook.asked
    assert (request["operation"], request["namespace"], request["dryRun"]) == ("CREATE", "ml", True)
    assert request["object"]["kind"] == "Pod"
    assert (calls[0].name, calls[0].allowed, calls[0].annotations) == ("p", True, {"a": "b"})


async def test_denial(tmp_path):
    """A denial is the API server's answer, with the webhook's name and words."""
    hook = Hook(allowed=False, status={"code": 403, "message": "not here"})
    async with serving(hook, tmp_path) as (webhooks, calls):
        with pytest.raises(
            StatusError, match=r'^admission webhook "test\.k8s\.io" denied the request: not here$'
        ):
            await admit(webhooks, pod())
    assert (calls[0].allowed, calls[0].message) == (False, "not here")


@pytest.mark.parametrize(
    ("selection", "called"),
    [
        ({}, True),
        ({"namespaceSelector": {"matchExpressions": [{"key": "gpu-webhook", "operator": "NotIn", "values": ["disabled"]}]}}, True),
        ({"namespaceSelector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["ml"]}]}}, False),
        ({"namespaceSelector": {"matchLabels": {"team": "ml"}}}, True),
        ({"objectSelector": {"matchLabels": {"gpu": "yes"}}}, False),
        ({"rules": [{**RULE, "operations": ["UPDATE"]}]}, False),
        ({"rules": [{**RULE, "resources": ["configmaps"]}]}, False),
    ],
)  # fmt: skip
async def test_who_is_called(tmp_path, selection, called):
    """Rules and selectors decide which pods are sent."""
    hook = Hook()
    async with serving(hook, tmp_path, **selection) as (webhooks, _):
        await admit(webhooks, pod())
        assert (await admit(webhooks, {"metadata": {"name": "x"}}, CONFIG_MAPS)).document == {
            "metadata": {"name": "x"}
        }
    assert bool(hook.asked) is called


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"authority": PlainAuthority("other")}, "TLS|certificate"),
        ({"name": "other.gpu.svc"}, "TLS|certificate"),
    ],
)
async def test_certificates_are_verified(tmp_path, changes, complaint):
    """An unknown authority or another name is no webhook: refused under Fail, passed over under Ignore."""
    hook = Hook()
    async with serving(hook, tmp_path, **changes) as (webhooks, _):
        with pytest.raises(StatusError, match=complaint) as refused:
            await admit(webhooks, pod())
    assert refused.value.message.startswith('Internal error occurred: failed calling webhook "test.k8s.io"')
    async with serving(hook, tmp_path, failurePolicy="Ignore", **changes) as (webhooks, _):
        assert (await admit(webhooks, pod())).document["metadata"]["name"] == "p"
    assert not hook.asked


class Junk:
    """A webhook whose answer is no review."""

    def __init__(self, body):
        self.body = body

    async def answer(self, _request):
        return Response(self.body)


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"response": 5}', b'{"response": "\xff"}'])
async def test_an_answer_that_is_no_review(tmp_path, body):
    """What is no review is refused under Fail in one sentence, and passed over under Ignore."""
    async with serving(Junk(body), tmp_path) as (webhooks, _):
        with pytest.raises(
            StatusError, match=r'failed calling webhook "test\.k8s\.io": .*no AdmissionReview'
        ):
            await admit(webhooks, pod())
    async with serving(Junk(body), tmp_path, failurePolicy="Ignore") as (webhooks, _):
        assert (await admit(webhooks, pod())).document["metadata"]["name"] == "p"


@pytest.mark.parametrize("text", ["%%%", "{}", "é", 5, base64.b64encode(b'["\xff"]').decode()])
async def test_a_patch_that_is_none(tmp_path, text):
    """A patch that is no base64 of JSON is refused in one sentence."""
    async with serving(Hook(patch=text), tmp_path) as (webhooks, _):
        with pytest.raises(StatusError, match=r'^webhook "test\.k8s\.io": patch is no JSON: '):
            await admit(webhooks, pod())


async def test_what_is_left_is_checked(tmp_path):
    """A patch that makes an invalid pod is no way around the API server's own checks."""
    bad = {"op": "add", "path": "/spec/containers/0/resources", "value": {"requests": {"a.com/b": 1}}}
    async with serving(Hook(**patch(bad)), tmp_path) as (webhooks, _):
        with pytest.raises(StatusError, match="Limit must be set"):
            await admit(webhooks, pod())


async def test_unknown_namespace(tmp_path):
    """A pod of a namespace that does not exist is refused."""
    async with serving(Hook(), tmp_path) as (webhooks, _):
        with pytest.raises(StatusError, match='namespaces "nope" not found'):
            await webhooks.admit(Target(PODS, "nope"), pod(namespace="nope"), dry_run=False)
