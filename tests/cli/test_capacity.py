"""`tessera capacity` from the outside: what it prints, and how it exits."""

import csv
import io
import json
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tessera.cli.capacity.command import ChangedLines, Documents, Picture
from tessera.cli.capacity.forms import document, in_order_of
from tessera.cli.common.options import ClusterChoice
from tessera.cli.common.output import Output
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.resources import is_any_gpu
from tessera.inventory.inventory import FollowedInventory, Inventory
from tessera.inventory.report import report_of
from tessera.kube.access.cluster import Cluster, ServerAddress
from tessera.kube.object_files import objects_in_documents
from tessera.kube.rest.client import Client
from tessera.kube.watch.table import Key
from tessera.protocol import yaml
from tessera.simulation.control_plane.kinds import KINDS, RESOURCE_CLAIMS
from tessera.simulation.control_plane.store import StatusError
from tests.build import MIG, bridged, claim_document
from tests.cli.test_mig import sessions
from tests.inventory.objects import MIG_PARTED, OBJECTS, operator_node, pod
from tests.kube.apiserver import status
from tests.protocol.dra.samples import class_, device, slice_

ROOT = Path(__file__).parents[2]
SAVED = json.dumps({"apiVersion": "v1", "kind": "List", "items": OBJECTS})

TABLE = """\
NODE   RESOURCE  ALLOCATABLE  ALLOCATED  AVAILABLE
sim-0  2g.20gb   4            2          2
sim-0  3g.30gb   2            1          1
sim-1  2g.20gb   4            1          3
sim-1  3g.30gb   2            0          2
v100   gpu       8            4          4

TOTAL        RESOURCE  ALLOCATABLE  ALLOCATED  AVAILABLE  ASKED FOR
NVIDIA-H200  2g.20gb   8            3          5
NVIDIA-H200  3g.30gb   4            1          3
Tesla-V100   gpu       8            4          4
all          gpu       8            4          4          0
all          1g.10gb   0            0          0          1
all          2g.20gb   8            3          5          3
all          3g.30gb   4            1          3          0
"""
WIDE = """\
NODE   PRODUCT      RESOURCE                ALLOCATABLE  ALLOCATED  AVAILABLE  USED  STATE     LAYOUT   LAYOUT FROM
sim-0  NVIDIA-H200  nvidia.com/gpu          0            0          0          -     ready     success  annotation run.ai/mig.config
sim-0  NVIDIA-H200  nvidia.com/mig-2g.20gb  4            2          2          50%   ready     success  annotation run.ai/mig.config
sim-0  NVIDIA-H200  nvidia.com/mig-3g.30gb  2            1          1          50%   ready     success  annotation run.ai/mig.config
sim-1  NVIDIA-H200  nvidia.com/mig-2g.20gb  4            1          3          25%   cordoned  success  annotation run.ai/mig.config
sim-1  NVIDIA-H200  nvidia.com/mig-3g.30gb  2            0          2          0%    cordoned  success  annotation run.ai/mig.config"""


@pytest.fixture
def saved(command):
    """Runs the command on the objects above."""
    (command.folder / "saved.json").write_text(SAVED)
    return lambda *args: command("capacity", "--from", "saved.json", *args)


def test_table(saved):
    """Nodes, products and the whole, with what waiting pods ask for."""
    assert saved() == (0, TABLE, "")


def test_no_pods(saved):
    """That no pod is listed is said, and of what and where; the tables are as they are."""
    assert saved("--pods", "-n", "nons") == (0, TABLE, "namespace nons: no pod holds or waits for GPUs\n")
    code, _, err = saved("--pods", "--resource", "1g.10gb", "-n", "default")
    assert (code, err) == (0, "no nvidia.com/mig-1g.10gb on any of 4 nodes; --all shows every resource\n")
    code, _, err = saved("--pods", "--all", "-n", "nons", "-o", "csv")
    assert (code, err) == (0, "namespace nons: no pod holds or waits for anything\n")
    assert saved("--pods", "-n", "ml")[2] == ""


