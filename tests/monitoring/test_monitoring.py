"""Alert rules and dashboard: well formed, and about metrics that exist. (Prometheus itself judges them in e2e.)"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tessera.controller.metrics import ControllerMetrics
from tessera.node.metrics import DraMetrics, Metrics
from tessera.protocol import yaml

ROOT = Path(__file__).parents[2]
FILES = ROOT / "charts" / "tessera" / "files"
RULES: list[Any] = [
    rule
    for group in yaml.load((FILES / "alerts.yaml").read_bytes(), "alerts.yaml")["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((FILES / "dashboard.json").read_bytes())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
# kube-state-metrics, the API server, Prometheus itself, and what every process has
_OTHERS = ("kube_", "apiserver_", "process_")


def _used(query: str) -> set[str]:
    return set(re.findall(r"\b(?:gpu_webhook|tessera|kube|apiserver|process)_[a-z_]+\b", query))


@cache
def _defined() -> set[str]:
    """Every metric that there is: those of node and controller as they are shown, the others as the sources name them."""
    controller = ControllerMetrics()
    controller.webhook_seen = lambda: True  # where patience is configured
    shown = (Metrics(), DraMetrics(), controller)
    names = {family.name for one in shown for family in one.families()}
    for path in (ROOT / "src" / "tessera").rglob("*.py"):
        names |= set(re.findall(r'"((?:gpu_webhook|tessera_namespace)_[a-z_]+)"', path.read_text()))
    return names | {f"{name}{suffix}" for name in names for suffix in ("_bucket", "_sum", "_count")}


@pytest.mark.parametrize("query", [*QUERIES, *(rule["expr"] for rule in RULES)])
def test_query_is_about_metrics_that_exist(query: str):
    """No alert and no panel waits for a metric that does not exist."""
    used = _used(query)
    assert used
    assert {name for name in used if not name.startswith(_OTHERS)} <= _defined()


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_alert_says_what_and_what_to_do(rule: dict[str, Any]):
    """Every alert waits a while, has a severity, says what is wrong, is tested and is documented."""
    assert rule["for"]
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert f"alertname: {rule['alert']}\n" in (ROOT / "tests/monitoring/alerts_test.yaml").read_text()
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}
    assert anchor == rule["alert"].lower()


def test_sentences_name_a_node_even_without_the_label():
    """The label `node` is the chart's PodMonitor's: where it is missing, the instance stands in the sentence."""
    for rule in RULES:
        for text in rule["annotations"].values():
            assert "$labels.node }}" not in text, rule["alert"]


def test_dashboard_is_a_dashboard():
    """Panels have ids of their own, do not overlap, and ask the data source that a person chooses."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]
