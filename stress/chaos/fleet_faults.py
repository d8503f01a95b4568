"""What goes wrong in a fleet: processes, the API server, etcd, the definition, MigLayouts, nodes, budgets and clocks."""

import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from e2e.cluster.api import Object
from e2e.cluster.client import pods_path
from e2e.layouts import DEFINITIONS, LAYOUTS, NODES, add_gpu_node, add_running_pod, set_ready

from stress.chaos.clocks import HOUR, JumpingClock
from stress.chaos.plugins import AWAY
from stress.chaos.schedule import Fault
from stress.chaos.world import AUTO, CORDONED_BY_ADMIN, DEFINITION, FIXED, LAST, NAMESPACE, NODES_OF, World
from tessera.core.resources import is_whole_or_mig

_BUDGETS: Final = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"


def faults(world: World) -> list[Fault]:
    """The table of faults."""
    breaker = _Breaker(world)
    return [
        Fault("kill the controller that leads", breaker.leader_killed, 0.0, 2.0),
        Fault("stop the controller that leads", breaker.leader_stopped, 0.0, 0.5),
        Fault("cut off the controller that leads", breaker.leader_cut_off, 0.0, 0.5),
        Fault("kill a webhook", breaker.webhook_killed, 0.0, 2.0),
        Fault("restart the API server during rollouts", breaker.api_server_away, 0.0, 3.0),
        Fault("a slow API server during rollouts", breaker.api_server_slow, 0.0, 0.5),
        Fault("an etcd that is restored", breaker.etcd_restored, 2.0, 6.0),
        Fault("a definition (CRD) that goes", breaker.definition_gone, 1.0, 6.0),
        Fault("a MigLayout that goes", breaker.layout_gone, 0.5, 4.0),
        Fault("a node that goes", breaker.node_gone, 0.5, 4.0),
        Fault("a node that is not ready", breaker.node_not_ready, 1.0, 6.0),
        Fault("a node that refuses its layout", breaker.layout_refused, 2.0, 5.0),
        Fault("a node without its plugin", breaker.plugin_away, 2.0, 8.0),
        Fault("a PodDisruptionBudget that allows nothing", breaker.budget, 3.0, 8.0),
        Fault("a clock of a replica jumps an hour ahead", lambda: breaker.clock_jumped(HOUR), 2.0, 5.0),
        Fault("a clock of a replica jumps an hour back", lambda: breaker.clock_jumped(-HOUR), 2.0, 5.0),
    ]


