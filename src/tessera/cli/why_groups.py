"""What `tessera why` prints without a name: the pods that wait, a line for each group."""

from collections.abc import Iterator
from typing import Any, Final

from tessera.cli.common.output import Style, block, format_age, headed
from tessera.core.text import number_of, printable, shortened
from tessera.diagnosis.gather import CONFIGURATION
from tessera.diagnosis.layouts.status import cut
from tessera.diagnosis.pod_groups.groups import WaitingDiagnosis
from tessera.protocol.kubernetes.objects import moment

_MOST_OF_NAME: Final = 80  # characters, so that one tenant's names leave room for the others
_HEADING: Final = ("NAMESPACE", "OWNER", "PODS", "ASKS FOR", "WAITS", "WHY")


def groups_document(waiting: WaitingDiagnosis) -> dict[str, Any]:
    """The groups for programs."""
    return {
        "pods": waiting.pods,
        "groups": [
            {
                "namespace": group.namespace,
                "owner": group.owner,
                "pods": group.pods,
                "oldest": group.oldest,
                "since": moment(group.since) if group.since else None,
                "devices": group.devices,
                "cause": group.cause,
                "answer": group.answer,
            }
            for group in waiting.groups
        ],
        "more": {"groups": waiting.more_groups, "pods": waiting.more_pods},
        "unseen": waiting.unseen,
        "configuration": waiting.decided_with,
    }


def groups_text(waiting: WaitingDiagnosis, namespace: str, style: Style) -> Iterator[str]:
    """The groups as a table, and what could not be seen. An empty `namespace` is all of them."""
    if not waiting.pods:
        yield (
            f"no pod waits in namespace {namespace}; -A looks in all namespaces"
            if namespace
            else "no pod waits"
        )
        return
    rows = [_HEADING] + [
        (
            shortened(printable(group.namespace), _MOST_OF_NAME),
            shortened(printable(group.owner or f"Pod {group.oldest}"), _MOST_OF_NAME),
            str(group.pods),
            group.asks or "-",
            format_age(waiting.now, group.since),
            cut(group.answer),
        )
        for group in waiting.groups
    ]
    yield from headed(rows, style)
    if waiting.more_pods:
        more = number_of(waiting.more_groups, "more group")
        yield style.dim(f"… and {more} with {number_of(waiting.more_pods, 'pod')}")
    unseen = (f"{what}: {why}" for what, why in waiting.unseen.items() if what != CONFIGURATION)
    yield from block("not seen", map(style.note, unseen))
    yield style.dim(waiting.decided_with)
