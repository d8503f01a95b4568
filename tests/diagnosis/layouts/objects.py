"""MigLayouts to ask "why?" about, as the API server has them."""

from typing import Any

from tests.build import mig_layout_document

AT = "2026-11-15T11:00:00Z"
RECUT: dict[str, Any] = {
    "node": "n1",
    "card": 3,
    "before": "1g.18gb ×7",
    "after": "3g.71gb ×2",
    "serves": {"3g.71gb": 2},
    "takes": {"1g.18gb": 7},
    "gain": 9.0,
    "cost": 4.25,
    "reason": "2 pods wait for 3g.71gb",
    "waits": "other nodes are being changed (rollout.maxUnavailable)",
}
PAST = {key: RECUT[key] for key in ("node", "card", "before", "after", "serves", "reason")}
READY = ("Ready", "True", "Complete", "2 of 2 nodes have the layout")
MISSING = ("Ready", "False", "Incomplete", "1 of 2 nodes have the layout")


def mig_layout(*conditions: tuple[str, str, str, str], spec: Any = None, **said: Any) -> dict[str, Any]:
    """A MigLayout that its controller has looked at, with these conditions: type, status, reason and message."""
    return mig_layout_document(conditions=conditions, at=AT, spec=spec, **{"desired": 2, **said})


def auto(
    *conditions: tuple[str, str, str, str], spec: Any = None, limits: Any = None, **said: Any
) -> dict[str, Any]:
    """The same in mode Auto: what its autopilot says, and its limits."""
    given = {"mode": "Auto", "autopilot": limits or {}, **(spec or {})}
    return mig_layout(*(conditions or (READY,)), spec=given, autopilot=said)
