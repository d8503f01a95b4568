"""Alert rules, judged by Prometheus' own tool. (Metrics and dashboard are tried on an installation: test_installed.)"""

from pathlib import Path

import pytest

from e2e.cluster import program
from e2e.monitoring import ALERTS, promtool

_TESTS = Path(__file__).parents[1] / "tests" / "monitoring" / "alerts_test.yaml"


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    program("promtool")


def test_rules_are_well_formed() -> None:
    """`promtool check rules` accepts every rule, with all its lints."""
    assert "SUCCESS: 18 rules found" in promtool("check", "rules", "--lint=all", ALERTS)


def test_alerts_fire_when_they_should() -> None:
    """Each alert fires on the series that it is for, with the words that it should say, and not otherwise."""
    assert "SUCCESS" in promtool("test", "rules", _TESTS)
