"""Rollouts where NVIDIA's mig-manager cuts: its ConfigMap, its label, its answers."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.core.mig.layout import resolve
from tessera.core.planning.configurations import configuration_name, parted_entries
from tessera.kube.rest.client import Client
from tessera.protocol.kubernetes.nodes import decode_node
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.edited import edited
from tessera.protocol.mig.rollouts import ROLLOUT, Owner, Phase, RolloutRecord, written
from tessera.rollout.alone import Alone
from tessera.rollout.carrying import Carrier
from tessera.rollout.change import Wanted, WhenInUse
from tessera.rollout.changes import Surroundings, change_of, changes_of
from tessera.rollout.config_map import NotWritten
from tessera.rollout.progress import offered_by
from tessera.rollout.rollout import Rollout
from tessera.rollout.step import Attempt
from tessera.serving.http_messages import HangUp
from tessera.simulation.control_plane.kinds import NODES
from tessera.simulation.control_plane.patches import apply_patch
from tessera.simulation.control_plane.store import StatusError
from tests.build import MIG
from tests.inventory.objects import pod
from tests.kube.apiserver import status as refusal
from tests.kube.served import served  # noqa: F401 # a fixture
from tests.rollout.conftest import ME
from tests.rollout.mig_manager import CONFIG, PLUGIN, PRODUCT, FakeMigManager, node
from tests.rollout.plugin import MERGE

BALANCED = "1g.10gb=2,2g.20gb=1,3g.40gb=1"
THREES = "3g.40gb=2"


@pytest.fixture
def roll_out(served, monkeypatch):  # noqa: F811 # the fixture
    """Gives a layout to nodes of the operator: how each ended, by name, and what was told meanwhile."""
    served.add(node("gpu-0"), node("gpu-1"))
    monkeypatch.setattr(Attempt, "settles", 0.02)
    monkeypatch.setattr(Attempt, "pause", 0.05)
    monkeypatch.setattr(Attempt, "between", 1.0)
    monkeypatch.setattr(Alone, "polls", 0.02)
    monkeypatch.setattr(Carrier, "settles", 0.02)

    def call(layout, *names, timeout=20.0, when=None, label=False, interrupted=None):
        told = runner.told = list[str]()

        async def work():
            async with Client(served.server.cluster) as client:
                wanted = (
                    Wanted(None, layout, label=True)
                    if label
                    else Wanted(mig.read(layout), None, label=False, text=layout)
                )
                changes = await changes_of(client, wanted, names, LabelSelector.parse(""))
                rollout = Rollout(
                    client, owner=ME, at_once=1, timeout=timeout, report=told.append, when_in_use=when
                )
                running = asyncio.ensure_future(rollout.run(changes))
                while interrupted and not interrupted():
                    await asyncio.sleep(0.01)
                if interrupted:
                    running.cancel()
                await running
                return rollout

        rollout = asyncio.run(work())
        ended = {name: (str(one.result), one.reason) for name, one in rollout.outcomes.items()}
        return SimpleNamespace(ended=ended, told=told)

    runner: Any = call
    runner.cluster, runner.manager = served, FakeMigManager(served)
    return runner


def label(roll_out, name):
    labels = roll_out.cluster.node(name)["metadata"]["labels"]
    return labels.get("nvidia.com/mig.config"), labels.get("nvidia.com/mig.config.state")


def offered(roll_out, name):
    amounts = roll_out.cluster.node(name)["status"]["allocatable"]
    return {resource.removeprefix(MIG): number for resource, number in amounts.items() if number != "0"}


def tried(roll_out):
    """Whether mig-manager has not known a configuration of ours."""
    return any(config.startswith("tessera-") for config in roll_out.manager.unknown)


def ours(roll_out):
    return [name for name in mig.read(roll_out.manager.text).configs if name.startswith("tessera-")]


def test_a_configuration_that_is_there_is_taken(roll_out):
    """A layout that one of mig-manager's configurations gives needs no entry: its name is written, and the node shows it."""
    assert roll_out(BALANCED, "gpu-0").ended == {"gpu-0": ("done", "")}
    assert label(roll_out, "gpu-0") == ("all-balanced", "success")
    assert offered(roll_out, "gpu-0") == {"1g.10gb": "4", "2g.20gb": "2", "3g.40gb": "2"}
    assert roll_out.manager.text == CONFIG


