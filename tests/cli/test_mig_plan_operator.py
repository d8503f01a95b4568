"""`tessera mig plan` in clusters of NVIDIA's operator: nodes as it leaves them, cut by mig-manager."""

import json
from typing import Any

import pytest

from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import resolve
from tessera.protocol import yaml
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.nodes import MAPPING, encode_mapping, mapping_of
from tessera.protocol.mig.plans import read_plan
from tests.build import MIG
from tests.inventory.objects import LAYOUT, operator_node, pod
from tests.inventory.objects import node as gpu_node

CONFIG = """\
version: v1
mig-configs:
  # as the operator has it
  all-disabled:
    - devices: all
      mig-enabled: false
  all-1g.10gb:
    - devices: all
      mig-enabled: true
      mig-devices:
        1g.10gb: 7
  all-balanced:
    - devices: all
      mig-enabled: true
      mig-devices:
        1g.10gb: 2
        2g.20gb: 1
        3g.40gb: 1
"""


def node(name: str, config: str = "all-1g.10gb", offers: dict[str, int] | None = None) -> dict[str, Any]:
    """A node of eight A100s as GPU Feature Discovery and mig-manager label it."""
    return operator_node(name, offers or {"1g.10gb": 56}, config, **{"gpu.memory": "81920"})


def config_map(name="default-mig-parted-config"):
    metadata = {"name": name, "namespace": "gpu-operator"}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"config.yaml": CONFIG}}


@pytest.fixture
def plan(command):
    """Runs `tessera mig plan` on objects in a file."""

    def call(objects, *options, words=("plan", "--from")):
        (command.folder / "objects.yaml").write_text("---\n".join(map(yaml.dump, objects)))
        return command("mig", *words, "objects.yaml", *options)

    return call


WAITS = pod("waits", "", MIG + "4g.40gb", 1, "Pending")
TEN = [pod(f"runs-{number}", "gpu-0", MIG + "1g.10gb") for number in range(10)]


def test_one_device_costs_one_card(plan):
    """The other seven cards are written as they are, and what goes is said."""
    code, out, err = plan([node("gpu-0"), node("gpu-1"), WAITS])
    assert (code, err) == (0, "pods without a node ask for 1 × 4g.40gb\n")
    assert out.splitlines() == [
        "the one device fits on 1 of 16 cards; fewer idle cards do not suffice",
        "to change: 1 card of node gpu-0",
        "removed: 1g.10gb ×7; added: 1g.10gb ×3, 4g.40gb ×1",
        "beside the demand: 1g.10gb ×3 fill the rest of cut cards",
        "mig-manager's configuration of node gpu-0: tessera-e7ae4962, a new one (-o operator prints it)",
        "no pod must end first: pods keep what they hold",
        "with it 1 of 1 waiting pod would get a place",
        "",
        "NODE   CARDS  PRODUCT    DEVICES                          REMOVED",
        "gpu-0  0      A100-80GB  4g.40gb ×1 + 1g.10gb ×3 (fills)  1g.10gb ×7",
        "gpu-0  1-7    A100-80GB  1g.10gb ×7 (stays)               -",
    ]


@pytest.mark.parametrize("form", ["runai", "mig-parted"])
def test_layouts_say_what_they_remove(plan, form):
    """In a comment at their top; no card but the one is switched off or emptied."""
    _, out, _ = plan([node("gpu-0"), WAITS], "-o", form)
    said = "removed: 1g.10gb ×7; added: 1g.10gb ×3, 4g.40gb ×1 (beside the demand: 1g.10gb ×3)"
    assert said in "".join(line for line in out.splitlines() if line.startswith("#"))
    entries = mig.read(out).select()
    assert sorted((entry.cards, entry.mig_enabled, len(entry.wishes)) for entry in entries) == [
        ((0,), True, 4),
        ((1, 2, 3, 4, 5, 6, 7), True, 7),
    ]


def test_the_document_can_be_applied(plan):
    """It says how the cards are cut now and then, the way and the configuration, and is read back as it is."""
    _, out, _ = plan([node("gpu-0"), WAITS], "-o", "json")
    document = json.loads(out)
    assert (document["removed"], document["added"], document["filled"]) == (
        {"1g.10gb": 7},
        {"1g.10gb": 3, "4g.40gb": 1},
        {"1g.10gb": 3},
    )
    (change,) = read_plan(out)
    assert (change.name, change.way, change.configuration) == ("gpu-0", "mig-manager", "tessera-e7ae4962")
    assert [card["mig-devices"] for card in document["configurations"]["tessera-e7ae4962"]] == [
        {"1g.10gb": 3, "4g.40gb": 1},
        {"1g.10gb": 7},
    ]
    assert (change.present.resources(), change.layout.resources()) == (
        {MIG + "1g.10gb": 56},
        {MIG + "1g.10gb": 52, MIG + "4g.40gb": 1},
    )


