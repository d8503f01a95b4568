"""The configuration file: read whole, or refused with everything that is wrong with it."""

import contextlib
import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.admission.policy import FallbackPolicy, Policy, When
from tessera.core.errors import InvalidInput, InvalidInputs
from tessera.core.kubernetes.quantity import Quantity
from tessera.protocol import yaml
from tessera.protocol.configuration import webhook as config
from tests.build import resource

ROOT = Path(__file__).parents[3]


def test_empty():
    """Nothing configured is a configuration: everything has its default."""
    assert config.parse("") == config.Configuration()
    assert config.parse("fallback:\ninjection:\nserver:\n") == config.Configuration()
    assert config.parse("{}").policy == Policy()


def test_fallback():
    """Every switch of fallback."""
    parsed = config.parse(
        """
        fallback:
          enabled: false
          downgrades: false
          upgrades: false
          wholeGPU: false
          maxWholeGPUs: 4
          minMemory: 10Gi
          minMemoryFraction: 0.25
          grace: 1m30s
          passingTaints: [draining, example.com/*, draining]
          chains: {3g.30gb: [1g.10gb+me, nvidia.com/mig-1g.10gb, 1g.10gb.shared, gpu, nvidia.com/gpu, gpu.shared], 7g.80gb: []}
          autoscaled: [gpu, 2g.20gb]
          unmatched: admit
          full: {enabled: true}
          patience: 5m
        server: {onError: deny}
        """
    )
    assert parsed.policy.fallback == FallbackPolicy(
        enabled=False,
        downgrades=False,
        upgrades=False,
        whole_gpu=False,
        max_whole_gpus=4,
        min_memory=Quantity.parse("10Gi"),
        min_memory_fraction=Fraction(1, 4),
        grace=90.0,
        transient_taints=("draining", "example.com/*"),
        chains={
            resource("3g.30gb"): (
                *map(resource, ("1g.10gb.me", "1g.10gb", "1g.10gb.shared", "gpu")),
                "nvidia.com/gpu.shared",
            ),
            resource("7g.80gb"): (),
        },
        autoscaled=frozenset(map(resource, ("gpu", "2g.20gb"))),
        reject_unmatched=False,
        when=When.MISSING,
        full_enabled=True,
        patience=300.0,
    )
    assert parsed.on_error == "deny"


@pytest.mark.parametrize(
    ("text", "when", "enabled", "patience"),
    [
        ("{}", When.MISSING, False, None),
        ("{when: missing}", When.MISSING, False, None),
        ("{when: full}", When.FULL, True, None),
        ("{when: full, full: {enabled: false}}", When.FULL, True, None),
        ("{full: {enabled: true}}", When.MISSING, True, None),
        ("{full: {}}", When.MISSING, False, None),
        ("{full: }", When.MISSING, False, None),
        ("{patience: 1m30s}", When.MISSING, False, 90.0),
        ("{patience: off}", When.MISSING, False, None),
        ("{patience: 'off'}", When.MISSING, False, None),
        ("{patience: 0s}", When.MISSING, False, None),
    ],
)
def test_by_what_is_free(text, when, enabled, patience):
    """`when: full` implies that pods are followed; both it and patience are off by default, and patience can be said to be off."""
    found = config.parse(f"fallback: {text}").policy.fallback
    assert (found.when, found.full_enabled, found.patience) == (when, enabled, patience)
    document = yaml.load(f"fallback: {text}", "test")
    jsonschema.validate(document if "{full: }" not in text else {}, config.json_schema())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{when: free}", 'fallback.when: "free" is not one of missing, full'),
        ("{full: true}", "fallback.full: true is not a map"),
        ("{patience: 5}", "fallback.patience: 5 is not a text; expected duration, such as `5m`, or `off`"),
        (
            "{patience: true}",
            "fallback.patience: true is not a text; expected duration, such as `5m`, or `off`",
        ),
        ("{patience: soon}", 'fallback.patience: "soon" is not a duration such as 30s, 2m or 1h'),
    ],
)
def test_by_what_is_free_refused(text, error):
    """What means nothing is refused, with its path."""
    with pytest.raises(InvalidInputs) as raised:
        config.parse(f"fallback: {text}")
    assert error in str(raised.value)


