"""What every test shares: the same examples every time, on slow machines too.

Where `CI` is set, all of them; on a developer's machine a quarter, the first of the same. `--hypothesis-profile explore` looks further,
and finds other ones in each run.
"""

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

# A worker of pytest-xdist has the terminal's width in its environment; the commands under test find none.
os.environ.pop("COLUMNS", None)

for profile, most, same in (("local", 25, True), ("ci", 100, True), ("explore", 5000, False)):
    settings.register_profile(
        profile,
        deadline=None,
        max_examples=most,
        derandomize=same,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--golden` writes the golden files again, for a person to read in the diff."""
    parser.addoption("--golden", action="store_true", help="write tests/golden again")


def pytest_collection_finish() -> None:
    """What was imported stays to the end: the garbage collector need not go through it again and again."""
    gc.collect()
    gc.freeze()
