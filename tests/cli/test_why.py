"""`tessera why` as a person meets it."""

import json
import re
import time

import pytest

from tessera.cli.common.output import Output
from tessera.cli.why import show_layout
from tessera.diagnosis.layouts.gather import LayoutEvidence
from tessera.protocol.kubernetes.objects import moment
from tessera.protocol.mig.miglayout import MigLayout
from tessera.protocol.mig.rollouts import ROLLOUT, Owner, Phase, RolloutRecord, written
from tessera.simulation.control_plane import kinds
from tests.build import claim_document
from tests.diagnosis.clusters import node, pod
from tests.diagnosis.layouts.objects import AT, MISSING, PAST, RECUT, auto, mig_layout


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
    assert any(re.fullmatch(r"  held by     team/h  a  1 × 1g\.10gb  \d+[smhd]\S*", line) for line in lines)
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


def job_pods(job: str, number: int, asks: dict[str, int], **metadata):
    """Pods of a Job of namespace team that wait."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": True}
    return [
        {"kind": "Pod", **pod(f"{job}-{at}", asks, metadata={"ownerReferences": [owner], **metadata})}
        for at in range(number)
    ]


def test_all_that_wait(served, command):
    """Without a name each group of alike pods is one line, most devices first; -A does not stop at the namespace."""
    add(served)
    served.add(*job_pods("train", 3, {"1g.10gb": 2}), *job_pods("plain", 1, {}))
    other = {"kind": "Pod", **pod("q", {"7g.80gb": 1})}
    other["metadata"]["namespace"] = "other"
    served.add(other)
    code, out, err = command("why", "-n", "team", "--kubeconfig", served.kubeconfig)
    assert (code, err) == (0, "")
    heading, *lines, last = out.splitlines()
    assert heading.split() == ["NAMESPACE", "OWNER", "PODS", "ASKS", "FOR", "WAITS", "WHY"]
    assert [line.split()[1:4] for line in lines] == [
        ["Job", "train", "3"],
        ["Pod", "p", "1"],
        ["Job", "plain", "1"],
    ]
    assert "2 × 1g.10gb" in lines[0]
    assert lines[1].endswith("1 × 1g.10gb is taken on node a (1g.10gb: 1 of 1 in use)")
    assert last == "decided with default values: ConfigMap gpu-webhook/gpu-webhook is not there"
    _, out, _ = command("why", "-A", "-o", "json", "--kubeconfig", served.kubeconfig)
    document = json.loads(out)
    assert list(document) == ["pods", "groups", "more", "unseen", "configuration"]
    assert (document["pods"], document["more"]) == (6, {"groups": 0, "pods": 0})
    groups = {(group["namespace"], group["owner"]): group for group in document["groups"]}
    assert groups.keys() == {("team", "Job train"), ("team", ""), ("team", "Job plain"), ("other", "")}
    train = groups["team", "Job train"]
    assert (train["pods"], train["devices"], train["cause"]) == (3, {"nvidia.com/mig-1g.10gb": 2}, "too-few")
    assert groups["other", ""]["oldest"] == "q"


def test_nothing_waits(served, command):
    """The answer names the namespace, which is the context's, and how to look in all. Of a cluster without pods it is short."""
    answer = "no pod waits in namespace default; -A looks in all namespaces\n"
    assert command("why", "-A", "--kubeconfig", served.kubeconfig) == (0, "no pod waits\n", "")
    add(served)
    assert command("why", "--kubeconfig", served.kubeconfig) == (0, answer, "")


@pytest.mark.parametrize("more", [["p"], ["-n", "team"]])
def test_all_namespaces_stand_alone(command, more):
    """A name, or a namespace, does not go with all namespaces."""
    code, out, err = command("why", "-A", *more)
    assert (code, out) == (2, "")
    assert err.startswith("tessera why: use -A without a name and without -n")


def test_mistakes(served, command):
    """A kind without pods is bad input, and so is a name that is not there."""
    code, out, err = command("why", "svc/x", "--kubeconfig", served.kubeconfig)
    assert (code, out) == (2, "")
    assert err == 'tessera: unknown kind "svc"; use pod, deploy, rs, sts, ds, rc, job, node or miglayout\n'
    code, out, err = command("why", "x", "--kubeconfig", served.kubeconfig)
    assert (code, out, err) == (2, "", "tessera: namespace default has no pod x\n")


