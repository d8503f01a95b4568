"""The chart: what it makes is accepted, and an installation does what it should until nothing of it is left."""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tools.chart import outdated

from e2e.chart import CHART, Helm, HelmError, Kinds, definitions
from e2e.cluster import Client
from e2e.cluster.api import ApiError
from tessera.protocol import yaml
from tessera.protocol.configuration import webhook as configuration

_STATIC = {
    "resource": "device.example.com/gpu",
    "devices": "device_{0..7}",
    "deviceNodes": [{"hostPath": "/dev/mock/{id}"}],
    "mounts": [{"hostPath": "/mock/lib/{id}.so"}],
}
_SIMULATED = {"product": "H200", "cards": 4}
_DRY = "chart-dry-run"  # the namespace in which nothing is made
_CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"

# Each switch and its positions; the product of all of them is rendered.
_SWITCHES: tuple[tuple[dict[str, Any], ...], ...] = (
    (
        {},
        {
            "certificates": {
                "controller": {"restrictToBundle": False, "serviceAccount": {"annotations": {"x": "y"}}}
            }
        },
        {"certificates": {"mode": "cert-manager"}},
        {
            "certificates": {
                "mode": "cert-manager",
                "certManager": {"issuerRef": {"name": "x", "kind": "ClusterIssuer"}},
            }
        },
        {"certificates": {"mode": "given", "secretName": "mine", "caBundle": _CERTIFICATE}},
    ),
    (
        {},
        {"devicePlugin": {"enabled": True, "config": {"static": [_STATIC]}}},
        {"devicePlugin": {"enabled": True, "config": {"simulated": _SIMULATED}, "hostNetwork": True}},
        {
            "devicePlugin": {
                "enabled": True,
                "config": {"nvml": {}, "static": [_STATIC]},
                "runtimeClassName": "nvidia",
            }
        },
        {"devicePlugin": {"enabled": True, "config": {"nvml": {"migStrategy": "mixed", "cut": True}}}},
        {
            "draDriver": {
                "enabled": True,
                "config": {"nvml": {"migStrategy": "mixed", "cut": True, "partitioning": "dynamic"}},
            }
        },
        {
            "draDriver": {
                "enabled": True,
                "config": {"simulated": _SIMULATED, "static": [_STATIC]},
                "classes": {"profiles": ["1g.18gb", "1g.18gb+me"], "extendedResources": True},
            },
            "devicePlugin": {"enabled": True, "config": {"simulated": _SIMULATED}},
            "controller": {"enabled": True, "patience": True},
            "layouts": {"enabled": True},
        },
    ),
    (
        {},
        {
            "serviceMonitor": {"enabled": True, "labels": {"release": "x"}},
            "prometheusRule": {"enabled": True, "disabledAlerts": ["GPUPodsRejected"]},
            "grafanaDashboard": {"enabled": True},
            "dashboard": {"enabled": True},
        },
        {
            "dashboard": {
                "enabled": True,
                "address": "0.0.0.0",  # noqa: S104 # rendered, not listened on
                "allowedHosts": ["gpus.example.com"],
                "ingressFrom": [{"podSelector": {"matchLabels": {"app": "proxy"}}}],
                "extraEgress": [{"ports": [{"port": 8443}]}],
                "extraContainers": [{"name": "proxy", "image": "proxy:1"}],
                "extraVolumes": [{"name": "proxy", "emptyDir": {}}],
                "service": {"port": 443, "targetPort": 4180},
                "serviceAccount": {"create": False, "name": "mine"},
            }
        },
    ),
    (
        {},
        {"webhook": {"enabled": False}},
        {
            "webhook": {
                "replicaCount": 1,
                "failurePolicy": "Fail",
                "hostNetwork": True,
                "extraResources": ["example.com/npu"],
            },
            "networkPolicy": {"enabled": False},
            "tests": {"enabled": False},
            "existingConfigMap": "mine",
            "namespace": {"create": True},
            "fullnameOverride": "other-name",
            "imagePullSecrets": [{"name": "x"}],
        },
        {
            "webhook": {
                "podDisruptionBudget": {"enabled": False},
                "serviceAccount": {"create": False, "name": "mine"},
            },
            "config": {"injection": {"resourceMap": {"V100": {"example.com/npu": {"resourceList": []}}}}},
            "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"x": "y"}}}]},
            "image": {"digest": f"sha256:{'0' * 64}"},
            "commonLabels": {"team": "gpu"},
        },
    ),
)


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """helm, without a cluster."""
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="module")
def kinds(control_plane: Client) -> Iterator[Kinds]:
    """A cluster that knows every kind that the chart uses, and has its namespace."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    made = []
    for one in definitions():
        control_plane.api.create(path, one)
        made.append(one["metadata"]["name"])
    for name in made:
        control_plane.wait_for(path, name, _established, what=f"definition {name}")
    control_plane.api.create("/api/v1/namespaces", {"metadata": {"name": _DRY}})
    # a dry run leaves no account for the pod that comes after it
    account = {"metadata": {"name": "gpu-webhook-test-account"}}
    control_plane.api.create(f"/api/v1/namespaces/{_DRY}/serviceaccounts", account)
    yield Kinds(control_plane)
    control_plane.api.delete(f"/api/v1/namespaces/{_DRY}")
    for name in made:
        control_plane.api.delete(f"{path}/{name}")


def _established(definition: dict[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def _merged(parts: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            whole[name] = {**whole.get(name, {}), **value} if isinstance(value, dict) else value
    return whole


def test_chart_is_linted(helm: Helm) -> None:
    """Helm's own linter has nothing to say, strictly."""
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART)


