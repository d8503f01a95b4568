"""What the tests of the DRA driver share: the driver as a process, classes, templates and pods that ask for claims."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import Client, ClusterWithNode, pods_path
from e2e.cluster.api import ApiError, Object
from e2e.command import Running, node_options
from e2e.pods import FOREVER, busybox_pod
from tessera.core.devices.device import Card, Device, DeviceType, Model, Place, Span
from tessera.core.devices.preference import blocks_of
from tessera.core.mig.geometry import Product
from tessera.core.mig.placement import every_place
from tessera.node.dra.slice_documents import Offer, offer, specs
from tessera.node.dra.slice_publisher import plan

DRIVER = "gpu.tessera.dev"
RESOURCES = "/apis/resource.k8s.io/v1"
SLICES = f"{RESOURCES}/resourceslices"
CLASSES = f"{RESOURCES}/deviceclasses"


def simulated(tmp_path: Path, more: str, cards: int = 1) -> Path:
    """A configuration of simulated cards of seven slices; `faults` beside it makes devices unhealthy."""
    config = tmp_path / "devices.yaml"
    config.write_text(
        f"faultFile: {tmp_path / 'faults'}\nsimulated:\n  product: Simulated H200-70GB\n  cards: {cards}\n  {more}\n"
    )
    return config


def start(
    cluster: ClusterWithNode,
    tmp_path: Path,
    config: Path,
    *options: str,
    name: str = "dra-driver",
    crash_at: str = "",
    environment: Mapping[str, str] | None = None,
) -> Running:
    """The driver of the cluster's node, as a process on this machine."""
    return Running(
        "dra-driver",
        *node_options(cluster, config, tmp_path),
        "--log-format=text",
        *options,
        log=tmp_path / f"{name}.log",
        module="e2e.crashing_driver" if crash_at else "tessera",
        environment={**(environment or os.environ), "CRASH_AT": crash_at},
    )