def test_the_rest_can_be_left(plan):
    """Then the card has what was asked for, and nothing else."""
    _, out, _ = plan([node("gpu-0"), WAITS], "--leave-rest")
    assert "removed: 1g.10gb ×7; added: 4g.40gb ×1" in out.splitlines()


def test_where_pods_run_nothing_is_cut(plan):
    """On which cards ten pods are is not known: every card of that node may have one."""
    code, out, err = plan([node("gpu-0"), *TEN, WAITS])
    assert (code, err) == (3, "pods without a node ask for 1 × 4g.40gb\n")
    assert out.splitlines() == [
        "0 of 1 device fit, on 0 of 8 cards; no plan serves more devices",
        "left out: 4g.40gb ×1, no room is left for it",
        "not cut: 8 cards, because what is there must stay",
        "pods keep what they hold; `tessera mig defragment` says which would have to end to make room",
        "with it 0 of 1 waiting pod would get a place",
    ]
    assert "to change: 1 card of node gpu-1" in plan([node("gpu-0"), node("gpu-1"), *TEN, WAITS])[1]


MEDIA = """\
  media:
    - {devices: [0], mig-enabled: true, mig-devices: {1g.10gb+me: 1}}
    - {devices: [1, 2, 3, 4, 5, 6, 7], mig-enabled: true, mig-devices: {1g.10gb: 7}}
"""


@pytest.mark.parametrize("counted", [{"1g.10gb": 50}, {}])
def test_devices_with_media_engines_may_have_the_name_of_plain_ones(plan, counted):
    """NVIDIA's device plugin offers them so: a pod that holds a plain one may be on their card, which is not cut."""
    documents = [node("gpu-0", "media", counted or {"1g.10gb": 0}), config_map()]
    documents[1]["data"]["config.yaml"] += MEDIA
    code, out, _ = plan([*documents, pod("runs", "gpu-0", MIG + "1g.10gb"), WAITS])
    assert (code, out.splitlines()[2]) == (3, "not cut: 8 cards, because what is there must stay")
    documents[0] = node("gpu-0", "media", {"1g.10gb": 49, "1g.10gb.me": 1})
    code, out, _ = plan([*documents, pod("runs", "gpu-0", MIG + "1g.10gb"), WAITS])
    assert (code, out.splitlines()[1]) == (0, "to change: 1 card of node gpu-0")


