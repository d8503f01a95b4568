"""`tessera mig apply` from the outside, against a stand-in cluster whose nodes answer."""

import io
import os
import signal
import sys
from typing import Any

import pytest

from tessera.cli.app import run
from tessera.core.kubernetes.quantity import Quantity
from tessera.protocol.mig import documents as mig
from tessera.rollout.carrying import Carrier
from tessera.rollout.step import Attempt
from tessera.serving.http_messages import Response
from tessera.simulation.control_plane.store import StatusError
from tests.build import MIG
from tests.inventory.objects import LAYOUT, node, pod
from tests.kube.apiserver import status as refusal
from tests.rollout.plugin import FakePlugin

SMALL = LAYOUT.replace("[2g.20gb, 2g.20gb, 3g.30gb]", "[1g.10gb, 1g.10gb]")
PARTED = """\
version: v1
mig-configs:
  all-1g:
  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}
  too-much:
  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 8}}
"""
BIG = {MIG + "2g.20gb": "4", MIG + "3g.30gb": "2"}


def gpu_node(name, layout=LAYOUT, allocatable=None, **labels):
    return node(name, allocatable or BIG, "NVIDIA-H200", layout=layout, **labels)


def offered(document):
    amounts = document["status"]["allocatable"]
    return {
        r: int(Quantity.parse(n).value)
        for r, n in amounts.items()
        if r.startswith("nvidia.com/") and n != "0"
    }


@pytest.fixture
def apply(served, command, monkeypatch):
    """Runs `tessera mig apply` on three nodes that answer."""
    served.add(*(gpu_node(f"gpu-{number}", pool="a" if number else "b") for number in range(3)))
    monkeypatch.setattr(Attempt, "settles", 0.05)
    monkeypatch.setattr(Carrier, "settles", 0.05)

    def call(*args, stdin=""):
        return command("mig", "apply", "--kubeconfig", served.kubeconfig, *args, stdin=stdin)

    runner: Any = call
    runner.cluster, runner.plugin, runner.folder = served, FakePlugin(served), command.folder
    return runner


def written(cluster, name):
    return cluster.node(name)["metadata"].get("annotations", {}).get("run.ai/mig.config")


def test_a_reader_that_leaves(apply, monkeypatch):
    """`mig apply --yes 2>&1 | head` changes the nodes all the same: what it does does not depend on who reads."""
    reading, writing = os.pipe()
    os.close(reading)
    words = ["mig", "apply", "--kubeconfig", str(apply.cluster.kubeconfig), "1g.10gb=2", "gpu-0", "--yes"]
    with os.fdopen(writing, "w", encoding="utf-8") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        monkeypatch.setattr(sys, "stderr", nobody)
        assert run(words) == 0
    assert mig.read(written(apply.cluster, "gpu-0") or "") == mig.read(SMALL)


def test_apply(apply):
    """The change is shown, written, and seen on the node: in its state and in what it offers."""
    code, out, err = apply("1g.10gb=2", "gpu-0", "--yes")
    assert code == 0
    assert out.splitlines() == [
        "node gpu-0",
        "  run.ai/mig.config",
        "    mig-configs:",
        "      selected:",
        "  -   - devices: [0, 1]",
        "  +   - devices:",
        "  +     - 0",
        "  +     - 1",
        "        mig-enabled: true",
        "  -     mig-devices: [2g.20gb, 2g.20gb, 3g.30gb]",
        "  +     mig-devices:",
        "  +     - 1g.10gb",
        "  +     - 1g.10gb",
        "  nvidia.com/mig-1g.10gb: 0 → 4",
        "  nvidia.com/mig-2g.20gb: 4 → 0",
        "  nvidia.com/mig-3g.30gb: 2 → 0",
        "1 done",
    ]
    assert err.splitlines()[0] == "gpu-0: run.ai/mig.config written"
    assert err.splitlines()[-1] == "gpu-0: done"
    after = apply.cluster.node("gpu-0")
    assert offered(after) == {MIG + "1g.10gb": 4}
    assert mig.read(written(apply.cluster, "gpu-0")) == mig.read(SMALL)
    assert after["metadata"]["labels"]["nvidia.com/mig.config.state"] == "success"
    assert offered(apply.cluster.node("gpu-1")) == {MIG + "2g.20gb": 4, MIG + "3g.30gb": 2}


