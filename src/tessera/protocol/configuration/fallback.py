"""The section `fallback` of the webhook's configuration: its fields, and the policy that they say."""

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from tessera.core.admission.policy import (
    LEAST_MEMORY,
    Dra,
    FallbackPolicy,
    When,
    patience_in,
    too_little_memory,
)
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import WHOLE_GPU, of_short
from tessera.core.text import seconds_in
from tessera.protocol.configuration.schema import (
    BOOLEAN,
    FRACTION,
    Field,
    choice,
    count,
    list_of,
    map_of,
    parsed,
    record,
    text_that,
)


def _memory(text: str) -> Quantity:
    amount = Quantity.parse(text)
    if amount < LEAST_MEMORY:
        raise InvalidInput(too_little_memory(text))
    return amount


# the key of a taint, as Kubernetes has it: an optional DNS domain, a slash, a name; or all names of a domain
_TAINT_KEY: Final = re.compile(
    r"(?!\*$)(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?(?:\*|[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)"
)
_PROFILE: Final = parsed("MIG profile", lambda text: MigProfile.parse(text).resource, "")
_TARGET: Final = parsed("MIG profile or `gpu`", of_short, WHOLE_GPU)
_MEMORY: Final = parsed("amount of memory, such as `10Gi`", _memory, LEAST_MEMORY)
_DURATION: Final = parsed("duration, such as `30s` or `2m`", seconds_in, 0.0)
_OFF_OR_DURATION: Final = parsed("duration, such as `5m`, or `off`", patience_in, None)
# `off` without quotes is false in YAML
_PATIENCE: Final = replace(
    _OFF_OR_DURATION,
    read=lambda value, path, errors: None if value is False else _OFF_OR_DURATION.read(value, path, errors),
    schema={"anyOf": [{"type": "string"}, {"const": False}]},
)
_TAINT: Final = text_that(
    "key of a taint, or `prefix/*`",
    _TAINT_KEY.fullmatch,
    " is not the key of a taint, such as example.com/draining or example.com/*",
)

_FULL: Final = record(
    Field(
        "enabled",
        BOOLEAN,
        "The webhook follows pods, so that pods and namespaces can say `fallback-when: full`. It needs the right to list and "
        "watch pods, and memory for them. `fallback.when: full` implies it.",
        default=False,
    ),
)

SECTION: Final = record(
    Field("enabled", BOOLEAN, "Whether the webhook rewrites pods, or rejects them because nothing is offered. It adds missing limits either way.", default=True),
    Field("downgrades", BOOLEAN, "Whether a smaller profile may be chosen.", default=True),
    Field("upgrades", BOOLEAN, "Whether a larger profile may be chosen.", default=True),
    Field("wholeGPU", BOOLEAN, "Whether a whole GPU may be chosen.", default=True),
    Field(
        "chains",
        map_of(_PROFILE, list_of(_TARGET)),
        "What to try for a profile, in this order, in place of the computed order. The three switches, "
        "`maxWholeGPUs` and a pod's own constraints still apply. An empty list: only the profile itself.",
        default=MappingProxyType({}),
    ),
    Field(
        "maxWholeGPUs",
        count(0, 1024),
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
        FRACTION,
        "No replacement has less than this part of the requested memory, from 0 to 1.",
        default=0,
    ),
    Field(
        "grace",
        _DURATION,
        "How long devices that are gone from a node still count, while the node is Ready: a restart of a device plugin "
        "or a kubelet changes no pod.",
        default="2m",
    ),
    Field(
        "passingTaints",
        list_of(_TAINT),
        "Further transient taints (of nodes that come or go), which exclude no pod: keys, or `prefix/*`.",
        default=(),
    ),
    Field(
        "autoscaled",
        list_of(_TARGET),
        "Types that the cluster autoscaler can add although no node has them now: they count as offered.",
        default=(),
    ),
    Field(
        "unmatched",
        choice("reject", "admit"),
        "What happens to a pod for which nothing fits: the webhook rejects it, or admits it as it is and it waits.",
        default="reject",
    ),
    Field(
        "quota",
        choice("respect", "ignore"),
        "Whether a replacement stays within the namespace's ResourceQuotas: if these name any GPU resource, only named ones can "
        "be a replacement, and only while used + need ≤ hard. The API server checks the original request.",
        default="respect",
    ),
    Field(
        "dra",
        choice("off", "extended-resources", "first-available"),
        "How the webhook uses what DRA offers. `off`: not at all. `extended-resources`: it counts as offered, and requests stay "
        "as they are. `first-available`: requests become claims, and the scheduler falls back by what is free; needs "
        "`tessera controller`. A namespace's annotation `gpu-webhook.k8s.io/dra` wins.",
        default="extended-resources",
    ),
    Field(
        "when",
        choice("missing", "full"),
        "When a pod gets something else than it asks for. `missing`: when no node offers it. `full`: also when no node has it free now. "
        "An annotation `gpu-webhook.k8s.io/fallback-when` of a pod, or else of its namespace, wins where `full.enabled` holds.",
        default="missing",
    ),
    Field("full", _FULL, "What `when: full` needs.", default=None),
    Field(
        "patience",
        _PATIENCE,
        "After how long `tessera controller` evicts a pod that waits, has never started and would get something that is free now; "
        "less than `30s` counts as `30s`. Empty, `0s` or `off`: never. An annotation `gpu-webhook.k8s.io/patience` of a pod, or else of "
        "its namespace, wins.",
        default=None,
    ),
)  # fmt: skip


def policy_of(read: Mapping[str, Any]) -> FallbackPolicy:
    return FallbackPolicy(
        enabled=read["enabled"],
        downgrades=read["downgrades"],
        upgrades=read["upgrades"],
        whole_gpu=read["wholeGPU"],
        max_whole_gpus=read["maxWholeGPUs"],
        min_memory=read["minMemory"],
        min_memory_fraction=Fraction(read["minMemoryFraction"]),
        grace=read["grace"] if isinstance(read["grace"], float) else seconds_in(read["grace"]),
        transient_taints=tuple(dict.fromkeys(read["passingTaints"])),
        chains={resource: tuple(dict.fromkeys(chain)) for resource, chain in read["chains"].items()},
        autoscaled=frozenset(read["autoscaled"]),
        reject_unmatched=read["unmatched"] == "reject",
        respects_quota=read["quota"] == "respect",
        dra=Dra(read["dra"]),
        when=When(read["when"]),
        full_enabled=bool(read["full"] and read["full"]["enabled"]),
        patience=read["patience"],
    )