def test_cluster_is_as_files(served, command):
    """A cluster's answer is the same as that of files, to the letter."""
    served.add(*OBJECTS[:-1])
    assert command("capacity", "--kubeconfig", served.kubeconfig) == (0, TABLE, "")
    pods = served.server.asked("/api/v1/pods")
    assert len(pods) == 1
    assert pods[0].query["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"


def test_pages(served, command, monkeypatch):
    """A large cluster is read page by page, and from the beginning when its pages expire half-way."""
    monkeypatch.setattr("tessera.kube.watch.listing.PAGE", 3)
    served.add(*OBJECTS[:-1])
    assert command("capacity", "--kubeconfig", served.kubeconfig) == (0, TABLE, "")
    assert len(served.server.asked("/api/v1/pods")) == 2
    served.server.requests.clear()

    def forget_pages(request):
        if request.path == "/api/v1/pods" and "continue" in request.query:
            served.server._lists.forget()

    served.server.intercept = forget_pages
    assert command("capacity", "--kubeconfig", served.kubeconfig) == (0, TABLE, "")
    assert len(served.server.asked("/api/v1/pods")) == 3


def test_wide(saved):
    """Wide adds how nodes are, and how many more devices their cards could hold."""
    code, out, _ = saved("-o", "wide", "-l", "nvidia.com/gpu.product=NVIDIA-H200")
    nodes, _, room = out.split("\n\n")
    assert (code, nodes) == (0, WIDE)
    assert room.splitlines() == [
        "ROOM FOR  CUT AND FREE  BESIDE  RE-CUT  LOST",
        "1g.10gb   0             0       14      14",
        "2g.20gb   5             0       7       2",
        "3g.30gb   3             0       5       2",
        "7g.70gb   0             0       2       2",
    ]


def test_wide_on_nodes_of_nvidias_operator(command):
    """No column goes where a layout is not known: it says so, and one line says of which nodes and why."""
    mixed = {"1g.10gb": 16, "2g.20gb": 8, "3g.40gb": 8}
    nodes = [operator_node(f"n{number}", mixed, "all-balanced") for number in range(4)]
    nodes.append(operator_node("other", {"1g.18gb": 56}, "x", "NVIDIA-H200"))
    (command.folder / "nodes.json").write_text(json.dumps({"kind": "List", "items": nodes}))
    (command.folder / "config.yaml").write_text(MIG_PARTED)
    code, out, err = command("capacity", "--from", "nodes.json", "-o", "wide")
    table, _, room = out.split("\n\n")
    assert code == 0
    assert {(row.split()[0], row.split("success")[1].strip()) for row in table.splitlines()[1:]} == {
        *((f"n{number}", "not known") for number in range(4)),
        ("other", "the node's capacity"),
    }
    assert room.splitlines()[:4] == [
        "ROOM FOR    CUT AND FREE  BESIDE     RE-CUT     LOST",
        "1g.10gb     not known     not known  not known  not known",
        "1g.10gb+me  not known     not known  not known  not known",
        "1g.18gb     56            0          56         0",
    ]
    assert err == (
        "4 nodes (n0, n1, n2 and 1 more): not counted in the room for more, because the layout is not known: there is more than one "
        "way to cut its cards into what it has; mig-manager's configurations are not known\n"
    )
    found = json.loads(command("capacity", "--from", "nodes.json", "-o", "json")[1])
    assert found["nodes"][0]["layoutFrom"] == ""
    assert found["nodes"][0]["layoutUnknown"].startswith("there is more than one way to cut its cards")
    assert found["room"]["1g.10gb"] == {"free": None, "beside": None, "recut": None, "lost": None}
    code, out, err = command("capacity", "--from", "nodes.json", "-o", "json", "--mig-parted", "config.yaml")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["nodes"][0]["layoutFrom"] == "label nvidia.com/mig.config with mig-manager's ConfigMap"
    assert found["room"]["1g.10gb"]["free"] == 64


def test_pods(saved):
    """Who holds what and who waits; of one namespace, if that is asked for."""
    code, out, _ = saved("--pods")
    assert code == 0
    assert out.startswith(TABLE)
    assert out.removeprefix(TABLE).strip().splitlines() == [
        "NAMESPACE  POD      NODE   RESOURCE  AMOUNT  STATE",
        "default    a        sim-0  2g.20gb   2       holds",
        "default    b        sim-0  3g.30gb   1       holds",
        "default    going    sim-1  2g.20gb   1       ending",
        "default    waits    -      2g.20gb   3       waits",
        "ml         c        v100   gpu       4       holds",
        "ml         nowhere  -      1g.10gb   1       waits",
    ]
    code, out, _ = saved("--pods", "-n", "ml", "-l", "nvidia.com/zone=a", "-o", "csv")
    assert out.splitlines() == [
        "namespace,pod,node,resource,amount,state",
        "ml,c,v100,nvidia.com/gpu,4,holds",
        "ml,nowhere,,nvidia.com/mig-1g.10gb,1,waits",
    ]


def test_documents(saved):
    """JSON and YAML say the same, and all of it; CSV has plain numbers."""
    code, out, _ = saved("-o", "json", "--pods", "--resource", "3g.30gb", "--resource", "cpu")
    found = json.loads(out)
    assert code == 0
    assert (
        yaml.load(saved("-o", "yaml", "--pods", "--resource", "mig-3g.30gb", "--resource", "cpu")[1]) == found
    )
    sim = next(one for one in found["nodes"] if one["name"] == "sim-0")
    assert sim == {
        "name": "sim-0",
        "product": "NVIDIA-H200",
        "state": "ready",
        "layoutState": "success",
        "layoutFrom": "annotation run.ai/mig.config",
        "resources": {
            MIG + "3g.30gb": {"allocatable": "2", "allocated": "1", "available": "1"},
            "cpu": {"allocatable": "64", "allocated": "1", "available": "63"},
        },
    }
    assert found["total"]["cpu"] == {"allocatable": "256", "allocated": "2", "available": "254", "asked": "1"}
    assert found["products"][1]["nodes"] == 2
    assert found["room"]["2g.20gb"] == {"free": 5, "beside": 0, "recut": 7, "lost": 2}
    waits = next(one for one in found["pods"] if one["name"] == "waits")
    assert waits == {"namespace": "default", "name": "waits", "node": "", "state": "waits", "resources": {"cpu": "500m"}}  # fmt: skip
    rows = list(
        csv.DictReader(io.StringIO(saved("-o", "csv", "--resource", "cpu", "--resource", "memory")[1]))
    )
    assert rows[2] == {"node": "sim-0", "product": "NVIDIA-H200", "resource": "cpu", "allocatable": "64", "allocated": "1", "available": "63", "asked": ""}  # fmt: skip
    assert rows[4]["available"] == "63.5"
    assert rows[1]["allocatable"] == str(256 * 2**30)
    assert rows[-1] == {"node": "", "product": "", "resource": "cpu", "allocatable": "", "allocated": "", "available": "", "asked": "1"}  # fmt: skip


def test_all(saved):
    """All resources of all nodes; a pod takes one of its node's places for pods."""
    found = json.loads(saved("--all", "-o", "json")[1])
    assert [one["name"] for one in found["nodes"]] == ["plain", "sim-0", "sim-1", "v100"]
    assert found["nodes"][1]["resources"]["pods"] == {
        "allocatable": "110",
        "allocated": "2",
        "available": "108",
    }
    for one in found["nodes"]:
        for usage in one["resources"].values():
            values = {name: Quantity.parse(text).value for name, text in usage.items()}
            assert values["allocated"] + values["available"] == values["allocatable"]


@pytest.mark.parametrize(
    ("args", "code", "err"),
    [
        (["--fail-below", "2g.20gb=5"], 0, ""),
        (["--fail-below", "2g.20gb=6"], 3, "nvidia.com/mig-2g.20gb: 5 available, less than 6\n"),
        (["--fail-below", "nvidia.com/gpu=1", "--resource", "3g.30gb"], 0, ""),
        (["--fail-below", "1g.10gb=1", "--fail-below", "gpu=5", "--fail-below", "cpu=1"], 3, "nvidia.com/mig-1g.10gb: 0 available, less than 1\nnvidia.com/gpu: 4 available, less than 5\n"),
        (["--fail-below", "memory=1025Gi"], 3, "memory: 1Ti available, less than 1025Gi\n"),
        (["--fail-below", "gpu=1", "-l", "!nvidia.com/zone"], 3, "nvidia.com/gpu: 0 available, less than 1\n"),
    ],
)  # fmt: skip
def test_fail_below(saved, args, code, err):
    """Scripts see from the exit code whether enough is available, whatever else is shown."""
    found, out, told = saved(*args)
    assert (found, told) == (code, err)
    assert out


def test_tables_fit_into_80_columns(saved):
    """Every table but the wide one leaves room in a terminal of 80 columns, and the wide one has the full names."""
    for words in (["--pods"], ["--by", "namespace"], ["--all"]):
        assert max(map(len, saved(*words)[1].splitlines())) <= 80
    assert "nvidia.com/mig-2g.20gb" in saved("-o", "wide")[1]


def test_folders_and_several_files(command):
    """Folders as `kubectl cluster-info dump` writes them, YAML and JSON; an object counts once."""
    dump = command.folder / "dump"
    (dump / "default").mkdir(parents=True)
    nodes = [
        {key: value for key, value in one.items() if key not in ("kind", "apiVersion")} for one in OBJECTS[:4]
    ]
    (dump / "nodes.json").write_text(json.dumps({"kind": "NodeList", "apiVersion": "v1", "items": nodes}))
    (dump / "default" / "pods.yaml").write_text("---\n".join(yaml.dump(one) for one in OBJECTS[4:]))
    (dump / "default" / "logs.txt").write_text("[[[ not an object")
    (command.folder / "again.json").write_text(json.dumps(OBJECTS[4]))
    assert command("capacity", "--from", "dump", "--from", "again.json") == (0, TABLE, "")
    assert command("capacity", "--from", "-", stdin=SAVED) == (0, TABLE, "")


@pytest.mark.parametrize(
    ("args", "stdin", "code", "out", "err"),
    [
        (["-l", "a=b"], SAVED, 0, None, 'standard input: no nodes that match "a=b"\n'),
        ([], json.dumps(OBJECTS[3]), 0, "", "no GPUs on the one node; --all shows every resource\n"),
        ([], '{"kind":"Node","metadata":{"name":"a"},"status":{"allocatable":{"nvidia.com/mig-1g.10gb":"0"}}}', 0, "", "no GPUs on the one node; --all shows every resource\n"),
        (["--resource", "7g.70gb"], SAVED, 0, "", "no nvidia.com/mig-7g.70gb on any of 4 nodes; --all shows every resource\n"),
        ([], json.dumps(OBJECTS[-1]), 2, "", "tessera: standard input: no nodes and no pods\n"),
        ([], "kind: 3", 2, "", "tessera: standard input: no nodes and no pods\n"),
        ([], "[]", 2, "", "tessera: standard input: expected a Kubernetes object, got a list\n"),
        ([], '{"kind":"List","items":[3]}', 2, "", "tessera: standard input: List.items[0]: expected an object, got a number\n"),
        ([], '{"kind":"Node","metadata":{"name":"a"},"status":{"allocatable":{"cpu":"x"}}}', 0, "", "no GPUs on the one node; --all shows every resource\n"),
        (["--all"], '{"kind":"Node","metadata":{"name":"a"},"status":{"allocatable":{"cpu":"x"}}}', 2, "", 'tessera: standard input: node a, status.allocatable[cpu]: "x" is not a Kubernetes quantity such as 2, 500m or 8Gi\n'),
        ([], '{"kind":"Pod","metadata":[]}', 2, "", "tessera: standard input: metadata: expected object, got array\n"),
        (["--from", "nowhere"], SAVED, 2, "", "tessera: nowhere: no such file or directory\n"),
        (["--resource", "nonsense"], SAVED, 2, "", "tessera: --resource nonsense: not a resource such as gpu, 2g.20gb, nvidia.com/gpu or cpu\n"),
        (["--fail-below", "gpu"], SAVED, 2, "", "tessera: --fail-below gpu: expected a resource and a number, such as 2g.20gb=4\n"),
        (["--fail-below", "gpu=-1"], SAVED, 2, "", "tessera: --fail-below gpu=-1: nothing is less than that; expected a number from 0\n"),
        (["--fail-below", "gpu=many"], SAVED, 2, "", 'tessera: --fail-below gpu=many: "many" is not a Kubernetes quantity such as 2, 500m or 8Gi\n'),
        (["-l", "a in b"], SAVED, 2, "", None),
        (["-n", "ml"], SAVED, 2, "", "tessera capacity: -n says whose pods to list: it goes with --pods or --by namespace (see tessera capacity --help)\n"),
        (["--all", "--resource", "cpu"], SAVED, 2, "", "tessera capacity: --all and --resource: say one of them (see tessera capacity --help)\n"),
        (["--watch"], SAVED, 2, "", "tessera capacity: --watch follows a cluster: it goes neither with --from nor with --fail-below (see tessera capacity --help)\n"),
    ],
)  # fmt: skip
def test_nothing_and_bad_input(command, args, stdin, code, out, err):
    """Nothing to see is reported, and bad input is one sentence; never a traceback."""
    found, printed, told = command("capacity", "--from", "-", *args, stdin=stdin)
    assert found == code
    assert out is None or printed == out
    assert err is None or told == err
    assert "Traceback" not in told


def test_cluster_that_cannot_be_asked(served, command):
    """Who cannot reach the cluster, or may not ask it, is told so; exit code 1."""
    served.server.tokens = {"secret"}
    code, out, err = command("capacity", "--kubeconfig", served.kubeconfig)
    assert (code, out, err) == (1, "", "tessera: the API server answered 401 Unauthorized: Unauthorized\n")
    served._await(served.server.stop())
    code, out, err = command("capacity", "--kubeconfig", served.kubeconfig, "--watch")
    where = served.server.url.removeprefix("http://")
    assert (code, out) == (1, "")
    assert err == (
        f'tessera: cannot reach the cluster (context "test" of {served.kubeconfig}): {where} refused the connection\n'
    )
    served._await(served.server.start())


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress(served, command, monkeypatch):
    """On a terminal a large cluster shows how far it is, on standard error."""
    monkeypatch.setattr("tessera.cli.common.reading._WORTH_SHOWING", 3)
    monkeypatch.setattr("tessera.cli.common.reading._STEP", 1)
    served.add(*OBJECTS[:-1])
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    code, out, _ = command("capacity", "--kubeconfig", served.kubeconfig)
    assert (code, out) == (0, TABLE)
    assert "Reading nodes" in terminal.getvalue()
    assert "Reading pods" in terminal.getvalue()
    assert "6/7" in terminal.getvalue()  # one of the seven has ended, and is not read


@pytest.mark.parametrize(("line", "printed"), sessions(ROOT / "docs" / "capacity.md"))
def test_the_page_tells_the_truth(command, line, printed, monkeypatch):
    """Every command on the page prints what the page says."""
    monkeypatch.chdir(ROOT)
    _, out, err = command(*shlex.split(line)[1:])
    assert out + err == printed


# watching


def report(*documents, pods=False):
    inventory = Inventory(is_any_gpu, holds=lambda _: pods)
    inventory.take(objects_in_documents(documents, "a test"))
    return report_of(inventory, is_any_gpu, with_pods=pods, with_rooms=False)


def test_changed_lines():
    """Tables once, then each row that is new, different or gone."""
    lines = ChangedLines(wide=False)
    before = [one for one in OBJECTS if one["metadata"]["name"] != "plain"]
    assert "\n".join(lines.changes(report(*before))) == TABLE.replace("\n\n", "\n").rstrip("\n")
    assert lines.changes(report(*before)) == []
    bound = [
        one if one["metadata"]["name"] != "waits" else pod("waits", "sim-1", MIG + "2g.20gb", 3)
        for one in before
    ]
    assert lines.changes(report(*bound)) == [
        "sim-1  2g.20gb   4            4          0",
        "NVIDIA-H200  2g.20gb   8            6          2",
        "all          2g.20gb   8            6          2          0",
    ]
    fewer = [one for one in bound if one["metadata"]["name"] != "v100"]
    gone = "v100   gpu       gone         gone       gone"
    assert gone in lines.changes(report(*fewer))


def test_changed_documents():
    """A document for every change, and none for the same again."""
    documents = Documents(lambda report: Output("json").text(document(report)))
    assert len(documents.changes(report(*OBJECTS))) == 1
    assert documents.changes(report(*OBJECTS)) == []
    assert len(documents.changes(report(*OBJECTS[:4]))) == 1


def test_picture(capsys, monkeypatch):
    """A terminal is drawn again: the sum first, no more lines than it has, and what is wrong below."""
    monkeypatch.setenv("LINES", "6")
    monkeypatch.setenv("COLUMNS", "200")
    Picture(wide=False).show(report(*OBJECTS[:4]), "nodes: nothing heard for 99 s: refused")
    assert capsys.readouterr().out.split("\n") == [
        "\x1b[H\x1b[JTOTAL        RESOURCE  ALLOCATABLE  ALLOCATED  AVAILABLE  ASKED FOR",
        "NVIDIA-H200  2g.20gb   8            0          8",
        "… 12 more lines",
        "",
        "nodes: nothing heard for 99 s: refused",
        "",
    ]
    Picture(wide=False).show(report(), "")
    assert "nothing to see yet" in capsys.readouterr().out


def test_watch_command(served, command, monkeypatch):
    """The command itself goes on until it is interrupted, and exits as shells expect."""
    served.add(*OBJECTS[:-1])
    shown = []

    def changes(self, report):
        shown.append(report)
        if len(shown) == 2:
            raise KeyboardInterrupt
        served.change_pod("a", lambda one: one["status"].update(phase="Failed"))
        return []

    monkeypatch.setattr(ChangedLines, "changes", changes)
    assert command("capacity", "--kubeconfig", served.kubeconfig, "--watch") == (130, "", "\ninterrupted\n")
    totals = [str(one.total[MIG + "2g.20gb"].allocated) for one in shown]
    assert totals == ["3", "1"]


def test_named_nodes(saved, served, command):
    """Only the nodes that are named count; one that is not there is said."""
    code, out, err = saved("v100")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "NODE  RESOURCE  ALLOCATABLE  ALLOCATED  AVAILABLE",
        "v100  gpu       8            4          4",
        "",
        "TOTAL  RESOURCE  ALLOCATABLE  ALLOCATED  AVAILABLE  ASKED FOR",
        "all    gpu       8            4          4          0",
        "all    1g.10gb   0            0          0          1",
        "all    2g.20gb   0            0          0          3",
    ]
    assert saved("v100", "sim-1", "-o", "name")[1] == "node/sim-1\nnode/v100\n"
    assert saved("nope", "v100", "gone") == (2, "", "tessera: saved.json: no node nope, gone\n")
    served.add(*OBJECTS[:-1])
    code, _, err = command("capacity", "--kubeconfig", served.kubeconfig, "nope")
    assert (code, err) == (2, "tessera: the cluster has no node nope\n")