def test_selected_nodes_one_by_one(apply):
    """Nodes chosen by label change alike and are reported together; the next begins when the last is done."""
    order = []
    apply.plugin.on_layout = lambda name, text: order.append((name, "asked"))
    (apply.folder / "layout.yaml").write_text(SMALL + "# for the night\n")
    code, out, err = apply("layout.yaml", "-l", "nvidia.com/pool=a", "--yes")
    assert written(apply.cluster, "gpu-1") == SMALL + "# for the night\n", "as it was written"
    assert (code, out.splitlines()[0], out.splitlines()[-1]) == (0, "nodes gpu-1, gpu-2", "2 done")
    told = [line for line in err.splitlines() if line.endswith(("written", "done"))]
    assert told == [
        "gpu-1: run.ai/mig.config written",
        "gpu-1: done",
        "gpu-2: run.ai/mig.config written",
        "gpu-2: done",
    ]
    assert order == [("gpu-1", "asked"), ("gpu-2", "asked")]


def test_max_unavailable(apply):
    """A part of the nodes is changed at a time: of three, two are written before one of them is done."""
    apply.plugin.absent = {"gpu-0", "gpu-1", "gpu-2"}

    def asked(name, text):
        if len(apply.plugin.seen) > 1:
            apply.plugin.absent = set()
            for one, _ in apply.plugin.seen[:2]:
                apply.cluster.loop.call_soon(apply.plugin.answer, one)

    apply.plugin.on_layout = asked
    code, out, _ = apply("1g.10gb=2", "gpu-0", "gpu-1", "gpu-2", "--yes", "--max-unavailable", "67%")
    assert (code, out.splitlines()[-1]) == (0, "3 done")


def test_no_wait(apply):
    """Without waiting, writing is all."""
    apply.plugin.absent = {"gpu-0", "gpu-1"}
    code, out, _ = apply("1g.10gb=2", "gpu-0", "gpu-1", "--yes", "--no-wait")
    assert (code, out.splitlines()[-1]) == (0, "2 written")


def test_a_node_that_has_the_layout_is_left_alone(apply):
    """A node that asks for the same layout, however it is written, is left alone."""
    before = apply.cluster.node("gpu-0")
    code, out, err = apply("2g.20gb=2,3g.30gb=1", "gpu-0", "--yes")
    assert (code, out, err) == (0, "node gpu-0: no change, the layout is the same\n1 done\n", "")
    assert apply.cluster.node("gpu-0") == before


def test_refused_by_the_node(apply):
    """A node that refuses gets its old layout back, the reason is reported, and no further node is begun."""
    apply.plugin.refuses = lambda name, text: (
        "card 1 is broken" if name == "gpu-1" and "1g.10gb" in text else ""
    )
    code, out, err = apply("1g.10gb=2", "gpu-0", "gpu-1", "gpu-2", "--yes")
    assert code == 1
    assert out.splitlines()[-2:] == [
        "gpu-1: put back: card 1 is broken; the old layout is back",
        "1 done, 1 put back, 1 not begun",
    ]
    assert "gpu-1: card 1 is broken; the old layout is written again" in err.splitlines()
    assert err.splitlines()[-1] == "gpu-1: Failed: card 1 is broken; the old layout is back"
    assert offered(apply.cluster.node("gpu-0")) == {MIG + "1g.10gb": 4}
    assert written(apply.cluster, "gpu-1") == LAYOUT
    assert offered(apply.cluster.node("gpu-1")) == {MIG + "2g.20gb": 4, MIG + "3g.30gb": 2}
    assert written(apply.cluster, "gpu-2") == LAYOUT
    assert [name for name, _ in apply.plugin.seen] == ["gpu-0", "gpu-1", "gpu-1"]
    apply.plugin.refuses = lambda name, text: ""
    assert apply("1g.10gb=2", "gpu-0", "gpu-1", "gpu-2", "--yes")[1].splitlines()[-1] == "3 done"


