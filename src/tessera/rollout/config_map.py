"""mig-manager's ConfigMap: configurations of ours are added in one write, and removed when no node names them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import msgspec

from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.mig.layout import LayoutEntry
from tessera.core.planning.configurations import OURS
from tessera.kube.errors import NOT_JSON, ApiError, BadResponse
from tessera.kube.rest.client import Client, path_of
from tessera.kube.watch.listing import list_all
from tessera.kube.watch.table import NODES
from tessera.protocol.kubernetes.nodes import NodeIn, decode_node
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.edited import Edited, edited
from tessera.protocol.mig.operator import CONFIG_KEY, MigManagerConfig
from tessera.protocol.mig.rollouts import record_of
from tessera.rollout.conflicts import MOST_TRIES, Conflicts

MANAGER: Final = {"fieldManager": "tessera"}

Configurations = Mapping[str, Sequence[LayoutEntry]]


class NotWritten(TesseraError):
    """An object changed whenever it was written to."""


class ConfigMap:
    """The ConfigMap that mig-manager reads."""

    def __init__(
        self,
        client: Client,
        manager: MigManagerConfig,
        report: Callable[[str], None],
        conflicts: Conflicts | None = None,
    ) -> None:
        """`conflicts`: those of earlier writes, where several objects of this class write the ConfigMap."""
        self._client = client
        self._conflicts = conflicts or Conflicts(client.clock.now)
        self._manager = manager
        self._report = report
        self._path = path_of("v1", "configmaps", namespace=manager.namespace, name=manager.name)

    async def add(self, new: Configurations, *, dry_run: bool = False) -> list[str]:
        """Add what is missing of these, all in one write; which ones these are."""
        missing: dict[str, Sequence[LayoutEntry]] = {}

        def change(text: str) -> Edited | None:
            there = mig.read(text, str(self._manager)).configs
            missing.clear()
            missing.update({name: entries for name, entries in new.items() if name not in there})
            return edited(text, missing, (), str(self._manager)) if missing else None

        return [*missing] if await self._write(change, dry_run=dry_run) else []

    async def remove_unused(self, names: Collection[str]) -> list[str]:
        """Remove those of ours that no node's label names, and no rollout of a node; which ones these are.

        Another client may write such a label meanwhile: then they are added again.
        """
        unused = {name for name in names if name.startswith(OURS)} - await self._used() if names else ()
        gone: dict[str, Sequence[LayoutEntry]] = {}

        def change(text: str) -> Edited | None:
            there = mig.read(text, str(self._manager)).configs
            gone.clear()
            gone.update({name: there[name] for name in sorted(unused) if name in there})
            return edited(text, {}, gone, str(self._manager)) if gone else None

        if not unused or not await self._write(change):
            return []
        again = gone.keys() & await self._used()
        if again:
            await self.add({name: gone[name] for name in again})
        return sorted(gone.keys() - again)

    async def _used(self) -> set[str]:
        """The configurations that nodes' labels name, and those that nodes on their way may need."""
        nodes = await list_all(self._client, replace(NODES, labels=mig.PARTED_CONFIG), decode_node)
        named = {(node.metadata.labels or {}).get(mig.PARTED_CONFIG, "") for node in nodes}
        return named.union(*map(_of_rollout, nodes))

    async def _write(self, change: Callable[[str], Edited | None], *, dry_run: bool = False) -> bool:
        """Write what a change makes of the text as it is now; a conflict is read and tried again."""
        query = {**MANAGER, **({"dryRun": "All"} if dry_run else {})}
        while not self._conflicts.is_resting(self._path):
            document = _decoded(await self._client.get(self._path))
            data = document.setdefault("data", {})
            found = change(data.get(CONFIG_KEY) or "")
            if found is None:
                return False
            data[CONFIG_KEY] = found.text
            try:
                await self._client.update(self._path, document, query)
            except ApiError as error:
                if not error.is_conflict:
                    raise
                self._conflicts.note(self._path)
            else:
                self._conflicts.forget(self._path)
                if found.comments_lost and not dry_run:
                    self._report(
                        f"{self._manager}: its comments are lost: the document is not in block style"
                    )
                return True
        raise NotWritten(f"{self._manager} changed {MOST_TRIES} times while it was written to")


def _of_rollout(node: NodeIn) -> set[str]:
    """The configurations that a node needs for its rollout; one that cannot be read goes no further."""
    with suppress(InvalidInput):
        if (record := record_of(node.metadata.annotations)) is not None:
            return record.configurations
    return set()


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except NOT_JSON as error:
        raise BadResponse(f"a ConfigMap that is not JSON: {error}") from error