def test_no_headers(saved):
    """Rows and nothing else, for `while read`; in CSV too."""
    assert saved("v100", "--no-headers", "--resource", "gpu")[1].splitlines() == [
        "v100  gpu       8            4          4",
    ]
    assert (
        saved("v100", "--no-headers", "--resource", "gpu", "-o", "csv")[1]
        == "v100,Tesla-V100,nvidia.com/gpu,8,4,4,\n"
    )
    lines = ChangedLines(wide=False, headers=False)
    assert not any(line.startswith("NODE") for line in lines.changes(report(*OBJECTS)))


@pytest.mark.parametrize(
    ("field", "nodes"),
    [
        ("name", "sim-0 sim-1 v100"),
        ("product", "sim-0 sim-1 v100"),
        ("state", "sim-1 sim-0 v100"),  # cordoned, ready
        ("available", "sim-1 v100 sim-0"),  # 5, 4, 3
        ("allocated", "v100 sim-0 sim-1"),  # 4, 3, 1
    ],
)
def test_sorted_nodes(saved, field, nodes):
    """Names from A to Z, amounts from the largest; in every form."""
    template = "jsonpath={.nodes[*].name}"
    assert saved("--sort-by", field, "-o", template) == (0, nodes, "")
    assert saved("--sort-by", field, "-o", "name")[1].replace("node/", "").split() == nodes.split()


