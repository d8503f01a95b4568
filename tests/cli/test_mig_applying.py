"""`tessera mig apply` where NVIDIA's mig-manager cuts, and whole plans, from the outside."""

from typing import Any

import msgspec
import pytest

from tessera.core.mig.layout import CardLayout, NodeLayout, resolve
from tessera.core.planning.changes import NodeChange, Way
from tessera.protocol import yaml
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.plans import card_document, node_document
from tessera.rollout.step import Attempt
from tests.build import MIG
from tests.inventory.objects import LAYOUT, pod
from tests.inventory.objects import node as annotated
from tests.rollout.mig_manager import CONFIG, PRODUCT, FakeMigManager, node
from tests.rollout.plugin import CARDS, FakePlugin

THREES = "3g.40gb=2"


@pytest.fixture
def apply(served, command, monkeypatch):
    """Runs `tessera mig apply` on two nodes of the operator and one of Tessera's device plugin."""
    served.add(node("gpu-0"), node("gpu-1"))
    served.add(annotated("sim", {MIG + "2g.20gb": "4", MIG + "3g.30gb": "2"}, "NVIDIA-H200", layout=LAYOUT))
    monkeypatch.setattr(Attempt, "settles", 0.05)
    monkeypatch.setattr(Attempt, "pause", 0.05)

    def call(*args, stdin="", name="own-config"):
        if runner.manager is None:
            runner.manager = FakeMigManager(served, name=name)
        return command("mig", "apply", "--kubeconfig", served.kubeconfig, *args, stdin=stdin)

    runner: Any = call
    runner.cluster, runner.manager, runner.plugin = served, None, FakePlugin(served)
    return runner


def writes(apply):
    return [(one.method, one.path) for one in apply.cluster.server.requests if one.method != "GET"]


def layouts(*texts):
    return NodeLayout(tuple(CardLayout.cut(PRODUCT, mig.read(text).select()[0].wishes) for text in texts))


def plan_of(*changes):
    written = {
        "nodes": [node_document(change) for change in changes],
        "cards": [
            card_document(number, card, change.present and change.present.cards[number], node=change.name)
            for change in changes
            for number, card in enumerate(change.layout.cards)
        ],
    }
    return msgspec.json.encode(written).decode()


SEVENS = layouts("1g.10gb=7", "1g.10gb=7")
ONE_CARD = layouts("1g.10gb=7", "3g.40gb=2")


def test_a_pod_may_be_on_a_device_with_media_engines(apply):
    """NVIDIA's device plugin gives those the name of plain ones: their card is not cleared while a pod holds a plain one."""
    media = "\n".join(
        f"    - {{devices: [{card}], mig-enabled: true, mig-devices: {{{devices}}}}}"
        for card, devices in enumerate(("1g.10gb+me: 1", "1g.10gb: 7"))
    )
    text = CONFIG.replace("# the end", f"  media:\n{media}\n# the end")
    document = node("media")
    document["metadata"]["labels"][mig.PARTED_CONFIG] = "media"
    document["status"] = {kind: {MIG + "1g.10gb": "8"} for kind in ("allocatable", "capacity")}
    apply.cluster.add(document, pod("train", "media", MIG + "1g.10gb"))
    apply.manager = FakeMigManager(apply.cluster, text=text)
    plan = plan_of(
        NodeChange(
            "media", Way.MIG_MANAGER, layouts("1g.10gb+me=1", "1g.10gb=7"), layouts("3g.40gb=2", "1g.10gb=7")
        )
    )
    code, out, _ = apply("--plan", "-", "--yes", stdin=plan)
    assert (code, out.splitlines()[-1]) == (1, "1 refused")
    assert "pods hold devices that would go: default/train (1 × 1g.10gb)" in out


def test_by_itself(apply):
    """A layout for a node of the operator goes its way: a new configuration, its name in the label, what is removed."""
    code, out, err = apply(THREES, "gpu-0", "--yes")
    name = apply.cluster.node("gpu-0")["metadata"]["labels"]["nvidia.com/mig.config"]
    assert (code, name[:8]) == (0, "tessera-")
    assert out.splitlines() == [
        "ConfigMap gpu-operator/own-config",
        f"  + {name}:",
        "  + - devices:",
        "  +   - 0",
        "  +   - 1",
        "  +   mig-enabled: true",
        "  +   mig-devices:",
        "  +     3g.40gb: 2",
        "node gpu-0",
        "  - nvidia.com/mig.config=all-1g.10gb",
        f"  + nvidia.com/mig.config={name}",
        "  nvidia.com/mig-1g.10gb: 14 → 0",
        "  nvidia.com/mig-3g.40gb: 0 → 4",
        "  removed: 14 × 1g.10gb",
        "1 done",
    ]
    assert "gpu-0: nvidia.com/mig.config written" in err.splitlines()
    code, out, _ = apply("1g.10gb=7", "gpu-0", "--dry-run")
    assert out.splitlines()[:2] == [
        "ConfigMap gpu-operator/own-config",
        f"  - {name}, when no node uses it any more",
    ]


