"""The real scheduler and our counters: what it allocates can be cut, and what can be cut it allocates."""

import random

import pytest

from e2e import dra
from e2e.cluster import BUSYBOX, Client, pods_path
from e2e.cluster.api import Object
from tessera.core.devices.device import Device
from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import Product, product_named
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Instance, every_place

_STEPS = 40


def _fits(product: Product, instances: list[Instance]) -> bool:
    try:
        CardLayout(product, mig_enabled=True, instances=tuple(instances))
    except InvalidInput:
        return False
    return True


@pytest.mark.parametrize("name", ["H200", "A30", "RTX PRO 6000 Blackwell", "Simulated H200-70GB"])
def test_the_scheduler_allocates_exactly_what_fits(control_plane: Client, namespace: str, name: str) -> None:
    """Claims come and go at random: each is allocated if there is a place for it beside the others, and waits if there is none."""
    cluster, product = control_plane, product_named(name)
    node = f"dra-{name.lower().replace(' ', '-')}"
    offered = dra.cut_on_demand(cluster, node, product)
    places = {one: _instance(product, device) for one, device in offered.items() if device.model.profile}
    claims = f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaims"
    chosen, held = random.Random(name), dict[str, Instance]()
    allocated = waited = 0
    try:
        for step in range(_STEPS):
            if held and chosen.random() < 0.35:
                gone = chosen.choice(sorted(held))
                cluster.api.delete(f"{pods_path(namespace)}/{gone}", gracePeriodSeconds="0")
                cluster.api.delete(f"{claims}/{gone}")
                cluster.wait_gone(claims, gone)
                del held[gone]
            profile = chosen.choice(product.profiles)
            one = f"p{step}"
            request = {
                "name": "gpu",
                "exactly": {"deviceClassName": dra.profile_class(cluster, str(profile))},
            }
            cluster.api.create(
                claims, {"metadata": {"name": one}, "spec": {"devices": {"requests": [request]}}}
            )
            cluster.api.create(pods_path(namespace), _pod(one, node))
            room = any(
                _fits(product, [*held.values(), place])
                for place in every_place(product)
                if place.profile == profile
            )
            if room:
                cluster.wait_for_pod_bound(one, namespace=namespace)
                status = cluster.api.get(f"{claims}/{one}")["status"]
                held[one] = places[status["allocation"]["devices"]["results"][0]["device"]]
                assert held[one].profile == profile
                assert _fits(product, list(held.values())), (
                    f"cannot be cut: {sorted(map(str, held.values()))}"
                )
                allocated += 1
            else:
                cluster.wait_for_pod_unschedulable(one, namespace=namespace)
                cluster.api.delete(f"{pods_path(namespace)}/{one}", gracePeriodSeconds="0")
                cluster.api.delete(f"{claims}/{one}")
                waited += 1
        assert allocated
        assert waited
    finally:
        cluster.remove_node(node)


def _instance(product: Product, device: Device) -> Instance:
    assert device.place is not None
    start = device.place.span.start
    return next(
        one
        for one in every_place(product)
        if (str(one.profile), one.position) == (device.model.profile, start)
    )


def _pod(name: str, node: str) -> Object:
    container = {"name": "main", "image": BUSYBOX, "resources": {"claims": [{"name": "gpu"}]}}
    return {
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [container],
        },
    }
