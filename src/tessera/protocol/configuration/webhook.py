"""Tessera's one configuration file: YAML or JSON in, policy out.

The tables below are the whole truth about it: the reader, the JSON Schema and the reference in the documentation
come from them. Everything that is wrong is reported at once, each complaint with its path.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final, Literal

from tessera.core.admission.candidates import FallbackPolicy
from tessera.core.admission.decision import OWN_ANNOTATIONS, Mode, Policy
from tessera.core.admission.injection import GPU_TYPE_ANNOTATION, InjectionPolicy, InjectionRule, Rules
from tessera.core.admission.wishes import LEAST_MEMORY, too_little_memory
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quantity import SUFFIXES, Quantity, format_of_suffix
from tessera.core.kubernetes.resources import (
    OF_CONTAINERS,
    WHOLE_GPU,
    is_of_containers,
    is_qualified_name,
    of_short,
)
from tessera.core.mig.profile import MigProfile
from tessera.core.text import quoted
from tessera.protocol import yaml
from tessera.protocol.configuration.schema import (
    Boolean,
    Choice,
    Complaints,
    Count,
    Field,
    ListOf,
    MapOf,
    Number,
    Record,
    Text,
    meant,
)

OnError = Literal["allow", "deny"]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How the webhook behaves beside its decisions."""

    on_error: OnError = "allow"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything an operator can say."""

    policy: Policy = field(default_factory=Policy)
    server: ServerSettings = field(default_factory=ServerSettings)


def _any_text(text: str) -> str:
    if not text:
        raise InvalidInput("an empty text")
    return text


def _profile(text: str) -> str:
    return MigProfile.parse(text).resource


def _unit(text: str) -> str:
    if text in SUFFIXES:
        return text
    like = [suffix for suffix in SUFFIXES if text and suffix[:1].lower() == text[:1].lower()]
    near = next((suffix for suffix in like if len(suffix) == len(text)), like[0] if like else None)
    hint = f'; did you mean "{near}"?' if near else f"; they are {', '.join(s for s in SUFFIXES if s)}"
    raise InvalidInput(f"{quoted(text, 20)} is not a Kubernetes suffix{hint}")


def _resource_name(text: str) -> str:
    if not is_of_containers(text):
        raise InvalidInput(
            f"{quoted(text)} is no resource of a container, such as cpu or nvidia.com/gpu{meant(text, OF_CONTAINERS)}"
        )
    return text


def _annotation(text: str) -> str:
    if not is_qualified_name(text.lower()):  # as the API server compares them
        raise InvalidInput(f"{quoted(text)} is no name of an annotation, such as example.com/network")
    if text in (GPU_TYPE_ANNOTATION, *OWN_ANNOTATIONS):
        raise InvalidInput("decisions are made by this annotation; a rule cannot set it")
    return text


def _memory(text: str) -> Quantity:
    amount = Quantity.parse(text)
    if amount < LEAST_MEMORY:
        raise InvalidInput(too_little_memory(text))
    return amount


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(?:(\d{1,4})h)?(?:(\d{1,4})m)?(?:(\d{1,5})s)?", text, re.ASCII)
    if match is None or not text:
        raise InvalidInput(f"{quoted(text)} is not a duration such as 30s, 2m or 1h")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(hours * 3600 + minutes * 60 + seconds)


def _taint_key(text: str) -> str:
    # as Kubernetes has it: an optional DNS domain, a slash, a name; or all names of a domain
    if not re.fullmatch(r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?(?:\*|[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)", text) or text == "*":  # fmt: skip
        raise InvalidInput(
            f"{quoted(text)} is not the key of a taint, such as example.com/draining or example.com/*"
        )
    return text


_TEXT: Final = Text("text", lambda text: text, "")
_NAMESPACE: Final = Text("namespace", _any_text, "")
_GPU_TYPE: Final = Text("GPU type", _any_text, "")
_PROFILE: Final = Text("MIG profile", _profile, "")
_TARGET: Final = Text("MIG profile or `gpu`", of_short, WHOLE_GPU)
_RESOURCE: Final = Text("resource name", _resource_name, "")
_ANNOTATION: Final = Text("annotation", _annotation, "")
_MEMORY: Final = Text("amount of memory, such as `10Gi`", _memory, LEAST_MEMORY)
_DURATION: Final = Text("duration, such as `30s` or `2m`", _seconds, 0.0)
_TAINT: Final = Text("key of a taint, or `prefix/*`", _taint_key, "")
_UNIT: Final = Text("Kubernetes suffix, such as `m` or `Gi`", _unit, "")

FALLBACK: Final = Record(
    (
        Field("enabled", Boolean(), "Whether pods are rewritten, or rejected for want of an offer, at all. Missing limits are added either way.", default=True),
        Field("downgrades", Boolean(), "Whether a smaller profile may be chosen.", default=True),
        Field("upgrades", Boolean(), "Whether a larger profile may be chosen.", default=True),
        Field("wholeGPU", Boolean(), "Whether a whole GPU may be chosen.", default=True),
        Field(
            "chains",
            MapOf(_PROFILE, ListOf(_TARGET)),
            "What to try for a profile, in this order, in place of the computed order. The three switches and a pod's "
            "own wishes still apply. An empty list: nothing but what was asked for.",
            default=MappingProxyType({}),
        ),
        Field(
            "maxWholeGPUs",
            Count(0, 1024),
            "How many whole GPUs a pod may get in place of profiles that are less than a card. Seven 1g never become "
            "seven GPUs.",
            default=1,
        ),
        Field(
            "minMemory",
            _MEMORY,
            "No replacement has less memory than this, such as `10Gi`. A pod or a namespace can ask for more.",
            default=None,
        ),
        Field(
            "minMemoryFraction",
            Number(most=1),
            "No replacement has less than this part of the memory that was asked for, from 0 to 1.",
            default=0,
        ),
        Field(
            "grace",
            _DURATION,
            "How long what is gone from a node still counts, while the node is Ready: a device plugin or a kubelet that "
            "restarts changes no pod.",
            default="2m",
        ),
        Field(
            "passingTaints",
            ListOf(_TAINT),
            "Further taints of nodes that come or go, which exclude no pod: keys, or `prefix/*`.",
            default=(),
        ),
        Field(
            "autoscaled",
            ListOf(_TARGET),
            "Types that the cluster autoscaler can bring although no node shows them now: they count as offered.",
            default=(),
        ),
        Field(
            "unmatched",
            Choice(("reject", "admit")),
            "What happens to a pod for which nothing fits: it is rejected, or admitted as it is to wait.",
            default="reject",
        ),
        Field(
            "quota",
            Choice(("respect", "ignore")),
            "Whether a replacement stays within the namespace's ResourceQuotas: where these name any GPU resource, only named "
            "ones can replace what was asked, and only while used + need ≤ hard. What was asked itself is the API server's to judge.",
            default="respect",
        ),
    )
)  # fmt: skip

_RULE: Final = Record(
    (
        Field(
            "resourceList",
            ListOf(
                Record(
                    (
                        Field("name", _RESOURCE, "The resource to write."),
                        Field("coefficient", Number(), "How much of it one GPU needs, in `unit`."),
                        Field("unit", _UNIT, "The unit of the coefficient.", default=""),
                        Field("value", _TEXT, "Accepted and without effect, as in gpuinjector.", default=""),
                    )
                )
            ),
            "What one GPU brings with it.",
            default=(),
        ),
        Field(
            "annotations",
            MapOf(_ANNOTATION, _TEXT),
            "Annotations to set on the pod.",
            default=MappingProxyType({}),
        ),
    )
)
_RULES: Final = MapOf(_GPU_TYPE, MapOf(_RESOURCE, _RULE))

INJECTION: Final = Record(
    (
        Field(
            "resourceMap", _RULES, "The rules, by GPU type and GPU resource.", default=MappingProxyType({})
        ),
        Field(
            "namespaceResourceMap",
            MapOf(_NAMESPACE, _RULES),
            "Rules of single namespaces. One wins, wholly, where namespace, GPU type and GPU resource all match.",
            default=MappingProxyType({}),
        ),
        Field(
            "namespaceWhiteList", ListOf(_NAMESPACE), "Namespaces that injection leaves alone.", default=()
        ),
    )
)

SERVER: Final = Record(
    (
        Field(
            "onError",
            Choice(("allow", "deny")),
            "The answer while the view of the cluster is not complete, and when a decision fails unexpectedly.",
            default="allow",
        ),
    )
)

# the other file's fields: an operator who mixes the two up is told where they belong
_OF_DEVICES: Final = ("handover", "faultFile", "evictUnhealthy", "static", "simulated", "nvml")

DOCUMENT: Final = Record(
    (
        Field(
            "mode",
            Choice(("enforce", "observe")),
            '`observe`: everything is decided, counted, logged, warned of and audited as "would", and no pod is changed or '
            "rejected. A namespace's label `gpu-webhook=observe` or `gpu-webhook=enforce` wins.",
            default="enforce",
        ),
        Field("fallback", FALLBACK, "What a pod gets when the profiles it asks for are not offered.", default=None),
        Field("injection", INJECTION, "CPU, memory and extras per GPU, in gpuinjector's format.", default=None),
        Field("server", SERVER, "The webhook server.", default=None),
    ),
    hints={
        **{name: f'belongs under "injection" (injection.{name})' for name in ("resourceMap", "namespaceResourceMap", "namespaceWhiteList")},
        **dict.fromkeys(_OF_DEVICES, "belongs to the device plugin's configuration; see it with tessera device-plugin --config FILE --list"),
    },
)  # fmt: skip


def parse(text: str | bytes, source: str = "configuration") -> Configuration:
    """Read a configuration; raises `InvalidInputs` with every complaint, or `InvalidYaml`."""
    document = yaml.load(text, source, exact=True)
    complaints = Complaints()
    read = DOCUMENT.read(document, "", complaints)
    sections = {
        one.name: read[one.name] or one.kind.read({}, one.name, complaints)
        for one in DOCUMENT.fields
        if isinstance(one.kind, Record)
    }  # a section that is left out has its defaults
    injection = _injection(sections["injection"], complaints)
    complaints.raise_if_any()
    return Configuration(
        Policy(_fallback(sections["fallback"]), injection, Mode(read["mode"])),
        ServerSettings(sections["server"]["onError"]),
    )


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the file, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tessera configuration",
        **DOCUMENT.schema(),
    }


def reference() -> str:
    """The reference of the file, as a Markdown table."""
    lines = ["| field | value | default | what it does |", "|---|---|---|---|"]
    for path, one in DOCUMENT.rows():
        default = "required" if one.required else _default_words(one.default)
        lines.append(f"| `{path}` | {one.kind.words} | {default} | {one.doc} |")
    return "\n".join(lines) + "\n"


EXAMPLE: Final = """\
# Tessera's configuration. Everything is optional; what is left out has the value shown in the reference.
mode: enforce               # or observe: decide and tell, change and reject nothing