def test_injection_as_json():
    """Gpuinjector's JSON, as it is in use."""
    text = json.dumps(
        {
            "injection": {
                "resourceMap": {
                    "V100": {
                        "nvidia.com/gpu": {
                            "resourceList": [{"name": "cpu", "coefficient": 0.29, "unit": "m"}, {"name": "memory", "coefficient": 1.5, "unit": "Gi"}],
                            "annotations": {"a": "b"},
                        }
                    }
                },
                "namespaceWhiteList": ["x"],
            }
        }
    )  # fmt: skip
    injection = config.parse(text).policy.injection
    rule = injection.default["V100"]["nvidia.com/gpu"]
    assert rule.per_gpu == (("cpu", Quantity.parse("0.00029")), ("memory", Quantity.parse("1536Mi")))
    assert rule.annotations == {"a": "b"}
    assert injection.skipped_namespaces == {"x"}


def test_every_complaint_at_once():
    """All errors are reported, each with its path and what would be right."""
    with pytest.raises(InvalidInputs) as caught:
        config.parse(
            """
            resourceMap: {}
            fallback: {downgrade: yes, unmatched: rejct, chains: {2g: [1g.10gb, cpu], 3g.30gb: 5}, upgrades: "yes"}
            injection:
              resourceMap:
                V100:
                  nvidia.com/gpu:
                    resourceList:
                    - {name: cpu, coefficient: -4, unit: m}
                    - {name: memory, coefficient: 8, unit: Gb}
                    - {name: memory, coefficient: "8 GB"}
                    - {coefficient: .5, unit: cores}
                    - {name: nvidia.com/gpu, coefficient: 1e99999999}
                    annotations: {a: 1}
            server: []
            """
        )
    rule = "injection.resourceMap.V100.nvidia.com/gpu"
    assert caught.value.errors == (
        'resourceMap: belongs under "injection" (injection.resourceMap)',
        'fallback.downgrade: unknown field; did you mean "downgrades"?',
        'fallback.upgrades: "yes" is neither true nor false',
        'fallback.chains.2g: "2g" is not a MIG profile such as 1g.10gb or 1g.10gb+me',
        'fallback.chains.2g[1]: "cpu" is not a MIG profile such as 1g.10gb or 1g.10gb+me',
        "fallback.chains.3g.30gb: 5 is not a list",
        'fallback.unmatched: "rejct" is not one of reject, admit; did you mean "reject"?',
        f"{rule}.resourceList[0].coefficient: -4 is negative",
        f'{rule}.resourceList[1].unit: "Gb" is not a Kubernetes suffix; did you mean "Gi"?',
        f'{rule}.resourceList[2].coefficient: "8 GB" is not a number, 0 or more, such as 4000 or 1.5',
        f"{rule}.resourceList[3].name: missing; expected resource name",
        f'{rule}.resourceList[3].unit: "cores" is not a Kubernetes suffix; they are n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei',
        f"{rule}.resourceList[4].coefficient: 1E+99999999 is out of range",
        f"{rule}.annotations.a: 1 is not a text; expected text",
        "server: a list is not a map",
        f'{rule}.resourceList[2].name: "memory" is in this list twice',
        f'{rule}.resourceList[4].name: "nvidia.com/gpu" is the GPU resource itself, which a rule cannot change',
    )  # fmt: skip


NO_RESOURCE = "is not a resource of a container, such as cpu or nvidia.com/gpu"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("Memory", f'"Memory" {NO_RESOURCE}; did you mean "memory"?'),
        ("cpus", f'"cpus" {NO_RESOURCE}; did you mean "cpu"?'),
        ("gpu", f'"gpu" {NO_RESOURCE}; did you mean "nvidia.com/gpu"?'),
        ("1g.10gb+me", f'"1g.10gb+me" {NO_RESOURCE}; did you mean "nvidia.com/mig-1g.10gb.me"?'),
        ("requests.cpu", f'"requests.cpu" {NO_RESOURCE}'),
        ("requests.example.com/x", f'"requests.example.com/x" {NO_RESOURCE}'),
        ("pods", f'"pods" {NO_RESOURCE}'),
        ("a..b/c", f'"a..b/c" {NO_RESOURCE}'),
        ("Example.com/x", f'"Example.com/x" {NO_RESOURCE}'),
        ("x.io/" + "y" * 64, f'"x.io/{"y" * 55}"… {NO_RESOURCE}'),
        ("x" * 250 + "/y", f'"{"x" * 60}"… {NO_RESOURCE}'),
        ("", f'"" {NO_RESOURCE}'),
        *((name, None) for name in ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "nvidia.com/shm", "x-1.io/Y_z")),
    ],
)  # fmt: skip
def test_resources_that_a_container_can_have(name, complaint):
    """A name that the API server refuses in a container would break every pod: it is refused here, with its path."""
    rule = {"resourceList": [{"name": name, "coefficient": 1}]}
    text = json.dumps({"injection": {"resourceMap": {"V100": {"nvidia.com/gpu": rule}}}})
    assert complaints(text) == (
        (f"injection.resourceMap.V100.nvidia.com/gpu.resourceList[0].name: {complaint}",) if complaint else ()
    )


