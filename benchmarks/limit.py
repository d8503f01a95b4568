"""Where a request's time goes, put together from what was measured of the whole and of its parts."""

from typing import Final

from benchmarks import decision, https
from benchmarks.aims import HAND_MADE
from benchmarks.results import PARTIAL, TESSERA, Results

_CASE: Final = https.case("4 KB", 64)
_PARTS: Final = {  # what is needed: name → benchmark, case, quantity, subject
    "all": (https.RUN, _CASE, https.CPU, TESSERA),
    "kernel": (https.RUN, _CASE, https.KERNEL, TESSERA),
    "floor": (https.RUN, _CASE, https.CPU, https.FLOOR),
    "floor's kernel": (https.RUN, _CASE, https.KERNEL, https.FLOOR),
    "hand-made": (https.RUN, _CASE, https.CPU, PARTIAL),
    "decoding": (decision.RUN, "4 KB", decision.UNIT, decision.DECODING),
    "decision": (decision.RUN, "4 KB", decision.UNIT, decision.LATER),
}


def section(results: Results) -> str:
    """The report's section; nothing when a part was not measured."""
    found = {name: results.find(*where) for name, where in _PARTS.items()}
    part = {name: series.median for name, series in found.items() if series is not None}
    if part.keys() != _PARTS.keys():
        return ""
    tls = part["floor"] - part["floor's kernel"]
    deciding = part["decision"] - part["decoding"]
    fixed = part["kernel"] + tls + part["decoding"]
    rows = {
        "the kernel: TCP, waiting for events": part["kernel"],
        "TLS and the event loop": tls,
        "decoding the review": part["decoding"],
        "the decision and its answer": deciding,
        "HTTP, counters, a log line, and what each takes out of the others' caches": part["all"] - fixed - deciding,
        "**together**": part["all"],
        "the hand-made Go webhook": part["hand-made"],
    }  # fmt: skip
    return "\n".join([
        "## Where the limit lies\n",
        f"| processor time of a request, {_CASE} | µs |",
        "|---|---|",
        *(f"| {what} | {value:.1f} |" for what, value in rows.items()),
        f"\nTo be {HAND_MADE:g} times the hand-made Go webhook, a request may take {part['hand-made'] / HAND_MADE:.1f} µs. The first three rows,",
        f"before anything is decided or written down, take {fixed:.1f} µs: TCP, OpenSSL and a JSON decoder in C, and calling them from",
        "Python. What comes after them is the interpreter.\n",
    ])  # fmt: skip
