"""`tessera mig` on a cluster's nodes and pods."""

import json
from functools import partial
from typing import Any

import pytest

from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import Slot
from tessera.protocol import yaml
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.nodes import encode_mapping, mapping_of
from tessera.serving.http_messages import Response
from tessera.simulation.control_plane.kinds import (
    CONFIG_MAPS,
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from tests.build import GPU, MIG, claim_document
from tests.inventory.objects import (
    CLUSTER_POLICIES,
    LAYOUT,
    MIG_PARTED,
    config_map,
    node,
    operator_node,
    pod,
    policy,
)
from tests.protocol.dra.samples import DRIVER, class_, device, slice_

SMALL = LAYOUT.replace("[2g.20gb, 2g.20gb, 3g.30gb]", "[1g.10gb, 1g.10gb]")


def gpu_node(name, layout, allocatable=None, **labels):
    return node(name, allocatable or {MIG + "2g.20gb": "4", MIG + "3g.30gb": "2"}, "NVIDIA-H200", layout=layout, **labels)  # fmt: skip


@pytest.fixture
def busy(served, command):
    """A cluster with two nodes that are cut, one used; runs `tessera mig` on it."""
    served.add(
        gpu_node("gpu-0", LAYOUT),
        gpu_node("gpu-1", LAYOUT, pool="a"),
        node("plain", {}),
        pod("a", "gpu-0", MIG + "2g.20gb", 2),
        pod("b", "gpu-0", MIG + "3g.30gb"),
    )

    def call(*args):
        return command("mig", args[0], "--kubeconfig", served.kubeconfig, *args[1:])

    runner: Any = call
    runner.cluster = served
    return runner


def test_validate(busy):
    """Every node's layout is checked, or of those that are named or selected."""
    busy.cluster.add(gpu_node("tight", LAYOUT.replace("3g.30gb", "3g.30gb, 3g.30gb")))
    code, out, err = busy("validate", "--cluster")
    assert (code, err) == (3, "")
    assert out.splitlines() == [
        "node gpu-0: fits: nvidia.com/mig-2g.20gb ×4, nvidia.com/mig-3g.30gb ×2",
        "node gpu-1: fits: nvidia.com/mig-2g.20gb ×4, nvidia.com/mig-3g.30gb ×2",
        "node tight: does not fit: cards 0-1: 2g.20gb ×2 + 3g.30gb ×2 need 10 memory slices, a Simulated H200-70GB has 7",
    ]  # fmt: skip
    assert busy.cluster.server.asked("/api/v1/pods") == []
    assert busy("validate", "--cluster", "gpu-1")[:2] == (0, out.splitlines()[1] + "\n")
    assert busy("validate", "--cluster", "-l", "nvidia.com/pool=a")[:2] == (0, out.splitlines()[1] + "\n")


@pytest.mark.parametrize(
    ("args", "err"),
    [
        (["validate", "--cluster", "gpu-7", "gpu-8"], "tessera: the cluster has no node gpu-7, gpu-8\n"),
        (["validate", "--cluster", "plain"], "tessera: node plain: no annotation run.ai/mig.config\n"),
        (["show", "--cluster", "-l", "a=b"], 'tessera: no node that matches "a=b" has the label nvidia.com/gpu.product\n'),
        (["convert", "--cluster", "--to", "counts"], "tessera: 2 layouts (node gpu-0, node gpu-1); convert takes one at a time: name one node\n"),
        (["validate", "3g.71gb=1"], "tessera mig validate: use -l, --kubeconfig, --context and --as only with nodes or --cluster (see tessera mig validate --help)\n"),
        (["validate", "gpu-7"], "tessera: the cluster has no node gpu-7\n"),
        (["show", "gpu-1", "3g.71gb=1"], "tessera mig show: gpu-1 is not a file; name either nodes, or files and counts (see tessera mig show --help)\n"),
        (["show", "nosuch.yaml"], "tessera mig show: use -l, --kubeconfig, --context and --as only with nodes or --cluster (see tessera mig show --help)\n"),
        (["fit", "1g.10gb=1"], "tessera mig fit: No such option '--kubeconfig' (see tessera mig fit --help)\n"),
        (["plan", "1g.10gb=1"], "tessera mig plan: Got unexpected extra argument (1g.10gb=1) (see tessera mig plan --help)\n"),
        (["defragment", "1g.10gb=1", "-o", "runai"], "tessera mig defragment: Invalid value for '-o' / '--output': 'runai' is not one of 'table', 'json', 'yaml', jsonpath=… (see tessera mig defragment --help)\n"),
        (["defragment", "1g.10gb=1000"], 'tessera: counts: "1g.10gb=1000": expected a count from 0 to 999, such as 1g.10gb=2\n'),
        (["plan", "--since", "soon"], "tessera mig plan: Invalid value for '--since': \"soon\" is not a duration such as 30s, 5m, 1h30m or 14d (see tessera mig plan --help)\n"),
    ],
)  # fmt: skip
def test_bad_input(busy, args, err):
    """What cannot be is one sentence."""
    assert busy(*args) == (2, "", err)


@pytest.mark.parametrize("words", [("show",), ("validate",), ("convert", "--to", "counts")])
def test_a_node_is_named_as_for_capacity(busy, words):
    """The name of a node asks the cluster, with --cluster and without it; so does a selector."""
    expected = busy(*words, "--cluster", "gpu-1")
    assert expected[0] == 0
    assert busy(*words, "gpu-1") == expected
    assert busy("show", "-l", "a=b")[2] == busy("show", "--cluster", "-l", "a=b")[2]


def test_a_file_goes_before_a_node_of_its_name(command):
    """What a file holds is read, although a node could have the file's name."""
    (command.folder / "gpu-1").write_text("2g.20gb=2")
    assert command("mig", "convert", "gpu-1", "--to", "counts") == (0, "2g.20gb=2\n", "")


def test_devices_in_use_are_drawn(busy):
    """A node's cards with what is in use; which devices that are is assumed, and reported."""
    code, out, err = busy("show", "--cluster", "gpu-0")
    assert code == 0
    assert out.splitlines() == [
        "card 0  Simulated H200-70GB, 2×2g.20gb + 1×3g.30gb",
        "┌───────────────┬───────────────┬───────────────────────┐",
        "│2g.20gb        │2g.20gb        │3g.30gb                │",
        "│in use         │in use         │in use                 │",
        "└───────────────┴───────────────┴───────────────────────┘",
        " 0       1       2       3       4       5       6",
        "card 1  Simulated H200-70GB, 2×2g.20gb + 1×3g.30gb",
        "┌───────────────┬───────────────┬───────────────────────┐",
        "│2g.20gb        │2g.20gb        │3g.30gb                │",
        "│               │               │                       │",
        "└───────────────┴───────────────┴───────────────────────┘",
        " 0       1       2       3       4       5       6",
    ]
    assert err == (
        "the API does not say which devices are in use (kubelets write it from Kubernetes 1.36); "
        "drawn on as few cards as possible\n"
    )


MIXED = {"1g.10gb": 16, "2g.20gb": 8, "3g.40gb": 8}


@pytest.fixture
def operated(served, command):
    """A cluster of NVIDIA's operator; runs `tessera mig` on it."""
    for kind in (CLUSTER_POLICIES, CONFIG_MAPS):
        served.server.kinds[kind.prefix, kind.plural] = kind
    served.add(
        operator_node("gpu-0", {"1g.10gb": 56}, "all-1g.10gb"),
        operator_node("gpu-1", MIXED, "all-balanced"),
        operator_node("gpu-2", {"gpu": 8}, "all-disabled"),
        *(operator_node(f"odd-{number}", {"1g.10gb": 17 + number}, "all-balanced") for number in range(5)),
        pod("a", "gpu-0", MIG + "1g.10gb", 10),
    )

    def call(*args):
        return command("mig", args[0], "--kubeconfig", served.kubeconfig, *args[1:])

    runner: Any = call
    runner.cluster, runner.folder = served, command.folder
    return runner


NOT_SEEN = "which slices pods hold is not known on nodes whose layout no annotation describes; drawn on as few cards as possible\n"


def test_nodes_of_nvidias_operator_are_drawn(operated):
    """With the source of the layout, and with what is not certain of it; those that are not known are one line for each reason."""
    operated.cluster.add(policy(), config_map())
    code, out, err = operated("show", "--cluster")
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith(("node", "layout", "card"))] == [
        "node gpu-0",
        "layout from label nvidia.com/mig.config with mig-manager's ConfigMap",
        "card 0  A100-80GB, 7×1g.10gb",
        "card 1  A100-80GB, 7×1g.10gb",
        "cards 2-7  A100-80GB, 7×1g.10gb",
        "node gpu-1",
        "layout from label nvidia.com/mig.config with mig-manager's ConfigMap; where on a card its slices lie is not certain",
        "cards 0-7  A100-80GB, 2×1g.10gb + 1×2g.20gb + 1×3g.40gb",
        "node gpu-2",
        "layout from label nvidia.com/mig.config with mig-manager's ConfigMap",
        "cards 0-7  A100-80GB, MIG off",
    ]
    assert err == NOT_SEEN + (
        "5 nodes (odd-0, odd-1, odd-2 and 2 more): the layout is not known: its cards are not cut alike, and counts do not tell which "
        "card is which; its label nvidia.com/mig.config says all-balanced, which makes other devices\n"
    )


