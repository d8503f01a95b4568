"""Nodes that were to begin and did not: why, and until when they are left alone."""

from typing import Final

from tessera.controller.retries import Retries
from tessera.kube.clock import Clock

_FIRST: Final = 60.0  # seconds until a node is looked at again
_LONGEST: Final = 600.0  # the same of one that refuses again and again


class Refusals:
    """By node."""

    def __init__(self, clock: Clock) -> None:
        self._retries = Retries(clock, _FIRST, _LONGEST)
        self._why: dict[str, str] = {}

    def put(self, node: str, why: str, *, passes: bool = False) -> None:
        """Leave a node alone for a while: longer from time to time, unless it is what `passes`, such as pods that end."""
        if passes:
            self._retries.let_be(node, _FIRST)
        else:
            self._retries.put_off(node)
        self._why[node] = why

    def of(self, node: str) -> str:
        """Why a node is left alone now; empty when it is not."""
        return "" if self._retries.is_due(node) else self._why.get(node, "")

    def has_refused(self, node: str) -> bool:
        """Whether it has lately, also where it may be asked again."""
        return self._retries.has_failed(node)

    def forget(self, node: str) -> None:
        self._retries.forget(node)

    def forget_old(self) -> None:
        self._retries.next()
        self._why = {node: why for node, why in self._why.items() if self._retries.has_failed(node)}

    def clear(self) -> None:
        self._retries.clear()
        self._why.clear()
