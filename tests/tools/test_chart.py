"""The chart and what is made from it, as far as that can be seen without helm."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tools.chart import CHART, DEPLOY, SCHEMA, schema

from tessera.core.admission.decision import EXEMPT_LABEL
from tessera.core.admission.injection import GPU_TYPE_ANNOTATION
from tessera.core.resources import MIG_PREFIX, WHOLE_GPU
from tessera.diagnosis.reading import MIG_LAYOUT_SHORT
from tessera.doctor.examination import CHECKS
from tessera.protocol import yaml
from tessera.protocol.configuration import webhook as config

ROOT = Path(__file__).parents[2]
WEBHOOK_NAMES = ("gpu-webhook", "gpu-allocation-webhook")
CONTROLLER = "gpu-webhook-certificates"
OBJECTS: list[Any] = [one for one in yaml.load_all(DEPLOY.read_bytes(), "deploy") if one]


def _one(kind: str, name: str | None = None) -> Any:
    (found,) = [
        one
        for one in OBJECTS
        if one["kind"] == kind and one["metadata"]["name"] in ((name,) if name else WEBHOOK_NAMES)
    ]
    return found


def test_the_short_name_of_miglayouts():
    """`kubectl get mig` and `tessera why mig/NAME` take the same short name."""
    assert f"shortNames: [{MIG_LAYOUT_SHORT}]" in (CHART / "templates/miglayouts.yaml").read_text()


def test_schema_knows_what_the_code_knows():
    """The values `config`, `devicePlugin.config` and `draDriver.config` are checked as the programs themselves check them."""
    assert SCHEMA.read_text() == schema()


def test_default_values_are_valid_and_complete():
    """Every value has a default and is in the schema, in both directions."""
    document = json.loads(SCHEMA.read_text())
    values = yaml.load((CHART / "values.yaml").read_bytes(), "values.yaml")
    jsonschema.Draft7Validator.check_schema(document)
    jsonschema.validate(values, document)
    assert set(values) == set(document["properties"]) - {"global"}
    for section in (
        "webhook",
        "devicePlugin",
        "draDriver",
        "dashboard",
        "certificates",
        "networkPolicy",
        "image",
    ):
        assert set(values[section]) == set(document["properties"][section]["properties"])


@pytest.mark.parametrize(
    ("repository", "good"),
    [
        ("", True),  # the templates refuse it, and say what to do
        ("tessera", True),
        ("registry.example.com/you/tessera", True),
        ("localhost:5000/tessera", True),
        ("registry.example.com/you/tessera:0.1.0", False),
        ("localhost:5000/tessera:0.1.0", False),
        ("tessera@sha256:abc", False),
        ("REGISTRY/ tessera", False),
    ],
)
def test_an_image_is_named_without_a_tag(repository: str, good: bool) -> None:
    """A tag has a value of its own: one in the repository would make a name with two, which no node can pull."""
    document = json.loads(SCHEMA.read_text())["properties"]["image"]
    assert jsonschema.Draft7Validator(document).is_valid({"repository": repository}) == good


def test_helm_test_checks_the_whole_installation():
    """Every check of the doctor but those that are about the cluster's own nodes, pods and classes."""
    of_the_cluster = {
        "layouts",
        "silent",
        "classes",
        "pools",
        "counters",
        "score",
        "cdi",
        "offers",
        "refused",
        "pending",
    }
    template = (CHART / "templates/tests/doctor.yaml").read_text()
    [named] = re.findall(r"range list ([^}]*)", template)
    assert named.replace('"', "").split() == [one.name for one in CHECKS if one.name not in of_the_cluster]