UNKNOWN = (
    "node gpu-1: the layout is not known: there is more than one way to cut its cards into what it has; mig-manager's configurations "
    "are not known (it has 16 × 1g.10gb, 8 × 2g.20gb, 8 × 3g.40gb on 8 cards); --mig-parted FILE gives them\n"
)


def test_one_node_whose_layout_is_not_known(operated):
    """It is said why, and what would help; of a node that is named nothing drawn is a failure."""
    assert operated("show", "--cluster", "gpu-1") == (1, "", UNKNOWN)
    (operated.folder / "config.yaml").write_text(MIG_PARTED)
    code, out, err = operated("show", "--cluster", "gpu-1", "--mig-parted", "config.yaml")
    assert (code, err) == (0, "")
    assert "cards 0-7  A100-80GB, 2×1g.10gb + 1×2g.20gb + 1×3g.40gb" in out
    converted = operated("convert", "--cluster", "gpu-0", "--to", "counts")
    assert converted == (0, "1g.10gb=7\n", "Warning: positions are left out: counts has none\n")


def test_a_right_that_is_missing_is_one_warning(operated):
    """A person who may not read the ClusterPolicy reads so once, and sees what counts say."""
    forbidden = Response(b'{"kind":"Status","reason":"Forbidden","message":"not yours"}', 403)
    operated.cluster.server.intercept = lambda request: forbidden if "nvidia.com" in request.path else None
    code, out, err = operated("show", "--cluster", "gpu-0", "gpu-2")
    assert code == 0
    assert out.count("layout from the node's capacity\n") == 2
    assert err == (
        "Warning: mig-manager's configurations are not known: the ClusterPolicy cannot be read: not yours\n"
        + NOT_SEEN
    )


