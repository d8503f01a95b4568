"""Observe mode: reported, and not done."""

import pytest

from tessera.core.admission.decision import decide
from tessera.core.admission.outcome import Allowed, Denied, observed
from tessera.core.admission.policy import Mode, mode_in, mode_source
from tessera.core.kubernetes.node import Namespace
from tests.build import container, node, offers, pod, policy

SMALL = node("small", **{"1g.10gb": 4, "cpu": 8})
INJECTION = (
    "injection: {resourceMap: {V100: {nvidia.com/gpu: {resourceList: [{name: cpu, coefficient: 4},"
    " {name: nvidia.com/shm, coefficient: 1}]}}}}"
)
V100 = {"task.bkbcs.tencent.com/gpu-type": "V100"}


@pytest.mark.parametrize(
    ("configured", "label", "mode", "by"),
    [
        (Mode.ENFORCE, None, Mode.ENFORCE, "the configuration's mode"),
        (Mode.OBSERVE, None, Mode.OBSERVE, "the configuration's mode"),
        (Mode.ENFORCE, "observe", Mode.OBSERVE, "namespace team, label gpu-webhook=observe"),
        (Mode.OBSERVE, "enforce", Mode.ENFORCE, "namespace team, label gpu-webhook=enforce"),
        (Mode.OBSERVE, "Enforce", Mode.OBSERVE, "the configuration's mode"),
        (Mode.OBSERVE, "disabled", Mode.OBSERVE, "the configuration's mode"),
    ],
)
def test_the_namespace_wins(configured, label, mode, by):
    """A namespace says it by its label, else the configuration does; other values of the label say nothing."""
    team = Namespace("team", {} if label is None else {"gpu-webhook": label})
    cluster = offers(SMALL, namespaces=(team,))
    assert mode_in(cluster.namespaces.get("team"), configured) is mode
    assert mode_source(cluster.namespaces.get("team")) == by
    assert mode_in(None, configured) is configured


@pytest.mark.parametrize(
    ("asker", "warnings", "audit"),
    [
        (
            pod(container(**{"2g.20gb": 1})),
            ("observe mode: would be changed to 1g.10gb: no node that this pod can use offers 2g.20gb as asked",),
            {"mode": "observe", "would-fallback": "2g.20gb->1g.10gb"},
        ),
        (pod(container(**{"1g.10gb": 1})), (), {"mode": "observe"}),
        (
            pod(container(limits={}, **{"1g.10gb": 1})),
            ("observe mode: would be changed: what it asks for is offered; limits added where a GPU request had none",),
            {"mode": "observe"},
        ),
        (
            pod(container(gpu=1), annotations=V100),
            (
                "observe mode: would be changed: resources of GPU type V100 injected per gpu",
                "observe mode: nvidia.com/gpu: 1: no node that this pod can use has any; the pod stays as it is and waits",
                "observe mode: injected nvidia.com/shm: no node has it now",
            ),
            {"mode": "observe", "would-injection": "V100"},
        ),
        (
            pod(container(**{"1g.10gb": 9})),
            ("observe mode: would be rejected: asked for nvidia.com/mig-1g.10gb: 9, and no node that this pod can use has enough of …",),
            {"mode": "observe", "would-reject": "asked for nvidia.com/mig-1g.10gb: 9, and no node that this pod can use has enough of it (at most 4 a node, 9 needed); tried gpu (forbidden by fallback.maxWholeGPUs: 1); the nodes that this pod can use offer 1g.10gb (up to 4 a node)"},
        ),
    ],
    ids=["fallback", "as asked", "limits", "injection", "rejected"],
)  # fmt: skip
def test_what_would_be_is_told(asker, warnings, audit):
    """Warnings and audit annotations say "would"; those of what really happened are never used."""
    would = decide(asker, offers(SMALL), policy(INJECTION))
    found = observed(would)
    assert (found.would, found.warnings, found.audit) == (would, warnings, audit)
    assert all(len(warning) <= 120 for warning in found.warnings)


def test_what_changes_nothing_warns_as_ever():
    """A word about a pod that waits is as true in observe mode."""
    would = Allowed("waits", ("no node offers it now",))
    assert observed(would).warnings == would.warnings
    assert observed(Denied("not_offered", "x")).reason == "x"
