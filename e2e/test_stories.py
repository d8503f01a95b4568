"""The stories of `tessera demo` on real Kubernetes: the same table, the same endings.

The demo's API server, scheduler and kubelets are stand-ins; here are the real ones, and they must agree. On the control plane
nodes are objects: admission, scheduling and the scheduler's words are compared. On the cluster with a node there are a real
kubelet and real containers: devices, layouts and what a container sees are compared too.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e import dra
from e2e.cluster import BUSYBOX, ApiError, Client, ClusterWithNode, pods_path
from e2e.cluster.api import Object
from e2e.command import Running, node_options
from e2e.webhook import Webhook, registered
from tessera.core.admission.policy import DRA_ANNOTATION
from tessera.core.mig.layout import resolve
from tessera.core.requests.alternatives import GENERAL_CLASS
from tessera.core.resources import is_whole_or_mig
from tessera.kube.access.kubeconfig import find_cluster
from tessera.kube.rest import client as kube
from tessera.node.dra.slice_documents import Offer, offer, specs
from tessera.node.dra.slice_publisher import plan
from tessera.node.sources.simulated import CardDevices
from tessera.protocol import yaml
from tessera.protocol.mig import documents
from tessera.protocol.mig.documents import RUNAI_CONFIG
from tessera.simulation import node_descriptions as described
from tessera.simulation.control_plane.store import Document
from tessera.simulation.node_descriptions import NodeSpec, device_classes
from tessera.simulation.stories.pods import Counts, Ending, Runs
from tessera.simulation.stories.scenes import PodEnded
from tessera.simulation.stories.stage import Backstage, Stage
from tessera.simulation.stories.story import Delete, DryRun, Nodes, Relayout, Step, Story, Submit
from tessera.simulation.stories.table import CONFIGURATION, STORIES

_KNOWN = described.known_nodes()
_BY_NAME = {story.name: story for story in STORIES}
# What needs a kubelet and a device plugin is played on the cluster with a node; autopilots have tests of their own (test_layouts)
_ON_OBJECTS = [
    story.name for story in STORIES if not any(isinstance(step, Relayout | DryRun) for step in story.steps)
]
_ON_A_NODE = [
    "smaller",
    "larger",
    "never",
    "layout",
    "devices",
]  # one node with devices, and no more CPUs than it has


async def _told(story: Story, stage: Stage) -> list[PodEnded]:
    """Play a story; it must end as expected. What became of its pods."""
    pods = []
    async with contextlib.aclosing(story.play(stage)) as scenes:
        async for step, scene in scenes:
            assert scene.wrong == (), f"{story.name}: {step}\n{scene}"
            if isinstance(scene, PodEnded):
                pods.append(scene)
    return pods


@contextlib.asynccontextmanager
async def _stage(cluster: Client, backstage: Backstage, **settings: Any) -> AsyncIterator[Stage]:
    async with kube.Client(find_cluster(cluster.kubeconfig)) as client:
        yield Stage(client, backstage, **settings)


def _admitted(cluster: Client, resource: str, namespace: str = "default") -> Object | None:
    """A pod that asks for this, as the API server would store it now; None when it would be rejected."""
    container = {"name": "c", "image": "x", "resources": {"limits": {resource: 1}}}
    probe = {"metadata": {"name": "probe"}, "spec": {"containers": [container]}}
    with contextlib.suppress(ApiError):
        made: Object = cluster.api.create(pods_path(namespace), probe, dryRun="All")
        return made
    return None


def _kept(cluster: Client, resource: str) -> bool | None:
    """Whether a pod that asks for this would keep it; None when it would be rejected."""
    made = _admitted(cluster, resource)
    return None if made is None else resource in made["spec"]["containers"][0]["resources"].get("limits", ())


class Objects:
    """Behind the scenes of a control plane: nodes are made, and offer what they are told to."""

    def __init__(self, cluster: Client, webhook: Webhook) -> None:
        self._cluster, self._webhook = cluster, webhook
        self._nodes: dict[str, Counts] = {}
        self._classes: list[str] = []  # that were made here
        self.namespace = "default"  # of the story that is told

    async def have(self, nodes: Mapping[str, Counts]) -> None:
        """Have exactly these nodes."""
        for name in [name for name, counts in self._nodes.items() if nodes.get(name) != counts]:
            for one in self._cluster.api.get(dra.SLICES, fieldSelector=f"spec.nodeName={name}")["items"]:
                self._cluster.api.delete(f"{dra.SLICES}/{one['metadata']['name']}")
            self._cluster.remove_node(name)
            del self._nodes[name]
        self._have_classes([_KNOWN[name] for name in nodes])
        for name, counts in nodes.items():
            if name not in self._nodes:
                spec = _KNOWN[name]
                allocatable: dict[str, str | int] = {**spec.resources, **({} if spec.dra else counts)}
                made = self._cluster.add_node(name, allocatable=allocatable, labels=spec.labels)
                for one in _slices(spec, made["metadata"]["uid"]) if spec.dra else ():
                    self._cluster.api.create(dra.SLICES, one)
                self._nodes[name] = counts

    def _have_classes(self, specs: Sequence[NodeSpec]) -> None:
        """Have the classes of these nodes, under names that no other test uses; the general one has one name everywhere."""
        for name in self._classes:
            self._cluster.api.delete(f"{dra.CLASSES}/{name}")
        self._classes.clear()
        for one in device_classes(specs):
            name = one["metadata"]["name"]
            if name != GENERAL_CLASS:
                one["metadata"]["name"] = f"story-{name}"
            try:
                self._cluster.api.create(dra.CLASSES, one)
            except ApiError as error:
                if error.code != 409 or name != GENERAL_CLASS:
                    raise
            else:
                self._classes.append(one["metadata"]["name"])

    async def settled(self) -> None:
        """Return when the webhook decides by what the nodes offer now."""
        count = len(self._nodes)
        self._webhook.until(
            lambda: self._webhook.metric("gpu_webhook_node_view_nodes") == count,
            what=f"{count} nodes in the view",
        )
        space = self._cluster.api.get(f"/api/v1/namespaces/{self.namespace}")
        if DRA_ANNOTATION in (space["metadata"].get("annotations") or {}):
            self._webhook.until(self._all_claimed, what="requests that become claims")
            return
        for resource in {name for counts in self._nodes.values() for name in counts if "/mig-" in name}:
            self._webhook.until(
                lambda resource=resource: _kept(self._cluster, resource), what=f"{resource} in the view"
            )
        if any(is_whole_or_mig(name) for counts in self._nodes.values() for name in counts):
            self._webhook.until(
                lambda: _kept(self._cluster, "nvidia.com/mig-1g.1gb") is not None, what="offers in the view"
            )

    def _all_claimed(self) -> bool:
        resources = {name for counts in self._nodes.values() for name in counts}
        found = [_admitted(self._cluster, one, self.namespace) for one in sorted(resources)]
        return all(one is not None and one["spec"].get("resourceClaims") for one in found)

    async def seen(self, namespace: str, pod: str) -> Mapping[str, Sequence[str]]:
        """Nothing runs here."""
        return {}

    def reason(self, namespace: str, pod: str) -> str:
        """What the webhook logged."""
        lines = [
            line
            for line in self._webhook.lines()
            if (line.get("namespace"), line.get("pod")) == (namespace, pod)
        ]
        return str(lines[-1].get("reason", "")) if lines else ""


def _slices(spec: NodeSpec, uid: str) -> Sequence[Object]:
    """The ResourceSlices that the DRA driver makes of a node's layout."""
    simulated = spec.devices.simulated if spec.devices else None
    assert simulated is not None
    text = spec.annotations[RUNAI_CONFIG]
    layout = resolve(documents.read(text, "layout").select(), simulated.cards)
    with tempfile.TemporaryDirectory() as tools:
        offered = offer(CardDevices(simulated, spec.name, Path(tools)).of(layout))
    owner = {"apiVersion": "v1", "kind": "Node", "name": spec.name, "uid": uid, "controller": True}
    return plan(specs(Offer(spec.name, offered, {})), {}, owner, 0).create