def test_validate_looks_at_annotations_alone(operated):
    """Nodes of NVIDIA's operator have none, and nobody asks for mig-manager's configurations."""
    code, _, err = operated("validate", "--cluster")
    assert (code, err) == (2, "tessera: no node of the cluster has the annotation run.ai/mig.config\n")
    assert operated.cluster.server.asked("/apis/nvidia.com") == []


def test_devices_in_use_as_kubelets_tell_it(served, command):
    """Where the status of pods names their devices, those very ones are drawn as in use, and nothing is assumed."""
    layout = mig.read_layout(LAYOUT, [product_named("H200-70GB")] * 2)
    one, *_, last = layout.slots()[MIG + "2g.20gb"]
    served.add(gpu_node("gpu-0", LAYOUT))
    for name, slot in (("a", one), ("b", last)):
        document = pod(name, "gpu-0", MIG + "2g.20gb")
        held = [{"name": MIG + "2g.20gb", "resources": [{"resourceID": slot.uuid("gpu-0")}]}]
        document["status"]["containerStatuses"] = [{"name": "main", "allocatedResourcesStatus": held}]
        served.add(document)
    code, out, err = command("mig", "show", "--cluster", "--kubeconfig", served.kubeconfig)
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if "in use" in line] == [
        "│in use         │               │                       │",
        "│               │in use         │                       │",
    ]