class _Breaker:
    """Breaks and mends what a fleet needs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cluster = world.cluster
        self._chance = world.random

    # Processes

    @contextmanager
    def leader_killed(self) -> Iterator[None]:
        self._world.replicas.kill(0.0)
        yield

    @contextmanager
    def leader_stopped(self) -> Iterator[None]:
        self._world.replicas.stop(0.0, self._chance.uniform(0.0, 2.0))
        yield

    @contextmanager
    def leader_cut_off(self) -> Iterator[None]:
        self._world.replicas.cut_off(0.0, self._chance.uniform(0.0, 2.0))
        yield

    @contextmanager
    def webhook_killed(self) -> Iterator[None]:
        """One of two is killed. Connections are led to it for a moment, as a Service does."""
        world = self._world
        killed = self._chance.choice(world.webhooks)
        (rest,) = [webhook for webhook in world.webhooks if webhook is not killed]
        killed.kill()
        yield
        world.address.lead_to(rest)
        world.webhooks = [rest, world.start_webhook()]
        world.address.lead_to(*world.webhooks)

    @contextmanager
    def clock_jumped(self, seconds: int) -> Iterator[None]:
        name = self._chance.choice(sorted(self._world.processes()))
        with JumpingClock(self._world.clock_file(name)).jumped(seconds):
            yield

    # The control plane

    @contextmanager
    def api_server_away(self) -> Iterator[None]:
        self._cluster.stop_apiserver()
        yield
        self._cluster.start_apiserver()
        self._cluster.settle()

    @contextmanager
    def api_server_slow(self) -> Iterator[None]:
        for _ in range(4):
            self._cluster.signal("kube-apiserver", signal.SIGSTOP)
            time.sleep(self._chance.uniform(0.2, 1.5))
            self._cluster.signal("kube-apiserver", signal.SIGCONT)
            time.sleep(self._chance.uniform(0.1, 0.3))
        yield

    @contextmanager
    def etcd_restored(self) -> Iterator[None]:
        """Etcd is what it was some seconds ago, while layouts went on."""
        with tempfile.TemporaryDirectory(prefix="tessera-chaos-etcd-") as folder:
            backup = Path(folder) / "etcd"
            self._cluster.back_up_etcd(backup)
            self._world.change_layout()
            yield
            self._cluster.restore_etcd(backup)
        self._world.restored = time.monotonic()
        self._cluster.settle()

    @contextmanager
    def definition_gone(self) -> Iterator[None]:
        """The definition goes with all MigLayouts, and somebody brings both back."""
        api = self._cluster.api
        definition = _fresh(api.get(f"{DEFINITIONS}/{DEFINITION}"))
        api.delete(f"{DEFINITIONS}/{DEFINITION}")
        self._cluster.wait_gone(DEFINITIONS, DEFINITION)
        yield
        api.create(DEFINITIONS, definition)
        self._world.wait_for_definition()
        for layout in self._world.layouts():
            self._cluster.wait(partial(self._is_made, layout), what="a MigLayout that is made again")

    # MigLayouts and nodes

    @contextmanager
    def layout_gone(self) -> Iterator[None]:
        """A MigLayout goes in the middle of its rollout, and comes again."""
        name = self._chance.choice((FIXED, FIXED, AUTO))
        if name == FIXED:
            self._world.change_layout()
            time.sleep(self._chance.uniform(0.5, 3.0))
        self._cluster.api.delete(f"{LAYOUTS}/{name}")
        yield
        for layout in self._world.layouts():
            if layout["metadata"]["name"] == name:
                self._cluster.api.create(LAYOUTS, layout)

    @contextmanager
    def node_gone(self) -> Iterator[None]:
        """A machine goes with its pods, and another one of its name comes, with other cards."""
        api, plugins = self._cluster.api, self._world.plugins
        self._world.change_layout()
        plugins.absent.add(LAST)
        self._cluster.remove_node(LAST)
        for pod in api.get(pods_path(NAMESPACE), fieldSelector=f"spec.nodeName={LAST}")["items"]:
            api.delete(f"{pods_path(NAMESPACE)}/{pod['metadata']['name']}", gracePeriodSeconds="0")
        yield
        add_gpu_node(self._cluster, LAST, FIXED)
        plugins.take(api.get(f"{NODES}/{LAST}"))
        plugins.absent.discard(LAST)

    @contextmanager
    def node_not_ready(self) -> Iterator[None]:
        node = self._some_node()
        self._world.plugins.absent.add(node)
        set_ready(self._cluster, node, "Unknown")
        self._world.change_layout()
        yield
        set_ready(self._cluster, node, "True")
        self._world.plugins.come_back(node)

    @contextmanager
    def plugin_away(self) -> Iterator[None]:
        node = self._some_node()
        self._world.plugins.absent.add(node)
        self._world.change_layout()
        yield
        self._world.plugins.come_back(node)

    @contextmanager
    def layout_refused(self) -> Iterator[None]:
        plugins, refusing = self._world.plugins, self._some_node()
        plugins.refusing.add(refusing)
        self._world.change_layout()
        yield
        plugins.refusing.clear()

    @contextmanager
    def budget(self) -> Iterator[None]:
        """A pod holds a device that goes, and its budget refuses every eviction."""
        api, world, node = self._cluster.api, self._world, self._some_node()
        allocatable = api.get(f"{NODES}/{node}")["status"]["allocatable"]
        resources = [name for name, number in allocatable.items() if is_whole_or_mig(name) and number != "0"]
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
        api.create(_BUDGETS, {"metadata": {"name": "guarded"}, "spec": spec})
        path = f"{pods_path(NAMESPACE)}/guarded"
        try:
            with contextlib.suppress(*AWAY):  # it may be evicted before it is ready: no budget guards it then
                add_running_pod(
                    self._cluster, NAMESPACE, "guarded", node, self._chance.choice(sorted(resources))
                )
                world.guarded[api.get(path)["metadata"]["uid"]] = "guarded"
            world.change_layout()
            yield
        finally:
            world.guarded.clear()
            api.delete(f"{_BUDGETS}/guarded")
            api.delete(path, gracePeriodSeconds="0")

    def _some_node(self) -> str:
        """A node that may be rolled out, and is not the one that an admin keeps cordoned."""
        nodes = [f"{FIXED}-{number}" for number in range(NODES_OF[FIXED])]
        return self._chance.choice([node for node in nodes if node != CORDONED_BY_ADMIN])

    def _is_made(self, layout: Object) -> bool:
        """Whether it can be made now: the API server takes a moment to serve a definition."""
        with contextlib.suppress(*AWAY):
            self._cluster.api.create(LAYOUTS, layout)
            return True
        return False


def _fresh(document: Object) -> Object:
    """An object as it can be made again."""
    metadata = {
        key: document["metadata"][key]
        for key in ("name", "labels", "annotations")
        if key in document["metadata"]
    }
    return {**{key: document[key] for key in ("apiVersion", "kind", "spec")}, "metadata": metadata}