fallback:
  downgrades: true          # a smaller profile may be chosen ...
  upgrades: true            # ... then a larger one ...
  wholeGPU: true            # ... then a whole GPU ...
  maxWholeGPUs: 1           # ... at most so many in a pod
  grace: 2m                 # what is gone from a node counts so long: its device plugin may be restarting
  unmatched: reject         # or admit: let the pod in as it is, to wait
  quota: respect            # replacements stay within the namespace's ResourceQuotas; or ignore
  chains:                   # explicit orders for single profiles
    7g.80gb: [gpu]
  autoscaled: []            # types that the autoscaler can bring, such as [1g.10gb, gpu]

injection:
  resourceMap:
    V100:                   # the pod's annotation task.bkbcs.tencent.com/gpu-type
      nvidia.com/gpu:       # per GPU of this resource
        resourceList:
          - {name: cpu, coefficient: 4000, unit: m}
          - {name: memory, coefficient: 8, unit: Gi}
          - {name: nvidia.com/shm, coefficient: 1, unit: Gi}
        annotations:
          tke.cloud.tencent.com/networks: tke-route-eni
  namespaceResourceMap:
    gpu-training:
      V100:
        nvidia.com/gpu:
          resourceList:
            - {name: cpu, coefficient: 6000, unit: m}
            - {name: memory, coefficient: 12, unit: Gi}
  namespaceWhiteList: [skipped-namespace]