def test_devices_in_use_as_claims_tell_it(served, command):
    """Where DRA hands devices out, the claims name them: those very ones are drawn as in use, and nothing is assumed."""
    served.server.kinds[RESOURCE_CLAIMS.prefix, RESOURCE_CLAIMS.plural] = RESOURCE_CLAIMS
    served.add(gpu_node("gpu-0", LAYOUT))
    names = ("gpu-0-mig-2g-20gb-0", "gpu-1-mig-3g-30gb-4")
    devices = [device(name, profile="x") for name in names]
    results = [{"driver": DRIVER, "pool": "gpu-0", "device": name} for name in names]
    for kind, document, space in (
        (DEVICE_CLASSES, class_("all"), ""),
        (RESOURCE_SLICES, slice_("s", *devices, node="gpu-0"), ""),
        (RESOURCE_CLAIMS, claim_document("c", *results, namespace="ml"), "ml"),
    ):
        served.call(partial(served.server.store.create, kind, document, space))
    code, out, err = command("mig", "show", "--cluster", "--kubeconfig", served.kubeconfig)
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if "in use" in line] == [
        "│in use         │               │                       │",
        "│               │               │in use                 │",
    ]


def test_show_what_is(served, command):
    """What a node says its layout became goes before what is desired."""
    present = mig.read_layout(SMALL, [product_named("H200-70GB")] * 2)
    wished = gpu_node("gpu-0", LAYOUT, {MIG + "1g.10gb": "4"})
    wished["metadata"]["annotations"]["run.ai/mig-mapping"] = encode_mapping(mapping_of(present, "gpu-0"))
    served.add(wished)
    code, out, err = command("mig", "show", "--cluster", "--kubeconfig", served.kubeconfig)
    assert (code, err) == (0, "")
    assert out.startswith("cards 0-1  Simulated H200-70GB, 2×1g.10gb\n")
    served.change_node("gpu-0", lambda one: one["metadata"]["annotations"].pop("run.ai/mig.config"))
    assert command("mig", "show", "--cluster", "--kubeconfig", served.kubeconfig) == (code, out, err)
    counts = command("mig", "convert", "--cluster", "--to", "counts", "--kubeconfig", served.kubeconfig)
    assert counts[:2] == (0, "1g.10gb=2\n")


