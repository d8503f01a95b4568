"""ResourceSlices: documents, and what is to be written."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import PRODUCTS, Product
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Instance, every_place
from tessera.node.dra.slice_documents import Document, Offer, consumption, offer, specs, supply
from tessera.node.dra.slice_publisher import dropped, essence, plan, slice_name
from tests.node.dra.samples import NODE, POOL, PRODUCT, card, listed, mig

OWNER = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "u-1", "controller": True}


def offered(*devices, counted=None, **more) -> Offer:
    return Offer(NODE, offer(devices), counted or {}, **more)


def test_every_device_has_every_attribute() -> None:
    """A slice, a card and a listed device in full: a missing attribute would stop scheduling everywhere."""
    [spec] = specs(offered(mig("2g.20gb", 4, 1), card(0), listed("device_0")))
    assert {key: spec[key] for key in ("driver", "nodeName", "pool")} == {
        "driver": "gpu.tessera.dev",
        "nodeName": NODE,
        "pool": {"name": POOL},
    }
    assert spec["devices"] == [
        {
            "name": "device-0",
            "attributes": {
                "type": {"string": "device"},
                "profile": {"string": ""},
                "product": {"string": ""},
                "parent": {"string": ""},
                "card": {"int": -1},
                "position": {"int": -1},
                "uuid": {"string": "device_0"},
                "resource": {"string": "device.example.com/gpu"},
            },
            "capacity": {"memory": {"value": "0Mi"}},
        },
        {
            "name": "gpu-1-mig-2g-20gb-4",
            "attributes": {
                "type": {"string": "mig"},
                "profile": {"string": "2g.20gb"},
                "product": {"string": "Simulated H200-70GB"},
                "parent": {"string": "GPU-1"},
                "card": {"int": 1},
                "position": {"int": 4},
                "uuid": {"string": "MIG-1-2g.20gb-4"},
                "resource": {"string": "nvidia.com/mig-2g.20gb"},
            },
            "capacity": {"memory": {"value": "20480Mi"}},
        },
        {
            "name": "gpu-0",
            "attributes": {
                "type": {"string": "gpu"},
                "profile": {"string": ""},
                "product": {"string": "Simulated H200-70GB"},
                "parent": {"string": "GPU-0"},
                "card": {"int": 0},
                "position": {"int": -1},
                "uuid": {"string": "GPU-0"},
                "resource": {"string": "nvidia.com/gpu"},
            },
            "capacity": {"memory": {"value": "71680Mi"}},
        },
    ]


def test_ill_and_leaving_devices_are_tainted() -> None:
    """NoSchedule, or NoExecute for illness where it is configured; never for a device that stays for its pod."""
    ill = mig("1g.10gb", 0, problem="XID 79")
    leaving = replace(mig("1g.10gb", 1), problem="no longer wanted", leaving=True)

    def taints(**more) -> list[Any]:
        [spec] = specs(offered(ill, leaving, **more))
        return [device.get("taints") for device in sorted(spec["devices"], key=lambda one: one["name"])]

    going = {"key": "gpu.tessera.dev/leaving", "effect": "NoSchedule"}
    assert taints() == [[{"key": "gpu.tessera.dev/unhealthy", "effect": "NoSchedule"}], [going]]
    assert taints(evict_unhealthy=True) == [
        [{"key": "gpu.tessera.dev/unhealthy", "effect": "NoExecute"}],
        [going],
    ]
    withheld = {"key": "gpu.tessera.dev/device-plugin", "effect": "NoSchedule"}
    assert taints(withheld=True)[1] == [withheld, going]


def test_at_most_64_devices_and_8_counter_sets_in_a_slice() -> None:
    """Nine cards with every place: counters in two slices of their own, devices in pieces that may carry taints."""
    devices = [
        mig(str(one.profile), one.position, number, cut=False)
        for number in range(9)
        for one in every_place(PRODUCT)
    ]
    found = specs(offered(*devices, counted={f"GPU-{number}": PRODUCT for number in range(9)}))
    sizes = [len(spec.get("devices", [])) for spec in found]
    assert sum(sizes) == len(devices)
    assert max(sizes) == 64
    assert [len(spec["sharedCounters"]) for spec in found if "sharedCounters" in spec] == [8, 1]
    assert not any("devices" in spec and "sharedCounters" in spec for spec in found)


def test_counters_are_those_of_the_geometry() -> None:
    """A slice takes its memory slices, compute and memory; the whole card takes everything."""
    [devices, counters] = specs(offered(mig("2g.20gb", 4, cut=False), card(0), counted={"GPU-0": PRODUCT}))
    [a_slice, whole] = devices["devices"]
    assert a_slice["attributes"]["uuid"] == {"string": ""}, "it does not exist yet"
    assert a_slice["consumesCounters"] == [
        {
            "counterSet": "card-0",
            "counters": {
                "memory-slice-4": {"value": "1"},
                "memory-slice-5": {"value": "1"},
                "compute": {"value": "2"},
                "memory": {"value": str(20 << 30)},
            },
        }
    ]
    [counter_set] = counters["sharedCounters"]
    assert counter_set["name"] == "card-0"
    assert whole["consumesCounters"] == [{"counterSet": "card-0", "counters": counter_set["counters"]}]
    assert counter_set["counters"]["compute"] == {"value": "7"}


def _fits_by_counters(product: Product, instances: list[Instance]) -> bool:
    left = supply(product)
    for one in instances:
        for name, count in consumption(mig(str(one.profile), one.position, product=product), product).items():
            left[name] -= count
    return min(left.values()) >= 0


def _fits_by_geometry(product: Product, instances: list[Instance]) -> bool:
    try:
        CardLayout(product, mig_enabled=True, instances=tuple(instances))
    except InvalidInput:
        return False
    return True


@given(st.data())
def test_counters_allow_exactly_what_can_be_cut(data: st.DataObject) -> None:
    """For every product and any set of slices: what the scheduler would allow fits on the card, and the other way round."""
    product = data.draw(st.sampled_from(PRODUCTS))
    instances = data.draw(st.lists(st.sampled_from(list(every_place(product))), max_size=8, unique=True))
    assert _fits_by_counters(product, instances) == _fits_by_geometry(product, instances)


class FakeApi:
    """The API server, as far as plans concern it: it numbers versions and adds times to taints."""

    def __init__(self) -> None:
        self.objects: dict[str, Document] = {}
        self.writes = 0

    def carry_out(self, desired, generation: int = 0) -> int:
        todo = plan(desired, self.objects, OWNER, generation)
        for name in todo.delete:
            del self.objects[name]
        for document in (*todo.update, *todo.create):
            name = document["metadata"]["name"]
            if name in self.objects:
                assert document["metadata"]["resourceVersion"] == "1"
            stored = copy.deepcopy(document)
            stored["metadata"]["resourceVersion"] = "1"
            for device in stored["spec"].get("devices") or ():
                for taint in device.get("taints") or ():
                    taint.setdefault("timeAdded", "2026-01-01T00:00:00Z")
                for value in device["capacity"].values():
                    value["value"] = value["value"].replace("20480Mi", "20Gi")
            self.objects[name] = stored
        written = len(todo.delete) + len(todo.update) + len(todo.create)
        self.writes += written
        return written

    @property
    def pools(self) -> list[tuple[int, int]]:
        return [
            (one["spec"]["pool"]["generation"], one["spec"]["pool"]["resourceSliceCount"])
            for _, one in sorted(self.objects.items())
        ]


def test_writing_ends() -> None:
    """What was written is not written again, though the API server normalises quantities and adds times."""
    api = FakeApi()
    desired = specs(offered(mig("2g.20gb", 0, problem="ill"), mig("2g.20gb", 2)))
    assert api.carry_out(desired) == 1
    assert api.carry_out(desired) == 0
    assert api.pools == [(1, 1)]


def test_one_changed_slice_keeps_the_generation() -> None:
    """A taint is one write; several changes, or another number of slices, are a new generation of all."""
    api = FakeApi()
    places = list(every_place(PRODUCT))
    devices = [mig(str(one.profile), one.position, number) for number in range(5) for one in places]
    assert api.carry_out(specs(offered(*devices))) == 2
    ill = [replace(devices[0], problem="ill"), *devices[1:]]
    assert api.carry_out(specs(offered(*ill))) == 1
    assert api.pools == [(1, 2), (1, 2)]
    assert api.carry_out(specs(offered(*(replace(one, problem="ill") for one in devices)))) == 2
    assert api.pools == [(2, 2), (2, 2)]
    assert api.carry_out(specs(offered(*devices[:3]))) == 2, "one goes, the other has a new count"
    assert api.pools == [(3, 1)]


def test_wiped_slices_come_back_in_a_later_generation() -> None:
    """After the kubelet removed everything, the generation goes on from the highest that was seen."""
    api = FakeApi()
    desired = specs(offered(mig("2g.20gb", 0)))
    api.carry_out(desired)
    api.objects.clear()
    assert api.carry_out(desired, generation=1) == 1
    assert api.pools == [(2, 1)]


def test_slices_of_another_node_object_are_written_anew() -> None:
    """A node that was deleted and made again has another uid: its slices would go with the old one."""
    api = FakeApi()
    desired = specs(offered(mig("2g.20gb", 0)))
    api.carry_out(desired)
    [current] = api.objects.values()
    current["metadata"]["ownerReferences"] = [OWNER | {"uid": "u-0"}]
    assert api.carry_out(desired) == 1


def test_names_sort_by_number_and_fit() -> None:
    """The scheduler takes slices by name."""
    assert slice_name(0, NODE) == "00000-node-1-gpu.tessera.dev"
    assert sorted(slice_name(n, NODE) for n in range(12)) == [slice_name(n, NODE) for n in range(12)]
    assert len(slice_name(0, "n" * 253)) <= 253
    assert slice_name(0, "n" * 252 + "a") != slice_name(0, "n" * 252 + "b")


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ({"value": "1"}, {"value": "1000m"}),
        ({"value": "1024Mi"}, {"value": "1Gi"}),
        ({"taints": [{"key": "a", "effect": "b"}]}, {"taints": [{"key": "a", "effect": "b", "timeAdded": "x"}]}),
        ({"devices": [], "other": 1}, {"other": 1}),
    ],
)  # fmt: skip
def test_specs_compare_by_what_they_say(sent: Document, received: Document) -> None:
    """Quantities by value; what the API server adds is no difference."""
    assert essence({"x": sent}) == essence({"x": received})


def test_dropped_fields_are_noticed() -> None:
    """An API server with a feature gate off takes taints and counters without a word, and keeps nothing of them."""
    [devices, counters] = specs(offered(mig("2g.20gb", 0, problem="ill"), counted={"GPU-0": PRODUCT}))
    kept = {"devices": [{k: v for k, v in d.items() if k != "taints"} for d in devices["devices"]]}
    assert dropped({"spec": devices}, {"spec": kept}) == ("taints",)
    assert dropped({"spec": counters}, {"spec": {}}) == ("sharedCounters",)
    assert dropped({"spec": devices}, {"spec": devices}) == ()