def test_sorted_pods(saved):
    """Pods are sorted by what pods have; numbers in names count as numbers."""
    _, out, _ = saved("--pods", "-A", "--sort-by", "amount", "-o", "jsonpath={.pods[*].resources.*}")
    amounts = [int(number) for number in out.split()]
    assert amounts == sorted(amounts, reverse=True)
    many = [pod(f"p-{number}", "sim-0", MIG + "2g.20gb", 1) for number in (10, 9, 1)]
    found = in_order_of("name", report(*OBJECTS[:4], *many, pods=True))
    assert [use.name for use in found.pods or ()] == ["p-1", "p-9", "p-10"]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--pods", "-A", "-n", "ml"], "-n and -A: say one of them"),
        (["--all", "--sort-by", "available"], "--sort-by available does not go with --all: bytes and devices do not compare"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(saved, args, complaint):
    """Said in one sentence."""
    assert saved(*args) == (2, "", f"tessera capacity: {complaint} (see tessera capacity --help)\n")


def test_acting_as_another_user(served, command):
    """`--as` and `--as-group` are sent with every request, as kubectl sends them; groups need a user."""
    served.add(*OBJECTS[:-1])
    words = ["capacity", "--kubeconfig", served.kubeconfig, "--as-group", "ml"]
    assert command(*words, "--as", "jane") == (0, TABLE, "")
    for request in served.server.requests:
        sent = {name: value for name, value in request.headers.items() if name.startswith("impersonate")}
        assert sent == {"impersonate-user": "jane", "impersonate-group": "ml"}
    several = ClusterChoice(served.kubeconfig, user="jane", groups=("a", "b")).find()
    assert several.headers == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
    )
    assert command(*words) == (
        2,
        "",
        "tessera: --as-group is a group of the user that --as names: give --as USER as well\n",
    )
    assert command(*words, "--as", "a\nb")[::2] == (2, "tessera: --as: printable ASCII characters only\n")


