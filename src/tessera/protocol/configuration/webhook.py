"""Tessera's one configuration file: YAML or JSON in, policy out.

The tables here, and in `fallback` and `injection` for these two sections, are the whole truth about it: the reader, the
JSON Schema and the reference in the documentation come from them. Everything that is wrong is reported at once, each
error with its path.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tessera.core.admission.policy import Mode, Policy
from tessera.protocol import yaml
from tessera.protocol.configuration import fallback, injection
from tessera.protocol.configuration.schema import BOOLEAN, Errors, Field, choice, record
from tessera.protocol.configuration.schema import reference as schema_reference

OnError = Literal["allow", "deny"]


@dataclass(frozen=True, slots=True)
class Configuration:
    policy: Policy = field(default_factory=Policy)
    on_error: OnError = "allow"
    demand_by_namespace: bool = False


_SERVER: Final = record(
    Field(
        "onError",
        choice("allow", "deny"),
        "The answer while the view of the cluster is not complete, and when a decision fails unexpectedly.",
        default="allow",
    ),
    Field(
        "demandByNamespace",
        BOOLEAN,
        "Count by namespace, too, which GPUs pods ask for, get and are refused: `gpu_webhook_namespace_demand_total`.",
        default=False,
    ),
)

# the other file's fields: an operator who mixes the two up learns where they belong
_OF_DEVICES: Final = ("handover", "faultFile", "evictUnhealthy", "static", "simulated", "nvml")

DOCUMENT: Final = record(
    Field(
        "mode",
        choice("enforce", "observe"),
        '`observe`: the webhook decides, counts, logs, warns and audits as "would", and changes and rejects no pod. '
        "A namespace's label `gpu-webhook=observe` or `gpu-webhook=enforce` wins.",
        default="enforce",
    ),
    Field("fallback", fallback.SECTION, "What a pod gets when the profiles it asks for are not offered.", default=None),
    Field("injection", injection.SECTION, "CPU, memory and extras per GPU, in gpuinjector's format.", default=None),
    Field("server", _SERVER, "The webhook server.", default=None),
    hints={
        **{name: f'belongs under "injection" (injection.{name})' for name in ("resourceMap", "namespaceResourceMap", "namespaceWhiteList")},
        **dict.fromkeys(_OF_DEVICES, "belongs to the device plugin's configuration; see it with tessera device-plugin --config FILE --list"),
    },
)  # fmt: skip


_SECTIONS: Final = {"fallback": fallback.SECTION, "injection": injection.SECTION, "server": _SERVER}


def parse(text: str | bytes, source: str = "configuration") -> Configuration:
    """Read a configuration; raises `InvalidInputs` with every error, or `InvalidYaml`."""
    document = yaml.load(text, source, exact=True)
    errors = Errors()
    read = DOCUMENT.read(document, "", errors)
    sections = {
        name: read[name] or section.read({}, name, errors) for name, section in _SECTIONS.items()
    }  # a section that is left out has its defaults
    injected = injection.policy_of(sections["injection"], errors)
    errors.raise_if_any()
    return Configuration(
        Policy(fallback.policy_of(sections["fallback"]), injected, Mode(read["mode"])),
        sections["server"]["onError"],
        sections["server"]["demandByNamespace"],
    )


def json_schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tessera configuration",
        **DOCUMENT.schema,
    }


def reference() -> str:
    return schema_reference(DOCUMENT.rows(""), "empty")


EXAMPLE: Final = """\
# Tessera's configuration. Every field is optional; the reference has the defaults.
mode: enforce               # or observe: decide and report, change and reject nothing

fallback:
  downgrades: true          # a smaller profile may be chosen ...
  upgrades: true            # ... then a larger one ...
  wholeGPU: true            # ... then a whole GPU ...
  maxWholeGPUs: 1           # ... at most so many in a pod
  grace: 2m                 # how long a device counts that is gone from a node: its device plugin may be restarting
  unmatched: reject         # or admit: admit the pod as it is; it waits
  quota: respect            # replacements stay within the namespace's ResourceQuotas; or ignore
  dra: extended-resources   # what DRA offers counts; first-available: the scheduler falls back; or off
  chains:                   # explicit orders for single profiles
    7g.80gb: [gpu]
  autoscaled: []            # types that the autoscaler can add, such as [1g.10gb, gpu]
  when: missing             # or full: a pod also gets something else when no node has free what it asks for

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