def test_whose_end_makes_room_where_media_engines_have_plain_names(plan):
    """The pods are found by the names that devices have on the node."""
    document = node("gpu-0", offers={"1g.24gb": 4})
    labels = document["metadata"]["labels"]
    del labels["nvidia.com/mig.config"], labels["nvidia.com/gpu.deploy.mig-manager"]  # not mig-manager's
    labels |= {"nvidia.com/gpu.product": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"}
    labels |= {"nvidia.com/gpu.memory": "98304", "nvidia.com/gpu.count": "1"}
    labels |= {"nvidia.com/mig-1g.24gb.gfx.count": "4"}
    runs = [pod(f"runs-{number}", "gpu-0", MIG + "1g.24gb") for number in range(4)]
    code, out, _ = plan([document, *runs], words=("defragment", "2g.48gb=1", "--from"))
    assert (code, out.splitlines()[0].partition(":")[2]) == (
        0,
        " 2 pods must end or move; fewer do not suffice",
    )


def test_where_pods_hold_more_than_there_is_nothing_is_cut(plan):
    """Then the layout does not have all that they hold, as where they hold what it does not have."""
    halves = {"1g.10gb": 2, "3g.40gb": 1}
    documents = [node("gpu-0", "halves", halves), config_map()]
    documents[0]["metadata"]["labels"]["nvidia.com/gpu.count"] = "2"
    documents[1]["data"]["config.yaml"] += """\
  halves:
    - {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 2}}
    - {devices: [1], mig-enabled: true, mig-devices: {3g.40gb: 1}}
"""
    for number, cut in ((2, 1), (3, 0)):
        code, out, _ = plan([*documents, *TEN[:number], WAITS])
        assert (code, "to change: 1 card of node gpu-0" in out) == (0 if cut else 3, bool(cut))


def test_an_idle_node_is_cut_beside_what_is_given_out(plan):
    """Three pods could go to free devices of an idle node: one card keeps enough for them, and another one is cut."""
    three = [pod(f"goes-{number}", "", MIG + "1g.10gb", 1, "Pending") for number in range(3)]
    code, out, err = plan([node("gpu-0"), *three, WAITS])
    assert code == 0
    assert err.splitlines()[1] == (
        "3 waiting pods could go to free devices (3 × 1g.10gb): no layout is needed for them"
    )
    assert out.splitlines()[-2:] == [
        "gpu-0  0, 2-7  A100-80GB  1g.10gb ×7 (stays)               -",
        "gpu-0  1       A100-80GB  4g.40gb ×1 + 1g.10gb ×3 (fills)  1g.10gb ×7",
    ]


def test_a_configuration_that_exists_goes_first(plan):
    """It needs no new entry; what else it changes is said."""
    objects = [node("gpu-0"), config_map(), pod("waits", "", MIG + "3g.40gb", 1, "Pending")]
    _, out, _ = plan(objects)
    lines = out.splitlines()
    assert "mig-manager's configuration of node gpu-0: all-balanced, which exists" in lines
    assert "to change: 8 cards of node gpu-0" in lines
    assert "removed: 1g.10gb ×56; added: 1g.10gb ×16, 2g.20gb ×8, 3g.40gb ×8" in lines
    more = "an existing configuration changes 7 cards more than the plan needs; --max-cards 1 makes a new configuration for those alone"
    assert more in lines
    _, out, _ = plan(objects, "--max-cards", "1")
    assert "removed: 1g.10gb ×7; added: 3g.40gb ×2" in out.splitlines()
    assert "more than the plan needs" not in out


def test_a_configuration_that_no_label_can_name_is_passed_over(plan):
    """Its name is any text, and would be part of a command."""
    documents = [node("gpu-0"), config_map(), pod("waits", "", MIG + "3g.40gb", 1, "Pending")]
    text = documents[1]["data"]["config.yaml"]
    documents[1]["data"]["config.yaml"] = text.replace("all-balanced:", '"x; reboot\\e[31m":')
    _, out, _ = plan(documents, "-o", "operator")
    assert [one for one, _ in scripted(out)][-1] == (
        "kubectl label node gpu-0 nvidia.com/mig.config=tessera-b2d81238 --overwrite"
    )


def test_what_an_existing_configuration_would_serve_is_said(plan):
    """Where none serves all, the best of them is named beside the new one."""
    waits = [WAITS, pod("three", "", MIG + "3g.40gb", 1, "Pending")]
    _, out, _ = plan([node("gpu-0"), config_map(), *waits])
    said = "all-balanced serves 1 of 2 devices and needs no new configuration; it removes 1g.10gb ×56"
    assert said in out.splitlines()


def test_an_existing_configuration_takes_nothing_that_pods_use(plan):
    """Where pods have small slices, free ones stay for them."""
    objects = [
        node("gpu-0"),
        node("gpu-1"),
        *TEN,
        config_map(),
        pod("waits", "", MIG + "3g.40gb", 1, "Pending"),
    ]
    _, out, _ = plan(objects)
    lines = out.splitlines()
    assert "to change: 1 card of node gpu-1" in lines
    assert "all-balanced serves 1 of 1 device and needs no new configuration; it removes 1g.10gb ×56" in lines


def test_configurations_from_a_file(plan, command):
    """Where the ConfigMap is not at hand."""
    (command.folder / "config.yaml").write_text(CONFIG)
    three = pod("waits", "", MIG + "3g.40gb", 1, "Pending")
    _, out, _ = plan([node("gpu-0"), three], "--mig-parted", "config.yaml")
    assert "mig-manager's configuration of node gpu-0: all-balanced, which exists" in out.splitlines()


def test_nodes_of_unknown_layout_are_one_line(plan):
    """Nothing is planned, cut or called free there."""
    mixture = {"1g.10gb": 8, "2g.20gb": 9, "3g.40gb": 6}
    objects = [node(f"gpu-{number}", "own", mixture) for number in range(5)]
    code, out, err = plan([*objects, WAITS])
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 3
    assert err.splitlines()[1].startswith("5 nodes (gpu-0, gpu-1, gpu-2 and 2 more): skipped: ")
    code, out, err = plan([*objects, node("known")], "--keep", words=("fit", "4g.40gb=1", "--from"))
    assert code == 3
    assert [line for line in out.splitlines() if line.startswith("gpu-")] == []
    assert err.splitlines()[0].startswith("5 nodes (gpu-0, gpu-1, gpu-2 and 2 more): skipped: ")


def test_from_scratch_what_is_removed_may_not_be_known(plan):
    """Without --keep such nodes are planned for, which is said; a layout for them is not written."""
    objects = [node("gpu-0", "own", {"1g.10gb": 8, "2g.20gb": 9, "3g.40gb": 6})]
    _, out, _ = plan(objects, words=("fit", "4g.40gb=1", "--from"))
    told = "no layout is written for node gpu-0: how the cards are cut now is not known"
    assert told in out.splitlines()
    assert "gpu-0  1-7    A100-80GB  -           not known" in out.splitlines()
    _, out, _ = plan(objects, "-o", "mig-parted", words=("fit", "4g.40gb=1", "--from"))
    assert out == "# no layout for node gpu-0: how the cards are cut now is not known\n"


def test_from_scratch_other_cards_stay(plan):
    """Without --keep every device may go, but none goes without need."""
    _, out, _ = plan([node("gpu-0"), node("gpu-1")], words=("fit", "4g.40gb=1", "--from"))
    assert "removed: 1g.10gb ×7; added: 1g.10gb ×3, 4g.40gb ×1" in out.splitlines()
    assert out.splitlines()[-1] == "gpu-1  0-7    A100-80GB  1g.10gb ×7 (stays)               -"


def test_what_stays_is_kept_as_a_whole(plan):
    """With --keep no card of mig-manager is cut that has a device."""
    code, out, _ = plan([node("gpu-0")], "--keep", words=("fit", "4g.40gb=1", "--from"))
    assert (code, out.splitlines()[2]) == (3, "not cut: 8 cards, because what is there must stay")


def test_cards_are_free_only_in_every_way(plan):
    """Ten pods may be on any card of their node: its cards are free when all of them end."""
    objects = [node("gpu-0"), node("gpu-1"), *TEN]
    code, out, err = plan(objects, words=("defragment", "7g.80gb=8", "--from"))
    assert (code, out.splitlines()[0]) == (0, "room for all 8 devices is there; no pod must end")
    assert "gpu-0" not in out
    assert err.splitlines() == [
        "mig-manager cuts whole cards, and on which cards pods are is not known: a card counts as free only when no pod can be on it"
    ]
    code, out, _ = plan(objects, words=("defragment", "7g.80gb=9", "--from"))
    assert out.splitlines()[0] == (
        "room for all 9 devices: 10 pods must end or move; fewer do not suffice for certain"
    )
    assert [line.split()[1] for line in out.splitlines()[-10:]] == ["?"] * 10


def test_a_node_whose_strategy_does_not_allow_its_configuration(plan):
    """It is left out with the reason, and keeps no other node from the advice."""
    odd = node("odd", "all-balanced", {"1g.10gb": 0})
    odd["metadata"]["labels"]["nvidia.com/mig.strategy"] = "single"
    del odd["metadata"]["labels"]["nvidia.com/gpu.count"]
    config = config_map()
    config["data"]["config.yaml"] = CONFIG.replace("devices: all", "devices: [0, 1, 2, 3, 4, 5, 6, 7]")
    mapped = node("mapped", "all-balanced", {"1g.10gb": 0})
    mapped["metadata"]["labels"] |= {"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.count": "1"}
    balanced = resolve(mig.read(CONFIG).select("all-balanced"), [product_named("A100-80GB")])
    mapped["metadata"]["annotations"] = {MAPPING: encode_mapping(mapping_of(balanced, "mapped"))}
    code, out, err = plan([odd, mapped, node("gpu-0"), config], words=("defragment", "7g.80gb=8", "--from"))
    assert (code, out.splitlines()[0]) == (0, "room for all 8 devices is there; no pod must end")
    assert sorted(line.split(": ")[0] for line in err.splitlines()[:2]) == ["node mapped", "node odd"]


def test_what_is_free_needs_no_pod_to_end(plan):
    """Devices that no pod holds serve as they are, wherever they lie."""
    code, out, _ = plan([node("gpu-0"), *TEN], words=("defragment", "1g.10gb=46", "--from"))
    assert (code, out) == (0, "room for all 46 devices is there; no pod must end\n")
    code, out, _ = plan([node("gpu-0"), *TEN], words=("defragment", "1g.10gb=47", "--from"))
    assert out.splitlines()[0].startswith("room for all 47 devices: 10 pods must end or move")


def test_nodes_of_both_ways(plan):
    """Each form says which nodes it is not for."""
    annotated = gpu_node("sim-0", {MIG + "2g.20gb": "4", MIG + "3g.30gb": "2"}, "NVIDIA-H200", layout=LAYOUT)
    waits = [
        WAITS,
        pod("small", "", MIG + "1g.10gb", 60, "Pending"),
        pod("seven", "", MIG + "7g.70gb", 1, "Pending"),
    ]
    objects = [node("gpu-0"), annotated, *waits]
    _, out, _ = plan(objects, "-o", "operator")
    assert "# not by mig-manager, see -o runai: sim-0" in out.splitlines()
    assert scripted(out)[-1][0].startswith("kubectl label node gpu-0 ")
    _, out, _ = plan(objects, "-o", "runai")
    of_gpu, of_sim = out.split("---\n")
    unread = "# NVIDIA's mig-manager cuts this node, and does not read such a layout: see -o operator"
    assert (unread in of_gpu.splitlines(), unread in of_sim.splitlines()) == (True, False)


POLICY = {
    "apiVersion": "nvidia.com/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "the-policy"},
    "spec": {"migManager": {"config": {"name": "own"}}},
    "status": {"namespace": "gpu-operator", "state": "ready"},
}


def scripted(out):
    """The commands of a script, each with the document that it is given."""
    commands: list[tuple[str, list[str]]] = []
    document = None
    for line in out.splitlines():
        if document is not None:
            if line == "END":
                document = None
            else:
                commands[-1][1].append(line)
        elif not line.startswith("#"):
            commands.append((line, []))
            document = commands[-1][1] if line.endswith("<<'END'") else None
    return [(command, yaml.load("\n".join(lines)) if lines else None) for command, lines in commands]


def test_a_new_configuration_in_a_config_map_of_ones_own(plan):
    """The patch has the whole file with the new entry; comments stay. The label comes when mig-manager has it."""
    _, out, _ = plan([node("gpu-0"), POLICY, config_map("own"), WAITS], "-o", "operator")
    assert out.splitlines()[0] == (
        "# node gpu-0: removed: 1g.10gb ×7; added: 1g.10gb ×3, 4g.40gb ×1 (beside the demand: 1g.10gb ×3)"
    )
    (patch, document), (wait, _), (label, _) = scripted(out)
    assert patch == (
        "kubectl patch configmap -n gpu-operator own --type merge --patch-file /dev/stdin <<'END'"
    )
    text = document["data"]["config.yaml"]
    assert "# as the operator has it" in text
    configs = mig.read(text).configs
    assert [*configs] == ["all-disabled", "all-1g.10gb", "all-balanced", "tessera-e7ae4962"]
    assert wait.startswith("sleep 120 ")
    assert label == "kubectl label node gpu-0 nvidia.com/mig.config=tessera-e7ae4962 --overwrite"


def test_a_config_map_of_the_operator_is_copied(plan):
    """It would undo what is added to its own."""
    _, out, _ = plan([node("gpu-0"), config_map(), WAITS], "-o", "operator")
    (copy, document), (patch, _), _, (label, _) = scripted(out)
    assert copy == "kubectl apply -f - <<'END'"
    assert document["metadata"] == {"namespace": "gpu-operator", "name": "tessera-mig-parted-config"}
    assert "tessera-e7ae4962" in mig.read(document["data"]["config.yaml"]).configs
    assert patch == (
        'kubectl patch clusterpolicy cluster-policy --type merge -p \'{"spec": {"migManager": {"config": {"name": "tessera-mig-parted-config"}}}}\''
    )
    assert label.startswith("kubectl label node gpu-0 ")


def test_an_existing_configuration_needs_a_label_only(plan):
    """For all nodes that get it at once."""
    nodes = [node("gpu-0"), node("gpu-1")]
    threes = [pod(f"waits-{number}", "", MIG + "3g.40gb", 1, "Pending") for number in range(2)]
    for one, three in zip(nodes, threes, strict=True):
        one["metadata"]["labels"]["team"] = one["metadata"]["name"]
        three["spec"]["nodeSelector"] = {"team": one["metadata"]["name"]}
    _, out, _ = plan([*nodes, config_map(), *threes], "-o", "operator")
    assert scripted(out) == [
        ("kubectl label node gpu-0 gpu-1 nvidia.com/mig.config=all-balanced --overwrite", None)
    ]


def test_an_unknown_file_is_not_patched(plan):
    """Then the entry is printed, as a comment."""
    _, out, _ = plan([node("gpu-0"), WAITS], "-o", "operator")
    assert "# add to mig-configs in mig-manager's file, which is not known here" in out.splitlines()
    assert [command.split()[0] for command, _ in scripted(out)] == ["sleep", "kubectl"]
