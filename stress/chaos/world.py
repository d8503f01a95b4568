"""Several nodes whose layouts the controller keeps: two replicas, two webhooks under `full`, pods that come and go, patience."""

import contextlib
import json
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from e2e.bridge import NAMESPACE as SERVICE_NAMESPACE
from e2e.bridge import rights
from e2e.cluster import Cluster, Object, condition_of, pods_path
from e2e.command import Running
from e2e.layouts import DEFINITIONS, LAYOUTS, NODES, Replicas, add_gpu_node, add_running_pod, mig_layout
from e2e.recuts import auto
from e2e.replicas import Replicas as Webhooks
from e2e.webhook import Webhook, registered

from stress.chaos.clocks import JumpingClock
from stress.chaos.plugins import AWAY, Plugins

NAMESPACE: Final = "chaos"
DEPLOYMENTS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
DEFINITION: Final = "miglayouts.tessera.dev"
FIXED, AUTO, OUTSIDE = "fixed", "auto", "outside"  # pools; the first two have a MigLayout of this name
NODES_OF: Final = {FIXED: 5, AUTO: 4}
MOST_UNAVAILABLE: Final = {FIXED: 2, AUTO: 1}
CORDONED_BY_ADMIN: Final = "fixed-0"
LAST: Final = "fixed-4"  # may be deleted: it has no pod that must stay
MIG: Final = "nvidia.com/mig-"
ONE, TWO = MIG + "1g.18gb", MIG + "2g.35gb"
PER_CARD: Final = ({"1g.18gb": 4}, {"2g.35gb": 3}, {"3g.71gb": 2}, {"1g.18gb": 3, "3g.71gb": 1})
WANTED: Final = ("1g.18gb", "2g.35gb", "3g.71gb", "7g.141gb")
CONFIG: Final = {"fallback": {"when": "full", "patience": "3s"}}
PACE: Final = {"least": 1.0, "poll": 0.5, "fresh": 1.0, "successor": 30.0}
UNTIL: Final = "chaos-until"  # label of pods that come and go: the time of their end
MOST_PODS: Final = 6  # that come and go, in each pool


