"""Checks of nodes: the device plugin is registered, and allocatable is what lists of devices say; CDI specs."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import DEVICES_LABEL
from tessera.core.text import number_of
from tessera.doctor.checks.layouts import allocatable_of, is_served_unseen
from tessera.doctor.findings import Finding, not_applicable, note, problem, short, unseen, warning
from tessera.doctor.observations import Observations
from tessera.inventory.presence import starting, why_not_ready
from tessera.protocol import yaml
from tessera.protocol.configuration import devices as device_config
from tessera.protocol.kubernetes.controllers import Workload
from tessera.protocol.kubernetes.pod import PodIn

OURS: Final = "tessera-"  # what the plugin's CDI files begin with
_READ: Final = (".json", ".yaml")  # all that a container runtime looks at
_PRESENT: Final = "nvidia.com/gpu.present"  # the label of GPU feature discovery


def plugin(seen: Observations) -> Iterator[Finding]:
    """Where the device plugin is installed it runs, and its resources are on its nodes."""
    if not seen.plugins:
        yield not_applicable("no device plugin of Tessera is installed")
    elif why := seen.unseen.get("plugin_configs"):
        yield unseen(f"could not compare with its configuration: {short(why)}")
    for one in seen.plugins:
        wanted, ready = one.status.desired_number_scheduled or 0, one.status.number_ready
        if wanted == 0:
            moved = sum(node.labels.get(DEVICES_LABEL) == "dra" for node in seen.nodes)
            dra = f"{number_of(moved, 'node')} with {DEVICES_LABEL}=dra left to the DRA driver, "
            yield (note if moved else warning)(
                f"DaemonSet {one.metadata.name} has no node to run on: {dra if moved else ''}its nodeSelector and tolerations fit "
                f"{'no other' if moved else 'none'}",
                f"kubectl describe daemonset -n {one.metadata.namespace} {one.metadata.name}",
            )
        elif ready < wanted:
            yield from _unready(one, seen)
        text = seen.plugin_configs.get(one.metadata.name)
        if text is not None:
            yield from _registered(one, text, seen)


def _unready(one: Workload, seen: Observations) -> Iterator[Finding]:
    wanted, ready = one.status.desired_number_scheduled or 0, one.status.number_ready
    pods = [
        pod for pod in pods_of(one, seen.plugin_pods) if not (pod.ready or pod.metadata.deletion_timestamp)
    ]
    for pod in pods:
        if starting(pod, seen.now):
            text = f"{one.metadata.name}: on node {pod.spec.node_name} it starts"
            yield note(text).of("a device plugin starts", f"node {pod.spec.node_name}")
            continue
        reason, command = why_not_ready(pod, pod.metadata.namespace)
        yield problem(
            f"{one.metadata.name}: {ready} of {wanted} are registered with their kubelet; on node "
            f"{pod.spec.node_name or '(none)'}: {reason}",
            command,
        ).of("a device plugin is not ready", f"node {pod.spec.node_name or '(none)'}")
    if not pods:
        yield problem(
            f"{one.metadata.name}: {ready} of {wanted} are registered with their kubelet, and the others have no pod",
            f"kubectl describe daemonset -n {one.metadata.namespace} {one.metadata.name}",
        )


def _registered(one: Workload, text: str, seen: Observations) -> Iterator[Finding]:
    """What the configuration lists for every node is in the node's allocatable."""
    try:
        devices = Counter(device.resource for device in device_config.parse(text, "devices.yaml").static)
    except InvalidInput as error:
        yield problem(
            f"{one.metadata.name}: its configuration has a mistake: {short(str(error))}",
            f"kubectl edit configmap -n {one.metadata.namespace} {one.config_map()}",
        )
        return
    known = seen.cluster.inventory.capacity
    for pod in pods_of(one, seen.plugin_pods):
        if pod.spec.node_name not in known or not pod.ready:
            continue
        node = known[pod.spec.node_name]
        logs = f"kubectl logs -n {pod.metadata.namespace} {pod.metadata.name}"
        for resource, count in devices.items():
            has = allocatable_of(node).get(resource)
            if has is None:
                yield problem(
                    f"node {node.name} has no {resource}, which its device plugin lists: "
                    "the kubelet does not know it",
                    logs,
                ).of("the kubelet does not know a resource that the device plugin lists", f"node {node.name}")
            elif has < count:
                text = f"node {node.name}: {has} of {count} {resource} are healthy"
                yield warning(text, logs).of("not all devices are healthy", f"node {node.name}")