def test_show_while_a_layout_is_pending(served, command):
    """The cards are drawn as they are, what stays for its pod is in use, and a line says what is to come."""
    cards = [product_named("H200-70GB")] * 2
    (three,) = [one for one in mig.read_layout(LAYOUT, cards).cards[0].instances if one.size == 3]
    leaving = {Slot(0, three).uuid("gpu-0")}
    offers = {MIG + "1g.10gb": "2", MIG + "3g.30gb": "0"}
    changing = gpu_node("gpu-0", SMALL, offers)
    changing["metadata"]["labels"]["nvidia.com/mig.config.state"] = "pending"
    changing["metadata"]["annotations"] |= {
        "run.ai/mig-mapping": encode_mapping(mapping_of(mig.read_layout(SMALL, cards), "gpu-0", leaving)),
        "nvidia.com/mig.config.reason": "2 to come after 1 × 3g.30gb, kept for default/a",
    }
    served.add(changing, pod("a", "gpu-0", MIG + "3g.30gb"))
    code, out, err = command("mig", "show", "--cluster", "--kubeconfig", served.kubeconfig)
    assert code == 0
    assert out.splitlines()[:5] == [
        "card 0  Simulated H200-70GB, 1×3g.30gb",
        "┌───────────────────────────────┬───────────────────────┐",
        "│free                           │3g.30gb                │",
        "│                               │in use                 │",
        "└───────────────────────────────┴───────────────────────┘",
    ]
    assert "card 1  Simulated H200-70GB, 2×1g.10gb" in out
    assert err == ("node gpu-0: the layout is pending: 2 to come after 1 × 3g.30gb, kept for default/a\n")


def test_convert(busy):
    """A node's layout in another format."""
    assert busy("convert", "--cluster", "gpu-1", "--to", "counts")[:2] == (0, "2g.20gb=2,3g.30gb=1\n")


def test_plan_from_pending(busy):
    """Waiting pods and fallbacks are the demand, cards of unused nodes are cut for it, others stay as they are."""
    busy.cluster.add(
        pod("waits", "", MIG + "1g.10gb", 5, "Pending"),
        pod(
            "fell", "gpu-0", MIG + "2g.20gb", annotations={"gpu-webhook.k8s.io/fallback": "7g.70gb->2g.20gb"}
        ),
        pod("whole", "", GPU, 1, "Pending"),
        node("v100", {GPU: "8"}, "Tesla-V100"),
        gpu_node("whole", None, {GPU: "2"}, **{"gpu.count": "2", "gpu.memory": "71680"}),
        pod("c", "whole", GPU),
    )
    code, out, err = busy("plan")
    assert code == 0
    assert err.splitlines() == [
        "pods without a node ask for 5 × 1g.10gb",
        "pods that fell back had asked for 1 × 7g.70gb",
        "whole GPUs that pods wait for (1) are no part of the plan",
        'node v100: skipped: unknown product "Tesla-V100"',
    ]
    assert out.splitlines()[0].startswith("all 6 devices fit on 2 of 6 cards")
    assert out.splitlines()[2] == "removed: 2g.20gb ×3, 3g.30gb ×2; added: 1g.10gb ×5, 7g.70gb ×1"
    assert [line.split(maxsplit=1)[0] for line in out.splitlines()[-2:]] == ["gpu-1", "gpu-1"]
    assert "gpu-0" not in out
    code, out, _ = busy("plan", "-o", "runai", "--leave-rest")
    layout = mig.read_layout(out, [product_named("H200-70GB")] * 2)
    assert layout.resources() == {MIG + "1g.10gb": 5, MIG + "2g.20gb": 1, MIG + "7g.70gb": 1}


def rejected_job(parallelism):
    """A Job that asks for what no node offers, and the event of its controller."""
    why = 'admission webhook "gpu-allocation.k8s.io" denied the request: asked for nvidia.com/mig-7g.70gb: 1, and no node'
    template = {"metadata": {}, "spec": pod("x", "", MIG + "7g.70gb")["spec"]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"namespace": "team", "name": "night"},
        "spec": {"parallelism": parallelism, "completions": 9, "template": template},
    }
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "team", "name": "night.1"},
        "involvedObject": {"kind": "Job", "namespace": "team", "name": "night"},
        "reason": "FailedCreate",
        "message": f"Error creating: {why}",
    }
    return job, event