def test_a_new_configuration(roll_out):
    """One that is not there is added in one write, the rest of the text untouched; it is removed when no node uses it."""
    found = roll_out(THREES, "gpu-0", "gpu-1")
    assert found.ended == {"gpu-0": ("done", ""), "gpu-1": ("done", "")}
    (name,) = ours(roll_out)
    assert found.told[0] == f"ConfigMap gpu-operator/own-config: {name} added"
    assert label(roll_out, "gpu-0") == label(roll_out, "gpu-1") == (name, "success")
    head, _, tail = CONFIG.rpartition("# the end\n")
    assert roll_out.manager.text.startswith(head)
    assert roll_out.manager.text.endswith("# the end\n" + tail)
    writes = [one for one in roll_out.cluster.server.requests if one.method == "PUT"]
    assert len(writes) == 1
    assert roll_out(BALANCED, "gpu-0").ended == {"gpu-0": ("done", "")}
    assert ours(roll_out) == [name], "gpu-1 uses it"
    found = roll_out(BALANCED, "gpu-1")
    assert found.told[-1] == f"no node uses {name} any more: removed from mig-manager's ConfigMap"
    assert roll_out.manager.text == CONFIG


def test_fault_52_the_file_follows_the_config_map_late(roll_out):
    """`failed` soon after a new entry is tried again by changing the label away and back, which is told."""
    roll_out.manager.arrives = lambda: tried(roll_out)
    found = roll_out(THREES, "gpu-0")
    (name,) = ours(roll_out)
    assert found.ended == {"gpu-0": ("done", "")}
    tries = [one for one in roll_out.manager.seen if one == ("gpu-0", name)]
    assert len(tries) >= 2
    assert [config for _, config in roll_out.manager.seen[:3]] == [name, "all-1g.10gb", name]
    again = f"It may not have {name} from its ConfigMap yet: tried again in 0.05 s"
    assert any(again in line for line in found.told)


def test_fault_52_an_entry_that_a_person_has_just_added(roll_out):
    """The same where the entry is in the ConfigMap already, as after the commands that are printed for a copy."""
    roll_out.manager.arrives = lambda: tried(roll_out)
    entry = "  tessera-mine:\n  - {devices: all, mig-enabled: true, mig-devices: {3g.40gb: 2}}\n"
    roll_out.cluster.call(lambda: roll_out.manager.write(CONFIG.replace("# the end\n", entry)))
    assert roll_out(THREES, "gpu-0").ended == {"gpu-0": ("done", "")}
    assert label(roll_out, "gpu-0") == ("tessera-mine", "success")
    assert roll_out.manager.seen.count(("gpu-0", "tessera-mine")) >= 2


def test_fault_52_an_entry_that_never_arrives(roll_out, monkeypatch):
    """After three minutes `failed` counts: the label is put back, and the entry removed."""
    monkeypatch.setattr("tessera.rollout.step.LATE", 0.3)
    roll_out.manager.arrives = lambda: False
    found = roll_out(THREES, "gpu-0")
    assert found.ended["gpu-0"] == (
        "put back",
        "mig-manager reports failed; its log says why; the old layout is back",
    )
    assert (label(roll_out, "gpu-0"), ours(roll_out)) == (("all-1g.10gb", "success"), [])


