"""`make bench-check`: is anything slower or larger than it was on record, and does every tool grow as the cluster does?"""

from benchmarks import tools
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
        print(f"{'  ok  ' if good else ' WORSE'}  {guard.measure}: {now}, on record {then}, {guard.allowed}")
    if _versions(results) != _versions(record):
        print(f"(measured with {_versions(results)}; on record: {_versions(record)})")
    print(f"{failed} of {len(GUARDS)} worse than on record" if failed else "nothing is worse than on record")
    too_fast = _growing_too_fast(results)
    return 1 if failed or too_fast else 0


def _growing_too_fast(results: Results) -> int:
    """How many tools take more than in proportion to the cluster; said line by line."""
    rows = [one for one in results.series if (one.run, one.unit) == (tools.RUN, tools.EXPONENT)]
    failed = 0
    for one in rows:
        good = one.median <= tools.MOST
        failed += not good
        print(
            f"{'  ok  ' if good else ' WORSE'}  {one.what}: {one.subject} {one.median:.2f}, {tools.MOST} allowed"
        )
    if rows:
        print(
            f"{failed} of {len(rows)} exponents are above {tools.MOST}"
            if failed
            else "every tool grows as the cluster does"
        )
    return failed


def _versions(results: Results) -> str:
    return ", ".join(results.machine.get(key, "?") for key in ("python", "libraries", "go"))