def test_plan_counts_what_was_rejected(busy, command):
    """What a Job asked for and was rejected is demand, shown apart from what waits; the same from files."""
    objects = [pod("waits", "", MIG + "1g.10gb", 5, "Pending"), *rejected_job(2)]
    busy.cluster.add(*objects)
    code, out, err = busy("plan")
    assert (code, err.splitlines()) == (
        3,
        ["pods without a node ask for 5 × 1g.10gb", "rejected workloads ask for 2 × 7g.70gb"],
    )
    assert "with it 1 of 1 waiting pod and 1 of 2 rejected pods would get a place" in out.splitlines()
    document = json.loads(busy("plan", "-o", "json")[1])
    assert document["asked"] == {"waiting": {"1g.10gb": 5}, "fellBack": {}, "rejected": {"7g.70gb": 2}}
    assert document["waiting"]["placed"] == [
        {"devices": {"1g.10gb": 5}, "pods": ["default/waits"]},
        {"devices": {"7g.70gb": 1}, "pods": ["team/job/night"], "rejected": True},
    ]
    nodes = [gpu_node("gpu-1", LAYOUT)]
    (command.folder / "saved.yaml").write_text("---\n".join(map(yaml.dump, nodes + objects)))
    code, out, err = command("mig", "plan", "--from", "saved.yaml")
    assert err.splitlines()[1] == "rejected workloads ask for 2 × 7g.70gb"


def test_plan_leaves_other_cards_alone(busy):
    """A card that the plan does not need keeps its devices, on nodes that it changes too."""
    busy.cluster.add(pod("waits", "", MIG + "7g.70gb", 1, "Pending"))
    code, out, _ = busy("plan", "-o", "json")
    assert code == 0
    cards = json.loads(out)["cards"]
    assert [(card["node"], card["card"]) for card in cards] == [("gpu-1", 0), ("gpu-1", 1)]
    profiles = [[device["profile"] for device in card["devices"]] for card in cards]
    assert sorted(profiles) == [["2g.20gb", "2g.20gb", "3g.30gb"], ["7g.70gb"]]
    other = next(card for card in cards if len(card["devices"]) == 3)
    assert all(device["stays"] for device in other["devices"])


def test_plan_when_nothing_waits(busy):
    """No demand, no plan, and no error."""
    words = "pods without a node ask for no MIG devices\n"
    assert busy("plan") == (0, "", words)
    code, out, err = busy("plan", "-o", "json")
    assert (code, err) == (0, words)
    document = json.loads(out)  # a program gets a plan, which changes nothing
    assert (document["demand"], document["nodes"], document["cards"]) == ({}, [], [])


def test_plan_from_saved_pods(command):
    """The same from files; `mig fit` takes other cards than the cluster's."""
    objects = [gpu_node("gpu-1", LAYOUT), pod("waits", "", MIG + "1g.10gb", 8, "Pending")]
    (command.folder / "saved.yaml").write_text("---\n".join(map(yaml.dump, objects)))
    code, out, _ = command("mig", "fit", "saved.yaml", "--product", "H200-70GB")
    assert (code, out.splitlines()[0]) == (0, "all 8 devices fit on 2 of 2 cards; fewer cards do not suffice")
    (command.folder / "pods.yaml").write_text(yaml.dump(objects[1]))
    code, out, err = command("mig", "plan", "--from", "pods.yaml")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "pods without a node ask for 8 × 1g.10gb",
        "tessera: no node has cards that could be cut; `tessera mig fit` plans for other cards",
    ]


def test_blocked_pods_are_no_demand_of_fit(command):
    """A saved pod that has scheduling gates waits for something else: `mig fit` leaves it out, as `mig plan` does, and says so."""
    gated = pod("gated", "", MIG + "1g.10gb", 8, "Pending")
    gated["spec"]["schedulingGates"] = [{"name": "x.io/y"}]
    (command.folder / "saved.yaml").write_text(yaml.dump(gated))
    code, out, err = command("mig", "fit", "saved.yaml", "--product", "H200-70GB")
    assert (code, out) == (0, "")
    assert "gates" in err
    assert "the demand is empty" in err