def test_a_config_map_that_the_operator_owns(apply):
    """Nothing is written, and what to type is printed: a copy that has the entry, and the ClusterPolicy's patch."""
    code, out, err = apply(THREES, "gpu-0", "--yes", name="default-mig-parted-config")
    assert (code, writes(apply)) == (1, [])
    assert err == (
        "nothing is written: the operator owns ConfigMap gpu-operator/default-mig-parted-config, and would undo what is added to it. "
        "Use one of your own, and run this again:\n"
    )
    lines = out.splitlines()
    manifest = yaml.load("\n".join(lines[lines.index("kubectl apply -f - <<'END'") + 1 : lines.index("END")]))
    assert manifest["metadata"] == {"namespace": "gpu-operator", "name": "tessera-mig-parted-config"}
    text = manifest["data"]["config.yaml"]
    configs = mig.read(text).configs
    assert {*mig.read(CONFIG).configs} < {*configs}
    assert all(line in text.splitlines() for line in CONFIG.splitlines())
    assert (
        lines[-1]
        == """kubectl patch clusterpolicy cluster-policy --type merge -p '{"spec": {"migManager": {"config": {"name": "tessera-mig-parted-config"}}}}'"""
    )


def test_what_the_operator_has_already(apply):
    """A configuration that is there is used, also where the operator owns the ConfigMap."""
    code, out, _ = apply("1g.10gb=2,2g.20gb=1,3g.40gb=1", "gpu-0", "--yes", name="default-mig-parted-config")
    assert (code, out.splitlines()[2]) == (0, "  + nvidia.com/mig.config=all-balanced")


def test_a_name_is_checked_by_the_config_map(apply):
    """With --label the ConfigMap says what to expect; a name that it does not have is refused."""
    code, out, err = apply("all-balanced", "gpu-0", "--label", "--yes")
    assert (code, err.splitlines()[0]) == (0, "gpu-0: nvidia.com/mig.config written")
    assert "  nvidia.com/mig-3g.40gb: 0 → 2" in out.splitlines()
    code, _, err = apply("nothing", "gpu-0", "--label", "--yes")
    assert (code, err) == (
        2,
        'tessera: node gpu-0: no configuration "nothing"; there are all-disabled, all-1g.10gb, all-balanced\n',
    )


@pytest.mark.parametrize("kind", ["client", "server"])
def test_dry_run(apply, kind):
    """Entries, labels and what is removed are shown, and nothing is changed; the API server is asked, or not."""
    code, out, _ = apply(THREES, "gpu-0", f"--dry-run={kind}")
    assert code == 0
    assert "  removed: 14 × 1g.10gb" in out.splitlines()
    asked = [one.query.get("dryRun") for one in apply.cluster.server.requests if one.method != "GET"]
    assert asked == ([] if kind == "client" else ["All", "All"])
    assert apply.manager.text == CONFIG
    if kind == "server":
        assert out.splitlines()[-2:] == [
            "ConfigMap gpu-operator/own-config: the API server would accept it",
            "gpu-0: the API server would accept it",
        ]


def test_only_cards_that_change_count_as_in_use(apply):
    """A pod that holds what lies only on cards that stay is no reason to refuse; one on a card that changes is."""
    apply.cluster.add(node("mixed", "all-balanced", cards=1, **{"nvidia.com/gpu.count": "1"}))
    apply.cluster.add(pod("train", "mixed", MIG + "3g.40gb"))
    code, out, _ = apply("1g.10gb=7", "mixed", "--yes")
    assert (code, out.splitlines()[-2:]) == (
        1,
        ["mixed: refused: pods hold devices that would go: default/train (1 × 3g.40gb)", "1 refused"],
    )
    assert "  mixed is refused while these pods run" in out.splitlines()


@pytest.mark.parametrize("driver", ["gpu.nvidia.com", "gpu.tessera.dev"])
def test_cards_that_are_cut_on_demand(apply, driver):
    """A node whose DRA driver cuts cards as claims ask for it is refused, and others are changed."""
    apply.cluster.add(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "mig"},
            "spec": {},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "s"},
            "spec": {
                "driver": driver,
                "nodeName": "gpu-0",
                "pool": {"name": "gpu-0", "generation": 1, "resourceSliceCount": 1},
                "sharedCounters": [{"name": "card-0", "counters": {"slices": {"value": "8"}}}],
            },
        },
    )
    code, out, _ = apply("1g.10gb=2,2g.20gb=1,3g.40gb=1", "gpu-0", "gpu-1", "--yes")
    why = f"the DRA driver {driver} cuts its cards on demand, so they take no layout"
    assert (code, out.splitlines()[-2:]) == (1, [f"gpu-0: refused: {why}", "1 refused, 1 done"])
    code, out, _ = apply("1g.10gb=7", "gpu-0", "--dry-run")
    assert (code, out.splitlines()) == (1, [f"node gpu-0 is refused: {why}"])