@contextmanager
def driver(
    cluster: ClusterWithNode,
    namespace: str,
    tmp_path: Path,
    config: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """The driver, with its slices there; at the end the namespace's pods end while it still runs, and the slices go."""
    try:
        with start(cluster, tmp_path, config, *options, environment=environment) as running:
            running.wait_for_log("registered with the kubelet")
            running.until(lambda: slices(cluster), what="ResourceSlices")
            try:
                yield running
            finally:
                remove_pods(cluster, namespace)
    finally:
        remove_slices(cluster)
    assert left_over(cluster, tmp_path) == []


def cut_on_demand(
    cluster: Client, node: str, product: Product, *, cards: int = 1, counted: bool = True
) -> dict[str, Device]:
    """A node that is only an object, with the slices that the driver makes of cards that are cut on demand; its devices by name."""
    devices = []
    for number in range(cards):
        uuid, card = f"GPU-{node}-{number}", Card(number, blocks_of(product))
        for one in every_place(product):
            model = Model(DeviceType.MIG, product.name, str(one.profile), uuid, 1, cut=False)
            place = Place(card, Span(one.position, one.size))
            devices.append(
                Device(
                    f"{number}-{one.profile}-{one.position}",
                    one.profile.resource,
                    "x/y",
                    place=place,
                    model=model,
                )
            )
        whole = Place(card, Span(0, product.memory_slices))
        devices.append(
            Device(
                uuid,
                "nvidia.com/gpu",
                "x/y",
                place=whole,
                model=Model(DeviceType.GPU, product.name, "", uuid, 1),
            )
        )
    offered = offer(devices)
    counters = {f"GPU-{node}-{number}": product for number in range(cards)} if counted else {}
    uid = cluster.add_node(node)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
    for document in plan(specs(Offer(node, offered, counters)), {}, owner, 0).create:
        cluster.api.create(SLICES, document)
    return offered


def slices(cluster: ClusterWithNode) -> list[Object]:
    """The driver's slices, by name."""
    listed = cluster.api.get(SLICES, fieldSelector=f"spec.driver={DRIVER}")["items"]
    return sorted(listed, key=lambda one: str(one["metadata"]["name"]))


def devices(cluster: ClusterWithNode) -> dict[str, Object]:
    """Every device that is offered, by name."""
    return {device["name"]: device for one in slices(cluster) for device in one["spec"].get("devices") or ()}


def remove_slices(cluster: ClusterWithNode) -> None:
    """Take away what a driver that has ended leaves behind: the kubelet would do it after 30 s, in the midst of another test."""
    for one in slices(cluster):
        cluster.api.delete(f"{SLICES}/{one['metadata']['name']}")


def left_over(cluster: ClusterWithNode, tmp_path: Path) -> list[str]:
    """Files of claims, which ought to go with them; CDI specs of other drivers and of the device plugin are theirs."""
    claims = tmp_path / "state" / "dra" / "claims"
    return sorted(path.name for path in (*cluster.cdi_dir.glob(f"{DRIVER}*.json"), *claims.glob("*.json")))


def remove_pods(cluster: ClusterWithNode, namespace: str) -> None:
    """End all pods of a namespace, and wait until the node has none that the API server does not have.

    Those that wait go first. The scheduler would give them what the others leave, and where a pod goes while it is bound by
    its extended resource, the scheduler (1.36) keeps the device from everybody for two minutes.
    """
    pods = cluster.api.get(pods_path(namespace))["items"]
    for pod in sorted(pods, key=lambda one: "nodeName" in one["spec"]):
        cluster.api.delete(f"{pods_path(namespace)}/{pod['metadata']['name']}", gracePeriodSeconds="0")

    def ended() -> bool:
        known = {pod["metadata"]["uid"] for pod in cluster.api.get("/api/v1/pods")["items"]}
        return {path.name for path in (cluster.kubelet_dir / "pods").iterdir()} <= known

    cluster.wait(ended, what="the pods have ended on the node")

    def free() -> bool:
        """A pod that comes while the scheduler still counts a claim waits for minutes until it is tried again."""
        claims = cluster.api.get("/apis/resource.k8s.io/v1/resourceclaims")["items"]
        return not any("allocation" in claim.get("status", {}) for claim in claims)

    cluster.wait(free, what="no claim holds a device")


def make_class(cluster: Client, name: str, condition: str, extended: str = "") -> None:
    """A class of devices, as the chart makes them."""
    expression = f"device.driver == '{DRIVER}' && {condition}"
    spec: Object = {"selectors": [{"cel": {"expression": expression}}]}
    if extended:
        spec["extendedResourceName"] = extended
    try:
        cluster.api.create(CLASSES, {"metadata": {"name": name}, "spec": spec})
    except ApiError as error:
        if error.code != 409:
            raise


def profile_class(cluster: Client, profile: str, extended: str = "") -> str:
    """The class of a profile; its name."""
    name = f"tessera-{profile.replace('.', '-').replace('+', '-')}"
    make_class(cluster, name, f"device.attributes['{DRIVER}'].profile == '{profile}'", extended)
    return name


def template(cluster: ClusterWithNode, namespace: str, name: str, *profiles: str) -> None:
    """A template of claims for the first of these profiles that is there."""
    alternatives = [
        {"name": f"a{number}", "deviceClassName": profile_class(cluster, profile)}
        for number, profile in enumerate(profiles)
    ]
    if len(alternatives) == 1:
        request: Object = {"name": "gpu", "exactly": {"deviceClassName": alternatives[0]["deviceClassName"]}}
    else:
        request = {"name": "gpu", "firstAvailable": alternatives}
    body = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    cluster.api.create(f"{RESOURCES}/namespaces/{namespace}/resourceclaimtemplates", body)


def pod(
    name: str,
    *,
    template: str = "",
    claim: str = "",
    script: str = FOREVER,
    restart: str = "Never",
    limits: Object | None = None,
    grace: int = 0,
) -> str:
    """A busybox pod with a claim, from a template or shared."""
    resources: Object = {"limits": limits} if limits else {}
    spec: Object = {}
    if template or claim:
        source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
        spec["resourceClaims"] = [{"name": "gpu", **source}]
        resources["claims"] = [{"name": "gpu"}]
    return busybox_pod(name, resources, script, restart=restart, grace=grace, **spec)


def seen(cluster: ClusterWithNode, namespace: str, name: str) -> list[str]:
    """The profiles that a running container sees."""
    listed = cluster.kubectl("exec", name, "-n", namespace, "--", "nvidia-smi", "-L")
    return [line.split()[1] for line in listed.splitlines() if line.startswith("  MIG ")]


def position(cluster: ClusterWithNode, namespace: str, name: str) -> int:
    """Where the slice of a pod's claim lies."""
    claims = cluster.api.get(f"{RESOURCES}/namespaces/{namespace}/resourceclaims")["items"]
    [claim] = [one for one in claims if one["metadata"]["name"].startswith(f"{name}-gpu")]
    given = claim["status"]["allocation"]["devices"]["results"][0]["device"]
    return int(devices(cluster)[given]["attributes"]["position"]["int"])


def run(cluster: ClusterWithNode, namespace: str, manifests: Sequence[str]) -> None:
    """Apply pods one after the other, and wait until each runs."""
    for manifest in manifests:
        cluster.apply(manifest, namespace=namespace)
        cluster.wait_for_pod_phase(json.loads(manifest)["metadata"]["name"], "Running", namespace=namespace)
