"""Checks before an uninstall: what pods hold of the DRA driver, who waits for it, and what stays in the cluster."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final

from tessera.core.dra.device_names import node_of
from tessera.core.dra.slices import DRIVER
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import DEVICES_LABEL
from tessera.core.requests.asking import alternatives_of, asked
from tessera.core.text import first_of, number_of
from tessera.doctor.checks.nodes import pods_of
from tessera.doctor.findings import Finding, not_applicable, note, problem, warning
from tessera.doctor.observations import Observations
from tessera.inventory.presence import Presence
from tessera.protocol.configuration import devices as device_config
from tessera.protocol.configuration.devices import DeviceConfiguration
from tessera.protocol.kubernetes.controllers import Workload
from tessera.protocol.kubernetes.dra import ClaimIn, ClaimTemplateIn
from tessera.protocol.kubernetes.pod import PodMetadata
from tessera.protocol.mig.documents import CONFIG_REASON, CONFIG_STATE, RUNAI_CONFIG
from tessera.protocol.mig.nodes import MAPPING

_MOST_NAMED: Final = 3
_DESCRIBING: Final = (
    "nvidia.com/"  # what labels of simulated cards begin with, as those of GPU feature discovery
)
_CONTROLLER: Final = ("app.kubernetes.io/managed-by", "tessera-controller")  # label of its templates


def held(seen: Observations) -> Iterator[Finding]:
    """Only the driver can end a claim: once it is gone, a pod that holds one stays in Terminating."""
    ours = any(one.spec.driver == DRIVER for one in seen.dra.slices)
    holders: dict[tuple[str, str, str], list[ClaimIn]] = defaultdict(list)
    for claim in seen.dra.claims:
        if not _devices(claim):
            continue
        ours, space = True, claim.metadata.namespace
        for one in claim.status.reserved_for or ():
            holders[one.resource.removesuffix("s"), space, one.name].append(claim)
        if not claim.status.reserved_for:
            yield warning(
                f"claim {space}/{claim.metadata.name} holds {_devices(claim)}, and no pod uses it now: a pod that uses it after the "
                "uninstall does not start",
                f"kubectl describe resourceclaim -n {space} {claim.metadata.name}",
            ).of("a claim that no pod uses", f"claim {space}/{claim.metadata.name}")
    if not (ours or seen.dra.drivers):
        yield not_applicable("the DRA driver is not installed")
    pods = {("pod", one.pod.namespace, one.pod.name): one.state.metadata for one in seen.pods}
    for (kind, space, name), claims in sorted(holders.items()):
        metadata = pods.get((kind, space, name), PodMetadata())
        owner = f" of {metadata.controller.kind} {metadata.controller.name}" if metadata.controller else ""
        devices = ", ".join(_devices(one) for one in claims)
        names = first_of([one.metadata.name for one in claims], _MOST_NAMED)
        then, commands = "end it before you uninstall", [f"kubectl describe {kind} -n {space} {name}"]
        if gone := _unavailable(claims, seen):
            back = "See that it runs" if seen.dra.drivers else "Install the driver again"
            ends = "and it ends" if metadata.deletion_timestamp else f"then end the {kind}"
            then = f"now {gone.words(seen.now)}. {back}, {ends}"
            commands.insert(0, gone.command)
        elif metadata.deletion_timestamp:
            then = "wait until it is gone before you uninstall"
        yield problem(
            f"{kind} {space}/{name}{owner} holds {devices} (claim {names}). Only the driver can end a claim, so without the driver the "
            f"{kind} stays in Terminating: {then}",
            *commands,
        ).of("devices of the DRA driver are held", f"{kind} {space}/{name}")


def _unavailable(claims: Iterable[ClaimIn], seen: Observations) -> Presence | None:
    """The driver of a node with devices of these claims, where it is not at work."""
    found = (
        seen.cluster.presences.drivers.get(node_of(r.pool))
        for one in claims
        for r in one.status.results
        if r.driver == DRIVER
    )
    return next((one for one in found if one is not None and not (one.at_work or one.starts)), None)


def _devices(claim: ClaimIn) -> str:
    """The devices of the driver that a claim holds; empty: none."""
    found = [one for one in claim.status.results if one.driver == DRIVER]
    return first_of([f"{one.device} of {one.pool}" for one in found], _MOST_NAMED)


def claimants(seen: Observations) -> Iterator[Finding]:
    """Pods without a node whose claims are not made or served once controller and driver are gone, or whose extended resource no node offers."""
    going, stopping = _classes(seen), _stopping(seen)
    claims = {_key(one): one.spec.classes for one in seen.dra.claims}
    templates = {_key(one): one.spec.spec.classes for one in seen.dra.templates}
    for one in seen.pods:
        space, converted = one.pod.namespace, alternatives_of(one.pod)
        named = [claims.get((space, name or ""), set()) for name in one.state.claims.values()]
        named += [templates.get((space, name), set()) for name in one.state.claim_templates.values()]
        if converted:
            named.append(
                {each.device_class for request in converted.requests for each in request.alternatives}
            )
        unmade = converted is not None and (space, converted.template) not in templates
        found = set[str]().union(*named)
        if one.waits and (unmade or found & going):
            then = ": delete the pod then, and its workload creates it again with its own request"
            yield warning(
                f"{one.name} waits with a claim for {first_of(sorted(found & going or found), _MOST_NAMED)}, which nobody serves after the uninstall"
                f"{then if converted else ''}",
                f"kubectl describe pod -n {space} {one.pod.name}",
            ).of("pods wait with claims that nobody will serve", one.name)
        elif one.waits and (wanted := sorted(stopping & asked(one.pod).keys())):
            yield warning(
                f"{one.name} waits for {first_of(wanted, _MOST_NAMED)}, which nobody offers after the uninstall",
                f"kubectl describe pod -n {space} {one.pod.name}",
            ).of("pods wait for what nobody will offer", one.name)


def _stopping(seen: Observations) -> set[str]:
    """The extended resources that only the driver serves."""
    going = _classes(seen)
    served = {one.metadata.name: one.spec.extended_resource_name for one in seen.dra.classes}
    others = {resource for name, resource in served.items() if name not in going}
    plugins = {resource for node in seen.nodes for resource, count in node.allocatable.items() if count}
    return {served[name] for name in going} - others - plugins - {""}


def templates(seen: Observations) -> Iterator[Finding]:
    """Claims and templates that stay, and ask for DeviceClasses that go; and the templates that the controller made."""
    going, (label, maker) = _classes(seen), _CONTROLLER
    made: list[ClaimTemplateIn] = []
    standing = [("claim", one.metadata, one.spec) for one in seen.dra.claims if not one.metadata.controller]
    for one in seen.dra.templates:
        if (one.metadata.labels or {}).get(label) == maker:
            made.append(one)
        else:
            standing.append(("template", one.metadata, one.spec.spec))
    for kind, metadata, spec in standing:
        if found := sorted(spec.classes & going):
            name = f"{kind} {metadata.namespace}/{metadata.name}"
            yield note(
                f"{name} asks for DeviceClass {first_of(found, _MOST_NAMED)}, which the uninstall removes: pods with it will wait",
                f"kubectl describe resourceclaim{kind.replace('claim', '')} -n {metadata.namespace} {metadata.name}",
            ).of(f"{kind}s ask for DeviceClasses that go", name)
    if made:
        yield note(
            f"{number_of(len(made), 'template')} of the controller will be left, such as {'/'.join(_key(made[0]))}: nobody uses them "
            "after the uninstall, so remove them then",
            f"kubectl delete resourceclaimtemplates -A -l {label}={maker}",
        )


def _classes(seen: Observations) -> set[str]:
    """The DeviceClasses that select devices of the driver."""
    return {
        one.metadata.name
        for one in seen.dra.classes
        if any(DRIVER in each.cel.expression for each in one.spec.selectors or ())
    }


def _key(one: ClaimIn | ClaimTemplateIn) -> tuple[str, str]:
    return one.metadata.namespace, one.metadata.name


def labels(seen: Observations) -> Iterator[Finding]:
    """What an uninstall leaves on nodes: the label that chooses the driver, those of simulated cards, and what a cut of real ones left."""
    chosen = [node.name for node in seen.nodes if DEVICES_LABEL in node.labels]
    if chosen:
        yield note(
            f"the label {DEVICES_LABEL} stays on {number_of(len(chosen), 'node')} ({first_of(chosen, _MOST_NAMED)}): remove it after "
            "the uninstall, not before, since the driver leaves a node without it",
            f"kubectl label nodes -l {DEVICES_LABEL} {DEVICES_LABEL}-",
        )
    simulated = _nodes_of(seen, (*seen.plugins, *seen.dra.drivers), lambda one: one.simulated is not None)
    described = [
        node.name
        for node in seen.nodes
        if node.name in simulated and any(label.startswith(_DESCRIBING) for label in node.labels)
    ]
    if described:
        yield note(
            f"the labels {_DESCRIBING}… of simulated cards stay on {number_of(len(described), 'node')} "
            f"({first_of(described, _MOST_NAMED)}): docs/upgrade.md has the commands that remove them after the uninstall",
            f"kubectl get nodes {' '.join(described[:_MOST_NAMED])} --show-labels",
        )
    cut = sorted(_nodes_of(seen, seen.plugins, lambda one: one.nvml is not None and one.nvml.cut))
    if cut:
        yield note(
            f"the cards of {number_of(len(cut), 'node')} ({first_of(cut, _MOST_NAMED)}) stay cut as the device plugin has cut them "
            f"(nvml.cut), and MIG mode stays as it is; so do the label {CONFIG_STATE}, the annotations {MAPPING} and {CONFIG_REASON} "
            f"and your {RUNAI_CONFIG}, and other labels {_DESCRIBING}… where GPU feature discovery does not run: docs/upgrade.md has the "
            "commands that remove them after the uninstall",
            f"kubectl describe nodes {' '.join(cut[:_MOST_NAMED])}",
        )


def _nodes_of(
    seen: Observations, workloads: Iterable[Workload], chosen: Callable[[DeviceConfiguration], bool]
) -> set[str]:
    """The nodes with a device plugin or a driver of such a configuration."""
    found: set[str] = set()
    for one in workloads:
        with suppress(InvalidInput):  # another check reports it
            if chosen(device_config.parse(seen.plugin_configs.get(one.metadata.name, ""), "devices.yaml")):
                pods = pods_of(one, (*seen.plugin_pods, *seen.dra.driver_pods))
                found |= {pod.spec.node_name for pod in pods}
    return found