def test_below_a_bad_name():
    """What is wrong below a name that is wrong itself is reported with the name, as it was written."""
    cpu = {"name": "cpu", "coefficient": 1}
    text = json.dumps({"injection": {"resourceMap": {"V100": {"gpu": {"resourceList": [cpu, cpu]}}}}})
    assert complaints(text) == (
        f'injection.resourceMap.V100.gpu: "gpu" {NO_RESOURCE}; did you mean "nvidia.com/gpu"?',
        'injection.resourceMap.V100.gpu.resourceList[1].name: "cpu" is in this list twice',
    )


def test_gpu_resources_of_rules():
    """The GPU resource of a rule is held to the same."""
    text = "injection: {resourceMap: {V100: {gpus: {}}}}"
    assert complaints(text) == (f'injection.resourceMap.V100.gpus: "gpus" {NO_RESOURCE}',)


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("bad key!!", '"bad key!!" is not a name of an annotation, such as example.com/network'),
        ("", '"" is not a name of an annotation, such as example.com/network'),
        ("a/b/c", '"a/b/c" is not a name of an annotation, such as example.com/network'),
        ("task.bkbcs.tencent.com/gpu-type", "decisions depend on this annotation, so a rule cannot set it"),
        ("gpu-webhook.k8s.io/fallback", "decisions depend on this annotation, so a rule cannot set it"),
        ("kubernetes.io/config.mirror", "decisions depend on this annotation, so a rule cannot set it"),
        ("Example.com/Network", None),
        ("network", None),
    ],
)
def test_annotations_that_a_rule_can_set(key, complaint):
    """An annotation that the API server refuses, or that decides what the rule is, is refused with its path."""
    rules = {"V100": {"nvidia.com/gpu": {"annotations": {key: "x"}}}}
    text = json.dumps({"injection": {"namespaceResourceMap": {"ml": rules}}})
    path = f"injection.namespaceResourceMap.ml.V100.nvidia.com/gpu.annotations.{key}"
    assert complaints(text) == ((f"{path}: {complaint}",) if complaint else ())


def complaints(text):
    """What is wrong with a configuration; nothing when it is fine."""
    try:
        config.parse(text)
    except InvalidInputs as error:
        return error.errors
    return ()


@pytest.mark.parametrize(
    ("unit", "meant"),
    [
        ("Gb", "Gi"),
        ("GB", "Gi"),
        ("gi", "Gi"),
        ("KB", "Ki"),
        ("K", "k"),
        ("g", "G"),
        ("mi", "Mi"),
        ("Mb", "Mi"),
    ],
)
def test_units_people_write(unit, meant):
    """A unit that Kubernetes does not know is answered with the one that was meant."""
    text = f"injection: {{resourceMap: {{X: {{nvidia.com/gpu: {{resourceList: [{{name: memory, coefficient: 1, unit: {unit}}}]}}}}}}}}"
    with pytest.raises(
        InvalidInputs, match=f'"{unit}" is not a Kubernetes suffix; did you mean "{meant}"\\?$'
    ):
        config.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "7",
        "a: [",
        "fallback: {a: &x [*x]}",
        "injection: {resourceMap: {V100: 5}}",
        "\x00",
        "a: 1\n---\nb: 2",
    ],
)
def test_no_configuration(text):
    """What is no configuration at all is refused just as clearly."""
    with pytest.raises(InvalidInput) as caught:
        config.parse(text)
    assert "Traceback" not in str(caught.value)