@pytest.fixture(scope="module")
def objects(own_control_plane: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    """The control plane with the webhook and the controller; nodes go at the end."""
    cluster, folder = own_control_plane, tmp_path_factory.mktemp("stories")
    with (
        cluster.namespace("stories") as space,  # of the Lease
        Webhook(cluster, folder, f"--tessera-namespace={space}", config=CONFIGURATION) as webhook,
        registered(cluster, webhook, failurePolicy="Fail"),
        Running(
            "controller",
            f"--kubeconfig={cluster.kubeconfig}",
            f"--tessera-namespace={space}",
            log=folder / "controller.log",
        ),
    ):
        made = Objects(cluster, webhook)
        try:
            yield made
        finally:
            asyncio.run(made.have({}))


@pytest.mark.parametrize("name", _ON_OBJECTS)
def test_on_the_control_plane(own_control_plane: Client, objects: Objects, namespace: str, name: str) -> None:
    """Real admission and real scheduling end each story as the embedded cluster does."""

    async def tell() -> None:
        settings: dict[str, Any] = {"namespace": namespace, "timeout": 120.0, "kubelets": False}
        objects.namespace = namespace
        async with _stage(own_control_plane, objects, **settings) as stage:
            await _told(_BY_NAME[name], stage)

    asyncio.run(tell())


class OneNode:
    """Behind the scenes of a cluster with a real node: its device plugin, started with a story's configuration."""

    def __init__(self, cluster: ClusterWithNode, webhook: Webhook, folder: Path, plays: str) -> None:
        self._cluster, self._webhook, self._folder = cluster, webhook, folder
        self._plays = plays  # the node of the story that the real one plays
        self._plugin: Running | None = None

    async def have(self, nodes: Mapping[str, Counts]) -> None:
        """Start the plugin, once."""
        assert list(nodes) == [self._cluster.node_name]
        spec = _KNOWN[self._plays]
        self._annotate(dict(spec.annotations))
        if self._plugin is None:
            text = Path(described.__file__).with_name("nodes.yaml").read_bytes()
            devices = yaml.load(text, "nodes.yaml")[self._plays]["devices"]
            (self._folder / "devices.yaml").write_text(yaml.dump(devices))
            self._plugin = Running(
                "device-plugin",
                *node_options(self._cluster, self._folder / "devices.yaml", self._folder),
                log=self._folder / "device-plugin.log",
            )

    def _annotate(self, annotations: Mapping[str, str | None]) -> None:
        path = f"/api/v1/nodes/{self._cluster.node_name}"
        self._cluster.api.patch(path, {"metadata": {"annotations": dict(annotations)}})

    async def settled(self) -> None:
        """The webhook follows the one node: a profile that the node has is kept, one that it has not is not."""
        node = self._cluster.api.get(f"/api/v1/nodes/{self._cluster.node_name}")
        has = {k for k, v in node["status"]["allocatable"].items() if "/mig-" in k and v != "0"}
        for resource in has:
            self._webhook.until(
                lambda resource=resource: _kept(self._cluster, resource), what=f"{resource} in the view"
            )

    async def seen(self, namespace: str, pod: str) -> Mapping[str, Sequence[str]]:
        """What the container printed about itself."""
        self._cluster.wait(
            lambda: "done" in self._cluster.kubectl("logs", f"--namespace={namespace}", pod),
            what="the container's log",
        )
        lines = self._cluster.kubectl("logs", f"--namespace={namespace}", pod).splitlines()
        return {"main": [line for line in lines if line != "done"]}

    def reason(self, namespace: str, pod: str) -> str:
        """Not asked for here."""
        return ""

    def close(self) -> None:
        """Stop the plugin, and leave the node as it was."""
        if self._plugin is not None:
            self._plugin.stop()
        self._annotate(dict.fromkeys(_KNOWN[self._plays].annotations))


def _renamed(story: Story, old: str, new: str) -> Story:
    """The story with another name for its node."""

    def ending(ends: Ending) -> Ending:
        return replace(ends, on=new) if isinstance(ends, Runs) and ends.on == old else ends

    def renamed(step: Step) -> Step:
        match step:
            case Nodes():
                return Nodes({new if name == old else name: counts for name, counts in step.offers.items()})
            case Submit():
                return replace(step, ends=ending(step.ends))
            case Delete(then=(name, ends)):
                return replace(step, then=(name, ending(ends)))
            case Relayout():
                return replace(step, node=new, reason=step.reason.removeprefix("default/"))
        return step

    return replace(story, steps=tuple(map(renamed, story.steps)))


def _adapted(pod: Document) -> Document:
    """A pod that can run without a registry, and prints which devices it has."""
    script = "nvidia-smi -L || ls /dev/mock /mock/lib; echo done; exec sleep 1000"
    change = {"image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
    containers = [{**container, **change} for container in pod["spec"]["containers"]]
    return {**pod, "spec": {**pod["spec"], "containers": containers, "terminationGracePeriodSeconds": 0}}


@pytest.fixture(scope="module")
def node_webhook(
    cluster_with_node: ClusterWithNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Webhook]:
    """The webhook on the cluster with a node."""
    folder = tmp_path_factory.mktemp("webhook")
    with (
        Webhook(cluster_with_node, folder, config=CONFIGURATION) as webhook,
        registered(cluster_with_node, webhook, failurePolicy="Fail"),
    ):
        yield webhook


@pytest.mark.parametrize("name", _ON_A_NODE)
def test_on_a_node(
    cluster_with_node: ClusterWithNode,
    node_webhook: Webhook,
    node_namespace: str,
    mock_devices: None,
    tmp_path: Path,
    name: str,
) -> None:
    """With a real kubelet and real containers each story ends as the embedded cluster ends it."""
    story = _BY_NAME[name]
    first = story.steps[0]
    assert isinstance(first, Nodes)
    (plays,) = first.offers

    async def tell() -> list[PodEnded]:
        backstage = OneNode(cluster_with_node, node_webhook, tmp_path, plays)
        settings: dict[str, Any] = {"namespace": node_namespace, "timeout": 120.0, "adapt": _adapted}
        try:
            async with _stage(cluster_with_node, backstage, **settings) as stage:
                return await _told(_renamed(story, plays, cluster_with_node.node_name), stage)
        finally:
            backstage.close()

    for ended in asyncio.run(tell()):
        if ended.pod is not None and ended.node:
            devices = {
                line.split()[-1].rstrip(")")
                for line in ended.seen["main"]
                if "MIG-" in line or "device_" in line
            }
            held = {
                one["resourceID"]
                for status in ended.pod["status"]["containerStatuses"]
                for allocated in status["allocatedResourcesStatus"]
                for one in allocated["resources"]
            }
            assert {device.removesuffix(".so") for device in devices} == held, "its container sees just those"