def test_pods_in_danger(apply):
    """Pods that hold devices which would go are named; those whose devices stay are not."""
    apply.cluster.add(
        pod("train", "gpu-0", MIG + "2g.20gb", 2),
        pod("serve", "gpu-0", MIG + "3g.30gb"),
        pod("done", "gpu-0", MIG + "2g.20gb", 1, "Succeeded"),
        pod("elsewhere", "gpu-1", MIG + "2g.20gb"),
    )
    code, out, _ = apply("1g.10gb=2", "gpu-0", "--dry-run", "client")
    warnings = [line.strip() for line in out.splitlines() if "warning" in line]
    assert (code, warnings) == (
        0,
        [
            "warning: gpu-0: pod default/serve holds 1 × 3g.30gb; 2 of 2 are removed",
            "warning: gpu-0: pod default/train holds 2 × 2g.20gb; 4 of 4 are removed",
        ],
    )
    one_card = SMALL.replace("[0, 1]", "[1]") + LAYOUT.split("selected:\n")[1].replace("[0, 1]", "[0]")
    code, out, _ = apply("-", "gpu-0", "--dry-run", "client", stdin=one_card)
    assert [line.strip() for line in out.splitlines() if "warning" in line] == [
        "warning: gpu-0: pod default/serve holds 1 × 3g.30gb; 1 of 2 are removed",
        "warning: gpu-0: pod default/train holds 2 × 2g.20gb; 2 of 4 are removed",
    ]
    more = LAYOUT.replace("[0, 1]", "[0]")
    code, out, _ = apply("-", "gpu-1", "--dry-run", "client", stdin=more)
    assert "pod default/elsewhere holds 1 × 2g.20gb; 2 of 4 are removed" in out


def test_in_use_is_refused_where_that_is_asked_for(apply):
    """A node whose device plugin would wait for pods is left alone with --when-in-use=refuse; others are changed."""
    apply.cluster.add(pod("train", "gpu-0", MIG + "2g.20gb"))
    code, out, _ = apply("1g.10gb=2", "gpu-0", "gpu-1", "--yes", "--when-in-use=refuse")
    assert (code, out.splitlines()[-2:]) == (
        1,
        ["gpu-0: refused: pods hold devices that would go: default/train (1 × 2g.20gb)", "1 refused, 1 done"],
    )
    assert written(apply.cluster, "gpu-0") == LAYOUT


@pytest.mark.parametrize("kind", ["client", "server"])
def test_dry_run(apply, kind):
    """A dry run shows everything and changes nothing; the API server is asked, or not."""
    before = [apply.cluster.node(f"gpu-{number}") for number in range(3)]
    code, out, err = apply("1g.10gb=2", "gpu-0", "gpu-1", "--dry-run", kind)
    assert (code, err) == (0, "")
    assert "nvidia.com/mig-1g.10gb: 0 → 4" in out
    assert before == [apply.cluster.node(f"gpu-{number}") for number in range(3)]
    patches = [request for request in apply.cluster.server.requests if request.method == "PATCH"]
    assert [request.query.get("dryRun") for request in patches] == (
        [] if kind == "client" else ["All", "All"]
    )
    assert out.endswith("gpu-1: the API server would accept it\n") is (kind == "server")


@pytest.mark.parametrize(
    "words",
    [
        ["--dry-run", "gpu-0"],
        ["gpu-0", "--dry-run"],
        ["--dry-run", "--", "gpu-0"],
        ["--dry-run=client", "gpu-0"],
    ],
)
def test_dry_run_without_a_value(apply, words):
    """`--dry-run` alone means `client`, and the word behind it is a node."""
    code, out, err = apply("1g.10gb=2", *words)
    assert (code, out.splitlines()[0], err) == (0, "node gpu-0", "")
    assert written(apply.cluster, "gpu-0") == LAYOUT


def test_dry_run_refused(apply):
    """What the API server would refuse is reported, with exit code 1."""
    forbid_patches(apply.cluster)
    code, _, err = apply("1g.10gb=2", "gpu-0", "--dry-run", "server")
    assert (code, err) == (1, "gpu-0: the API server answered 403 Forbidden: nodes is forbidden\n")


def forbid_patches(cluster):
    def intercept(request) -> Response | None:
        return (
            refusal(StatusError(403, "Forbidden", "nodes is forbidden"))
            if request.method == "PATCH"
            else None
        )

    cluster.server.intercept = intercept


