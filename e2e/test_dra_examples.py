"""The example driver's own cases (dra-example-driver 0.4.0, `demo/examples` and `test/e2e`), with our driver.

Not here, since they are tested elsewhere: partitions with counters (`test_dra.test_slices_are_cut_on_demand`), and
`extendedResourceName` (`test_dra.test_extended_resources`). Not ported, since the driver does not have it: opaque parameters with
sharing strategies and the webhook that checks them, devices that several claims share by capacity (`allowMultipleAllocations`,
consumable capacity), binding conditions. Not ported, since it needs feature gates that are off: claims of a PodGroup, native CPUs.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import dra
from e2e.cluster import BUSYBOX, ClusterWithNode, Object

ANY = "tessera-any"  # the general class
_FOREVER = "exec sleep 1000"


@pytest.fixture(scope="module")
def faults(cluster_with_node: ClusterWithNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Our driver with two 2g and three 1g, and its general class; the file that makes devices unhealthy."""
    cluster, folder = cluster_with_node, tmp_path_factory.mktemp("examples")
    dra.make_class(cluster, ANY, "true")
    config = dra.simulated(folder, 'layout: "2g.20gb=2,1g.10gb=3"')
    with dra.start(cluster, folder, config) as running:
        running.wait_for_log("registered with the kubelet")
        running.until(lambda: len(dra.devices(cluster)) == 5, what="ResourceSlices")
        yield folder / "faults"
    dra.remove_slices(cluster)
    assert dra.left_over(cluster, folder) == []


@pytest.fixture
def namespace(faults: Path, cluster_with_node: ClusterWithNode, node_namespace: str) -> Iterator[str]:
    """A namespace whose pods end while the driver runs."""
    yield node_namespace
    faults.unlink(missing_ok=True)
    dra.remove_pods(cluster_with_node, node_namespace)


def exactly(name: str = "gpu", **more: Any) -> Object:
    """A request for a device of the general class."""
    return {"name": name, "exactly": {"deviceClassName": ANY, **more}}


def selecting(*expressions: str) -> list[Object]:
    """Selectors in CEL; `own` stands for our attributes."""
    texts = [one.replace("own.", f"device.attributes['{dra.DRIVER}'].") for one in expressions]
    return [{"cel": {"expression": text}} for text in texts]