def test_every_combination_is_accepted(helm: Helm, control_plane: Client, kinds: Kinds) -> None:
    """Every combination of switches renders to objects that the real API server accepts, strictly, field by field."""
    tried: set[str] = set()
    for parts in itertools.product(*_SWITCHES):
        values = _merged(parts)
        for one in helm.render(values, namespace=_DRY):
            digest = hashlib.sha256(json.dumps(one, sort_keys=True).encode()).hexdigest()
            if digest in tried:
                continue
            tried.add(digest)
            try:
                control_plane.api.create(kinds.path(one), one, dryRun="All", fieldValidation="Strict")
            except ApiError as error:
                if error.reason == "AlreadyExists":  # the namespace, the account: accepted before
                    continue
                raise AssertionError(
                    f"{one['kind']} {one['metadata']['name']} with {values}: {error}"
                ) from error
    assert len(tried) > 50


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"webhook": {"replicas": 3}}, "additional properties 'replicas' not allowed"),
        ({"webhook": {"failurePolicy": "fail"}}, "value must be one of 'Ignore', 'Fail'"),
        ({"webhook": {"timeoutSeconds": 60}}, "maximum: got 60, want 30"),
        ({"config": {"fallback": {"upgrads": True}}}, "additional properties 'upgrads' not allowed"),
        ({"config": {"fallback": {"minMemoryFraction": "half"}}}, "'half' does not match pattern"),
        ({"config": {"fallback": {"minMemoryFraction": "1.5"}}}, "'1.5' does not match pattern"),
        ({"certificates": {"mode": "magic"}}, "'self-managed', 'cert-manager', 'given'"),
        (
            {"certificates": {"controller": {"serviceAccount": {"name": "gpu-webhook"}}}},
            "certificates.controller.serviceAccount must not be the webhook's",
        ),
        ({"certificates": {"mode": "given", "caBundle": "x"}}, "certificates.secretName must name a Secret"),
        ({"certificates": {"mode": "given", "secretName": "x"}}, "certificates.caBundle must hold"),
        (
            {"draDriver": {"enabled": True}},
            "draDriver.config (or devicePlugin.config) must list devices",
        ),
        ({"devicePlugin": {"enabled": True}}, "devicePlugin.config must list devices"),
        ({"devicePlugin": {"enabled": True, "config": {"static": [{}]}}}, "missing properties"),
        ({"image": {"digest": "latest"}}, "does not match pattern"),
        (
            {"image": {"repository": ""}},
            "image.repository is not set, and Tessera has no public image: build the image",
        ),
        (
            {"dashboard": {"enabled": True, "address": "0.0.0.0"}},  # noqa: S104
            "set dashboard.allowedHosts to the host names",
        ),
        ({"layouts": {"enabled": True}}, "layouts.enabled needs controller.enabled"),
        ({"dashboard": {"service": {"type": "LoadBalancer"}}}, "additional properties 'type' not allowed"),
    ],
)
def test_bad_values_are_refused(helm: Helm, values: dict[str, Any], complaint: str) -> None:
    """A value that is misspelt or impossible is refused before anything is installed, with its name."""
    with pytest.raises(HelmError) as refused:
        helm.render(values)
    assert complaint in str(refused.value)