def silent(seen: Observations) -> Iterator[Finding]:
    labelled = [node for node in seen.nodes if node.labels.get(_PRESENT) == "true"]
    if not labelled:
        yield not_applicable(f"no node is labelled {_PRESENT}=true")
    for node in labelled:
        offers = any(name.startswith("nvidia.com/") and count for name, count in allocatable_of(node).items())
        if not (offers or node.name in seen.dra.by_node or is_served_unseen(node, seen)):
            yield warning(
                f"node {node.name} is labelled {_PRESENT}=true and offers no GPU: "
                "no device plugin and no DRA driver is registered there, or all its devices are unhealthy",
                f"kubectl describe node {node.name}",
            ).of("labelled as a GPU node, and offers no GPU", f"node {node.name}")


def pods_of(one: Workload, pods: Iterable[PodIn]) -> list[PodIn]:
    """Those of a DaemonSet."""
    selector = one.spec.selector.match_labels or {}
    return [pod for pod in pods if selector.items() <= (pod.metadata.labels or {}).items()]


# On a node: CDI specs are readable, in no conflict, and ours are what the plugin published to the kubelet


def cdi(seen: Observations) -> Iterator[Finding]:
    if seen.cdi is None:
        yield not_applicable("only on a node, with --cdi-dir")
        return
    holders: dict[str, list[str]] = defaultdict(list)  # CDI device → files
    ours: dict[str, list[str]] = defaultdict(list)  # our file → CDI devices
    for file, content in seen.cdi.items():
        if not file.endswith(_READ):
            continue
        try:
            names = _cdi_names(file, content)
        except InvalidInput as error:
            yield problem(
                f"CDI spec {file} cannot be read, its devices cannot be handed out: {short(str(error))}"
            )
            continue
        for name in names:
            holders[name].append(file)
            if file.startswith(OURS):
                ours[file].append(name)
    for name, files in holders.items():
        if len(files) > 1:
            yield problem(
                f"CDI device {name} stands in {' and '.join(files)}: a container runtime takes neither",
                f"ls -l --full-time {' '.join(files)}   # in that folder; the one that no plugin writes any more is stale",
            )
    if seen.devices is not None:
        yield from _cdi_compared(seen.devices, ours, holders)
    elif ours:
        yield unseen(
            f"could not compare {' and '.join(sorted(ours))} with the plugin's devices: the state folder has no record of them that "
            "can be read; does --state-dir name the plugin's folder?"
        )


def _cdi_compared(
    devices: tuple[str, ...], ours: Mapping[str, list[str]], holders: Collection[str]
) -> Iterator[Finding]:
    """Our specs against the devices that the plugin published; `holders` are the names in any spec."""
    for file, names in ours.items():
        stale = [name for name in names if name not in devices]
        if stale:
            yield warning(
                f"CDI spec {file} is stale: it lists {len(stale)} devices that the plugin does not have, "
                f"such as {stale[0]}; a running plugin puts it right within seconds",
                "kubectl get pods -A -l app.kubernetes.io/component=device-plugin -o wide",
            )
    missing = [name for name in devices if name not in holders]
    if missing:
        yield problem(
            f"{len(missing)} devices that the kubelet hands out are in no CDI spec, such as {missing[0]}: "
            "containers that get them do not start; is the plugin's folder the container runtime's?",
            "grep -r cdi_spec_dirs /etc/containerd/config.toml",
        )


def _cdi_names(file: str, content: bytes) -> list[str]:
    document: Any = yaml.load(content, file)
    try:
        return [f"{document['kind']}={device['name']}" for device in document["devices"]]
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"no CDI spec: {error!r}") from error