def test_plan_gives_free_devices_first(busy):
    """A pod whose device is free is no demand, and one that no node takes is reported, with the reason."""
    busy.cluster.add(
        pod("goes", "", MIG + "3g.30gb", 1, "Pending"),
        pod("waits", "", MIG + "1g.10gb", 1, "Pending"),
        pod("lost", "", MIG + "2g.20gb", 1, "Pending"),
    )
    lost = pod("nowhere", "", MIG + "2g.20gb", 1, "Pending")
    lost["spec"]["nodeSelector"] = {"team": "none"}
    busy.cluster.add(lost)
    code, out, err = busy("plan")
    assert code == 0
    assert err.splitlines() == [
        "pods without a node ask for 1 × 1g.10gb, 2 × 2g.20gb, 1 × 3g.30gb",
        "2 waiting pods could go to free devices (1 × 2g.20gb, 1 × 3g.30gb): no layout is needed for them",
        "no layout helps pod default/nowhere, 1 × 2g.20gb: nodeSelector wants team=none, the node has no such label (2 nodes)",
    ]
    # on gpu-0 pods hold 2g and 3g, and were given what is free there: gpu-1 is left as it is, or cut
    assert out.splitlines()[:3] == [
        "the one device fits on 1 of 4 cards; fewer idle cards do not suffice",
        "to change: 1 card of node gpu-1",
        "removed: 2g.20gb ×1; added: 1g.10gb ×2",
    ]
    document = json.loads(busy("plan", "-o", "json")[1])
    assert document["cost"] == {"nodes": ["gpu-1"], "cards": 1, "podsToEnd": []}
    assert document["waiting"] == {
        "onFreeDevices": [
            {"devices": {"3g.30gb": 1}, "pods": ["default/goes"]},
            {"devices": {"2g.20gb": 1}, "pods": ["default/lost"]},
        ],
        "notHelped": [
            {
                "devices": {"2g.20gb": 1},
                "pods": ["default/nowhere"],
                "reason": "nodeSelector wants team=none, the node has no such label (2 nodes)",
            }
        ],
        "placed": [{"devices": {"1g.10gb": 1}, "pods": ["default/waits"]}],
        "stillWaiting": [],
        "blocked": [],
    }


def test_plan_leaves_whole_gpus_to_pods_that_wait_for_them(served, command):
    """Free whole GPUs go to waiting pods first, as other free devices do: only the rest may be cut."""
    whole = {"gpu.count": "2", "gpu.memory": "71680"}
    served.add(
        gpu_node("gpu-0", None, {GPU: "2"}, **whole),
        pod("whole", "", GPU, 1, "Pending"),
        *(pod(f"seven-{number}", "", MIG + "7g.70gb", 1, "Pending") for number in range(2)),
    )
    code, out, _ = command("mig", "plan", "--kubeconfig", served.kubeconfig)
    assert (code, out.splitlines()[0]) == (
        3,
        "1 of 2 devices fits, on 1 of 2 cards; no plan serves more devices",
    )
    assert "removed: gpu ×1; added: 7g.70gb ×1" in out.splitlines()


def test_plan_when_all_could_go_to_free_devices(busy):
    """Then there is nothing to plan, and that is said."""
    busy.cluster.add(pod("goes", "", MIG + "3g.30gb", 1, "Pending"))
    code, out, err = busy("plan")
    assert (code, out) == (0, "no layout is needed\n")
    assert err.splitlines() == [
        "pods without a node ask for 1 × 3g.30gb",
        "1 waiting pod could go to free devices (1 × 3g.30gb): no layout is needed for it",
    ]