def test_a_reader_of_changes_that_leaves(served):
    """`capacity --watch | head` ends with 0 and without a word when the next change finds no reader."""
    served.add(*OBJECTS[:-1])
    words = [sys.executable, "-m", "tessera", "capacity", "--watch", "--kubeconfig", served.kubeconfig]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("NODE")
        process.stdout.close()
        served.change_pod("a", lambda one: one["status"].update(phase="Failed"))
        assert (process.wait(30), process.stderr.read()) == (0, "")


def test_by_namespace(command):
    """What the pods of each namespace ask for, hold and wait for; pods of one namespace alone with -n."""
    given = json.dumps({"kind": "List", "apiVersion": "v1", "items": OBJECTS[:-1]})
    code, out, err = command("capacity", "--from", "-", "--by", "namespace", stdin=given)
    assert (code, err) == (0, "")
    assert out.split("\n\n")[0].splitlines() == [
        "NAMESPACE  RESOURCE  ASKED FOR  HOLDS  WAITS FOR",
        "default    2g.20gb   6          3      3",
        "default    3g.30gb   1          1      0",
        "ml         gpu       4          4      0",
        "ml         1g.10gb   1          0      1",
    ]
    _, out, _ = command("capacity", "--from", "-", "--by=namespace", "-n", "ml", "-o", "csv", stdin=given)
    assert out.splitlines() == [
        "namespace,resource,asked,holds,waits",
        "ml,nvidia.com/gpu,4,4,0",
        "ml,nvidia.com/mig-1g.10gb,1,0,1",
    ]
    _, out, _ = command("capacity", "--from", "-", "--by=namespace", "-o", "json", stdin=given)
    assert json.loads(out)["namespaces"]["ml"]["nvidia.com/gpu"] == {"asked": "4", "holds": "4", "waits": "0"}
    assert command("capacity", "--by", "namespace", "--pods")[0] == 2