def test_what_ends_is_to_end(served, command):
    """A pod that is deleted and cannot end is not to run: what helps stands under another word."""
    claims = [{"name": "gpu", "resourceClaimName": "c"}]
    ends = pod(
        "p", on="a", spec={"resourceClaims": claims}, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}
    )
    result = {"driver": "gpu.tessera.dev", "pool": "a/tessera", "device": "d0"}
    claim = claim_document("c", result, namespace="team", pods=["p"], spec={})
    node_a = {"kind": "Node", **node("a", {})}
    served.add(node_a, {"kind": "Pod", **ends}, claim)
    _, out, _ = command("why", "p", "-n", "team", "--kubeconfig", served.kubeconfig)
    assert "\n  end it      the DRA driver of node a runs again\n" in out


def keep(served, layout) -> None:
    """A MigLayout, two nodes, and a controller that keeps layouts."""
    spec = {"holderIdentity": "one", "leaseDurationSeconds": 60, "renewTime": moment(time.time())}
    metadata = {"name": "tessera-controller", "namespace": "gpu-webhook", "annotations": {"tessera.dev/reconcilers": "layouts"}}  # fmt: skip
    served.add({"kind": "Lease", "metadata": metadata, "spec": spec}, layout)
    now = time.time()
    record = written(RolloutRecord(Owner("inference", "u1"), Phase.CORDONED, now, now + 60, 60.0, "x"))
    labels, has = {"pool": "inference"}, {ROLLOUT: record}
    served.add(*({"kind": "Node", **node(name, {}, labels=labels, annotations=has)} for name in ("n1", "n2")))


PLAN = auto(
    limits={"minimum": {"1g.18gb": 8}},
    dryRun=True,
    summary="Dry run: 1 card would be re-cut for 2 × 3g.71gb; no room for 1 × 7g.141gb.",
    demand=[{"profile": "3g.71gb", "waiting": 2, "fellBack": 1, "inUse": 4, "forecast": 5.5}],
    recuts=[RECUT],
    refusals=[{"profile": "7g.141gb", "number": 1, "why": "budget", "reason": "2 cards were cut"}],
    namespaces=[{"namespace": "a", "unused": 5, "freeAt": AT}, {"namespace": "b", "used": 9, "undecided": 1}],
    history=[
        {**PAST, "at": AT, "result": "Failed", "told": "NVML said no"},
        {**PAST, "at": AT, "result": "DryRun", "serves": {}},
    ],
)


def test_a_layout_that_follows_demand(served, command):
    """What is wanted, what would be cut and why, what gets no room, what was decided; what to do next comes last."""
    keep(served, PLAN)
    code, out, err = command("why", "miglayouts.tessera.dev/inference", "--kubeconfig", served.kubeconfig)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "MigLayout inference follows demand, in a dry run. 1 card would be re-cut for 2 × 3g.71gb; no room for 1 × 7g.141gb."  # fmt: skip
    start = lines.index("  wanted      devices  waiting  fell back  rejected  in use  idle  forecast")
    assert lines[start + 1 :] == [
        "              3g.71gb  2        1          0         4       0     5.5",
        "  would cut   n1, card 3: 1g.18gb ×7 → 3g.71gb ×2",
        "                serves 2 × 3g.71gb, takes 7 × 1g.18gb (idle); gain 9, cost 4.2",
        "                2 pods wait for 3g.71gb",
        "  no room     1 × 7g.141gb: 2 cards were cut",
        "  spent       namespace a: cards an hour: 0 used, 5 unused, 0 undecided; its share is free again at 2026-11-15T11:00:00Z at the latest",
        "              namespace b: cards an hour: 9 used, 0 unused, 1 undecided",
        "  history     2026-11-15T11:00:00Z  n1, card 3: 1g.18gb ×7 → 3g.71gb ×2",
        "                failed, the old layout is back: NVML said no; for 2 × 3g.71gb: 2 pods wait for 3g.71gb",
        "              2026-11-15T11:00:00Z  n1, card 3: 1g.18gb ×7 → 3g.71gb ×2",
        "                dry run: nothing was changed; 2 pods wait for 3g.71gb",
        "  next        let it act, if you agree with what it would do",
        """                $ kubectl patch miglayout inference --type merge -p '{"spec": {"autopilot": {"dryRun": false}}}'""",
        "              for 1 × 7g.141gb: raise spec.autopilot.recutsPerHour (20 now), or wait: cards are counted for an hour",
        "                $ kubectl edit miglayout inference",
    ]