class World:
    """A fleet and those who look after it."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        self.cluster = cluster
        self.folder = folder
        self.random = random.Random(seed)
        self.plugins = Plugins(cluster, random.Random(seed))
        self.guarded: dict[str, str] = {}  # pods that a PodDisruptionBudget guards now, by UID
        self.restored = 0.0  # when etcd was restored last
        self.untouched: dict[str, str] = {}  # pods that nobody may evict, by UID
        self.over, self.calm = threading.Event(), threading.Event()
        self.pods = 0  # that were made
        self._seed = seed
        self._webhooks_started = 0

    # The world

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Nodes, pods that nobody may touch, webhooks, controllers, and MigLayouts."""
        api = self.cluster.api
        api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self.cluster.wait_for_service_account(namespace=NAMESPACE)
        self._add_nodes()
        self._add_untouched_pods()
        with ExitStack() as stack:
            stack.enter_context(rights(self.cluster, self.folder, layouts={"enabled": True}, config=CONFIG))
            self.wait_for_definition()
            self.webhooks = [self._first_webhook()]
            self.address = stack.enter_context(Webhooks(*self.webhooks))
            stack.callback(self._kill_webhooks)
            self.webhooks.append(self.start_webhook())
            self.address.use(*self.webhooks)
            stack.enter_context(registered(self.cluster, self.address, failurePolicy="Fail"))
            self._add_endpoints()
            more = [f"--config={self.folder / 'webhook' / 'config.yaml'}", f"--pace={json.dumps(PACE)}"]
            self.replicas = Replicas(self.folder, 1.0, more, self._environment)
            stack.callback(self.replicas.close)
            self.replicas.leader()
            for layout in self.layouts():
                api.create(LAYOUTS, layout)
            api.create(DEPLOYMENTS, make_deployment("web", make_pod("web", OUTSIDE, TWO), 4))
            yield

    def wait_for_definition(self) -> None:
        """Wait until MigLayouts are served."""

        def is_served(definition: Object) -> bool:
            return condition_of(definition, "Established").get("status") == "True"

        self.cluster.wait_for(DEFINITIONS, DEFINITION, is_served, what="the definition")

    def layouts(self) -> list[Object]:
        """The MigLayouts as they are made."""
        rollout = {"whenInUse": "Drain", "drainTimeout": "20s", "timeout": "20s"}
        fixed = {**rollout, "maxUnavailable": MOST_UNAVAILABLE[FIXED]}
        limits = {"recutsPerHour": 1000, "coolDown": "5s", "dryRun": False}
        return [
            mig_layout(FIXED, FIXED, rollout=fixed, layouts=[{"perCard": self.random.choice(PER_CARD)}]),
            auto(AUTO, AUTO, {"maxUnavailable": MOST_UNAVAILABLE[AUTO]}, **limits),
        ]

    def _add_nodes(self) -> None:
        for pool, number in NODES_OF.items():
            for place in range(number):
                add_gpu_node(self.cluster, f"{pool}-{place}", pool)
        self.cluster.add_node(OUTSIDE, allocatable={ONE: 4, TWO: 3}, labels={"pool": OUTSIDE})
        self.cluster.api.patch(f"{NODES}/{CORDONED_BY_ADMIN}", {"spec": {"unschedulable": True}})
        for node in self.cluster.api.get(NODES)["items"]:
            if node["metadata"]["labels"].get("pool") in NODES_OF:
                self.plugins.take(node)

    def _add_untouched_pods(self) -> None:
        """Pods without devices on nodes that are drained; holders of devices elsewhere; and a bare pod that waits."""
        for pool, number in NODES_OF.items():
            for place in range(number):
                if (node := f"{pool}-{place}") != LAST:
                    add_running_pod(self.cluster, NAMESPACE, f"agent-{node}", node, "cpu")
        for number in range(3):
            add_running_pod(self.cluster, NAMESPACE, f"holder-{number}", OUTSIDE, TWO)
        self.cluster.api.create(pods_path(NAMESPACE), make_pod("waits", OUTSIDE, TWO))
        pods = self.cluster.api.get(pods_path(NAMESPACE))["items"]
        self.untouched = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}

    def _add_endpoints(self) -> None:
        """The webhook's Service has an endpoint: else no pod is evicted for its patience."""
        labels = {"kubernetes.io/service-name": "gpu-webhook"}
        endpoints = [{"addresses": ["10.1.2.3"], "conditions": {"ready": True}}]
        body = {
            "metadata": {"name": "chaos", "labels": labels},
            "addressType": "IPv4",
            "endpoints": endpoints,
        }
        path = f"/apis/discovery.k8s.io/v1/namespaces/{SERVICE_NAMESPACE}/endpointslices"
        self.cluster.api.create(path, body)

    # Processes

    def _environment(self, number: int) -> Mapping[str, str]:
        return {**os.environ, **JumpingClock(self.clock_file(f"controller-{number}")).environment}

    def clock_file(self, name: str) -> Path:
        """Where the clock of the process with this name is set."""
        return self.folder / f"{name}.clock"

    def _first_webhook(self) -> Webhook:
        environment = {**os.environ, **JumpingClock(self.clock_file("webhook")).environment}
        return Webhook(
            self.cluster, self.folder / "webhook", config=json.dumps(CONFIG), environment=environment
        )

    def start_webhook(self) -> Webhook:
        """Another webhook, with a certificate of the same authority."""
        self._webhooks_started += 1
        name = f"webhook-{self._webhooks_started}"
        return Webhook(
            self.cluster,
            self.folder / name,
            config=json.dumps(CONFIG),
            name=name,
            authority=self.webhooks[0].authority,
            environment={**os.environ, **JumpingClock(self.clock_file(name)).environment},
        )

    def _kill_webhooks(self) -> None:
        for webhook in self.webhooks:
            webhook.kill()

    def processes(self) -> dict[str, Running]:
        """The processes that run, by the names of their logs."""
        return {process.log.stem: process for process in (*self.replicas.running, *self.webhooks)}

    # What happens besides faults

    def change_layout(self) -> None:
        """Give the fixed pool another layout, or let pods keep their devices for longer or not."""
        in_use = self.random.choice(("Drain", "Drain", "Wait"))
        spec = {"layouts": [{"perCard": self.random.choice(PER_CARD)}], "rollout": {"whenInUse": in_use}}
        with contextlib.suppress(*AWAY):
            self.cluster.api.patch(f"{LAYOUTS}/{FIXED}", {"spec": spec})

    def live(self) -> None:
        """Change layouts, and make and delete pods."""
        chance, changed = random.Random(self._seed), time.monotonic()
        while not self.over.wait(0.5):
            with contextlib.suppress(*AWAY):
                self._delete_old_pods(chance)
                if self.calm.is_set():
                    continue
                if time.monotonic() > changed + 12.0:
                    changed = time.monotonic()
                    self.change_layout()
                self._add_pod(chance)

    def _delete_old_pods(self, chance: random.Random) -> None:
        path = pods_path(NAMESPACE)
        for pod in self.cluster.api.get(path, labelSelector=UNTIL)["items"]:
            metadata = pod["metadata"]
            if self.calm.is_set() or float(metadata["labels"][UNTIL]) < time.time():
                self.cluster.api.delete(f"{path}/{metadata['name']}", gracePeriodSeconds="0")
        if chance.random() < 0.05 and not self.calm.is_set():
            pods = self.cluster.api.get(path, labelSelector="app=web")["items"]
            for pod in chance.sample(pods, min(1, len(pods))):
                self.cluster.api.delete(f"{path}/{pod['metadata']['name']}", gracePeriodSeconds="0")

    def _add_pod(self, chance: random.Random) -> None:
        pool = chance.choice((FIXED, AUTO, AUTO, OUTSIDE))
        pods = self.cluster.api.get(pods_path(NAMESPACE), labelSelector=UNTIL)["items"]
        if sum(pod["spec"]["nodeSelector"]["pool"] == pool for pod in pods) >= MOST_PODS:
            return
        self.pods += 1
        resource = ONE if pool == OUTSIDE else MIG + chance.choice(WANTED)
        body = make_pod(f"p{self.pods}", pool, resource)
        body["metadata"]["labels"] = {UNTIL: str(round(time.time() + chance.uniform(3.0, 40.0)))}
        self.cluster.api.create(pods_path(NAMESPACE), body)


def make_pod(name: str, pool: str, resource: str) -> Object:
    """A pod for the nodes of a pool."""
    container = {"name": "main", "image": "none", "resources": {"limits": {resource: "1"}}}
    selector = {"nodeSelector": {"pool": pool}, "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": name}, "spec": {**selector, "containers": [container]}}


def make_deployment(name: str, pod: Object, replicas: int) -> Object:
    """A Deployment of pods like this one."""
    labels = {"app": name}
    template = {**pod, "metadata": {"labels": labels, "annotations": pod["metadata"].get("annotations", {})}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}
