"""What would change on a node, computed before anything is written."""

import json
import shlex

import pytest

from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import product_named
from tessera.core.resources import is_any_gpu
from tessera.protocol.kubernetes.nodes import decode_node
from tessera.protocol.kubernetes.pod import decode_pod_use
from tessera.protocol.mig import documents as mig
from tessera.rollout.change import Wanted
from tessera.rollout.changes import change_of
from tessera.rollout.progress import offered_by
from tests.build import MIG
from tests.inventory.objects import LAYOUT, node, pod
from tests.rollout.conftest import BIG

ONES = LAYOUT.replace("[2g.20gb, 2g.20gb, 3g.30gb]", "[1g.10gb, 1g.10gb]")


def wanted(text, **more):
    return Wanted(mig.read(text), more.pop("config", None), label=more.pop("label", False), text=text, **more)


def change(what, *pods, document=None):
    one = decode_node(json.dumps(document or node("gpu-0", BIG, "NVIDIA-H200", layout=LAYOUT)).encode())
    return change_of(
        one, offered_by(one), [decode_pod_use(json.dumps(p).encode(), is_any_gpu) for p in pods], what
    )


def test_counts_and_text():
    """An annotation is written as it came; resources of which there will be more or fewer are counted."""
    found = change(wanted(ONES + "# for the night\n"))
    assert (found.written, found.before, found.after) == (False, LAYOUT, ONES + "# for the night\n")
    assert found.counts == [(MIG + "1g.10gb", 0, 4), (MIG + "2g.20gb", 4, 0), (MIG + "3g.30gb", 2, 0)]
    assert found.patch(found.after, "7") == {
        "metadata": {
            "labels": {"nvidia.com/mig.config.state": None},
            "annotations": {"run.ai/mig.config": found.after},
            "resourceVersion": "7",
        }
    }


def test_the_same_layout_written_otherwise_is_no_change():
    """What means the same is left as it stands."""
    found = change(wanted("2g.20gb=2,3g.30gb=1"))
    assert (found.written, found.after, found.counts) == (True, LAYOUT, [])


@pytest.mark.parametrize(
    ("layout", "risks"),
    [
        (ONES, ("pod default/train holds 2 × 2g.20gb; 4 of 4 are removed", "pod default/serve holds 1 × 3g.30gb; 2 of 2 are removed")),
        (LAYOUT.replace("[0, 1]", "[0]"), ("pod default/train holds 2 × 2g.20gb; 2 of 4 are removed", "pod default/serve holds 1 × 3g.30gb; 1 of 2 are removed")),
        (LAYOUT.replace("2g.20gb, 2g.20gb, 3g.30gb", "3g.30gb"), ("pod default/train holds 2 × 2g.20gb; 4 of 4 are removed",)),
    ],
)  # fmt: skip
def test_pods_in_danger(layout, risks):
    """Pods that hold devices of which some are removed are named; those whose devices stay are not."""
    pods = pod("train", "gpu-0", MIG + "2g.20gb", 2), pod("serve", "gpu-0", MIG + "3g.30gb")
    assert change(wanted(layout), *pods).risks == risks


def test_of_pods_whose_devices_are_known_only_those_in_danger_are_named():
    """Where the node says which devices pods hold and the API agrees, just the pods are named whose devices go; else all that may."""
    layout = LAYOUT.replace("[0, 1]", "[0]")  # card 1 is whole then
    pods = [pod(name, "gpu-0", MIG + "2g.20gb", uid=f"{name}-{name}") for name in ("first", "second")]

    def risks(*more, said='{"0": {"2g.20gb@0": "first-fi"}, "1": {"2g.20gb@2": "second-s"}}'):
        one = node("gpu-0", BIG, "NVIDIA-H200", layout=LAYOUT)
        one["metadata"]["annotations"]["tessera.dev/devices-in-use"] = said
        return change(wanted(layout), *pods, *more, document=one).risks

    assert risks() == ("pod default/second holds 1 × 2g.20gb; 2 of 4 are removed",)
    assert len(risks(said="{}")) == 2
    assert len(risks(pod("new", "gpu-0", MIG + "2g.20gb", uid="new"))) == 2  # which it has is not said yet


def test_a_label_of_which_the_file_is_unknown():
    """Then nothing can be counted, and every pod with a GPU may lose it."""
    found = change(Wanted(None, "all-balanced", label=True), pod("train", "gpu-0", MIG + "2g.20gb", 2))
    assert (found.expected, found.counts, found.after) == (None, [], "all-balanced")
    assert found.risks == ("pod default/train holds 2 × 2g.20gb",)
    assert found.patch("all-balanced", None) == {
        "metadata": {"labels": {"nvidia.com/mig.config.state": None, "nvidia.com/mig.config": "all-balanced"}}
    }


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        (lambda: Wanted(None, "a b", label=True), '"a b" cannot be the value of a label; --label takes the name of a configuration'),
        (lambda: wanted(ONES, config="other"), 'no configuration "other"; there are selected'),
        (lambda: change(wanted("1g.10gb=8")), "cards 0-1: 1g.10gb ×8 is more than the 7 a Simulated H200-70GB holds"),
        (lambda: change(wanted("1g.10gb=1"), document=node("n", {})), "no label nvidia.com/gpu.product; set it with --product"),
        (lambda: change(wanted("1g.10gb=1"), document=node("n", {}, "X9")), 'unknown product "X9"; set it with --product'),
        (lambda: change(wanted("1g.10gb=1", product=product_named("H200-70GB")), document=node("n", {})), "its labels do not say how many cards it has; set it with --cards"),
    ],
)  # fmt: skip
def test_refused(what, complaint):
    """A name that cannot be, a layout that does not fit, a node of which too little is known."""
    with pytest.raises(InvalidInput) as caught:
        what()
    assert str(caught.value) == complaint


def test_the_command_by_hand_is_quoted():
    """A layout is any text: what a shell would take for the end of it is escaped."""
    found = change(wanted(ONES), document=node("gpu-0", BIG, "NVIDIA-H200", layout=LAYOUT + "# it's ours\n"))
    assert shlex.split(found.by_hand())[-1] == f"run.ai/mig.config={LAYOUT}# it's ours\n"