def test_a_layout_that_is_rolled_out(served, command):
    """Its mode, its nodes in groups, its conditions with their reasons, and the rollouts under way."""
    nodes = [
        {"name": name, "state": "Pending", "reason": "the node is not ready"} for name in ("n7", "n8", "n9")
    ]
    moves = ("Progressing", "True", "RollingOut", "n1: waits for a/b")
    keep(served, mig_layout(MISSING, moves, nodes=nodes, desired=6, current=1, updatingCount=2))
    _, out, _ = command("why", "miglayout/inference", "--kubeconfig", served.kubeconfig)
    words = [" ".join(line.split()) for line in out.splitlines()]
    assert (
        words[0] == "MigLayout inference is being rolled out: 1 of 2 nodes have the layout; n1: waits for a/b"
    )
    assert words[1:6] == [
        "mode Fixed: nodes get the layouts that it has",
        "nodes at a time: 1; pods that hold devices which go: Wait",
        "nodes desired 6, current 1, updating 2, failed 0; 2 selected by pool=inference",
        "- n7, n8, n9 Pending the node is not ready",
        "… and 2 more, whose reasons the status does not have",
    ]
    assert re.match(r"conditions Ready False Incomplete \d+[smhd]", words[6])
    assert re.match(r"Progressing True RollingOut \d+[smhd]", words[7])
    assert re.match(r"rollouts n1 Cordoned \d+[smhd]", words[8])
    assert words[8].endswith(
        "MigLayout inference cordoned; the pods that hold devices which go are waited for"
    )


def test_documents_of_a_layout(served, command):
    """JSON, YAML and templates say the same; the autopilot's part has the names of the status."""
    keep(served, PLAN)
    options = ("--kubeconfig", served.kubeconfig)
    _, out, _ = command("why", "miglayout/inference", "-o", "json", *options)
    found = json.loads(out)
    assert list(found) == [
        "object", "cause", "answer", "mode", "about", "counts", "conditions", "nodes", "rollouts", "autopilot", "remedies", "unseen",
    ]  # fmt: skip
    assert (found["object"], found["cause"], found["mode"]) == ("MigLayout inference", "dry-run", "Auto")
    assert found["counts"] == {"desired": 2, "current": 0, "updating": 0, "failed": 0}
    assert list(found["autopilot"]) == [
        "dryRun",
        "summary",
        "demand",
        "recuts",
        "refusals",
        "namespaces",
        "history",
    ]
    assert found["autopilot"]["recuts"] == [RECUT]
    assert [one["node"] for one in found["rollouts"]] == ["n1", "n2"]
    _, out, _ = command("why", "miglayout/inference", "-o", "yaml", *options)
    assert out.startswith("object: MigLayout inference\ncause: dry-run\n")
    _, out, _ = command("why", "miglayout/inference", "-o", "jsonpath={.remedies[0].kind}", *options)
    assert out == "change"


def test_a_layout_of_four_thousand_nodes(capsys):
    """The text stays short, and has nothing that a terminal would obey."""
    evil = "\x1b]0;gone\x07\x9b2J\r\n" + "y" * 500
    nodes = [
        {"name": f"n{number}{evil}", "state": "Pending", "reason": f"{number}{evil}"}
        for number in range(4000)
    ]
    document = mig_layout(
        ("Ready", "False", evil, evil),
        nodes=nodes,
        desired=4000,
        updating=[f"{evil}{n}" for n in range(4000)],
    )
    rollouts = {f"n{number}": evil for number in range(4000)}
    show_layout(
        LayoutEvidence(MigLayout.read(json.dumps(document).encode()), 0.0, 4000, rollouts), Output("text")
    )
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert (len(lines) < 50, max(map(len, lines)) < 1500) == (True, True)
    assert any("4000 selected by pool=inference" in line for line in lines)
    assert any("… and 4088 more rollouts" in line for line in lines)


@pytest.mark.parametrize(
    ("absent", "name", "code", "says"),
    [
        (False, "nope", 2, "there is no MigLayout nope; the cluster has none"),
        (True, "nope", 1, "the cluster has no MigLayouts: the API tessera.dev/v1alpha1 is not installed; the chart brings it with its values controller.enabled and layouts.enabled"),
        (False, "", 2, '"miglayout/": the name is empty; write miglayout/NAME'),
    ],
)  # fmt: skip
def test_no_layout(served, command, absent, name, code, says):
    """One sentence, and the exit code of a failure, or of bad input."""
    if absent:
        served.call(lambda: served.server.kinds.pop((kinds.MIG_LAYOUTS.prefix, kinds.MIG_LAYOUTS.plural)))
    found = command("why", f"miglayout/{name}", "--kubeconfig", served.kubeconfig)
    assert found == (code, "", f"tessera: {says}\n")