def test_decimal_on_the_command_line(helm: Helm) -> None:
    """Helm makes a text of a decimal behind `--set`: the chart takes it, and the webhook reads the number from its ConfigMap."""
    options = ("--set=image.repository=x", "--set=config.fallback.minMemoryFraction=0.5")
    printed = helm("template", "tessera", CHART, *options)
    (text,) = (
        one["data"]["config.yaml"]
        for one in yaml.load_all(printed, "chart")
        if one and one["kind"] == "ConfigMap" and "config.yaml" in one["data"]
    )
    assert configuration.parse(text).policy.fallback.min_memory_fraction == Fraction(1, 2)


@pytest.mark.parametrize(
    ("values", "follows"),
    [
        ({}, False),
        ({"config": {"fallback": {"when": "missing"}}}, False),
        ({"config": {"fallback": {"when": "full"}}}, True),
        ({"config": {"fallback": {"full": {"enabled": True}}}}, True),
        ({"existingConfigMap": "mine", "webhook": {"followPods": True}}, True),
    ],
)
def test_the_right_to_read_pods_follows_the_configuration(
    helm: Helm, values: dict[str, Any], follows: bool
) -> None:
    """The webhook may read pods, and has the memory for it, where fallback goes by what is free, and `helm test` may ask whether it may; else neither."""
    rendered = helm.render(values)
    made = {
        one["kind"]: one
        for one in rendered
        if one["metadata"]["name"] == "gpu-webhook" and one["kind"] in ("ClusterRole", "Deployment")
    }
    (reader,) = [one for one in rendered if one["metadata"]["name"] == "gpu-webhook-test-reader"]
    assert any("subjectaccessreviews" in one["resources"] for one in reader["rules"]) is follows
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    assert (pods in made["ClusterRole"]["rules"]) is follows
    (container,) = made["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "50m", "memory": "160Mi" if follows else "96Mi"},
        "limits": {"memory": "384Mi" if follows else "256Mi"},
    }


def test_workloads_are_sent_where_they_are_named(helm: Helm, control_plane: Client, kinds: Kinds) -> None:
    """A second webhook beside the one for pods, before Kueue's in the order of names; the API server accepts it."""
    jobs = {"apiGroups": ["batch"], "resources": ["jobs"]}
    (made,) = (
        one
        for one in helm.render({"webhook": {"workloads": [jobs]}}, namespace=_DRY)
        if one["kind"] == "MutatingWebhookConfiguration"
    )
    control_plane.api.create(kinds.path(made), made, dryRun="All", fieldValidation="Strict")
    assert made["metadata"]["name"] < "kueue-mutating-webhook-configuration"
    pods, workloads = made["webhooks"]
    assert workloads["rules"] == [
        {**jobs, "apiVersions": ["*"], "operations": ["CREATE"], "scope": "Namespaced"}
    ]
    same = {*pods} - {"name", "rules", "matchConditions"}
    assert {key: workloads[key] for key in same} == {key: pods[key] for key in same}


