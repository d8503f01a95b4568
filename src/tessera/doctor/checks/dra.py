"""Checks of dynamic resource allocation: classes, pools of ResourceSlices, and counters."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from tessera.core.dra.slices import DRIVER
from tessera.core.text import first_of
from tessera.doctor.checks.webhook import release_of, starting, why_not_ready
from tessera.doctor.evidence import Evidence
from tessera.doctor.findings import Finding, not_applicable, problem, short, unseen, warning
from tessera.protocol.kubernetes.dra import DeviceClassIn, SliceIn

_MOST_NAMED: Final = 3
_COUNTERS_MENDED: Final = (1, 37)  # kubernetes/kubernetes#138917
_MOST_COUNTED_NODES: Final = (
    30  # where 1.36.3 bound 20 pods a second instead of 69; at 100 nodes 2.3 instead of 46
)


def classes(seen: Evidence) -> Iterator[Finding]:
    """An extended resource leads to one DeviceClass."""
    by_name: dict[str, list[DeviceClassIn]] = defaultdict(list)
    for one in seen.dra.classes:
        if one.spec.extended_resource_name:
            by_name[one.spec.extended_resource_name].append(one)
    if not by_name:
        yield not_applicable("no DeviceClass has an extendedResourceName")
    for resource, several in sorted(by_name.items()):
        if len(several) == 1:
            continue
        winner, *others = sorted(several, key=_precedence)
        names = first_of([one.metadata.name for one in others], _MOST_NAMED)
        yield warning(
            f"DeviceClass {winner.metadata.name} wins over {names} for pods that ask for {resource}: all of them have it as "
            "extendedResourceName, and the youngest is taken (of the same age, the first by name)",
            f"kubectl patch deviceclass {others[0].metadata.name} --type=json "
            """-p '[{"op":"remove","path":"/spec/extendedResourceName"}]'""",
            # 1.36.3 and 1.37.1 forget the mapping when one of several classes is changed (kubernetes/kubernetes#141103)
            f"kubectl annotate --overwrite deviceclass {winner.metadata.name} tessera.dev/touched=$(date +%s)",
        )


def _precedence(one: DeviceClassIn) -> tuple[float, str]:
    """The scheduler's order: youngest first, then by name."""
    return -(one.metadata.created or 0.0), one.metadata.name


def pools(seen: Evidence) -> Iterator[Finding]:
    """Every pool is whole, and belongs to a node and a driver that are there."""
    if not seen.dra.slices:
        yield not_applicable("there are no ResourceSlices")
        return
    by_pool: dict[tuple[str, str], list[SliceIn]] = defaultdict(list)
    for one in seen.dra.slices:
        by_pool[one.spec.driver, one.spec.pool.name].append(one)
    for (driver, pool), slices in sorted(by_pool.items()):
        yield from _incomplete(driver, pool, slices)
    for (driver, pool), name in sorted(seen.dra.invalid.items()):
        yield problem(
            f"pool {pool} of {driver}: the name {name} is there twice, so the scheduler takes the pool as invalid and allocates "
            "nothing from it; its driver must give each device and each counter set of a pool a name of its own",
            f"kubectl get resourceslices --field-selector spec.driver={driver} -o yaml",
        ).of("a name is there twice", f"pool {pool}")
    gone = sorted(seen.dra.nodes - {node.name for node in seen.nodes})
    for node in gone:
        drivers = sorted({one.spec.driver for one in seen.dra.by_node[node]})
        yield problem(
            f"node {node} is gone, and ResourceSlices of {first_of(drivers, _MOST_NAMED)} still offer its devices: "
            "claims can be given what nothing prepares",
            f"kubectl delete resourceslices --field-selector spec.nodeName={node}",
        ).of("ResourceSlices of a node that is gone", f"node {node}")
    yield from _without_driver(seen, {*gone})


def _incomplete(driver: str, pool: str, slices: Sequence[SliceIn]) -> Iterator[Finding]:
    top = max(one.spec.pool.generation for one in slices)
    newest = [one for one in slices if one.spec.pool.generation == top]
    wanted = max(one.spec.pool.resource_slice_count for one in newest)
    if len(newest) != wanted:
        yield problem(
            f"pool {pool} of {driver}: {len(newest)} of {wanted} ResourceSlices of generation {top} are there, so nothing is "
            "allocated from it; while a driver writes them that is so for a moment",
            f"kubectl get resourceslices --field-selector spec.driver={driver}",
        ).of("ResourceSlices are missing", f"pool {pool}")


def _without_driver(seen: Evidence, gone: set[str]) -> Iterator[Finding]:
    """Slices of our own driver on nodes where the chart's DaemonSet has no pod; of other drivers it cannot be known."""
    for field in ("drivers", "driver_pods"):
        if field in seen.unseen:
            yield unseen(f"could not read whether drivers run: {field}: {short(seen.unseen[field])}")
            return
    if not seen.dra.drivers:
        return  # installed without the chart, if at all
    for pod in seen.dra.driver_pods:
        if not (pod.ready or pod.metadata.deletion_timestamp or starting(pod, seen.now)):
            reason, command = why_not_ready(pod, pod.metadata.namespace)
            yield problem(
                f"the DRA driver on node {pod.spec.node_name or '(none)'} is not ready: {reason}", command
            )
    running = {pod.spec.node_name for pod in seen.dra.driver_pods if not pod.metadata.deletion_timestamp}
    offered = {one.spec.node_name or "" for one in seen.dra.slices if one.spec.driver == DRIVER}
    for node in sorted(offered - running - gone):
        yield problem(
            f"node {node} has ResourceSlices of {DRIVER}, and no pod of the driver runs there: claims that get its devices are "
            "not prepared",
            f"kubectl get node {node} -L tessera.dev/devices",
            f"kubectl get pods -A -l app.kubernetes.io/component=dra-driver --field-selector spec.nodeName={node}",
        ).of("ResourceSlices without a pod of the driver", f"node {node}")


def counters(seen: Evidence) -> Iterator[Finding]:
    """Cards that are cut on demand are not so many that the scheduler grows slow."""
    nodes = {one.spec.node_name for one in seen.dra.slices if one.spec.shared_counters}
    if not nodes:
        yield not_applicable("no ResourceSlice has shared counters")
    elif release_of(seen) < _COUNTERS_MENDED and len(nodes) > _MOST_COUNTED_NODES:
        said = seen.version.git_version if seen.version else "of an unknown version"
        yield warning(
            f"{len(nodes)} nodes have devices with shared counters, and the API server is {said}: before 1.37 each of them "
            f"slows the scheduling of every claim down, much so beyond {_MOST_COUNTED_NODES} nodes; upgrade, or offer "
            "layouts instead of `partitioning: dynamic` on some nodes"
        )