def _with_dra():
    """One node of a device plugin, one of DRA with three devices, of which claims hold two."""
    guard = "device.driver == 'gpu.example.com' && device.attributes['gpu.example.com'].profile"
    two, one = MIG + "2g.20gb", MIG + "1g.10gb"
    holder = {
        "kind": "Pod",
        "metadata": {"namespace": "ml", "name": "holder"},
        "spec": {"nodeName": "dra", "containers": [{"name": "c", "resources": {"limits": {two: 1}}}]},
    }
    results = [
        {"driver": "gpu.example.com", "pool": "dra", "device": name, "adminAccess": admin}
        for name, admin in (("a", None), ("c", None), ("b", True))
    ]
    return [
        {"kind": "Node", "metadata": {"name": "plugin"}, "status": {"allocatable": {two: 4}}},
        {"kind": "Node", "metadata": {"name": "dra"}, "status": {"allocatable": {"cpu": 8}}},
        holder,
        class_("two", f"{guard} == '2g.20gb'", resource=two),
        class_("one", f"{guard} == '1g.10gb'", resource=one),
        slice_(
            "s",
            device("a", profile="2g.20gb"),
            device("b", profile="2g.20gb"),
            device("c", profile="1g.10gb"),
            node="dra",
        ),
        claim_document("holder-extended-resources-x", *results, namespace="ml"),
    ]


