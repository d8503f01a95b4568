"""Every check, in the order that matters: what is wrong at the top explains much of what is wrong below."""

from collections.abc import Collection, Iterator
from typing import Final

from tessera.doctor.checks import calls, certificates, dra, layouts, nodes, pods, uninstall, webhook
from tessera.doctor.findings import Check, CheckResult, Finding, grouped, note, short, unseen
from tessera.doctor.observations import Observations

# name, question, what must have been seen to answer it, who answers it
CHECKS: Final = tuple(Check(*row) for row in (
    ("version", "Kubernetes is recent enough", ("version",), webhook.version),
    ("installed", "The webhook is installed", ("configuration",), webhook.installed),
    ("running", "The webhook runs", ("deployment", "webhook_pods"), webhook.running),
    ("service", "Its Service leads to it", ("service", "webhook_pods"), webhook.service),
    ("trust", "API servers trust its certificate", ("configuration",), certificates.trust),
    ("trial", "A GPU pod reaches it and is changed", ("trial",), calls.trial),
    ("selection", "It is called for what it should be", ("configuration", "namespaces"), calls.selection),
    ("policy", "An outage does no more harm than meant", ("configuration",), calls.policy),
    ("configuration", "Its configuration is good", ("deployment", "config"), calls.configuration),
    ("controller", "The controller is at work", ("deployment", "config", "namespaces"), webhook.controller),
    ("tickets", "It has a key for tickets", ("deployment", "config", "namespaces"), calls.tickets),
    ("free", "It knows what is free", ("deployment", "config"), webhook.free),
    ("plugin", "Device plugins run and are registered", ("plugins", "plugin_pods", "nodes"), nodes.plugin),
    ("layouts", "Nodes offer what their layouts say", ("nodes",), layouts.layouts),
    ("silent", "Nodes with GPUs offer them", ("nodes",), nodes.silent),
    ("classes", "An extended resource leads to one DeviceClass", ("deviceclasses",), dra.classes),
    ("driver", "DRA drivers are at work", ("resourceslices", "nodes", "drivers", "driver_pods"), webhook.driver),
    ("pools", "ResourceSlices are whole and of nodes that are there", ("resourceslices", "nodes"), dra.pools),
    ("counters", "Cards cut on demand do not slow the scheduler", ("version", "resourceslices"), dra.counters),
    ("score", "The scheduler prefers first alternatives",
     ("version", "resourceslices", "templates", "resourceclaims"), dra.score),
    ("cdi", "CDI specs are up to date", (), nodes.cdi),
    ("offers", "What pods ask for is offered somewhere", ("nodes", "pods"), pods.offers),
    ("refused", "No workload's pods are rejected", ("configuration", "refusals"), pods.refused),
    ("pending", "GPU pods are placed", ("nodes", "pods"), pods.pending),
))  # fmt: skip

BEFORE_UNINSTALL: Final = tuple(Check(*row) for row in (
    ("held", "No pod holds a device of the DRA driver", ("resourceclaims",), uninstall.held),
    ("claimants", "No pod waits for the DRA driver", ("pods", "deviceclasses", "resourceclaims", "templates"), uninstall.claimants),
    ("templates", "No claim and no template is left for the DRA driver", ("templates", "resourceclaims", "deviceclasses"), uninstall.templates),
    ("labels", "Nodes keep no label", ("nodes",), uninstall.labels),
))  # fmt: skip


def examine(
    seen: Observations, only: Collection[str] = (), *, before_uninstall: bool = False
) -> Iterator[CheckResult]:
    """Make every check, or only some, as far as what was seen allows; or those that matter before an uninstall."""
    reported: set[str] = set()  # what is left out is reported once, by the first check that misses it
    for check in BEFORE_UNINSTALL if before_uninstall else CHECKS:
        if not only or check.name in only:
            yield CheckResult(check, tuple(grouped(_findings(check, seen, reported))))


def _findings(check: Check, seen: Observations, reported: set[str]) -> Iterator[Finding]:
    blind = [f"{field}: {seen.unseen[field]}" for field in check.needs if field in seen.unseen]
    if blind:
        yield unseen("could not run: " + short("; ".join(blind)))
        return
    for field in check.needs:
        if (odd := seen.odd.get(field)) and field not in reported:
            reported.add(field)
            yield note(f"{len(odd)} of the {field} cannot be read and are left out, such as {short(odd[0])}")
    try:
        yield from check.find(seen)
    except Exception as error:  # noqa: BLE001 # an object that no check expects must not end the others
        yield unseen(
            f"could not run, by a mistake in this check: {type(error).__name__}: {short(str(error))}"
        )