def test_a_plan(apply):
    """Every node gets its part of a plan its own way."""
    sim = resolve(mig.read("1g.10gb=2").select(), CARDS)
    plan = plan_of(
        NodeChange("gpu-0", Way.MIG_MANAGER, SEVENS, ONE_CARD, {}, None),
        NodeChange("sim", Way.ANNOTATION, mig.read_layout(LAYOUT, CARDS), sim),
    )
    code, out, _ = apply("--plan", "-", "--yes", stdin=plan)
    assert (code, out.splitlines()[-1]) == (0, "2 done")
    assert "  removed: 7 × 1g.10gb" in out.splitlines(), "of the one card that changes"
    labels = apply.cluster.node("gpu-0")["metadata"]["labels"]
    configs = mig.read(apply.manager.text).configs
    assert resolve(configs[labels["nvidia.com/mig.config"]], [PRODUCT] * 2) == ONE_CARD
    written = apply.cluster.node("sim")["metadata"]["annotations"]["run.ai/mig.config"]
    assert mig.read_layout(written, CARDS) == sim
    code, out, _ = apply("--plan", "-", "--yes", stdin=plan)
    assert (code, out) == (0, "nodes gpu-0, sim: no change, the layout is the same\n2 done\n")


def test_a_plan_for_what_was_there(apply):
    """A node that has changed since is refused with the reason; the plan's other nodes are changed."""
    there = layouts("3g.40gb=2", "3g.40gb=2")
    plan = plan_of(
        NodeChange("gpu-0", Way.MIG_MANAGER, there, layouts("3g.40gb=2", "1g.10gb=7"), {}, None),
        NodeChange("gpu-1", Way.MIG_MANAGER, SEVENS, ONE_CARD, {}, None),
        NodeChange("gone", Way.MIG_MANAGER, SEVENS, ONE_CARD, {}, None),
        NodeChange("sim", Way.MIG_MANAGER, SEVENS, ONE_CARD, {}, None),
    )
    code, out, _ = apply("--plan", "-", "--yes", stdin=plan)
    was = "was 3g.40gb ×2, and is 1g.10gb ×7"
    assert (code, out.splitlines()[-4:]) == (
        1,
        [
            f"gpu-0: refused: its layout has changed since the plan was made: card 0 {was}; card 1 {was}",
            "gone: refused: the cluster has no such node",
            "sim: refused: the plan changes it by mig-manager, but it is changed by annotation now",
            "3 refused, 1 done",
        ],
    )


@pytest.mark.parametrize(
    ("args", "err"),
    [
        (["1g.10gb=2", "gpu-0", "--plan", "plan.json"], "tessera mig apply: --plan names nodes and layouts itself: use it without a layout, nodes, -l, --mig-config, --label, --mig-parted, --product and --cards (see tessera mig apply --help)\n"),
        (["--plan", "plan.json"], "tessera: plan.json: no such file or directory\n"),
        ([], "tessera mig apply: no layout given: a file, counts such as 2g.20gb=2, or --plan FILE (see tessera mig apply --help)\n"),
    ],
)  # fmt: skip
def test_refused(apply, args, err):
    """Options that make no sense together: nothing is written."""
    code, out, told = apply(*args, "--yes")
    assert (code, out, told) == (2, "", err)
    assert writes(apply) == []


def test_planned_and_applied(apply, command):
    """What pods wait for is planned and applied in one go; the plan says what goes, and the nodes have it afterwards."""
    apply("1g.10gb=7", "gpu-0", "--dry-run")  # mig-manager is there
    apply.cluster.add(pod("waits", "", MIG + "3g.40gb", 1, "Pending"))
    arguments = ["mig", "plan", "--kubeconfig", apply.cluster.kubeconfig, "--apply"]
    code, out, err = command(*arguments)
    assert (code, out, writes(apply)) == (2, "", [])
    assert err.startswith(
        "tessera mig plan: no terminal to ask for confirmation: use --yes, or leave --apply out to see the plan"
    )
    code, out, _ = command(*arguments, "--yes")
    assert (code, out.splitlines()[-1]) == (0, "1 done")
    changed = [name for name in ("gpu-0", "gpu-1") if apply.cluster.node(name)["metadata"]["labels"]["nvidia.com/mig.config"] != "all-1g.10gb"]  # fmt: skip
    assert len(changed) == 1
    assert int(apply.cluster.node(changed[0])["status"]["allocatable"][MIG + "3g.40gb"]) >= 1
    apply.cluster.change_pod("waits", lambda one: one["spec"].update(nodeName=changed[0]))
    assert command(*arguments, "--yes")[0] == 0, "nothing waits any more"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--yes"], "use --yes only with --apply"),
        (["--apply", "--from", "nodes.yaml"], "--apply writes to the cluster"),
        (["--apply", "-o", "json"], "--apply shows the plan as a table"),
    ],
)
def test_applied_only_to_the_cluster(command, more, sentence):
    """A plan for imagined cards is not applied, nor one that is printed for scripts."""
    code, out, err = command("mig", "plan", *more)
    assert (code, out) == (2, "")
    assert err.startswith(f"tessera mig plan: {sentence}")
