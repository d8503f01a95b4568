"""What an uninstall would hang on, and what it would leave: `tessera doctor --before-uninstall`."""

from typing import Any

import pytest

from tessera.core.requests.alternatives import template_name
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.store import Document
from tests.build import bridged, claim_document, node_document, object_of
from tests.doctor.authorities import NOW, authority
from tests.doctor.clusters import (
    CLAIM_TEMPLATES,
    CLAIMS,
    DAEMON_SETS,
    DEVICE_CLASSES,
    Examined,
    examined,
    gpu_pod,
    healthy,
)

OURS, OTHER = "gpu.tessera.dev", "gpu.example.com"
TEXT = "1*2g.20gb=2g.20gb/tessera-any"
MADE = {"app.kubernetes.io/managed-by": "tessera-controller"}
DRIVER = {"app.kubernetes.io/component": "dra-driver"}


def claim(
    name: str, device: str = "", *, pods: tuple[str, ...] = (), driver: str = OURS, wants: str = "tessera-any"
) -> Document:
    """A claim for one device: allocated where one is named, and reserved for these pods."""
    request = {"name": "gpu", "exactly": {"deviceClassName": wants}}
    result = {"driver": driver, "pool": "n1/tessera", "device": device}
    spec = {"devices": {"requests": [request]}}
    return claim_document(name, *([result] if device else []), pods=pods, spec=spec)


def template(name: str, wants: str = "tessera-any", **metadata: Any) -> Document:
    return object_of(name, namespace="default", spec={"spec": claim("x", wants=wants)["spec"]}, **metadata)