server:
  onError: allow            # or deny: when the view is not complete, or a decision fails unexpectedly
"""


def _fallback(read: dict[str, Any]) -> FallbackPolicy:
    return FallbackPolicy(
        enabled=read["enabled"],
        downgrades=read["downgrades"],
        upgrades=read["upgrades"],
        whole_gpu=read["wholeGPU"],
        max_whole_gpus=read["maxWholeGPUs"],
        min_memory=read["minMemory"],
        min_memory_fraction=Fraction(read["minMemoryFraction"]),
        grace=read["grace"] if isinstance(read["grace"], float) else _seconds(read["grace"]),
        passing_taints=tuple(dict.fromkeys(read["passingTaints"])),
        chains={resource: tuple(dict.fromkeys(chain)) for resource, chain in read["chains"].items()},
        autoscaled=frozenset(read["autoscaled"]),
        reject_unmatched=read["unmatched"] == "reject",
        respects_quota=read["quota"] == "respect",
    )


def _injection(read: dict[str, Any], complaints: Complaints) -> InjectionPolicy:
    return InjectionPolicy(
        default=_rules(read["resourceMap"], "injection.resourceMap", complaints),
        by_namespace={
            namespace: _rules(rules, f"injection.namespaceResourceMap.{namespace}", complaints)
            for namespace, rules in read["namespaceResourceMap"].items()
        },
        skipped_namespaces=frozenset(read["namespaceWhiteList"]),
    )


def _rules(read: Mapping[str, Any], path: str, complaints: Complaints) -> Rules:
    return {
        gpu_type: {
            resource: _rule(rule, resource, f"{path}.{gpu_type}.{resource}.resourceList", complaints)
            for resource, rule in by_resource.items()
        }
        for gpu_type, by_resource in read.items()
    }


def _rule(read: Mapping[str, Any], gpu: str, path: str, complaints: Complaints) -> InjectionRule:
    seen: dict[str, Quantity] = {}
    for index, one in enumerate(read["resourceList"]):
        name, unit = one["name"], one["unit"]
        if not name:
            continue  # complained about already
        if name in seen:
            complaints.add(f"{path}[{index}].name", f'"{name}" stands in this list twice')
        if name == gpu:
            complaints.add(
                f"{path}[{index}].name",
                f'"{name}" is the GPU resource itself and stays as the pod asks for it',
            )
        seen[name] = Quantity(Fraction(one["coefficient"]) * SUFFIXES[unit], format_of_suffix(unit))
    return InjectionRule(tuple(seen.items()), dict(read["annotations"]))


def _default_words(default: Any) -> str:
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int):
        return f"`{default}`"
    return f"`{default}`" if isinstance(default, str) and default else "empty"
