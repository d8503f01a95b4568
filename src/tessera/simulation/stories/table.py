"""The stories, in one table. The same are played on the embedded cluster and on a real one, with the same endings."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from tessera.core.admission.injection import GPU_TYPE_ANNOTATION
from tessera.core.admission.policy import DRA_ANNOTATION, POLICY_ANNOTATION, WHEN_ANNOTATION, Dra, When
from tessera.core.devices.capacity import Usage
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION
from tessera.core.resources import WHOLE_GPU
from tessera.protocol.configuration.webhook import EXAMPLE
from tessera.simulation.control_plane.store import Document
from tessera.simulation.stories.pods import Rejected, Runs, Waits
from tessera.simulation.stories.story import (
    Act,
    Annotate,
    Delete,
    DryRun,
    Measure,
    Nodes,
    Relayout,
    Story,
    Submit,
    SubmitMany,
)

ONE, TWO, THREE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.30gb"
# What the webhook runs with: the example, and a namespace may have what is free decide.
CONFIGURATION: Final = EXAMPLE.replace("fallback:\n", "fallback:\n  full: {enabled: true}\n", 1)
MOCK: Final = "device.example.com/gpu"

SMALL: Final = Nodes({"h200-small": {ONE: 28}})
MEDIUM: Final = Nodes({"h200-medium": {TWO: 8, THREE: 4}})
A100: Final = Nodes({"a100": {ONE: 4, TWO: 4}})
V100: Final = Nodes({"v100": {WHOLE_GPU: 8}, "cpu": {}})


def container(name: str, **resources: Mapping[str, Any]) -> Document:
    """A container, with its `limits` and `requests`."""
    return {"name": name, "image": "busybox", "command": ["sleep", "infinity"], "resources": resources}


def pod(name: str, *containers: Document, annotations: Mapping[str, str] | None = None) -> Document:
    """A pod as a user would write it."""
    metadata: Document = {"name": name} | ({"annotations": dict(annotations)} if annotations else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": list(containers)}}


def asks(name: str, resource: str, count: int = 1) -> Document:
    return pod(name, container("main", limits={resource: count}))


def _claims_one(resource: str, fallback: str = "") -> Runs:
    """A pod that asked for 2g.20gb runs with what its claim got."""
    alternatives = "1*2g.20gb=2g.20gb/tessera-any,1g.10gb/tessera-any"
    return Runs(
        "h200-dra", fallback, {"main": {resource: 1}}, annotations={ALTERNATIVES_ANNOTATION: alternatives}
    )


def _use(allocatable: int, allocated: int) -> Usage:
    return Usage(Quantity(Fraction(allocatable)), Quantity(Fraction(allocated)))


_TRAIN: Final = asks("train", THREE)


def _exact(name: str, resource: str) -> Document:
    """A pod that accepts nothing but what it asks for."""
    return pod(name, container("main", limits={resource: 1}), annotations={POLICY_ANNOTATION: "never"})


def _holds(resource: str) -> Runs:
    return Runs("h200-small", "", {"main": {resource: 1}})


_FOLLOW: Final = {
    "apiVersion": "tessera.dev/v1alpha1",
    "kind": "MigLayout",
    "metadata": {"name": "follow"},
    "spec": {"mode": "Auto", "nodeSelector": {"topology.kubernetes.io/region": "north"}},
}

STORIES: Final = (
    Story(
        "smaller",
        "A smaller slice",
        "The node's four cards are cut into 28 × 1g.10gb; no card has 2g.20gb. Without help the pod would stay in Pending.",
        (
            SMALL,
            Submit(asks("infer", TWO), Runs("h200-small", "2g.20gb->1g.10gb", {"main": {ONE: 1}})),
        ),
    ),
    Story(
        "larger",
        "A larger slice",
        "No card here has 1g.10gb or less. The webhook gives the pod the smallest larger slice.",
        (
            MEDIUM,
            Submit(asks("notebook", ONE), Runs("h200-medium", "1g.10gb->2g.20gb", {"main": {TWO: 1}})),
        ),
    ),
    Story(
        "datacentres",
        "One YAML, three data centres",
        "The same pod, asking for 3g.30gb, goes to a cluster of H200, then of A100, then of V100 cards.",
        (
            MEDIUM,
            Submit(_TRAIN, Runs("h200-medium", "", {"main": {THREE: 1}})),
            A100,
            Submit(_TRAIN, Runs("a100", "3g.30gb->2g.20gb", {"main": {TWO: 1}})),
            V100,
            Submit(_TRAIN, Runs("v100", "3g.30gb->gpu", {"main": {WHOLE_GPU: 1}})),
        ),
    ),
    Story(
        "rejected",
        "Nothing fits",
        "No node has a GPU. The pod's owner sees it at once, with the request and what the nodes offer.",
        (
            Nodes({"cpu": {}}),
            Submit(asks("infer", TWO), Rejected((f"asked for {TWO}: 1", "tried gpu", "no GPU at all"))),
        ),
    ),
    Story(
        "never",
        "A pod that waits instead",
        "Its annotation accepts only 2g.20gb. The webhook leaves it as it is, with a warning, and it waits.",
        (
            SMALL,
            Submit(
                _exact("exact", TWO),
                Waits(f"0/1 nodes are available: 1 Insufficient {TWO}."),
            ),
        ),
    ),
    Story(
        "layout",
        "A new layout for a node",
        "A node is re-cut while a pod holds a slice. The slice in use stays; an impossible layout is refused.",
        (
            MEDIUM,
            Submit(_TRAIN, Runs("h200-medium", "", {"main": {THREE: 1}})),
            # the pod's 3g.30gb keeps three slices of its card
            Relayout("h200-medium", "1g.10gb=7", "pending", {ONE: 25, TWO: 0, THREE: 0}, "default/train"),
            Delete("train"),
            Relayout("h200-medium", None, "success", {ONE: 28, TWO: 0, THREE: 0}),
            Relayout("h200-medium", "3g.30gb=3", "failed", {ONE: 28, TWO: 0, THREE: 0}, "3g.30gb"),
        ),
    ),
    Story(
        "autopilot",
        "Slices that follow demand",
        "All cards are cut into 1g.10gb, and a notebook holds one of these slices. Two pods accept nothing but 3g.30gb, and wait. The operator "
        "creates a MigLayout in mode Auto. First it is a dry run: the autopilot says what it would cut, and why. Then it may act. It cuts "
        "only slices that no pod holds: the notebook goes on, and the pods that waited run.",
        (
            SMALL,
            Submit(asks("notebook", ONE), _holds(ONE)),
            SubmitMany(
                tuple(
                    Submit(_exact(name, THREE), Waits(f"0/1 nodes are available: 1 Insufficient {THREE}."))
                    for name in ("train-1", "train-2")
                )
            ),
            DryRun(_FOLLOW, {"3g.30gb": 2}, {"h200-small": {ONE: 28}}),
            Act(
                "follow",
                "h200-small",
                {THREE: 2},
                (("train-1", _holds(THREE)), ("train-2", _holds(THREE)), ("notebook", _holds(ONE))),
            ),
        ),
    ),
    Story(
        "injection",
        "CPU and memory for its GPUs",
        "A V100 pod gets 4 CPUs and 8Gi for each of its GPUs, less what the container beside it takes.",
        (
            V100,
            Submit(
                pod(
                    "mixed",
                    container("train", requests={WHOLE_GPU: 2}),
                    container("side", requests={"cpu": "1000m", "memory": "2Gi"}),
                    annotations={GPU_TYPE_ANNOTATION: "V100"},
                ),
                Runs(
                    "v100",
                    holds={"train": {WHOLE_GPU: 2}, "side": {}},
                    limits={"train": {WHOLE_GPU: "2", "cpu": "7", "memory": "14Gi", "nvidia.com/shm": "2Gi"}, "side": {}},
                    annotations={"tke.cloud.tencent.com/networks": "tke-route-eni"},
                ),
            ),
        ),
    ),
    Story(
        "devices",
        "Eight devices, shared out",
        "Any list of devices can be a resource. One pod takes four of eight, one three; the third asks for two, and waits.",
        (
            Nodes({"mock": {MOCK: 8}}),
            Submit(asks("four", MOCK, 4), Runs("mock", holds={"main": {MOCK: 4}})),
            Submit(asks("three", MOCK, 3), Runs("mock", holds={"main": {MOCK: 3}})),
            Submit(asks("two", MOCK, 2), Waits(f"0/1 nodes are available: 1 Insufficient {MOCK}.")),
            Delete("four", then=("two", Runs("mock", holds={"main": {MOCK: 2}}))),
        ),
    ),
    Story(
        "exhaustion",
        "All taken",
        "Fallback goes by what exists, the scheduler by what is free: of six pods with seven slices each, four fit.",
        (
            Nodes({"h200-small": {ONE: 28}, "cpu": {}}),
            SubmitMany(
                tuple(
                    Submit(
                        asks(f"batch-{number}", TWO, 7),
                        Runs("h200-small", "2g.20gb->1g.10gb", {"main": {ONE: 7}})
                        if number <= 4
                        else Waits(f"0/2 nodes are available: 2 Insufficient {ONE}.", "2g.20gb->1g.10gb"),
                    )
                    for number in range(1, 7)
                )
            ),
        ),
    ),
    Story(
        "full",
        "What is free decides",
        "The namespace asks for fallback-when: full. Nine pods ask for 2g.20gb; there are four 2g.20gb and four 1g.10gb. Once the 2g.20gb are "
        "taken, the webhook gives 1g.10gb. The last pod finds nothing free: it stays as it is, waits, and gets the first 2g.20gb that comes free.",
        (
            A100,
            Annotate(WHEN_ANNOTATION, When.FULL.value),
            SubmitMany(
                tuple(Submit(asks(f"infer-{n}", TWO), Runs("a100", "", {"main": {TWO: 1}})) for n in range(1, 5))
            ),
            SubmitMany(
                tuple(
                    Submit(asks(f"infer-{n}", TWO), Runs("a100", "2g.20gb->1g.10gb", {"main": {ONE: 1}}))
                    for n in range(5, 9)
                )
            ),
            Submit(asks("infer-9", TWO), Waits(f"0/1 nodes are available: 1 Insufficient {TWO}.")),
            Delete("infer-1", then=("infer-9", Runs("a100", "", {"main": {TWO: 1}}))),
        ),
    ),
    Story(
        "claims",
        "The scheduler falls back",
        "Here DRA offers the slices, and a request becomes a claim with alternatives. The scheduler knows what is free, and takes the "
        "first free alternative: no two pods race for a slice. Four pods ask for 2g.20gb; there are one 2g.20gb and two 1g.10gb.",
        (
            Nodes({"h200-dra": {ONE: 2, TWO: 1}}),
            Annotate(DRA_ANNOTATION, Dra.FIRST_AVAILABLE.value),
            Submit(asks("first", TWO), _claims_one(TWO)),
            Submit(asks("second", TWO), _claims_one(ONE, "2g.20gb->1g.10gb")),
            Submit(asks("third", TWO), _claims_one(ONE, "2g.20gb->1g.10gb")),
            Submit(asks("fourth", TWO), Waits("0/1 nodes are available: 1 cannot allocate all claims.")),
            Delete("first", then=("fourth", _claims_one(TWO))),
        ),
    ),
    Story(
        "capacity",
        "What exists, and what is free",
        "Allocatable, allocated and available, counted as the scheduler counts.",
        (
            Nodes({"h200-medium": {TWO: 8, THREE: 4}, "v100": {WHOLE_GPU: 8}, "cpu": {}}),
            Submit(_TRAIN, Runs("h200-medium", "", {"main": {THREE: 1}})),
            Submit(asks("pair", TWO, 2), Runs("h200-medium", "", {"main": {TWO: 2}})),
            Submit(asks("whole", WHOLE_GPU, 3), Runs("v100", "", {"main": {WHOLE_GPU: 3}})),
            Measure(
                {
                    "h200-medium": {TWO: _use(8, 2), THREE: _use(4, 1)},
                    "v100": {WHOLE_GPU: _use(8, 3)},
                    "cpu": {},
                }
            ),
        ),
    ),
)  # fmt: skip

# Pods to look at when no story is played: some of everything, and one that waits. None has the name of a pod of
# examples/pods: applying one of those makes a new pod.
SOME_PODS: Final = (
    asks("tuning", THREE),
    asks("pair", TWO, 2),
    *(asks(f"batch-{number}", ONE, 7) for number in (1, 2, 3)),
    asks("whole", WHOLE_GPU, 3),
    asks("four", MOCK, 4),
    asks("many", WHOLE_GPU, 6),
    asks("serving", "nvidia.com/mig-4g.40gb"),
)
