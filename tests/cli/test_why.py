"""`tessera why` as a person meets it."""

import json

from tests.diagnosis.clusters import node, pod


def add(served) -> None:
    """A node whose only device is held, and a pod that waits for it."""
    full = {"kind": "Node", **node("a", {"1g.10gb": 1})}
    pods = [pod("h", {"1g.10gb": 1}, on="a"), pod("p", {"1g.10gb": 1})]
    served.add(full, *({"kind": "Pod", **one} for one in pods))


def test_answer_comes_first(served, command):
    """The first line is the answer; below it what would help, and every part under its name."""
    add(served)
    code, out, err = command("why", "p", "-n", "team", "--kubeconfig", served.kubeconfig)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "pod team/p waits: 1 × 1g.10gb is taken on node a (1g.10gb: 1 of 1 in use)"
    assert lines[1].startswith("  run it      a pod ends on node a: team/h (1 × 1g.10gb, for ")
    assert "  admission   asks for nvidia.com/mig-1g.10gb: 1 (container main)" in lines
    assert "  scheduler   Unschedulable: 0/1 nodes are available" in lines
    assert "  nodes       ✗  a  1g.10gb: 1 of 1 in use" in lines
    assert any(line.startswith("  held by     team/h  a  1 × 1g.10gb  for ") for line in lines)
    assert not any("not seen" in line for line in lines)
    assert lines[-1] == "decided with default values: ConfigMap gpu-webhook/gpu-webhook is not there"


def test_documents(served, command):
    """JSON and YAML say the same, with times and names for programs."""
    add(served)
    _, out, _ = command("why", "pod/p", "-n", "team", "-o", "json", "--kubeconfig", served.kubeconfig)
    found = json.loads(out)
    assert list(found) == [
        "object", "cause", "answer", "admission", "scheduler", "patience", "nodes", "holders", "remedies", "unseen", "configuration",
    ]  # fmt: skip
    assert (found["object"], found["cause"]) == ("pod team/p", "taken")
    missing = "ConfigMap gpu-webhook/gpu-webhook is not there"
    assert found["unseen"] == {"the webhook's configuration": missing}
    assert found["configuration"] == f"decided with default values: {missing}"
    assert found["holders"] == [
        {
            "pod": "team/h",
            "node": "a",
            "holds": {"nvidia.com/mig-1g.10gb": 1},
            "since": "2026-11-15T09:00:00Z",
        }
    ]
    _, out, _ = command("why", "pod/p", "-n", "team", "-o", "yaml", "--kubeconfig", served.kubeconfig)
    assert out.startswith("object: pod team/p\ncause: taken\n")


def test_mistakes(served, command):
    """A kind without pods is bad input; a name that is not there is a failure."""
    code, out, err = command("why", "svc/x", "--kubeconfig", served.kubeconfig)
    assert (code, out) == (2, "")
    assert err.startswith('tessera: "svc/x" is no pod and no KIND/NAME; kinds are po, deploy')
    code, out, err = command("why", "x", "--kubeconfig", served.kubeconfig)
    assert (code, out, err) == (1, "", "tessera: namespace default has no pod x\n")


def test_what_ends_is_to_end(served, command):
    """A pod that is deleted and cannot end is not to run: what helps stands under another word."""
    claims = [{"name": "gpu", "resourceClaimName": "c"}]
    ends = pod(
        "p", on="a", spec={"resourceClaims": claims}, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}
    )
    results = [{"driver": "gpu.tessera.dev", "pool": "a/tessera", "device": "d0", "request": "gpu"}]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "p"}],
    }
    claim = {"metadata": {"name": "c", "namespace": "team"}, "spec": {}, "status": status}
    node_a = {"kind": "Node", **node("a", {})}
    served.add(node_a, {"kind": "Pod", **ends}, {"kind": "ResourceClaim", **claim})
    _, out, _ = command("why", "p", "-n", "team", "--kubeconfig", served.kubeconfig)
    assert "\n  end it      the DRA driver of node a runs again\n" in out
