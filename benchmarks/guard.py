"""`make bench-check`: is anything slower or larger than it was on record?"""

from benchmarks.aims import GUARDS
from benchmarks.results import Results


def check(results: Results, record: Results) -> int:
    """Compare, say so line by line, and answer the exit code."""
    failed = 0
    for guard in GUARDS:
        now, then = guard.measure.of(results), guard.measure.of(record)
        if now is None or then is None:
            print(f"   -    {guard.measure}: not measured{'' if then else ' on record'}")
            continue
        good = guard.holds(now.median, then.median)
        failed += not good
        print(
            f"{'  ok  ' if good else ' WORSE'}  {guard.measure}: {now}, on record {then}, "
            f"{guard.tolerance:.0%} allowed"
        )
    if _versions(results) != _versions(record):
        print(f"(measured with {_versions(results)}; on record: {_versions(record)})")
    print(f"{failed} of {len(GUARDS)} worse than on record" if failed else "nothing is worse than on record")
    return 1 if failed else 0


def _versions(results: Results) -> str:
    return ", ".join(results.machine.get(key, "?") for key in ("python", "libraries", "go"))