@pytest.mark.parametrize("succeeded", [False, True])
def test_fault_52_a_failure_is_put_back(roll_out, succeeded):
    """Label, entry and devices are as before, also where mig-manager leaves the device plugin paused; it is tried once."""
    roll_out.manager.succeeded = succeeded
    roll_out.manager.fails = lambda name, config: config.startswith("tessera-")
    found = roll_out(THREES, "gpu-0", "gpu-1")
    why = "mig-manager reports failed; its log says why; the old layout is back"
    assert found.ended == {"gpu-0": ("put back", why), "gpu-1": ("not begun", "")}
    assert label(roll_out, "gpu-0") == ("all-1g.10gb", "success")
    assert roll_out.cluster.node("gpu-0")["metadata"]["labels"][PLUGIN] == "true"
    assert offered(roll_out, "gpu-0") == {"1g.10gb": "14"}
    assert roll_out.manager.text == CONFIG
    assert [config[:8] for _, config in roll_out.manager.seen] == ["tessera-", "all-1g.1"]
    paused = f"gpu-0: mig-manager has ended and left {PLUGIN} paused; set to true"
    assert (paused in found.told) is succeeded


def test_fault_52_rebooting(roll_out):
    """A node that reboots is waited for; allocatable goes through nothing, which is no failure."""
    waits = "gpu-0: state rebooting; 1g.10gb current 0, desired 4; 2g.20gb current 0, desired 2; 3g.40gb current 0, desired 2"
    roll_out.manager.reboots = True
    roll_out.manager.may_end = lambda: waits in roll_out.told
    assert roll_out(BALANCED, "gpu-0").ended == {"gpu-0": ("done", "")}


def test_fault_52_mig_manager_never_answers(roll_out):
    """After the timeout the label is back, state and all, and the new entry is gone."""
    roll_out.manager.absent = {"gpu-0"}
    result, reason = roll_out(THREES, "gpu-0", timeout=0.3).ended["gpu-0"]
    assert result == "put back"
    assert reason.startswith("the layout is not applied after 0.3 s: waiting for the node's state; ")
    assert reason.endswith("; the old layout is back")
    assert label(roll_out, "gpu-0") == ("all-1g.10gb", "success")
    assert roll_out.manager.text == CONFIG


def test_a_name_that_stands_there_and_is_not_answered(roll_out):
    """Nothing was written, so nothing is said to be written again."""
    roll_out.manager.absent = {"gpu-0"}
    wish = {"nvidia.com/mig.config": "all-balanced", "nvidia.com/mig.config.state": "pending"}
    roll_out.cluster.change_node("gpu-0", lambda one: one["metadata"]["labels"].update(wish))
    result, reason = roll_out("all-balanced", "gpu-0", label=True, timeout=0.3).ended["gpu-0"]
    assert result == "failed"
    assert reason.startswith("the layout is not applied after 0.3 s: state pending")
    assert "old layout" not in reason
    assert not any("old layout" in text for text in roll_out.told)
    assert label(roll_out, "gpu-0") == ("all-balanced", "pending")


@pytest.mark.parametrize("theirs", ["all-disabled", "all-1g.10gb"])
def test_fault_52_another_client_changes_the_label(roll_out, theirs):
    """What another client writes meanwhile is left alone, the old name too, and told; the entry that nobody names is removed."""

    def overtake(name, config):
        if config.startswith("tessera-"):
            roll_out.cluster.loop.call_later(
                0.2,
                roll_out.cluster.changing_node,
                name,
                lambda one: one["metadata"]["labels"].update({"nvidia.com/mig.config": theirs}),
            )

    roll_out.manager.absent = {"gpu-0"}
    roll_out.manager.on_label = overtake
    assert roll_out(THREES, "gpu-0").ended == {
        "gpu-0": ("failed", "another client changed nvidia.com/mig.config meanwhile; left as it is")
    }
    assert label(roll_out, "gpu-0")[0] == theirs
    assert roll_out.manager.text == CONFIG


def test_pods_that_hold_devices(roll_out):
    """A card is cleared whole: a pod that holds what could lie on it is named, and nothing is written."""
    roll_out.cluster.add(pod("train", "gpu-0", MIG + "1g.10gb"))
    found = roll_out(BALANCED, "gpu-0", "gpu-1")
    assert found.ended == {
        "gpu-0": ("refused", "pods hold devices that would go: default/train (1 × 1g.10gb)"),
        "gpu-1": ("done", ""),
    }
    assert label(roll_out, "gpu-0") == ("all-1g.10gb", "success")


