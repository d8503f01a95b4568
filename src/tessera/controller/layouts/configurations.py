"""Configurations that the controller adds to mig-manager's ConfigMap for nodes, and removes when no node uses them any more."""

import logging
from collections.abc import Callable, Iterable

from tessera.core.errors import InvalidInput
from tessera.core.planning.configurations import OURS
from tessera.kube.errors import KubeError
from tessera.kube.rest.client import Client
from tessera.protocol.mig.operator import MigManagerConfig
from tessera.protocol.mig.rollouts import RolloutRecord
from tessera.rollout.change import Change
from tessera.rollout.config_map import ConfigMap, Configurations, NotWritten
from tessera.rollout.conflicts import Conflicts

log = logging.getLogger(__name__)


class OurConfigurations:
    """Those that nodes get, and those that they may have left; `fence` is called before every write."""

    def __init__(self, client: Client, fence: Callable[[], None]) -> None:
        self._client = client
        self._fence = fence
        self._conflicts = Conflicts(client.clock.now)
        self._entries: dict[str, Configurations] = {}
        self._left: set[str] = set()
        self._manager: MigManagerConfig | None = None

    async def add(self, change: Change, manager: MigManagerConfig) -> None:
        """Add the one that a node is to get."""
        self._manager = manager
        entries = self._entries[change.after] = {change.after: change.entries}
        self._fence()
        await self._config_map(manager).add(entries)

    async def ensure(self, record: RolloutRecord) -> None:
        """See that the ConfigMap has the one of a rollout before a label names it."""
        entries, manager = self._entries.get(record.after), self._manager
        if record.label and entries and manager is not None and not manager.owned:
            self._fence()
            await self._config_map(manager).add(entries)

    def _config_map(self, manager: MigManagerConfig) -> ConfigMap:
        return ConfigMap(self._client, manager, log.info, self._conflicts)

    def leave(self, record: RolloutRecord) -> None:
        """A rollout has ended: its node may have left one."""
        self._left |= {one for one in record.configurations if one.startswith(OURS)}

    async def tidy(self, manager: MigManagerConfig | None, under_way: Iterable[RolloutRecord]) -> None:
        """Remove those that nodes have left, once no rollout is on its way to them, or may put them back."""
        self._manager = manager
        used = {name for one in under_way for name in one.configurations}
        names = sorted(self._left - used)
        if not names or manager is None or manager.owned or used & self._left:
            return
        self._left.clear()
        self._fence()
        try:
            for name in await self._config_map(manager).remove_unused(names):
                log.info("no node uses %s any more: removed from %s", name, manager)
        except (KubeError, InvalidInput, NotWritten) as error:
            log.warning("configurations that no node uses could not be removed: %s", error)
