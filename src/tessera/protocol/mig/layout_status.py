"""The status of a MigLayout for those who show it: how far it is, and why. What is not written is empty."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.objects import Condition, Part


class NodeStatus(Part):
    """A node that does not have its layout, and why."""

    name: str = ""
    state: str = ""
    reason: str = ""


class LayoutStatus(Part):
    """What the controller says of a MigLayout."""

    observed_generation: int = 0
    desired: int = 0
    current: int = 0
    updating_count: int = 0
    failed: int = 0
    nodes: list[NodeStatus] = msgspec.field(default_factory=list)
    conditions: list[Condition] = msgspec.field(default_factory=list)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "LayoutStatus":
        """Read a status as it was written; `InvalidInput` for what the controller would not write."""
        try:
            return msgspec.convert(raw, cls)
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"status: {error}") from error

    def condition(self, type_: str) -> Condition:
        return next((one for one in self.conditions if one.type == type_), Condition())
