"""Every check, in the order that matters: what is wrong at the top explains much of what is wrong below."""

from collections.abc import Collection, Iterator
from typing import Final

from tessera.doctor import calls, cdi, nodes, pods, trust, webhook
from tessera.doctor.evidence import Evidence
from tessera.doctor.findings import Answer, Check, Finding, Severity

CHECKS: Final = (
    Check("version", "Kubernetes is recent enough", (), webhook.version),
    Check("installed", "The webhook is installed", ("configuration",), webhook.installed),
    Check("running", "The webhook runs", ("deployment", "webhook_pods"), webhook.running),
    Check("service", "Its Service leads to it", ("service", "webhook_pods"), webhook.service),
    Check("trust", "API servers trust its certificate", ("configuration",), trust.trust),
    Check("trial", "A GPU pod reaches it and is changed", (), calls.trial),
    Check(
        "selection", "It is called for what it should be", ("configuration", "namespaces"), calls.selection
    ),
    Check("policy", "An outage does no more harm than meant", ("configuration",), calls.policy),
    Check("configuration", "Its configuration is good", ("config",), calls.configuration),
    Check(
        "plugin", "Device plugins run and are registered", ("plugins", "plugin_pods", "nodes"), nodes.plugin
    ),
    Check("layouts", "Nodes offer what their layouts say", ("nodes",), nodes.layouts),
    Check("silent", "Nodes with GPUs offer them", ("nodes",), nodes.silent),
    Check("cdi", "CDI specs are up to date", ("cdi",), cdi.cdi),
    Check("offers", "What pods ask for is offered somewhere", ("nodes", "pods"), pods.offers),
    Check("refused", "No workload's pods are rejected", ("refusals",), pods.refused),
    Check("pending", "GPU pods are placed", ("nodes", "pods"), pods.pending),
)


def examine(seen: Evidence, only: Collection[str] = ()) -> Iterator[Answer]:
    """Answer every question, or only some, as far as what was seen allows."""
    for check in CHECKS:
        if only and check.name not in only:
            continue
        blind = [f"{field}: {seen.unseen[field]}" for field in check.needs if field in seen.unseen]
        if blind:
            yield Answer(check, (Finding(Severity.UNSEEN, "could not look: " + "; ".join(blind)),))
        else:
            yield Answer(check, tuple(check.find(seen)))