def test_waiting_for_pods(roll_out):
    """With `wait` the node is changed when the pods have gone; those that stay beyond the timeout are named."""
    roll_out.cluster.add(pod("train", "gpu-0", MIG + "1g.10gb"))
    found = roll_out(BALANCED, "gpu-0", when=WhenInUse.WAIT, timeout=0.2)
    assert found.ended == {
        "gpu-0": ("refused", "pods still hold devices that would go: default/train (1 × 1g.10gb)")
    }
    assert found.told[:-1] == [
        "gpu-0: waiting for pods that hold devices which go: default/train (1 × 1g.10gb)"
    ]
    roll_out.cluster.loop.call_soon_threadsafe(
        roll_out.cluster.loop.call_later,
        0.2,
        lambda: roll_out.cluster.changing_pod("train", lambda one: one["status"].update(phase="Succeeded")),
    )
    assert roll_out(BALANCED, "gpu-0", when=WhenInUse.WAIT).ended == {"gpu-0": ("done", "")}


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("which", range(1, 7))
@pytest.mark.parametrize("late", [False, True])
def test_killed_at_any_write(roll_out, monkeypatch, late, which, stored):
    """A command that is killed, before or after a write to the node is stored, also between two tries: the same command again goes on."""
    monkeypatch.setattr(Alone, "patience", 0.1)
    roll_out.manager.arrives = lambda: not late or tried(roll_out)
    store, asked = roll_out.cluster.server.store, []

    def kill(request):
        asked.extend([request] if request.method == "PATCH" else [])
        if stored and request.method == "PATCH" and len(asked) == which:
            now = store.get(NODES, "gpu-0").document
            store.update(NODES, "gpu-0", apply_patch(MERGE, now, json.loads(request.body)))
        if len(asked) >= which:
            raise HangUp

    roll_out.cluster.server.intercept = kill
    roll_out(THREES, "gpu-0")
    roll_out.cluster.server.intercept = lambda request: None
    assert roll_out(THREES, "gpu-0").ended == {"gpu-0": ("done", "")}
    assert label(roll_out, "gpu-0") == (ours(roll_out)[0], "success")
    assert ROLLOUT not in roll_out.cluster.node("gpu-0")["metadata"].get("annotations", {})


def test_conflicts(roll_out):
    """A ConfigMap that somebody writes at the same moment is read again, and theirs stays."""
    theirs = CONFIG.replace("  all-balanced:", "  # theirs\n  all-balanced:")
    writes = []

    def intercept(request):
        if request.method == "PUT":
            writes.append(request.path)
            if len(writes) == 1:
                roll_out.manager.write(theirs)

    roll_out.cluster.server.intercept = intercept
    assert roll_out(THREES, "gpu-0").ended == {"gpu-0": ("done", "")}
    assert len(writes) == 2
    assert roll_out.manager.text.startswith(theirs.removesuffix("# the end\n"))


def test_a_config_map_that_changes_all_the_time(roll_out):
    """After some conflicts in a row it is given up, and no node is begun."""
    conflict = refusal(StatusError(409, "Conflict", "the object has been modified"))
    roll_out.cluster.server.intercept = lambda one: conflict if one.method == "PUT" else None
    with pytest.raises(NotWritten) as caught:
        roll_out(THREES, "gpu-0")
    why = "ConfigMap gpu-operator/own-config changed 5 times while it was written to"
    assert (str(caught.value), roll_out.manager.seen) == (why, [])


def test_not_waited_for(roll_out):
    """Without waiting, entry and label are written, and stay."""
    assert roll_out(THREES, "gpu-0", timeout=None).ended == {"gpu-0": ("written", "")}
    assert ours(roll_out) == [label(roll_out, "gpu-0")[0]]


@pytest.mark.parametrize("when", [None, WhenInUse.WAIT])
def test_not_waited_for_while_pods_hold_devices(roll_out, when):
    """Who does not wait for the node does not wait for pods either: nothing is written while they hold devices that would go."""
    roll_out.cluster.add(pod("train", "gpu-0", MIG + "1g.10gb"))
    reason = "pods hold devices that would go: default/train (1 × 1g.10gb)"
    assert roll_out(BALANCED, "gpu-0", timeout=None, when=when).ended == {"gpu-0": ("refused", reason)}
    assert label(roll_out, "gpu-0") == ("all-1g.10gb", "success")


