"""Workloads: what their pods ask for, where they want to go, and so what is decided about them."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Template:
    """What a workload's pods have in common, as far as a decision looks."""

    asks: tuple[dict[str, str], ...]  # GPU resources by container
    selector: dict[str, str]
    limits: bool = True  # written beside the requests, as most people do
    tolerations: tuple[dict[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()


def _mig(profile: str) -> str:
    return f"nvidia.com/mig-{profile}"


_A100: Final = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
_A100_40: Final = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
_H100: Final = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
_V100: Final = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB"}

TWO_PROFILES: Final = (
    Template(({_mig("3g.30gb"): "1"}, {_mig("1g.5gb"): "1"}), {}),
    Template(({_mig("3g.30gb"): "1"}, {_mig("1g.5gb"): "1"}), _A100),
    Template(({_mig("2g.20gb"): "1"}, {_mig("1g.10gb"): "1"}), {}),
    Template(({_mig("2g.20gb"): "1"}, {_mig("3g.40gb"): "1"}), {}),
    Template(({_mig("2g.20gb"): "3"}, {_mig("3g.40gb"): "2"}), _A100),
    Template(({_mig("4g.40gb"): "1"}, {_mig("1g.20gb"): "1"}), {}),
    Template(({_mig("7g.80gb"): "1"}, {_mig("1g.10gb"): "1"}), {}),
    Template(({_mig("3g.40gb"): "9"}, {_mig("1g.10gb"): "1"}), {}),
)

TEMPLATES: Final = (
    Template(({_mig("3g.30gb"): "1"}, {}), {}),
    Template(({_mig("3g.30gb"): "1"}, {}), _V100),
    Template(({_mig("2g.20gb"): "2"}, {}), {}),
    Template(({_mig("1g.10gb"): "1"}, {}), _A100),
    Template(({_mig("7g.80gb"): "1"}, {}), _A100),
    Template(({_mig("1g.10gb"): "1"}, {_mig("1g.10gb"): "1"}), {}, limits=False),
    Template(({_mig("3g.30gb"): "1"}, {_mig("1g.5gb"): "1"}), _A100),
    Template(({"nvidia.com/gpu": "1"}, {}), {"topology.kubernetes.io/zone": "zone-b"}),
    Template(({_mig("2g.10gb"): "1"}, {}), _A100_40),
    Template(({_mig("4g.40gb"): "1"}, {}), {**_H100, "topology.kubernetes.io/zone": "zone-a"}),
    Template(({_mig("1g.20gb"): "4"}, {}), {"team": "nobody"}),  # no such node: rejected
    Template(({_mig("3g.40gb"): "9"}, {}), _A100),  # more than a node has
    Template(({_mig("2g.20gb"): "1"}, {}), {"pool": "reserved"}),  # tainted, not tolerated: rejected
    Template(
        ({_mig("2g.20gb"): "1"}, {}),
        {"pool": "reserved"},
        tolerations=({"key": "dedicated", "operator": "Equal", "value": "research", "effect": "NoSchedule"},),
    ),
    Template(({_mig("3g.30gb"): "1"}, {}), {}, annotations=(("gpu-webhook.k8s.io/fallback-policy", "larger"),)),
    Template(({}, {}), {}),
)  # fmt: skip