def test_example():
    """The example is valid, and the file in examples/ is it."""
    assert config.parse(config.EXAMPLE).policy.fallback.chains == {resource("7g.80gb"): (resource("gpu"),)}
    assert (ROOT / "examples/config.yaml").read_text() == config.EXAMPLE


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("maxWholeGPUs: -1", "maxWholeGPUs: -1 is not a whole number from 0 to 1024"),
        ("maxWholeGPUs: 1.5", "maxWholeGPUs: 1.5 is not a whole number from 0 to 1024"),
        ('minMemory: "20"', 'minMemory: "20" is less than 1Gi, which every profile has; did you mean 20Gi?'),
        ("minMemory: 20", "minMemory: 20 is not a text; expected amount of memory, such as `10Gi`"),
        ("minMemory: 20GB", 'minMemory: "20GB" is not a Kubernetes quantity such as 2, 500m or 8Gi'),
        ("minMemoryFraction: 1.01", "minMemoryFraction: 1.01 is not a number from 0 to 1"),
        ("minMemoryFraction: half", 'minMemoryFraction: "half" is not a number from 0 to 1, such as 0.5'),
        ('minMemoryFraction: "1.01"', 'minMemoryFraction: "1.01" is not a number from 0 to 1, such as 0.5'),
        ('minMemoryFraction: "-0.5"', 'minMemoryFraction: "-0.5" is not a number from 0 to 1, such as 0.5'),
        ('minMemoryFraction: ""', 'minMemoryFraction: "" is not a number from 0 to 1, such as 0.5'),
        ("minMemoryFraction: true", "minMemoryFraction: true is not a number from 0 to 1, such as 0.5"),
        ("grace: 2", "grace: 2 is not a text; expected duration, such as `30s` or `2m`"),
        ("grace: soon", 'grace: "soon" is not a duration such as 30s, 2m or 1h'),
        ("grace: 1s2m", 'grace: "1s2m" is not a duration such as 30s, 2m or 1h'),
        ('passingTaints: ["*"]', 'passingTaints[0]: "*" is not the key of a taint, such as example.com/draining or example.com/*'),
        ("passingTaints: [a b]", 'passingTaints[0]: "a b" is not the key of a taint, such as example.com/draining or example.com/*'),
        ("passingTaints: draining", 'passingTaints: "draining" is not a list'),
    ],
)  # fmt: skip
def test_bad_floors_and_times(text, complaint):
    """What cannot be meant is refused with the place."""
    with pytest.raises(InvalidInputs) as caught:
        config.parse(f"fallback:\n  {text}\n")
    assert str(caught.value) == f"fallback.{complaint}"


@pytest.mark.parametrize(
    ("written", "fraction"),
    [("0.5", "1/2"), ('"0.5"', "1/2"), ('".5"', "1/2"), ('"0"', "0"), ('"1"', "1"), ('"1.0"', "1"), ("1", "1"), ('"0.30"', "3/10")],
)  # fmt: skip
def test_decimal_as_a_text(written, fraction):
    """`helm --set` makes a text of every decimal: the reader and the schema take it as the number that it says, exactly."""
    text = f"fallback: {{minMemoryFraction: {written}}}"
    assert config.parse(text).policy.fallback.min_memory_fraction == Fraction(fraction)
    jsonschema.validate(yaml.load(text), config.json_schema())
    text = (
        "injection: {resourceMap: {V100: {nvidia.com/gpu: {resourceList: [{name: cpu, coefficient: %s}]}}}}"
    )
    assert config.parse(text % written) == config.parse(text % written.strip('"'))
    jsonschema.validate(yaml.load(text % written), config.json_schema())


@pytest.mark.parametrize("written", ["half", "1.5", "-0.5", "2", "0,5", "5e-1", "", " 0.5", "٠.٥"])
def test_text_that_is_no_fraction(written):
    """Reader and schema refuse the same texts."""
    document = {"fallback": {"minMemoryFraction": written}}
    assert not jsonschema.Draft202012Validator(config.json_schema()).is_valid(document)
    with pytest.raises(InvalidInputs, match=r"is not a number from 0 to 1, such as 0\.5$"):
        config.parse(json.dumps(document))


def test_schema():
    """The JSON Schema is a schema, takes the example and refuses what the reader refuses."""
    schema = config.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(yaml.load(config.EXAMPLE))
    assert not validator.is_valid({"fallback": {"downgrade": True}})
    assert not validator.is_valid({"server": {"onError": "maybe"}})


def test_reference_is_documented():
    """The reference in the documentation is the one that the code gives."""
    assert config.reference() in (ROOT / "docs/configuration.md").read_text()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.decimals(allow_nan=False, allow_infinity=False).map(str) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.sampled_from(["fallback", "injection", "resourceMap", "chains"]), inner, max_size=3),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["fallback", "injection", "server", "x"]), json_values))
def test_any_document(document):
    """Whatever stands in the file, it is a configuration or a list of complaints; nothing else happens."""
    with contextlib.suppress(InvalidInput):
        assert isinstance(config.parse(json.dumps(document)), config.Configuration)


@given(st.decimals(min_value=0, max_value=10**6, places=4))
def test_coefficients_are_exact(number):
    """A coefficient is the decimal number that was written, in YAML and in JSON."""
    for text in (f"{{name: cpu, coefficient: {number}}}", f'{{"name": "cpu", "coefficient": {number}}}'):
        parsed = config.parse(
            f'{{"injection": {{"resourceMap": {{"X": {{"x.io/g": {{"resourceList": [{text}]}}}}}}}}}}'
        )
        assert parsed.policy.injection.default["X"]["x.io/g"].per_gpu[0][1].value == Decimal(number)
