"""Is this machine's clock right enough to make and judge certificates? The API server's clock is the measure.

A clock that is wrong by years would see every authority as ended, or not begun, and replace it again and again.
"""

from typing import Final

from tessera.core.errors import TesseraError
from tessera.webhook.certificates.rotation import DAY, Policy

_RESOLUTION: Final = 2.0  # seconds: the API server says whole ones, and its answer takes a moment


class WrongClock(TesseraError):
    """This machine's clock and the API server's differ by more than certificates allow."""


def offset_between(date: float, asked: float, answered: float) -> float:
    """By how many seconds the API server is ahead of us: `date` is its clock, at some moment between two of ours."""
    return min(0.0, date - asked) or max(0.0, date - answered)


def check_clock(offset: float, policy: Policy) -> None:
    """Raise `WrongClock` beyond what is tolerated: half of what any two replicas may differ by."""
    if abs(offset) > policy.skew / 2 + _RESOLUTION:
        raise WrongClock(
            f"this machine's clock is {_span(abs(offset))} {'behind' if offset > 0 else 'ahead of'} the API server's: "
            "this process writes and signs nothing until they agree"
        )


def _span(seconds: float) -> str:
    for length, name in ((DAY, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name}"
    return f"{seconds:.0f} seconds"
