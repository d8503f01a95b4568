"""A small cluster in a store: nodes with slices of MIG devices, classes, claims and the pods that have them."""

from tessera.core.dra.slices import DRIVER
from tessera.simulation.control_plane.claims import ClaimController
from tessera.simulation.control_plane.events import Events
from tessera.simulation.control_plane.kinds import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from tessera.simulation.control_plane.scheduler import Scheduler
from tessera.simulation.control_plane.store import Store
from tests.build import node_document


class Cluster:
    """What a test touches; a class for each type that devices have."""

    def __init__(self, **nodes: str) -> None:
        """`a="2g 1g 1g"`: a node with these devices."""
        self.store = Store()
        events = Events(self.store)
        self.scheduler, self.controller = Scheduler(self.store, events), ClaimController(self.store, events)
        for name, types in nodes.items():
            self.add_node(name)
            if types:
                self.add_slice(name, *(device(one, n) for n, one in enumerate(types.split())))
        for one in sorted({each for types in nodes.values() for each in types.split()}):
            self.add_class(one)

    def add_node(self, name, **allocatable):
        self.store.create(NODES, node_document(name, {"cpu": 8, "pods": 20, **allocatable}))

    def add_slice(self, node, *devices, total=1, name="", **more):
        pool = {"name": node, "generation": 1, "resourceSliceCount": total}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, **more}
        if devices:
            spec["devices"] = list(devices)
        self.store.create(RESOURCE_SLICES, {"metadata": {"name": name or f"slice-{node}"}, "spec": spec})

    def add_class(self, kind, **more):
        expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].profile == '{kind}'"
        spec = {"selectors": [{"cel": {"expression": expression}}], **more}
        self.store.create(DEVICE_CLASSES, {"metadata": {"name": kind}, "spec": spec})

    def template(self, name, *requests):
        spec = {"spec": {"devices": {"requests": list(requests)}}}
        self.store.create(
            RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
        )

    def claim(self, name, *requests):
        document = {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": {"requests": list(requests)}}}  # fmt: skip
        self.store.create(RESOURCE_CLAIMS, document)

    def pod(self, name, *, template="", claim="", requests=None, **spec):
        resources = {"requests": requests or {}}
        if template or claim:
            source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
            spec["resourceClaims"] = [{"name": "gpu", **source}]
            resources["claims"] = [{"name": "gpu"}]
        spec["containers"] = [{"name": "main", "resources": resources}]
        self.store.create(PODS, {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Pending"}})
        return self.settle(name)

    def delete(self, name):
        self.store.delete(PODS, name, "default")
        self.settle()

    def settle(self, name=""):
        """Both controllers look; where the pod went, or why it waits."""
        self.controller.reconcile()
        self.scheduler.schedule()
        if not name:
            return None
        pod = self.store.get(PODS, name, "default").document
        conditions = {one["type"]: one for one in pod["status"].get("conditions") or ()}
        return pod["spec"].get("nodeName") or conditions.get("PodScheduled", {}).get("message")

    def claims(self):
        return [one.document for one in self.store.list(RESOURCE_CLAIMS)]

    def given(self):
        """What claims have: the pod that holds them → the requests and devices."""
        found = {}
        for claim in self.claims():
            status = claim.get("status") or {}
            results = [(one["request"], one["device"]) for one in (status.get("allocation") or {"devices": {"results": []}})["devices"]["results"]]  # fmt: skip
            for holder in status.get("reservedFor") or ():
                found[holder["name"]] = results
        return found


def device(kind, number, **more):
    return {"name": f"{kind}-{number}", "attributes": {"profile": {"string": kind}}, **more}


def first(name, *kinds):
    """A request for the first of these that is free."""
    return {"name": name, "firstAvailable": [{"name": kind, "deviceClassName": kind} for kind in kinds]}


def exactly(name, kind, **more):
    return {"name": name, "exactly": {"deviceClassName": kind, **more}}
