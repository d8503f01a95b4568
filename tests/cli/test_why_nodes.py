"""`tessera why node/NAME`: the answer for each state of a node, as text and as a document."""

import json
import time

import pytest

from tessera.protocol.mig.documents import RUNAI_CONFIG
from tessera.protocol.mig.rollouts import ROLLOUT, Owner, Phase, RolloutRecord, written
from tessera.simulation.control_plane.store import StatusError
from tests.build import MIG
from tests.diagnosis.clusters import node, pod
from tests.diagnosis.layouts.objects import READY, mig_layout
from tests.diagnosis.test_diagnosis import FAILED, WISHED
from tests.kube.apiserver import status

CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
GPU_TAINT = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


def ask(served, command, document, *more, pods=()):
    """The lines that the command prints about a cluster of one node."""
    served.add({"kind": "Node", **document}, *({"kind": "Pod", **one} for one in pods))
    name = document["metadata"]["name"]
    code, out, err = command("why", f"node/{name}", "--kubeconfig", served.kubeconfig, *more)
    assert (code, err) == (0, "")
    return out.splitlines()


@pytest.mark.parametrize(
    ("document", "asks", "answer"),
    [
        (node("a", {"1g.10gb": 3}), 1, "node a has room: 2 × 1g.10gb free"),
        (node("a", {"1g.10gb": 3}, taints=[GPU_TAINT]), 1, "node a has room: 2 × 1g.10gb free"),
        (node("a", {"1g.10gb": 1}), 1, "node a has no room: 1g.10gb: 1 of 1 in use"),
        (node("a", {}), 0, "node a offers no GPU"),
        (node("a", {"1g.10gb": 3}, taints=[CORDON]), 1, "node a takes no pods: it is cordoned"),
        (
            node("a", {"1g.10gb": 1}, capacity={"1g.10gb": 3}),
            1,
            "node a does not offer all its devices: 1g.10gb: 2 of 3 are unhealthy, 1 in use",
        ),
        (
            node("a", {"1g.10gb": 0}, capacity={"1g.10gb": 2}),
            0,
            (
                "node a does not offer all its devices: 1g.10gb: 0 of 2 are offered: "
                "its device plugin is unavailable, or all its devices are unhealthy"
            ),
        ),
        (
            node("a", {"1g.10gb": 7}, labels=FAILED, annotations=WISHED),
            0,
            "node a does not offer all its devices: no 1 × 2g.20gb; its layout failed: 1g.10gb is in use",
        ),
        (
            node("a", {"1g.10gb": 7}, labels=FAILED, annotations={**WISHED, RUNAI_CONFIG: "{"}),
            0,
            "node a has not taken its layout: failed: 1g.10gb is in use",
        ),
    ],
)
def test_the_answer_comes_first(served, command, document, asks, answer):
    """What keeps all pods away goes before what is broken, and that before what is taken."""
    pods = [pod("h", {"1g.10gb": asks}, on="a")] if asks else []
    assert ask(served, command, document, pods=pods)[0] == answer


def test_the_parts(served, command):
    """Below the answer: the state, each kind of device, who holds them, and what to do next."""
    lines = ask(
        served,
        command,
        node("a", {"1g.10gb": 3, "2g.20gb": 1}, taints=[CORDON]),
        pods=[pod("h", {"1g.10gb": 2}, on="a")],
    )
    assert "  state       cordoned" in lines
    assert "  devices     1g.10gb  2 of 3 in use" in lines
    assert "              2g.20gb  0 of 1 in use" in lines
    assert any(line.startswith("  held by     team/h  2 × 1g.10gb  ") for line in lines)
    assert lines[-2:] == [
        "  next        node a takes pods again",
        "                $ kubectl uncordon a",
    ]


def test_a_node_that_is_being_changed(served, command):
    """The rollout is the answer, whoever else could say something; the MigLayout that keeps the node is named."""
    now = time.time()
    record = written(RolloutRecord(Owner("inference", "u1"), Phase.CORDONED, now, now + 60, 60.0, "x"))
    served.add(mig_layout(READY))
    changed = node(
        "a", {"1g.10gb": 3}, labels={"pool": "inference"}, annotations={ROLLOUT: record}, taints=[CORDON]
    )
    lines = ask(served, command, changed)
    assert lines[0] == (
        "node a is being changed by MigLayout inference: "
        "cordoned; the pods that hold devices which go are waited for"
    )
    assert "  kept by     MigLayout inference" in lines
    assert lines[-2:] == [
        "  next        MigLayout inference keeps the node's layout",
        "                $ tessera why miglayout/inference",
    ]


def test_the_document(served, command):
    """JSON has the same for programs."""
    lines = ask(
        served,
        command,
        node("a", {"1g.10gb": 1}),
        "-o",
        "json",
        pods=[pod("h", {"1g.10gb": 1}, on="a")],
    )
    found = json.loads("\n".join(lines))
    assert list(found) == [
        "object", "cause", "answer", "state", "layout", "keptBy", "devices", "rollout", "holders", "remedies", "unseen",
    ]  # fmt: skip
    assert (found["object"], found["cause"], found["state"]) == ("node a", "taken", "ready")
    assert found["devices"] == [
        {"resource": MIG + "1g.10gb", "offered": 1, "inUse": 1, "reason": "1g.10gb: 1 of 1 in use"}
    ]
    assert [one["pod"] for one in found["holders"]] == ["team/h"]


def test_a_node_that_does_not_exist(served, command):
    """One sentence, and bad input."""
    served.add({"kind": "Node", **node("a", {"1g.10gb": 1})})
    for name in ("node/b", "nodes/b", "no/b"):
        assert command("why", name, "--kubeconfig", served.kubeconfig) == (
            2,
            "",
            "tessera: the cluster has no node b\n",
        )


def test_what_may_not_be_read(served, command):
    """Without the nodes there is no answer; without the pods it says that the holders are not known."""
    served.add({"kind": "Node", **node("a", {"1g.10gb": 1})})
    forbidden = "/api/v1/pods"

    def forbid(request):
        return status(StatusError(403, "Forbidden", "no")) if request.path == forbidden else None

    served.server.intercept = forbid
    words = ("why", "node/a", "--kubeconfig", served.kubeconfig)
    code, out, err = command(*words)
    assert (code, err) == (0, "")
    assert out.startswith("node a has no room: has 1 × 1g.10gb; who holds them could not be read\n")
    assert "  not seen    pods: " in out
    forbidden = "/api/v1/nodes"
    code, out, err = command(*words)
    assert (code, out) == (1, "")
    assert err.startswith("tessera: node a may not be read: ")
