"""One odd object, or one odd check, does not end the examination."""

import pytest

from tessera.doctor import examination
from tessera.doctor.findings import Check, problem
from tessera.doctor.observations import Observations
from tessera.simulation.control_plane import kinds
from tests.build import node_document, object_of
from tests.doctor.authorities import NOW, authority
from tests.doctor.clusters import examined, gpu_pod, healthy


@pytest.mark.parametrize(
    ("kind", "odd", "check", "text"),
    [
        (kinds.NODES, object_of("odd", status={"allocatable": ["cpu"]}), "plugin", "1 of the nodes cannot be read and are left out, such as odd: status.allocatable"),
        (kinds.NODES, node_document("odd", {"nvidia.com/gpu": "many"}), "plugin", "such as odd: "),
        (kinds.PODS, gpu_pod("odd", {"nvidia.com/gpu": "many"}), "offers", "such as default/odd: "),
        (kinds.PODS, object_of("odd", namespace="default", spec=7), "offers", "1 of the pods cannot be read"),
        (kinds.EVENTS, object_of("odd", reason="FailedCreate", message=["x"]), "refused", "1 of the refusals cannot be read"),
    ],
    ids=["node", "amount of a node", "amount of a pod", "pod", "event"],
)  # fmt: skip
async def test_odd_object_is_left_out_and_told_once(kind, odd, check, text):
    """An object that cannot be read is left out; everything else is looked at as ever."""
    objects = healthy(authority())
    objects.setdefault(kind, []).append(odd)
    found = await examined(objects, now=NOW)
    assert found.findings == []
    told = [
        (name, one.text) for name in found.results for one in found.of(name) if "cannot be read" in one.text
    ]
    assert [name for name, _ in told] == [check]
    assert text in told[0][1]


async def test_odd_configuration_is_unseen():
    """Of an object that there is only once and that cannot be read it is said that it was not seen."""
    objects = healthy(authority())
    objects[kinds.DEPLOYMENTS][0]["spec"] = ["odd"]
    found = await examined(objects, now=NOW)
    assert found.states["running"] == "not seen"
    assert found.states["trial"] == "seen"


def test_check_that_fails_leaves_the_others(monkeypatch):
    """What a check found before it failed is reported, and also that it failed; the next check is made."""

    def odd(seen):
        yield problem("found before")
        raise KeyError("surprise")

    def sound(seen):
        yield from ()

    checks = (Check("odd", "Odd", (), odd), Check("sound", "Sound", (), sound))
    monkeypatch.setattr(examination, "CHECKS", checks)
    first, second = examination.examine(Observations())
    assert [str(one.severity) for one in first.findings] == ["problem", "unseen"]
    assert (first.failed, str(first.state), str(second.state)) == (True, "not seen", "seen")