def test_forbidden(apply):
    """Who may not write is told so, and that nothing has changed."""
    forbid_patches(apply.cluster)
    code, out, _ = apply("1g.10gb=2", "gpu-0", "gpu-1", "--yes")
    assert code == 1
    assert out.splitlines()[-2:] == [
        "gpu-0: failed: the API server answered 403 Forbidden: nodes is forbidden; the node is as it was",
        "1 failed, 1 not begun",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(apply, number):
    """Ctrl-C, or a polite kill: nodes under way get their old layout back, others are not begun, and all is reported."""
    apply.plugin.absent = {"gpu-1"}

    def interrupt(name, text):
        if name == "gpu-1" and "1g" in text:
            os.kill(os.getpid(), number)

    apply.plugin.on_layout = interrupt
    code, out, err = apply("1g.10gb=2", "gpu-0", "gpu-1", "gpu-2", "--yes")
    assert code == 130
    assert out.splitlines()[-2:] == [
        "gpu-1: put back: interrupted; the old layout is back",
        "1 done, 1 put back, 1 not begun",
    ]
    assert err.endswith("interrupted\n")
    assert written(apply.cluster, "gpu-1") == LAYOUT
    assert written(apply.cluster, "gpu-2") == LAYOUT
    assert offered(apply.cluster.node("gpu-0")) == {MIG + "1g.10gb": 4}


def test_interrupted_while_putting_back(apply):
    """^C while an old layout is being put back does not keep it from being written, nor from being reported."""

    def interrupt(name, text):
        if text == LAYOUT:
            apply.plugin.absent = {"gpu-0"}
            os.kill(os.getpid(), signal.SIGINT)

    apply.plugin.refuses = lambda name, text: "no"
    apply.plugin.on_layout = interrupt
    code, out, _ = apply("1g.10gb=2", "gpu-0", "gpu-1", "--yes")
    assert code == 130
    assert out.splitlines()[-2:] == [
        "gpu-0: put back: no; the old layout is back",
        "1 put back, 1 not begun",
    ]
    assert written(apply.cluster, "gpu-0") == LAYOUT


def test_asks(apply, monkeypatch):
    """Without --yes the user is asked; without a terminal, nothing happens."""
    code, out, err = apply("1g.10gb=2", "gpu-0")
    assert (code, out) == (2, "")
    assert err.startswith("tessera mig apply: no terminal to ask for confirmation: use --yes")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    from tessera.cli.app import run

    arguments = ["mig", "apply", "--kubeconfig", apply.cluster.kubeconfig, "1g.10gb=2", "gpu-0"]
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert run(arguments) == 1
    assert written(apply.cluster, "gpu-0") == LAYOUT
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert run(arguments) == 0
    assert mig.read(written(apply.cluster, "gpu-0")) == mig.read(SMALL)


def test_label(apply):
    """For NVIDIA's MIG manager the name goes into the label; its file says what to expect."""
    (apply.folder / "parted.yaml").write_text(PARTED)

    def manage(document):
        document["status"]["allocatable"] = {MIG + "1g.10gb": "14"}
        document["metadata"]["labels"]["nvidia.com/mig.config.state"] = "success"

    def intercept(request):
        if request.method == "PATCH":
            apply.cluster.loop.call_soon(lambda: apply.cluster.changing_node("gpu-0", manage))

    apply.cluster.server.intercept = intercept
    arguments = ["all-1g", "gpu-0", "--label", "--mig-parted", "parted.yaml", "--yes"]
    code, out, _ = apply(*arguments)
    assert code == 0
    assert out.splitlines() == [
        "node gpu-0",
        "  + nvidia.com/mig.config=all-1g",
        "  nvidia.com/mig-1g.10gb: 0 → 14",
        "  nvidia.com/mig-2g.20gb: 4 → 0",
        "  nvidia.com/mig-3g.30gb: 2 → 0",
        "  removed: 4 × 2g.20gb, 2 × 3g.30gb",
        "1 done",
    ]
    assert apply.cluster.node("gpu-0")["metadata"]["labels"]["nvidia.com/mig.config"] == "all-1g"
    assert apply(*arguments)[1] == "node gpu-0: no change, the layout is the same\n1 done\n"


def test_label_unchecked(apply):
    """Without the file nothing can be checked, which is reported; every pod with a GPU may lose it."""
    apply.cluster.add(pod("train", "gpu-1", MIG + "2g.20gb", 2))
    code, out, err = apply("all-balanced", "gpu-1", "--label", "--dry-run", "client")
    assert (code, err) == (
        0,
        "not checked: the layouts of all-balanced are not known here; give its file with --mig-parted FILE\n",
    )
    assert out.splitlines() == [
        "node gpu-1",
        "  + nvidia.com/mig.config=all-balanced",
        "  removed: not known, any device may be",
        "  warning: gpu-1: pod default/train holds 2 × 2g.20gb",
        "  gpu-1 is refused while these pods run",
    ]
    code, out, _ = apply("all-balanced", "gpu-1", "--label", "--yes")
    assert (code, out.splitlines()[-2]) == (
        1,
        "gpu-1: refused: pods hold devices that would go: default/train (2 × 2g.20gb)",
    )


@pytest.mark.parametrize(
    ("args", "err"),
    [
        (["1g.10gb=8", "gpu-0", "gpu-1"], "tessera: node gpu-0: cards 0-1: 1g.10gb ×8 is more than the 7 a Simulated H200-70GB holds\nnode gpu-1: cards 0-1: 1g.10gb ×8 is more than the 7 a Simulated H200-70GB holds\n"),
        (["1g.18gb=1", "gpu-0"], None),
        (["1g.10gb=1", "gpu-0", "nobody", "noone"], "tessera: the cluster has no node nobody, noone\n"),
        (["1g.10gb=1", "-l", "a=b"], 'tessera: the cluster has no nodes that match "a=b"\n'),
        (["1g.10gb=1", "-l", "a=b", "gpu-0"], "tessera mig apply: give nodes by name or by -l SELECTOR, not by both (see tessera mig apply --help)\n"),
        (["1g.10gb=1"], "tessera mig apply: no nodes chosen: give names, or -l SELECTOR (see tessera mig apply --help)\n"),
        (["nowhere.yaml", "gpu-0"], "tessera: nowhere.yaml: no such file or directory\n"),
        (["1g.10gb=1", "plain"], "tessera: node plain: no label nvidia.com/gpu.product; set it with --product\n"),
        (["1g.10gb=1", "plain", "--product", "H200-70GB"], "tessera: node plain: its labels do not say how many cards it has; set it with --cards\n"),
        (["1g.10gb=1", "gpu-0", "--max-unavailable", "0"], 'tessera: --max-unavailable: "0" is not a number of nodes such as 2, nor a part of them such as 25%\n'),
        (["1g.10gb=1", "gpu-0", "--max-unavailable", "101%"], 'tessera: --max-unavailable: "101%" is not a number of nodes such as 2, nor a part of them such as 25%\n'),
        (["1g.10gb=1", "gpu-0", "--max-unavailable", "many%"], 'tessera: --max-unavailable: "many%" is not a number of nodes such as 2, nor a part of them such as 25%\n'),
        (["1g.10gb=1", "gpu-0", "--mig-config", "other"], 'tessera: no configuration "other"; there are selected\n'),
        (["a b", "gpu-0", "--label"], 'tessera: "a b" cannot be the value of a label; --label takes the name of a configuration\n'),
        (["too-much", "gpu-0", "--label", "--mig-parted", "parted.yaml"], None),
        (["other", "gpu-0", "--label", "--mig-parted", "parted.yaml"], 'tessera: no configuration "other"; there are all-1g, too-much\n'),
        (["all-1g", "gpu-0", "--mig-parted", "parted.yaml"], "tessera mig apply: use --mig-parted only with --label, and --mig-config only without it (see tessera mig apply --help)\n"),
    ],
)  # fmt: skip
def test_refused(apply, args, err):
    """A layout that does not fit, a node that is not there, an option that makes no sense: nothing is written."""
    (apply.folder / "parted.yaml").write_text(PARTED)
    apply.cluster.add(node("plain", {}))
    code, out, told = apply(*args, "--yes")
    assert (code, out) == (2, "")
    assert err is None or told == err
    assert "Traceback" not in told
    assert not [request for request in apply.cluster.server.requests if request.method == "PATCH"]


def test_cordon(apply):
    """The node is cordoned while it changes; who is waited for, or evicted, is shown before."""
    code, out, err = apply("1g.10gb=2", "gpu-0", "--yes", "--cordon")
    assert (code, out.splitlines()[-1]) == (0, "1 done")
    assert err.splitlines()[:3] == [
        "gpu-0: cordoned",
        "gpu-0: waiting for pods that the scheduler has chosen it for before the cordon",
        "gpu-0: run.ai/mig.config written",
    ]
    assert not apply.cluster.node("gpu-0")["spec"].get("unschedulable")
    apply.cluster.add(pod("train", "gpu-1", MIG + "2g.20gb"))
    code, out, _ = apply("1g.10gb=2", "gpu-1", "--dry-run", "--drain")
    assert (code, out.splitlines()[-1]) == (0, "  these pods are evicted from gpu-1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--cordon", "--no-wait"],
            "--cordon and --drain uncordon the nodes at the end: use them without --no-wait",
        ),
        (
            ["--drain", "--when-in-use=refuse"],
            "--drain evicts the pods that --when-in-use=refuse refuses a node for: use one of them",
        ),
    ],
)
def test_cordon_that_makes_no_sense(apply, options, message):
    """Options that contradict each other are refused."""
    code, _, err = apply("1g.10gb=2", "gpu-0", "--yes", *options)
    assert code == 2
    assert message in " ".join(err.split())
