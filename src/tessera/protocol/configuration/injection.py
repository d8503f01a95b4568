"""The section `injection` of the webhook's configuration, in gpuinjector's format: its fields, and the policy that they say."""

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from tessera.core.admission.injection import GPU_TYPE_ANNOTATION, InjectionPolicy, InjectionRule, Rules
from tessera.core.admission.policy import OF_FULL, OWN_ANNOTATIONS
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quantity import SUFFIXES, Quantity, format_of_suffix
from tessera.core.resources import OF_CONTAINERS, is_of_containers, is_qualified_name, of_short
from tessera.core.text import quoted
from tessera.protocol.configuration.schema import (
    NUMBER,
    TEXT,
    Errors,
    Field,
    list_of,
    map_of,
    meant,
    parsed,
    record,
    text_that,
)


def _unit(text: str) -> str:
    if text in SUFFIXES:
        return text
    like = [suffix for suffix in SUFFIXES if text and suffix[:1].lower() == text[:1].lower()]
    near = next((suffix for suffix in like if len(suffix) == len(text)), like[0] if like else None)
    hint = f'; did you mean "{near}"?' if near else f"; they are {', '.join(s for s in SUFFIXES if s)}"
    raise InvalidInput(f"{quoted(text, 20)} is not a Kubernetes suffix{hint}")


def _resource_name(text: str) -> str:
    if not is_of_containers(text):
        hint = _gpu_meant(text) or meant(text, OF_CONTAINERS)
        raise InvalidInput(
            f"{quoted(text)} is not a resource of a container, such as cpu or nvidia.com/gpu{hint}"
        )
    return text


def _gpu_meant(text: str) -> str:
    """What was meant by the short name of a GPU resource: `gpu`, `1g.10gb`."""
    try:
        return f'; did you mean "{of_short(text)}"?'
    except InvalidInput:
        return ""


def _annotation(text: str) -> str:
    if not is_qualified_name(text.lower()):  # as the API server compares them
        raise InvalidInput(f"{quoted(text)} is not a name of an annotation, such as example.com/network")
    if text in (GPU_TYPE_ANNOTATION, *OWN_ANNOTATIONS, *OF_FULL):
        raise InvalidInput("decisions depend on this annotation, so a rule cannot set it")
    return text


_NAMESPACE: Final = text_that("namespace", bool, " is an empty text")
_GPU_TYPE: Final = text_that("GPU type", bool, " is an empty text")
_RESOURCE: Final = parsed("resource name", _resource_name, "")
_ANNOTATION: Final = parsed("annotation", _annotation, "")
_UNIT: Final = parsed("Kubernetes suffix, such as `m` or `Gi`", _unit, "")

_RULE: Final = record(
    Field(
        "resourceList",
        list_of(
            record(
                Field("name", _RESOURCE, "The resource to write."),
                Field("coefficient", NUMBER, "How much of it one GPU needs, in `unit`."),
                Field("unit", _UNIT, "The unit of the coefficient.", default=""),
                Field("value", TEXT, "Accepted and without effect, as in gpuinjector.", default=""),
            )
        ),
        "What a container gets for each GPU.",
        default=(),
    ),
    Field(
        "annotations",
        map_of(_ANNOTATION, TEXT),
        "Annotations to set on the pod.",
        default=MappingProxyType({}),
    ),
)
_RULES: Final = map_of(_GPU_TYPE, map_of(_RESOURCE, _RULE))

SECTION: Final = record(
    Field("resourceMap", _RULES, "The rules, by GPU type and GPU resource.", default=MappingProxyType({})),
    Field(
        "namespaceResourceMap",
        map_of(_NAMESPACE, _RULES),
        "Rules of single namespaces. Such a rule replaces the general one completely where namespace, GPU type and GPU resource all match.",
        default=MappingProxyType({}),
    ),
    Field("namespaceWhiteList", list_of(_NAMESPACE), "Namespaces that injection leaves alone.", default=()),
)


def policy_of(read: Mapping[str, Any], errors: Errors) -> InjectionPolicy:
    """The policy that a section says, as `SECTION` read it; what its rules get wrong together goes to the errors."""
    return InjectionPolicy(
        default=_rules(read["resourceMap"], "injection.resourceMap", errors),
        by_namespace={
            namespace: _rules(rules, f"injection.namespaceResourceMap.{namespace}", errors)
            for namespace, rules in read["namespaceResourceMap"].items()
        },
        skipped_namespaces=frozenset(read["namespaceWhiteList"]),
    )


def _rules(read: Mapping[str, Any], path: str, errors: Errors) -> Rules:
    return {
        gpu_type: {
            resource: _rule(rule, resource, f"{path}.{gpu_type}.{resource}.resourceList", errors)
            for resource, rule in by_resource.items()
        }
        for gpu_type, by_resource in read.items()
    }


def _rule(read: Mapping[str, Any], gpu: str, path: str, errors: Errors) -> InjectionRule:
    seen: dict[str, Quantity] = {}
    for index, one in enumerate(read["resourceList"]):
        name, unit = one["name"], one["unit"]
        if not name:
            continue  # an error already
        if name in seen:
            errors.add(f"{path}[{index}].name", f'"{name}" is in this list twice')
        if name == gpu:
            errors.add(
                f"{path}[{index}].name",
                f'"{name}" is the GPU resource itself, which a rule cannot change',
            )
        seen[name] = Quantity(Fraction(one["coefficient"]) * SUFFIXES[unit], format_of_suffix(unit))
    return InjectionRule(tuple(seen.items()), dict(read["annotations"]))