@pytest.mark.parametrize(
    ("values", "told", "not_told"),
    [
        (
            {},
            ["The webhook gpu-webhook: 3 replicas", "helm test tessera"],
            ["device plugin", "--before-uninstall"],
        ),
        ({"tests": {"enabled": False}}, ["tessera doctor --tessera-namespace"], ["helm test"]),
        (
            {"webhook": {"enabled": False}, "devicePlugin": {"enabled": True, "config": {"nvml": {}}}},
            ["The device plugin tessera-device-plugin"],
            ["webhook", "helm test", "doctor"],
        ),
        (
            {"draDriver": {"enabled": True, "config": {"simulated": _SIMULATED}}},
            [
                "tessera doctor --before-uninstall",
                "kubectl label nodes -l tessera.dev/devices tessera.dev/devices-",
            ],
            ["tessera capacity"],
        ),
        ({"config": {"mode": "observe"}}, ["Its mode is observe"], ["Its mode is enforce"]),
        ({"existingConfigMap": "ours"}, ["The webhook gpu-webhook"], ["Its mode"]),
    ],
)
def test_notes_speak_of_what_is_installed(
    helm: Helm, values: dict[str, Any], told: list[str], not_told: list[str]
) -> None:
    """No webhook is told of where none is, and no test is offered that is not there."""
    image = {"image": {"repository": "registry.example/tessera"}}
    printed = helm("install", "tessera", CHART, "-n=gpus", "--dry-run=client", values={**values, **image})
    notes = printed.partition("NOTES:\n")[2]
    assert [text for text in told if text not in notes] == []
    assert [text for text in not_told if text in notes] == []