def cluster(*pods: Document, **parts: Any) -> dict[Any, list[Document]]:
    """A node that the driver serves, with the chart's class and one of another driver."""
    objects = healthy(authority())
    objects[kinds.PODS] += pods
    objects[kinds.NODES].append(node_document("n1", {}, labels=parts.pop("labels", {})))
    objects[DEVICE_CLASSES] = [
        object_of(name, spec={"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]})
        for name, driver in (("tessera-any", OURS), ("other", OTHER))
    ]
    objects[DAEMON_SETS] = [object_of("driver", labels=DRIVER, spec={}, status={})]
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    if parts.pop("at_work", True):
        objects[kinds.PODS].append(
            object_of("driver-x", labels=DRIVER, spec={"nodeName": "n1", "containers": []}, status=ready)
        )
        pool = {"name": "n1/tessera", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": OURS, "nodeName": "n1", "pool": pool, "devices": []}
        objects[kinds.RESOURCE_SLICES] = [object_of("slice", spec=spec)]
    objects[CLAIMS], objects[CLAIM_TEMPLATES] = parts.get("claims", []), parts.get("templates", [])
    return objects


async def asked(objects: dict[Any, list[Document]], **options: Any) -> Examined:
    return await examined(objects, now=NOW, before_uninstall=True, **options)


async def test_pods_that_hold_claims_are_named() -> None:
    """Each pod that holds a device of the driver is a problem, with its claim and who would create it again; pods of others are not."""
    own = gpu_pod(
        "own", {}, node="n1", owner="ReplicaSet", resourceClaims=[{"name": "g", "resourceClaimName": "c1"}]
    )
    extended = gpu_pod("extended", {"nvidia.com/gpu": "1"}, node="n1", owner="Job")
    extended["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "c2"}
    claims = [
        claim("c1", "gpu-0", pods=("own",)),
        claim("c2", "gpu-1", pods=("extended", "unseen")),
        claim("c3", "x", pods=("foreign",), driver=OTHER),
        claim("c4", pods=("not-allocated",)),
    ]
    found = await asked(cluster(own, extended, claims=claims))
    assert [(str(one.severity), one.text.partition(". ")[0]) for one in found.of("held")] == [
        ("problem", "pod default/extended of Job extended-owner holds gpu-1 of n1/tessera (claim c2)"),
        ("problem", "pod default/own of ReplicaSet own-owner holds gpu-0 of n1/tessera (claim c1)"),
        ("problem", "pod default/unseen holds gpu-1 of n1/tessera (claim c2)"),
    ]
    assert found.of("held")[0].text.endswith(
        ". Only the driver can end a claim, so without the driver the pod stays in Terminating: end it before you uninstall"
    )


async def test_a_pod_that_ends_is_waited_for() -> None:
    """A pod that was deleted holds its device until the driver has ended its claim."""
    pod = gpu_pod("ends", {}, node="n1", resourceClaims=[{"name": "g", "resourceClaimName": "c"}])
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}
    claims = [claim("c", "gpu-0", pods=("ends",))]
    found = await asked(cluster(pod, claims=claims))
    assert found.one("held").text.endswith(": wait until it is gone before you uninstall")


@pytest.mark.parametrize("ends", [True, False])
async def test_a_driver_that_is_gone_already(ends: bool) -> None:
    """Waiting does not help then: the driver must be there again, and that is said."""
    pod = gpu_pod("holds", {}, node="n1", resourceClaims=[{"name": "g", "resourceClaimName": "c"}])
    if ends:
        pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}
    objects = cluster(pod, claims=[claim("c", "gpu-0", pods=("holds",))], at_work=False)
    why = (
        "now the DRA driver of node n1 is unavailable: no pod of it runs there, and claims hold its devices. "
    )
    last = "and it ends" if ends else "then end the pod"
    for installed, then in (
        (True, f"See that it runs, {last}"),
        (False, f"Install the driver again, {last}"),
    ):
        objects[DAEMON_SETS] = objects[DAEMON_SETS] if installed else []
        found = (await asked(objects)).one("held")
        assert found.text.endswith(f"stays in Terminating: {why}{then}")
        assert found.commands[0].startswith("kubectl get pods -A -l app.kubernetes.io/component=dra-driver")


async def test_nothing_is_held() -> None:
    """Without a claim of the driver there is nothing to say; without the driver nothing to check; without the right to look that is said."""
    claims = [claim("c", "x", pods=("p",), driver=OTHER, wants="other")]
    found = await asked(cluster(claims=claims))
    assert (found.findings, found.of("held"), found.states["held"]) == ([], [], "seen")
    found = await asked(healthy(authority()))
    assert found.states == {
        "held": "not applicable",
        "claimants": "seen",
        "templates": "seen",
        "labels": "seen",
    }
    found = await asked(cluster(), forbidden=frozenset({"resourceclaims"}))
    assert found.states["held"] == "not seen"


async def test_a_claim_that_no_pod_uses() -> None:
    """A claim that holds a device hangs nothing; pods that use it later do not start."""
    found = await asked(cluster(claims=[claim("c", "gpu-0")]))
    assert found.findings == [("held", "warning")]
    assert found.of("held")[0].text.startswith(
        "claim default/c holds gpu-0 of n1/tessera, and no pod uses it now"
    )


async def test_pods_that_wait_for_an_extended_resource() -> None:
    """A pod that asks by name for what only the driver serves; what a device plugin or another driver has too, stays."""
    two, three, gpu = (f"nvidia.com/{name}" for name in ("mig-2g.20gb", "mig-3g.30gb", "gpu"))
    pods = [gpu_pod(name, {resource: "1"}) for name, resource in (("a", two), ("b", three), ("c", gpu))]
    objects = cluster(*pods)
    for name, driver in ((two, OURS), (three, OURS), (gpu, OURS), (gpu, OTHER)):
        spec = {
            "selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}],
            "extendedResourceName": name,
        }
        objects[DEVICE_CLASSES].append(object_of(f"{driver}-{name.rpartition('/')[2]}", spec=spec))
    objects[kinds.NODES].append(node_document("plugged", {three: "1"}))
    objects[kinds.NODES] = [one for one in objects[kinds.NODES] if one["metadata"]["name"] != "gpu-1"]
    found = await asked(objects)
    assert [one.text for one in found.of("claimants")] == [
        f"pod default/a waits for {two}, which nobody offers after the uninstall"
    ]


async def test_pods_that_wait_with_claims() -> None:
    """Pods without a node whose claim is for a class of the driver, or whose template nobody makes any more."""
    named = gpu_pod("named", {}, resourceClaims=[{"name": "g", "resourceClaimName": "c"}])
    made = gpu_pod("made", {}, resourceClaims=[{"name": "g", "resourceClaimTemplateName": "t"}])
    foreign = gpu_pod("foreign", {}, resourceClaims=[{"name": "g", "resourceClaimTemplateName": "other"}])
    elsewhere = bridged(gpu_pod("elsewhere", {}), TEXT.replace("tessera-any", "other"))
    ready = object_of(
        template_name(TEXT.replace("tessera-any", "other")), namespace="default", labels=MADE, spec={}
    )
    parts = {"claims": [claim("c")], "templates": [template("t"), template("other", "other"), ready]}
    pods = (named, made, foreign, elsewhere, bridged(gpu_pod("converted", {}), TEXT))
    found = await asked(cluster(*pods, **parts))
    text = "waits with a claim for tessera-any, which nobody serves after the uninstall"
    assert [(str(one.severity), one.text) for one in found.of("claimants")] == [
        ("warning", f"pod default/converted {text}: delete the pod then, and its workload creates it again with its own request"),
        ("warning", f"pod default/made {text}"),
        ("warning", f"pod default/named {text}"),
    ]  # fmt: skip
    parts["templates"].remove(ready)
    found = await asked(cluster(elsewhere, **parts))
    assert "pod default/elsewhere waits with a claim for other" in found.one("claimants").text


async def test_claims_and_templates_that_stay() -> None:
    """What asks for DeviceClasses of the chart is reported, and the controller's templates with the command that removes them."""
    templates = [
        template("mine"),
        template("other", "other"),
        template("tessera-1", labels=MADE),
        template("tessera-2", labels=MADE),
    ]
    found = (await asked(cluster(templates=templates, claims=[claim("standing")]))).of("templates")
    assert {str(one.severity) for one in found} == {"note"}
    assert [one.text for one in found] == [
        "claim default/standing asks for DeviceClass tessera-any, which the uninstall removes: pods with it will wait",
        "template default/mine asks for DeviceClass tessera-any, which the uninstall removes: pods with it will wait",
        "2 templates of the controller will be left, such as default/tessera-1: nobody uses them after the uninstall, so remove them then",
    ]  # fmt: skip
    assert found[0].commands == ("kubectl describe resourceclaim -n default standing",)
    assert found[1].commands == ("kubectl describe resourceclaimtemplate -n default mine",)
    assert found[2].commands == (
        "kubectl delete resourceclaimtemplates -A -l app.kubernetes.io/managed-by=tessera-controller",
    )


async def test_labels_that_stay() -> None:
    """The label that chooses the driver, with the command that removes it; and labels of cards, only where they are simulated."""
    objects = cluster(labels={"tessera.dev/devices": "dra", "nvidia.com/gpu.product": "A100"})
    real = node_document("real", {}, labels={"nvidia.com/gpu.product": "A100"})
    objects[kinds.NODES].append(real)
    found = await asked(objects)
    assert found.one("labels").text == (
        "the label tessera.dev/devices stays on 1 node (n1): remove it after the uninstall, not before, since the driver "
        "leaves a node without it"
    )
    assert found.one("labels").commands == (
        "kubectl label nodes -l tessera.dev/devices tessera.dev/devices-",
    )

    volumes = {"template": {"spec": {"volumes": [{"name": "config", "configMap": {"name": "devices"}}]}}}
    spec = {"selector": {"matchLabels": DRIVER}, **volumes}
    objects[DAEMON_SETS] = [object_of("driver", labels=DRIVER, spec=spec, status={})]
    objects[kinds.PODS].append(
        object_of("driver-n1", labels=DRIVER, spec={"nodeName": "n1", "containers": []})
    )
    for config, told in (("simulated: {product: H200, cards: 1}", 2), ("nvml: {}", 1), ("simulated: 7", 1)):
        objects[kinds.CONFIG_MAPS][1:] = [object_of("devices", data={"devices.yaml": config})]
        assert len((await asked(objects)).of("labels")) == told, config
        if told == 2:
            assert "stay on 1 node (n1)" in (await asked(objects)).of("labels")[1].text


async def test_cards_that_stay_cut() -> None:
    """Where the device plugin cuts real cards, what stays of it is told: the slices, the label and the annotations. Nodes that it only reads are not."""
    plugin = {"app.kubernetes.io/component": "device-plugin"}
    objects = cluster()
    volumes = {"template": {"spec": {"volumes": [{"name": "config", "configMap": {"name": "devices"}}]}}}
    spec = {"selector": {"matchLabels": plugin}, **volumes}
    objects[DAEMON_SETS].append(object_of("plugin", labels=plugin, spec=spec, status={}))
    objects[kinds.PODS] += [
        object_of(f"plugin-{name}", labels=plugin, spec={"nodeName": name, "containers": []})
        for name in ("gpu-1", "n1")
    ]
    objects[kinds.CONFIG_MAPS][1:] = [object_of("devices", data={"devices.yaml": "nvml: {}"})]
    assert not (await asked(objects)).of("labels")
    config = {"devices.yaml": "nvml: {migStrategy: mixed, cut: true}"}
    objects[kinds.CONFIG_MAPS][1:] = [object_of("devices", data=config)]
    found = (await asked(objects)).one("labels")
    assert str(found.severity) == "note"
    assert found.text == (
        "the cards of 2 nodes (gpu-1, n1) stay cut as the device plugin has cut them (nvml.cut), and MIG mode stays as it is; so do the "
        "label nvidia.com/mig.config.state, the annotations run.ai/mig-mapping and nvidia.com/mig.config.reason and your "
        "run.ai/mig.config, and other labels nvidia.com/… where GPU feature discovery does not run: docs/upgrade.md has the commands that "
        "remove them after the uninstall"
    )
    assert found.commands == ("kubectl describe nodes gpu-1 n1",)