def test_versions_agree():
    """Package, chart and image are one version."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.load((CHART / "Chart.yaml").read_bytes(), "Chart.yaml")
    assert chart["version"] == chart["appVersion"] == version
    assert _one("Deployment")["spec"]["template"]["spec"]["containers"][0]["image"].endswith(f":{version}")


def test_names_are_the_ones_people_type():
    """`kubectl logs -n gpu-webhook -l app=gpu-webhook` finds the webhook, and everything else has its usual name."""
    assert _one("Namespace")["metadata"]["name"] == "gpu-webhook"
    for kind in ("Deployment", "Service"):
        assert _one(kind)["metadata"]["name"] == "gpu-webhook"
        assert _one(kind)["metadata"]["namespace"] == "gpu-webhook"
    assert _one("Deployment")["spec"]["template"]["metadata"]["labels"]["app"] == "gpu-webhook"
    assert _one("MutatingWebhookConfiguration")["metadata"]["name"] == "gpu-allocation-webhook"
    assert _one("Service")["spec"]["ports"][0]["port"] == 443
    assert _one("Deployment")["spec"]["replicas"] == 3


def test_webhook_configuration_is_as_promised():
    """Only GPU pods are sent; exempt namespaces, kube-system and the webhook's own are left out."""
    (webhook,) = _one("MutatingWebhookConfiguration")["webhooks"]
    (condition,) = webhook["matchConditions"]
    for text in (GPU_TYPE_ANNOTATION, WHOLE_GPU, MIG_PREFIX, "initContainers", "requests", "limits"):
        assert text in condition["expression"]
    label, value = EXEMPT_LABEL
    assert webhook["namespaceSelector"]["matchExpressions"] == [
        {"key": label, "operator": "NotIn", "values": [value]},
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "gpu-webhook"]},
    ]
    assert webhook["rules"] == [
        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "Namespaced"}
    ]  # fmt: skip
    expected = {
        "name": "gpu-allocation.k8s.io",
        "failurePolicy": "Ignore",
        "timeoutSeconds": 5,
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    assert webhook | expected == webhook


@pytest.mark.parametrize("name", ["gpu-webhook", CONTROLLER])
def test_pods_run_restricted(name: str):
    """Non-root, read-only, no capability, seccomp, no escalation."""
    spec = _one("Deployment", name)["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert _one("Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_permissions_are_the_least_that_works():
    """It follows nodes, namespaces, quotas and what DRA offers, follows the controller's Lease, and reads two objects of its own; only the controller changes those."""
    bundle = {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": ["mutatingwebhookconfigurations"],
        "resourceNames": ["gpu-allocation-webhook"],
    }
    secret = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["gpu-webhook-ca"]}
    assert _one("ClusterRole")["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["nodes", "namespaces", "resourcequotas"],
            "verbs": ["list", "watch"],
        },
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["deviceclasses", "resourceslices"],
            "verbs": ["list", "watch"],
        },
        {**bundle, "verbs": ["get"]},
    ]
    lease = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": ["tessera-controller"],
    }
    assert _one("Role")["rules"] == [{**lease, "verbs": ["list", "watch"]}, {**secret, "verbs": ["get"]}]
    assert _one("ClusterRole", CONTROLLER)["rules"] == [{**bundle, "verbs": ["get", "patch"]}]
    assert _one("Role", CONTROLLER)["rules"] == [{**secret, "verbs": ["get", "patch"]}]
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        for name in ("gpu-webhook", CONTROLLER):
            (subject,) = _one(kind, name)["subjects"]
            assert (subject["name"], _one(kind, name)["roleRef"]["name"]) == (name, name)
    for name in ("gpu-webhook", CONTROLLER):
        assert _one("Deployment", name)["spec"]["template"]["spec"]["serviceAccountName"] == name


def test_service_does_not_lead_to_the_controller():
    """The API server's calls reach the webhook alone."""
    labels = _one("Deployment", CONTROLLER)["spec"]["template"]["metadata"]["labels"]
    assert not _one("Service")["spec"]["selector"].items() <= labels.items()


def test_arguments_are_options_of_the_commands():
    """Every argument in a Deployment is an option that its command has."""
    from tessera.cli.certs import run
    from tessera.cli.webhook import command

    for name, words, one in (("gpu-webhook", ["webhook"], command), (CONTROLLER, ["certs", "run"], run)):
        arguments = _one("Deployment", name)["spec"]["template"]["spec"]["containers"][0]["args"]
        assert arguments[: len(words)] == words
        options = {option for parameter in one.params for option in parameter.opts}
        assert {argument.partition("=")[0] for argument in arguments[len(words) :]} <= options


@pytest.mark.parametrize("text", ["{}\n"])
def test_default_configuration_is_good(text: str):
    """What the ConfigMap holds by default is a configuration."""
    assert _one("ConfigMap")["data"]["config.yaml"] == text
    config.parse(text)


def _schemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema of OpenAPI and every one in it."""
    yield schema
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    for one in inner:
        if isinstance(one, dict):
            yield from _schemas(one)


def test_the_fields_of_a_miglayout_have_whole_schemas():
    """Schemas of the CustomResourceDefinition have words of OpenAPI alone: a comma in a description has begun no field of its own."""
    text = (CHART / "templates" / "miglayouts.yaml").read_text()
    (crd,) = [one for one in text.split("\n---\n") if "kind: CustomResourceDefinition" in one]
    document = yaml.load("\n".join(line for line in crd.splitlines() if "{{" not in line), "miglayouts.yaml")
    (version,) = document["spec"]["versions"]
    schemas = list(_schemas(version["schema"]["openAPIV3Schema"]))
    assert len(schemas) > 50
    words = {word for one in schemas for word in one if not word.startswith("x-kubernetes-")}
    assert words <= {
        "additionalProperties", "anyOf", "default", "description", "enum", "format", "items", "maxItems", "maxLength", "maxProperties",
        "maximum", "minItems", "minLength", "minProperties", "minimum", "nullable", "pattern", "properties", "required", "type",
    }  # fmt: skip


def test_an_empty_config_is_the_default():
    """`config:` without anything below it is no map, and no reason to fail: every template takes it for an empty one."""
    for file in [*CHART.glob("templates/**/*.*")]:
        assert not re.search(r"(?<!default dict )\.Values\.config\b", file.read_text()), file.name
