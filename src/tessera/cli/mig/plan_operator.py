"""A plan in the words of NVIDIA's operator: what to type so that mig-manager cuts the nodes.

Configurations that mig-manager has already need only a label. New ones go into its ConfigMap first; the operator puts its own back as it was, so
there a copy is made, and the ClusterPolicy named after it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from tessera.core.planning.changes import NodeChange, Way
from tessera.core.planning.configurations import Configs, PlanChanges
from tessera.core.text import first_of
from tessera.protocol.mig.documents import PARTED_CONFIG
from tessera.protocol.mig.edited import edited, entries_text, own_copy
from tessera.protocol.mig.operator import CONFIG_KEY, MigManagerConfig

_AT_ONCE: Final = 100  # nodes in one command: shells and people have limits
_SHOWN: Final = 3
_SYNC: Final = 120  # seconds: the kubelet's sync period of a minute, and as long as it may keep a copy


def commands(changes: PlanChanges, manager: MigManagerConfig | None) -> Iterator[str]:
    """The commands for nodes of mig-manager; for others, where their layouts are."""
    nodes = [node for node in changes.nodes if node.way is Way.MIG_MANAGER]
    others = [node.name for node in changes.nodes if node.way is Way.ANNOTATION]
    if others:
        yield f"# not by mig-manager, see -o runai: {first_of(others, _SHOWN)}"
    if changes.new:
        yield from _added(changes.new, manager)
        yield f"sleep {_SYNC}  # mig-manager's file follows the ConfigMap a minute or two later: a label that comes earlier ends in the state failed"
    for name, some in _by_configuration(nodes).items():
        for start in range(0, len(some), _AT_ONCE):
            yield f"kubectl label node {' '.join(some[start : start + _AT_ONCE])} {PARTED_CONFIG}={name} --overwrite"


def _by_configuration(nodes: Sequence[NodeChange]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(node.configuration or "", []).append(node.name)
    return found


def _added(new: Configs, manager: MigManagerConfig | None) -> Iterator[str]:
    if manager is None or manager.document is None or not manager.namespace:
        where = "mig-manager's file, which is not known here"
        if manager is not None:
            where = (
                str(manager)
                if manager.document
                else f"mig-manager's file, which is not known here: {manager.error}"
            )
        yield f"# add to mig-configs in {where}"
        yield from (f"#   {line}" for line in entries_text(new).splitlines())
        return
    if manager.owned:
        yield f"# the operator owns {manager}, and would undo what is added to it: a copy of your own"
        yield from own_copy(manager, new)
        return
    yield f"# new configurations in {manager}"
    yield f"kubectl patch configmap -n {manager.namespace} {manager.name} --type merge --patch-file /dev/stdin <<'END'"
    yield "data:"
    yield f"  {CONFIG_KEY}: |2"  # four columns: two of the key, and two more
    yield from (
        f"    {line}".rstrip() for line in edited(manager.text, new, (), str(manager)).text.splitlines()
    )
    yield "END"
