"""`tessera dashboard` on a cluster: the command, from its first line to its end."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tessera.cli.app import run
from tests.build import asking_pod, claim_document, named_amounts, node_document

TESSERA = [sys.executable, "-m", "tessera"]
MIG = "nvidia.com/mig-"
DEADLINE = 20.0
INSTALLED = "decided with the configuration of ConfigMap gpu-webhook/gpu-webhook"


@contextmanager
def serving(*args, ready):
    """A command that serves: its page's address, and all it printed until it was ready."""
    process = subprocess.Popen(
        [*TESSERA, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if ready in line:
                break
        address = next(line for line in lines if line.startswith("http://")).split()[0]
        yield address, lines
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=DEADLINE)
        assert (process.returncode, complaint.strip()) == (130, "interrupted")
    finally:
        process.kill()
        process.wait()


def asked(address, path="state", **headers):
    request = urllib.request.Request(f"{address}{path}", headers=headers)  # noqa: S310 # our own
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:  # noqa: S310
        return json.load(answer)


def explained(address, text, path="explain"):
    headers = {"Content-Type": "application/yaml"}
    request = urllib.request.Request(f"{address}{path}", text.encode(), headers)  # noqa: S310 # our own
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:  # noqa: S310
        return answer.read().decode()


def why_of(address, namespace, pod):
    request = urllib.request.Request(f"{address}why?namespace={namespace}&pod={pod}", method="POST")  # noqa: S310 # our own
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:  # noqa: S310
        return answer.read().decode()


def node(name, **has):
    return node_document(name, named_amounts(has))


def pod(name, on, **asks):
    return asking_pod(name, named_amounts(asks), node=on)


def test_a_cluster(served):
    """It shows what the API says, explains pods against it, writes nothing, and ends on ^C."""
    plain = node("plain")
    plain["metadata"]["labels"] = {"pool": "web"}
    served.add(node("a", p2g_20gb=4), plain, pod("train", "a", p2g_20gb=1))
    version = served.server.store.version
    with serving("dashboard", "--kubeconfig", served.kubeconfig, "--port", "0", ready="^C") as (
        address,
        lines,
    ):
        assert f"shows {served.server.url}; ^C ends it" in lines[-1]
        shown = asked(address)
        (row,) = shown["totals"]
        assert (row["allocatable"], row["allocated"], row["available"]) == ("4", "1", "3")
        (tiles,) = asked(address, "mosaics?nodes=a")["a"]["loose"].values()
        assert [tile["pod"] for tile in tiles] == ["default/train", "", "", ""]
        text = Path("examples/pods/3g.yaml").read_text()
        assert "3g.40gb is not offered, 2g.20gb is the first that is" in explained(address, text)
        picky = text.replace("spec:", "spec:\n  nodeSelector: {pool: gpu}")
        assert "nodeSelector wants pool=gpu, the node has pool=web" in explained(address, picky)
        with pytest.raises(urllib.error.HTTPError) as refused:
            explained(address, "a: [")
        assert refused.value.code == 400
        assert refused.value.read().decode().count("\n") == 1
        assert (
            explained(address, text).splitlines()[-1]
            == "decided with default values: ConfigMap gpu-webhook/gpu-webhook is not there"
        )
        metadata, config = {"name": "gpu-webhook", "namespace": "gpu-webhook"}, "fallback: {minMemory: 30Gi}"
        served.add({"kind": "ConfigMap", "metadata": metadata, "data": {"config.yaml": config}})
        version = served.server.store.version
        answer = explained(address, text)
        assert "decision    rejected: " in answer, "as the webhook decides from then on"
        assert answer.splitlines()[-1] == INSTALLED
        assert why_of(address, "default", "train").splitlines()[-1] == INSTALLED
    assert served.server.store.version == version, "the cluster is only read"


def test_objects_in_files(tmp_path, command):
    """Nodes, pods and claims as kubectl saved them: capacity, tiles and explanations as of a cluster; why needs one."""
    resource = f"{MIG}2g.20gb"
    slices = {
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {
            "driver": "gpu.tessera.dev",
            "nodeName": "b",
            "pool": {"name": "b", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "x"}, {"name": "y"}],
        },
    }
    selectors = [{"cel": {"expression": "device.driver == 'gpu.tessera.dev'"}}]
    device_class = {
        "kind": "DeviceClass",
        "metadata": {"name": "two"},
        "spec": {"selectors": selectors, "extendedResourceName": resource},
    }
    result = {"driver": "gpu.tessera.dev", "pool": "b", "device": "x"}
    claim = claim_document("c", result, namespace="ml")
    some = [
        node("a", p2g_20gb=4),
        pod("train", "a", p2g_20gb=1),
        {"kind": "Namespace", "metadata": {"name": "ml"}},
    ]
    items = [*some, node("b"), slices, device_class, claim, pod("late", "", p2g_20gb=1), {"kind": "Secret"}]
    file = tmp_path / "saved.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    with serving("dashboard", "--from", str(file), "--port", "0", ready="^C") as (address, lines):
        assert f"shows {file}; ^C ends it" in lines[-1]
        shown = asked(address)
        (row,) = shown["totals"]
        assert [row[key] for key in ("allocatable", "allocated", "available", "asked")] == [
            "6",
            "2",
            "4",
            "1",
        ]
        assert (shown["about"]["cluster"], shown["pending"]["count"]) == (str(file), 1)
        (tiles,) = asked(address, "mosaics?nodes=b")["b"]["loose"].values()
        assert [tile["pod"] for tile in tiles] == ["claim ml/c", ""]
        text = (Path(__file__).parents[2] / "examples/pods/3g.yaml").read_text()
        assert "3g.40gb is not offered, 2g.20gb is the first that is" in explained(address, text)
        with pytest.raises(urllib.error.HTTPError) as refused:
            explained(address, "", "why?namespace=default&pod=late")
        assert refused.value.read().decode().startswith("This page shows files.")
    (command.folder / "empty.yaml").write_text("kind: List\nitems: []\n")
    for args, words in (
        (["--from", "empty.yaml"], "empty.yaml: no nodes and no pods"),
        (["--from", "none.yaml"], "none.yaml: no such file or directory"),
        (["--from", "-", "--context", "x"], "--from reads files"),
    ):
        code, _, complaint = command("dashboard", "--port", "0", *args)
        assert (code, words in complaint) == (2, True), complaint