DRA = """\
NODE    RESOURCE  FROM    ALLOCATABLE  ALLOCATED  AVAILABLE
dra     1g.10gb   DRA     1            1          0
dra     2g.20gb   DRA     2            1          1
plugin  2g.20gb   plugin  4            0          4

TOTAL  RESOURCE  FROM        ALLOCATABLE  ALLOCATED  AVAILABLE  ASKED FOR
all    1g.10gb   DRA         1            1          0          0
all    2g.20gb   plugin,DRA  6            1          5          0
"""


def test_dra(command):
    """Devices of DRA are there beside those of device plugins, and what claims hold of them, whichever way it was asked for."""
    (command.folder / "saved.json").write_text(json.dumps({"kind": "List", "items": _with_dra()}))
    assert command("capacity", "--from", "saved.json") == (0, DRA, "")
    _, out, _ = command("capacity", "--from", "saved.json", "-o", "json")
    resources = {one["name"]: one["resources"] for one in json.loads(out)["nodes"]}
    assert resources["dra"][MIG + "2g.20gb"] == {
        "allocatable": "2",
        "allocated": "1",
        "available": "1",
        "from": "dra",
    }
    assert "from" not in resources["plugin"][MIG + "2g.20gb"]
    _, out, _ = command("capacity", "--from", "saved.json", "-o", "csv")
    assert out.splitlines()[1] == f"dra,,{MIG}1g.10gb,1,1,0,,dra"
    _, out, _ = command(
        "capacity", "--from", "saved.json", "--resource", "deviceclass.resource.kubernetes.io/two"
    )
    assert "deviceclass.resource.kubernetes.io/two  DRA   2            1          1" in out