def template(cluster: ClusterWithNode, namespace: str, *requests: Object) -> None:
    """The template `gpu`."""
    body = {"metadata": {"name": "gpu"}, "spec": {"spec": {"devices": {"requests": list(requests)}}}}
    cluster.api.create(f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaimtemplates", body)


def container(name: str, script: str = _FOREVER) -> Object:
    """A container with the pod's claim."""
    return {
        "name": name,
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": {"claims": [{"name": "gpu"}]},
    }


def devices(cluster: ClusterWithNode, namespace: str, pod: str, container: str = "main") -> list[str]:
    """The UUIDs that a container sees."""
    listed = cluster.kubectl("exec", pod, "-n", namespace, "-c", container, "--", "nvidia-smi", "-L")
    return _uuids(listed)


def _uuids(listed: str) -> list[str]:
    return [line.partition("UUID: ")[2].rstrip(")") for line in listed.splitlines() if "UUID: MIG-" in line]


def test_a_device_for_each_pod(cluster_with_node: ClusterWithNode, namespace: str) -> None:
    """basic-resourceclaimtemplate: two pods, one template: one device each, and not the same."""
    cluster = cluster_with_node
    template(cluster, namespace, exactly())
    dra.run(cluster, namespace, [dra.pod(f"pod{n}", template="gpu") for n in range(2)])
    [first], [second] = (devices(cluster, namespace, f"pod{n}") for n in range(2))
    assert first != second


def test_two_requests_of_one_container(cluster_with_node: ClusterWithNode, namespace: str) -> None:
    """basic-multiple-requests: one container has two devices."""
    cluster = cluster_with_node
    template(cluster, namespace, exactly("gpu-1"), exactly("gpu-2"))
    dra.run(cluster, namespace, [dra.pod("pod0", template="gpu")])
    assert len({*devices(cluster, namespace, "pod0")}) == 2


def test_one_claim_for_all_containers_of_a_pod(cluster_with_node: ClusterWithNode, namespace: str) -> None:
    """basic-shared-claim-across-containers, initcontainer-shared-gpu: all of them see the same device."""
    cluster = cluster_with_node
    template(cluster, namespace, exactly())
    pod = json.loads(dra.pod("pod0", template="gpu"))
    pod["spec"]["initContainers"] = [container("init0", "nvidia-smi -L")]
    pod["spec"]["containers"] = [container(name) for name in ("ctr0", "ctr1")]
    dra.run(cluster, namespace, [json.dumps(pod)])
    first, second = (devices(cluster, namespace, "pod0", name) for name in ("ctr0", "ctr1"))
    before = _uuids(cluster.kubectl("logs", "pod0", "-n", namespace, "-c", "init0"))
    assert len(first) == 1
    assert first == second == before


def test_one_claim_for_two_pods(cluster_with_node: ClusterWithNode, namespace: str) -> None:
    """basic-shared-claim-across-pods: both see the same device; it is free when both have ended."""
    cluster = cluster_with_node
    claim = {"metadata": {"name": "single"}, "spec": {"devices": {"requests": [exactly()]}}}
    cluster.api.create(f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaims", claim)
    dra.run(cluster, namespace, [dra.pod(f"pod{n}", claim="single") for n in range(2)])
    assert devices(cluster, namespace, "pod0") == devices(cluster, namespace, "pod1")
    cluster.kubectl("delete", "pod", "pod0", "-n", namespace)
    assert len(devices(cluster, namespace, "pod1")) == 1


def test_admin_access_sees_everything(cluster_with_node: ClusterWithNode, namespace: str) -> None:
    """admin-access: all devices, those in use too, and none of them is taken from anyone."""
    cluster = cluster_with_node
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    cluster.api.patch(f"/api/v1/namespaces/{namespace}", label)
    claim = {"metadata": {"name": "own"}, "spec": {"devices": {"requests": [exactly()]}}}
    cluster.api.create(f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaims", claim)
    template(cluster, namespace, exactly(allocationMode="All", adminAccess=True))
    dra.run(cluster, namespace, [dra.pod("user", claim="own"), dra.pod("admin", template="gpu")])
    [used] = devices(cluster, namespace, "user")
    seen = devices(cluster, namespace, "admin")
    assert (len(seen), used in seen) == (5, True)
    cluster.kubectl("delete", "pod", "admin", "-n", namespace)
    assert devices(cluster, namespace, "user") == [used]


def test_a_class_as_a_resource(cluster_with_node: ClusterWithNode, namespace: str) -> None:
    """extended-resource-request: every class has a resource name of its own."""
    cluster = cluster_with_node
    resource = f"deviceclass.resource.kubernetes.io/{ANY}"
    dra.run(cluster, namespace, [dra.pod("pod0", limits={resource: 1})])
    assert len(devices(cluster, namespace, "pod0")) == 1


def test_a_device_chosen_by_expressions(cluster_with_node: ClusterWithNode, namespace: str) -> None:
    """cel-selector: by attributes and by capacity."""
    cluster = cluster_with_node
    large = f"device.capacity['{dra.DRIVER}'].memory.compareTo(quantity('15Gi')) >= 0"
    template(cluster, namespace, exactly(selectors=selecting("own.product.startsWith('Simulated')", large)))
    dra.run(cluster, namespace, [dra.pod("pod0", template="gpu")])
    assert dra.seen(cluster, namespace, "pod0") == ["2g.20gb"]


def test_alternatives_in_their_order(cluster_with_node: ClusterWithNode, namespace: str) -> None:
    """prioritized-alternatives: the first that there is; what there is not is passed over."""
    cluster = cluster_with_node
    wishes = [
        ("gone", "own.product == 'NVIDIA H100'"),
        ("large", "own.profile == '2g.20gb'"),
        ("any", "own.type == 'mig'"),
    ]
    alternatives = [
        {"name": name, "deviceClassName": ANY, "selectors": selecting(text)} for name, text in wishes
    ]
    template(cluster, namespace, {"name": "gpu", "firstAvailable": alternatives})
    dra.run(cluster, namespace, [dra.pod(f"pod{n}", template="gpu") for n in range(3)])
    assert [dra.seen(cluster, namespace, f"pod{n}") for n in range(3)] == [
        ["2g.20gb"],
        ["2g.20gb"],
        ["1g.10gb"],
    ]


def test_taints_and_tolerations(cluster_with_node: ClusterWithNode, namespace: str, faults: Path) -> None:
    """device-taints-tolerations: a device that is unhealthy goes to the claim that tolerates it, and to no other."""
    cluster = cluster_with_node
    faults.write_text("card 0: XID 79\n")
    cluster.wait(
        lambda: all("taints" in one for one in dra.devices(cluster).values()), what="the devices are tainted"
    )
    toleration = {"key": f"{dra.DRIVER}/unhealthy", "operator": "Exists", "effect": "NoSchedule"}
    tolerant = exactly(tolerations=[toleration])
    claims = f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaims"
    for name, request in (("tolerant", tolerant), ("strict", exactly())):
        cluster.api.create(claims, {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}})
        cluster.apply(dra.pod(name, claim=name), namespace=namespace)
    cluster.wait_for_pod_phase("tolerant", "Running", namespace=namespace)
    cluster.wait_for_pod_unschedulable("strict", namespace=namespace)
    faults.unlink()
    cluster.wait_for_pod_phase("strict", "Running", namespace=namespace)