def test_plan_says_who_would_still_wait(busy):
    """Devices on different nodes do not make a pod run that asks for both."""
    busy.cluster.add(
        gpu_node("gpu-2", LAYOUT), pod("c", "gpu-2", MIG + "2g.20gb"), pod("d", "gpu-2", MIG + "3g.30gb")
    )
    busy.cluster.add(pod("wide", "", MIG + "7g.70gb", 3, "Pending"))
    code, out, _ = busy("plan")
    assert (code, out.splitlines()[0]) == (
        3,
        "2 of 3 devices fit, on 2 of 6 cards; no plan serves more devices",
    )
    assert "with it 0 of 1 waiting pod would get a place" in out.splitlines()


@pytest.mark.parametrize(
    ("limits", "first"),
    [
        ([], "all 2 devices fit on 2 of 4 cards; fewer idle cards do not suffice"),
        (["--max-cards", "1"], "1 of 2 devices fits, on 1 of 4 cards; no plan serves more devices"),
        (["--max-nodes", "1"], "all 2 devices fit on 2 of 4 cards; fewer idle cards do not suffice"),
    ],
)
def test_plan_within_limits(busy, limits, first):
    """No more nodes and cards are touched than allowed."""
    busy.cluster.add(pod("waits", "", MIG + "7g.70gb", 2, "Pending"))
    assert busy("plan", *limits)[1].splitlines()[0] == first


def test_plan_keeps_what_a_layout_does_not_tell_of(busy):
    """Where pods hold devices that a node's layout does not have, all of its devices stay."""
    busy.cluster.add(
        pod("odd", "gpu-1", MIG + "1g.10gb"),
        pod("waits", "", MIG + "7g.70gb", 1, "Pending"),
    )
    code, out, _ = busy("plan")
    assert (code, out.splitlines()[0]) == (
        3,
        "0 of 1 device fit, on 0 of 4 cards; no plan serves more devices",
    )


def test_defragment(busy):
    """The fewest pods whose end makes room, and where else they could go; advice, and nothing is written."""
    busy.cluster.add(pod("c", "gpu-1", MIG + "3g.30gb"))
    code, out, err = busy("defragment", "7g.70gb=3")
    assert (code, err) == (
        0,
        "which devices each pod holds is not known: assuming that pods are on as few cards as possible\n",
    )
    assert out.splitlines() == [
        "room for all 3 devices: 1 pod must end or move; fewer do not suffice",
        "on gpu-0 card 1, gpu-1 card 0, gpu-1 card 1",
        "",
        "NODE   CARD  POD        HOLDS       COULD MOVE TO",
        "gpu-1  0     default/c  3g.30gb ×1  -",
    ]
    code, out, _ = busy("defragment", "7g.70gb=2", "-o", "json")
    document = json.loads(out)
    assert (document["served"], document["optimal"], document["pods"]) == ({"7g.70gb": 2}, True, [])
    code, out, _ = busy("defragment", "7g.70gb=9", "-o", "yaml")
    assert code == 3
    assert yaml.load(out)["leftOut"] == {"7g.70gb": 5}


@pytest.mark.parametrize(("selector", "to"), [({}, "gpu-2"), ({"nvidia.com/pool": "a"}, "-")])
def test_defragment_names_a_place_to_move_to(busy, selector, to):
    """A pod that must go is shown a node that is left alone, takes it, and has the same free; else none."""
    moving = pod("c", "gpu-1", MIG + "3g.30gb", 2)
    moving["spec"]["nodeSelector"] = selector
    busy.cluster.add(gpu_node("gpu-2", LAYOUT), moving)
    busy.cluster.add(*(pod(f"small-{number}", "gpu-2", MIG + "2g.20gb") for number in range(4)))
    code, out, _ = busy("defragment", "7g.70gb=3")
    assert code == 0
    assert out.splitlines()[0] == "room for all 3 devices: 1 pod must end or move; fewer do not suffice"
    assert out.splitlines()[-1] == f"gpu-1  0     default/c  3g.30gb ×2  {to}"