@pytest.mark.parametrize("known", [True, False], ids=["allocated", "a device of no slice"])
def test_what_a_claim_holds(command, known):
    """A pod counts with the device that its claim has, whatever its annotation calls it; by that only where it is not known."""
    text = "1*1g.10gb=1g.10gb/two"  # says 1g, and its class has only 2g
    pod = bridged({"metadata": {"namespace": "ml", "name": "sly"}, "spec": {"nodeName": "dra"}}, text)
    pod["spec"]["containers"] = [{"name": "c", "resources": {"requests": {"cpu": 1}}}]
    result = {"driver": "gpu.example.com", "pool": "dra", "device": "b" if known else "gone", "request": "x"}
    claim = claim_document("sly-tessera-gpu-x", result, namespace="ml", pods=["sly"])
    items = [*_with_dra(), {"kind": "Pod", **pod}, claim]
    (command.folder / "saved.json").write_text(json.dumps({"kind": "List", "items": items}))
    holds = {MIG + "2g.20gb": 1 + known} | ({} if known else {MIG + "1g.10gb": 1})
    _, out, _ = command("capacity", "--from", "saved.json", "--by", "namespace", "-o", "json")
    found = json.loads(out)["namespaces"]["ml"]
    assert {name: int(one["holds"]) for name, one in found.items()} == holds
    _, out, _ = command("capacity", "--from", "saved.json", "--pods", "-o", "csv", "--no-headers")
    assert f"ml,sly,dra,{MIG}{'2g.20gb' if known else '1g.10gb'},1,holds" in out.splitlines()


def test_dra_of_a_cluster(served, command):
    """A cluster is asked for the same; who may not read claims is told that devices of DRA are missing."""
    served.server.kinds[RESOURCE_CLAIMS.prefix, RESOURCE_CLAIMS.plural] = RESOURCE_CLAIMS
    kinds = {kind.kind: kind for kind in (*KINDS, RESOURCE_CLAIMS)}
    for one in _with_dra():
        space = one["metadata"].get("namespace", "")
        served.call(partial(served.server.store.create, kinds[one["kind"]], one, space))
    assert command("capacity", "--kubeconfig", served.kubeconfig) == (0, DRA, "")
    forbidden = StatusError(403, "Forbidden", "deviceclasses is forbidden")
    served.server.intercept = lambda request: status(forbidden) if "deviceclasses" in request.path else None
    code, out, err = command("capacity", "--kubeconfig", served.kubeconfig)
    assert (code, "FROM" in out) == (0, False)
    assert err.startswith("Warning: devices of DRA are not counted: ")


def test_dra_followed():
    """What changes is seen: a class that comes, a claim that holds a device, a slice that goes."""
    documents = {one["kind"] + one["metadata"]["name"]: one for one in _with_dra()}
    inventory = Inventory(is_any_gpu)
    nowhere = Client(Cluster(ServerAddress.parse("http://127.0.0.1:1", where="test")))
    followed = FollowedInventory(nowhere, inventory)  # nobody runs its follower
    entries = {resource.name: entry for resource, entry in followed.table.items()}

    def put(resource, name):
        entry = entries[resource]
        entry.put(entry.decode(json.dumps(documents[name]).encode()))

    def row(resource):
        followed.now()
        usage = inventory.capacity.usage("dra").get(MIG + resource)
        return usage and (int(usage.allocatable.value), int(usage.allocated.value))

    put("nodes", "Nodedra")
    entries["deviceclasses"].take_all(
        [entries["deviceclasses"].decode(json.dumps(documents["DeviceClasstwo"]).encode())]
    )
    entries["resourceslices"].take_all(
        [entries["resourceslices"].decode(json.dumps(documents["ResourceSlices"]).encode())]
    )
    assert row("2g.20gb") == (2, 0)
    put("resourceclaims", "ResourceClaimholder-extended-resources-x")
    assert row("2g.20gb") == (2, 1)
    put("deviceclasses", "DeviceClassone")
    assert row("1g.10gb") == (1, 1)
    entries["resourceclaims"].remove(Key("ml", "holder-extended-resources-x"))
    assert row("2g.20gb") == (2, 0)
    entries["resourceslices"].remove(Key("", "s"))
    assert row("2g.20gb") is None