def test_helm_test_lists_each_name_once(helm: Helm) -> None:
    """`helm test` lists the objects of the test by their names alone: no two have the same. It may read what the doctor reads."""
    names = [
        one["metadata"]["name"]
        for one in helm.render({})
        if one["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"
    ]
    assert len(names) == len(set(names)) == 8
    assert names.count("gpu-webhook-test") == 1
    [reader] = [one for one in helm.render({}) if one["metadata"]["name"] == "gpu-webhook-test-reader"]
    named = [rule["resourceNames"] for rule in reader["rules"] if "resourceNames" in rule]
    assert ["tessera-device-plugin", "tessera-dra-driver"] in named, "of other releases"


@pytest.mark.parametrize("cut", [False, True])
def test_privilege_only_where_real_cards_are_cut(helm: Helm, cut: bool) -> None:
    """Without `nvml.cut` the plugin of real cards has no capability, no token and no right; with it, those that cutting needs, on its own node."""
    plugin = {"enabled": True, "events": False, "config": {"nvml": {"migStrategy": "mixed", "cut": cut}}}
    found = {
        one["kind"]: one
        for one in helm.render({"devicePlugin": plugin, "webhook": {"enabled": False}})
        if one["metadata"]["name"].startswith("tessera-device-plugin")
    }
    spec = found["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is cut
    assert container["securityContext"] == (
        {"privileged": True, "readOnlyRootFilesystem": True}
        if cut
        else {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    )
    assert ("NVIDIA_MIG_CONFIG_DEVICES" in {one["name"] for one in container["env"]}) is cut
    assert ("ClusterRole" in found, "ValidatingAdmissionPolicy" in found) == (cut, cut)
    if cut:
        assert found["ClusterRole"]["rules"] == [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch", "patch"]},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list"]},
        ]


@pytest.mark.parametrize("nvml", [{"cut": True}, {"cut": True, "partitioning": "dynamic"}])
def test_privilege_of_the_dra_driver_only_where_claims_cut_real_cards(
    helm: Helm, nvml: dict[str, Any]
) -> None:
    """`nvml.cut` alone is the device plugin's: the driver then only reads. With `dynamic` it has what cutting needs, on its own node."""
    cuts = "partitioning" in nvml
    driver = {"enabled": True, "config": {"nvml": {"migStrategy": "mixed", **nvml}}}
    found = [
        one
        for one in helm.render({"draDriver": driver, "webhook": {"enabled": False}})
        if one["metadata"]["name"].startswith("tessera-dra-driver")
    ]
    (container,) = next(one for one in found if one["kind"] == "DaemonSet")["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["securityContext"].get("privileged", False) is cuts
    assert ("NVIDIA_MIG_CONFIG_DEVICES" in {one["name"] for one in container["env"]}) is cuts
    (role,) = [one for one in found if one["kind"] == "ClusterRole"]
    (nodes,) = [rule["verbs"] for rule in role["rules"] if rule["resources"] == ["nodes"]]
    assert nodes == (["get", "list", "watch", "patch"] if cuts else ["get"])
    policies = {one["metadata"]["name"] for one in found if one["kind"] == "ValidatingAdmissionPolicy"}
    assert ("tessera-dra-driver-own-node" in policies) is cuts


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"config": {"fallback": {"patience": "5m"}}},
        {"controller": {"patience": True}, "existingConfigMap": "mine"},
    ],
)
def test_the_controller_may_evict_only_with_patience(helm: Helm, values: dict[str, Any]) -> None:
    """With it, it has the webhook's configuration, and the memory for nodes and pods; without it neither."""
    given = {**values, "controller": {"enabled": True, **values.get("controller", {})}}
    rendered = {(one["kind"], one["metadata"]["name"]): one for one in helm.render(given)}
    rules = rendered["ClusterRole", "tessera-controller"]["rules"]
    assert any("pods/eviction" in one["resources"] for one in rules) is bool(values)
    pod = rendered["Deployment", "tessera-controller"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert any(one.startswith("--config=") for one in container["args"]) is bool(values)
    mounted = [one["configMap"]["name"] for one in pod.get("volumes", ())]
    assert mounted == ([values.get("existingConfigMap", "gpu-webhook")] if values else [])
    assert container["resources"]["limits"]["memory"] == ("448Mi" if values else "192Mi")
    assert (("ConfigMap", "tessera-patience") in rendered) is bool(values)


_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")
_SINGULAR = {
    "lease": "leases",
    "secret": "secrets",
    "configmap": "configmaps",
    "deployment": "deployments",
    "mutatingwebhookconfiguration": "mutatingwebhookconfigurations",
    "evictions": "pods/eviction",
}


def _documented(text: str, resources: set[str]) -> set[tuple[str, str]]:
    """The rights that a text names: verbs, then resources; verbs that no resource follows are of the one
    before."""
    rights: set[tuple[str, str]] = set()
    verbs, resource, named = list[str](), "", True
    for token in re.findall(r"`[^`]+`|[\w/]+|[()]", text):
        if token.strip("`") in _VERBS and token.startswith("`"):
            verbs, named = ([] if named else verbs) + [token.strip("`")], False
            continue
        word = _SINGULAR.get(token.lower(), token.lower())
        word = f"{resource}/status" if word == "status" else word
        if word in resources or (token == ")" and not named):
            resource, named = (word if word in resources else resource), True
            rights |= {(resource, verb) for verb in verbs}
    return rights


def test_rights_are_those_on_the_page(helm: Helm) -> None:
    """The tables of docs/security.md name each right that the chart gives to a part, and no other."""
    cut = {"nvml": {"migStrategy": "mixed", "cut": True}}
    full = {"fallback": {"full": {"enabled": True}, "patience": "5m"}}
    everything: dict[str, Any] = {
        "webhook": {"clientCASecret": "ca"},
        "config": full,
        "controller": {"enabled": True},
        "layouts": {"enabled": True},
        "devicePlugin": {"enabled": True, "config": cut},
        "dashboard": {"enabled": True},
    }
    claims = {"nvml": {**cut["nvml"], "partitioning": "dynamic"}}
    given: dict[str, set[tuple[str, str]]] = {}
    for values in (everything, {"draDriver": {"enabled": True, "config": claims}}):
        rendered = helm.render(values)
        rules = {(one["kind"], one["metadata"]["name"]): one.get("rules", ()) for one in rendered}
        for one in rendered:
            if one["kind"] in ("RoleBinding", "ClusterRoleBinding"):
                given.setdefault(one["subjects"][0]["name"], set()).update(
                    (resource, verb)
                    for rule in rules.get((one["roleRef"]["kind"], one["roleRef"]["name"]), ())
                    for resource in rule["resources"]
                    for verb in rule["verbs"]
                )
    page = (CHART.parents[1] / "docs/security.md").read_text()
    parts = {
        "gpu-webhook": ("**The webhook**", "**The certificate controller**"),
        "gpu-webhook-certificates": ("**The certificate controller**", "**The controller**"),
        "tessera-controller": ("**The controller**", "**The device plugin**"),
        "tessera-device-plugin": ("**The device plugin**", "**The DRA driver**"),
        "tessera-dra-driver": ("**The DRA driver**", "**The dashboard**"),
        "tessera-dashboard": ("**The dashboard**", "and nothing else"),
    }
    resources = {resource for rights in given.values() for resource, _ in rights}
    for account, (begin, end) in parts.items():
        text = page.partition(begin)[2].partition(end)[0]
        cells = re.findall(r"^\| (.*?) \|", text, re.MULTILINE) or [text]
        documented = set[tuple[str, str]]().union(*(_documented(cell, resources) for cell in cells))
        assert documented == given[account], account


def test_the_page_is_not_open(helm: Helm) -> None:
    """By default it listens on its pod's loopback, nothing may connect to the pod, and it can only read."""
    from tessera.cli.dashboard import command

    found = {
        one["kind"]: one
        for one in helm.render({"dashboard": {"enabled": True}, "webhook": {"enabled": False}})
        if one["metadata"]["name"] == "tessera-dashboard"
    }
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    name, *arguments = container["args"]
    assert (name, "--address=127.0.0.1" in arguments) == ("dashboard", True)
    options = {option for parameter in command.params for option in parameter.opts}
    assert {argument.partition("=")[0] for argument in arguments} <= options
    assert found["NetworkPolicy"]["spec"]["ingress"] == []
    assert found["Service"]["spec"]["type"] == "ClusterIP"
    assert found["ClusterRole"]["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["nodes", "pods", "namespaces", "events"],
            "verbs": ["get", "list", "watch"],
        },
        # why a pod waits
        {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["list"]},
        # what DRA offers, what claims hold, and why a pod waits
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["deviceclasses", "resourceslices"],
            "verbs": ["list", "watch"],
        },
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims"],
            "verbs": ["get", "list", "watch"],
        },
        # layouts that the controller keeps
        {"apiGroups": ["tessera.dev"], "resources": ["miglayouts"], "verbs": ["list", "watch"]},
        # how cards are cut, in clusters of NVIDIA's operator
        {"apiGroups": ["nvidia.com"], "resources": ["clusterpolicies"], "verbs": ["list"]},
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["default-mig-parted-config"],
            "verbs": ["get"],
        },
    ]
    # what the webhook decides by, and whether webhook and controller are at work
    assert found["Role"]["rules"] == [
        {"apiGroups": [group], "resources": [resource], "resourceNames": [name], "verbs": ["get"]}
        for group, resource, name in (
            ("", "configmaps", "gpu-webhook"),
            ("apps", "deployments", "gpu-webhook"),
            ("coordination.k8s.io", "leases", "tessera-controller"),
        )
    ]
    assert {"--tessera-namespace=gpu-webhook", "--webhook-name=gpu-webhook"} <= set(arguments)


def test_rendered_manifest_is_the_chart() -> None:
    """deploy/tessera.yaml and the values' schema are what `make deploy` writes."""
    assert [str(path) for path, _ in outdated()] == []


def test_rendered_manifest_is_accepted(control_plane: Client) -> None:
    """`kubectl apply -f deploy/tessera.yaml` is accepted as it is, in a cluster that has never seen it."""
    path = Path(__file__).parents[1] / "deploy" / "tessera.yaml"
    control_plane.kubectl("create", "namespace", "gpu-webhook")
    try:
        output = control_plane.kubectl("apply", "--dry-run=server", f"--filename={path}")
    finally:
        control_plane.kubectl("delete", "namespace", "gpu-webhook", "--wait=false")
    assert "gpu-allocation-webhook created" in output