def test_the_same_name_again_is_not_waited_for(roll_out):
    """mig-manager acts on a change only, so the label is changed away and back also where nobody waits for the node."""
    roll_out.manager.absent = {"gpu-0"}
    failed = {"nvidia.com/mig.config": "all-balanced", "nvidia.com/mig.config.state": "failed"}
    roll_out.cluster.change_node("gpu-0", lambda one: one["metadata"]["labels"].update(failed))
    assert roll_out("all-balanced", "gpu-0", label=True, timeout=None).ended == {"gpu-0": ("written", "")}
    written = [
        json.loads(one.body)["metadata"]["labels"]["nvidia.com/mig.config"]
        for one in roll_out.cluster.server.requests
        if one.method == "PATCH"
    ]
    assert written == ["tessera-try-again", "all-balanced"]


def test_interrupted(roll_out):
    """Whoever interrupts gets label and ConfigMap back as they were."""
    roll_out.manager.absent = {"gpu-0"}
    with pytest.raises(asyncio.CancelledError):
        roll_out(THREES, "gpu-0", interrupted=lambda: roll_out.manager.seen)
    assert (label(roll_out, "gpu-0"), roll_out.manager.text) == (("all-1g.10gb", "success"), CONFIG)


def test_devices_that_claims_hold():
    """Which card a claim's device lies on is not known here: mig-manager's node is refused, and the holder named."""
    around = Surroundings(claimed={"gpu-0": ["ml/train"]})
    one = decode_node(json.dumps(node("gpu-0")).encode())
    wanted = Wanted(None, "all-balanced", label=True)
    found = change_of(one, offered_by(one), [], wanted, around)
    assert found.refused == "claims hold devices of it, which mig-manager may clear: ml/train"


def test_the_same_name_again(roll_out):
    """mig-manager tries a name once: where it has failed with that name, the label is changed away and back."""
    roll_out.cluster.change_node(
        "gpu-0",
        lambda one: one["metadata"]["labels"].update(
            {"nvidia.com/mig.config": "all-balanced", "nvidia.com/mig.config.state": "failed"}
        ),
    )
    assert roll_out("all-balanced", "gpu-0", label=True).ended == {"gpu-0": ("done", "")}
    assert label(roll_out, "gpu-0") == ("all-balanced", "success")


def test_a_config_map_that_may_not_be_read(roll_out):
    """What is missing is said; nothing is guessed."""
    forbidden = refusal(StatusError(403, "Forbidden", "configmaps is forbidden"))
    roll_out.cluster.server.intercept = lambda one: forbidden if "configmaps" in one.path else None
    with pytest.raises(InvalidInput) as caught:
        roll_out(THREES, "gpu-0")
    assert str(caught.value) == (
        "node gpu-0: mig-manager cuts its cards, and its configurations are not known: "
        "ConfigMap gpu-operator/own-config cannot be read: configmaps is forbidden"
    )


def left_by_a_killed_rollout(roll_out):
    """An entry of ours in the ConfigMap that no label names: its rollout was killed before it wrote one."""
    entries = parted_entries(resolve(mig.read(THREES).select(), [PRODUCT] * 2))
    name = configuration_name(entries)
    text = edited(CONFIG, {name: entries}, (), "test").text
    roll_out.cluster.call(lambda: roll_out.manager.write(text))
    return name


def test_what_a_killed_rollout_left_is_removed_too(roll_out):
    """The next rollout of that layout takes its entry, and where it fails in turn, leaves none."""
    roll_out.manager.late = 0.0
    left_by_a_killed_rollout(roll_out)
    roll_out.manager.fails = lambda name, config: config.startswith("tessera-")
    assert roll_out(THREES, "gpu-0").ended["gpu-0"][0] == "put back"
    assert (label(roll_out, "gpu-0"), roll_out.manager.text) == (("all-1g.10gb", "success"), CONFIG)