def test_behind_a_proxy(served):
    """The page answers to the names that it was given, and to no others."""
    arguments = (
        "dashboard",
        "--kubeconfig",
        served.kubeconfig,
        "--port",
        "0",
        "--allow-host",
        "gpus.example.com",
    )
    with serving(*arguments, ready="^C") as (address, _):
        assert "totals" in asked(address, Host="gpus.example.com")
        with pytest.raises(urllib.error.HTTPError) as refused:
            asked(address, Host="evil.example")
        assert refused.value.code == 403
        assert "start it with --allow-host" in refused.value.read().decode()


def test_a_port_in_use(served, command):
    """One sentence, exit 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, complaint = command("dashboard", "--kubeconfig", served.kubeconfig, "--port", str(port))
    what = "something else listens there; choose another with --port, or 0 for any"
    assert (code, complaint) == (1, f"tessera: cannot listen on 127.0.0.1:{port}: {what}\n")


def test_no_cluster(command):
    """A cluster that does not answer is named; one that was not named is bad input."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config: dict[str, Any] = {"clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}]}
    config |= {"contexts": [{"name": "x", "context": {"cluster": "c", "user": ""}}], "current-context": "x"}
    (command.folder / "config").write_text(json.dumps(config))
    for args, expected, words in (
        (["--kubeconfig", "config"], 1, "tessera: cannot reach the cluster"),
        (["--kubeconfig", "nope"], 2, "nope"),
        (["--config", "nope.yaml"], 2, "nope.yaml: no such file or directory"),
    ):
        code, _, complaint = command("dashboard", "--port", "0", *args)
        assert (code, words in complaint, complaint.count("\n")) == (expected, True, 1), complaint


def test_the_embedded_cluster(tmp_path, capsys, temporary):
    """`tessera demo --serve` with nodes of one's own: the page, the kubeconfig, and nothing left after ^C."""
    file = tmp_path / "nodes.yaml"
    file.write_text("mine:\n  layout: 1g.10gb=7\n  devices: {simulated: {product: H200-70GB, cards: 1}}\n")
    with serving("demo", "--serve", "--port", "0", "--own-nodes", str(file), ready="export KUBECONFIG=") as (
        address,
        lines,
    ):
        kubeconfig = lines[-1].split()[1].removeprefix("KUBECONFIG=")
        assert run(["capacity", "--kubeconfig", kubeconfig, "-o", "json"]) == 0
        assert "mine" in capsys.readouterr().out
        assert "node/mine" in asked(address)
        assert explained(address, "kind: Pod\nspec: {containers: []}").splitlines()[-1] == INSTALLED
    assert not list(temporary.iterdir())


def test_bad_nodes(command):
    """Every mistake in the file, exit 2."""
    (command.folder / "nodes.yaml").write_text("a: {cpus: 1}\nb: {memory: much}\n")
    code, _, complaint = command("demo", "--serve", "--own-nodes", "nodes.yaml")
    assert (code, complaint.count("nodes.yaml: ")) == (2, 2)
    (command.folder / "list.yaml").write_text("apiVersion: v1\nkind: List\nitems: []\n")
    code, _, complaint = command("demo", "--serve", "--own-nodes", "list.yaml")
    assert (code, complaint.count("\n")) == (2, 1)
    assert complaint.startswith(
        "tessera: list.yaml: this is a List of Kubernetes, and the demo takes nodes such as"
    )
    assert "`tessera dashboard --from`" in complaint
    code, _, complaint = command("demo", "--own-nodes", "nodes.yaml")
    assert (code, "use --own-nodes only with --serve" in complaint) == (2, True)