def test_an_entry_that_another_client_begins_to_use(roll_out):
    """Who writes a label between our look at the nodes and our write gets the entry back."""
    roll_out.manager.late = 0.0
    roll_out.manager.fails = lambda name, config: name == "gpu-0" and config.startswith("tessera-")
    writes = []

    def intercept(request):
        if request.method == "PUT":
            writes.append(request.path)
            if len(writes) == 2:
                config = {"nvidia.com/mig.config": roll_out.manager.seen[0][1]}
                roll_out.cluster.changing_node("gpu-1", lambda one: one["metadata"]["labels"].update(config))

    roll_out.cluster.server.intercept = intercept
    found = roll_out(THREES, "gpu-0")
    assert (found.ended["gpu-0"][0], len(writes)) == ("put back", 3)
    assert ours(roll_out) == [label(roll_out, "gpu-1")[0]]
    assert not [line for line in found.told if "any more" in line]


def test_an_entry_that_another_rollout_may_put_back(roll_out):
    """A node that a controller changes from it has another label just now, and may get it again: it is not removed."""
    roll_out.manager.late = 0.0
    roll_out.manager.fails = lambda name, config: name == "gpu-0" and config.startswith("tessera-")
    name = left_by_a_killed_rollout(roll_out)
    owner = Owner("inference", "uid-1")
    record = RolloutRecord(owner, Phase.WRITTEN, 1.0, 2.0, 3.0, "all-balanced", before=name, label=True)
    annotations = {ROLLOUT: written(record)}
    roll_out.cluster.changing_node("gpu-1", lambda one: one["metadata"].update(annotations=annotations))
    assert roll_out(THREES, "gpu-0").ended["gpu-0"][0] == "put back"
    assert ours(roll_out) == [name]


def test_a_node_that_goes_meanwhile(roll_out):
    """There is nothing to put back then, and nothing to type; the entry is removed."""
    roll_out.manager.absent = {"gpu-0"}
    store, loop = roll_out.cluster.server.store, roll_out.cluster.loop
    roll_out.manager.on_label = lambda name, _: loop.call_later(0.1, store.delete, NODES, name)
    assert roll_out(THREES, "gpu-0").ended == {"gpu-0": ("failed", "the node is gone")}
    assert roll_out.manager.text == CONFIG


def test_a_config_map_that_is_full(roll_out):
    """What would be too long to be read again is not written."""
    full = CONFIG.replace("# the end\n", f"# {'x' * (256 * 1024 - len(CONFIG) - 30)}\n")
    roll_out.cluster.call(lambda: roll_out.manager.write(full))
    with pytest.raises(InvalidInput, match="it would be longer than 256 KiB with tessera-"):
        roll_out(THREES, "gpu-0")
    assert (roll_out.manager.text, roll_out.manager.seen) == (full, [])


@pytest.mark.parametrize("by_label", [False, True])
def test_the_same_name_where_somebody_else_has_cut_the_cards(roll_out, by_label):
    """The label says success, and the node shows other devices: it is changed away and back, unless pods hold some."""
    threes = resolve(mig.read(THREES).select(), [PRODUCT] * 2)
    roll_out.cluster.call(lambda: roll_out.manager.cut("gpu-0", threes))
    wish = "all-1g.10gb" if by_label else "1g.10gb=7"
    roll_out.cluster.add(pod("train", "gpu-0", MIG + "3g.40gb"))
    assert roll_out(wish, "gpu-0", label=by_label).ended == {
        "gpu-0": ("refused", "pods hold devices that would go: default/train (1 × 3g.40gb)")
    }
    roll_out.cluster.call(
        lambda: roll_out.cluster.changing_pod("train", lambda one: one["status"].update(phase="Succeeded"))
    )
    assert roll_out(wish, "gpu-0", label=by_label).ended == {"gpu-0": ("done", "")}
    assert (label(roll_out, "gpu-0"), offered(roll_out, "gpu-0")) == (
        ("all-1g.10gb", "success"),
        {"1g.10gb": "14"},
    )
