"""The pages say what is so: links lead somewhere, every name is in the reference, every fault has its tests."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tessera.cli.app import COMMANDS
from tessera.controller.metrics import ControllerMetrics
from tessera.core.admission.bridge import CONVERSIONS
from tessera.node.metrics import Metrics
from tessera.protocol.configuration.devices import parse

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    """Every relative link leads to a file of the project."""
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_what_an_upgrade_leaves_is_found():
    """The page's command lists every kind that the chart makes, but for the namespace and the kinds of other operators."""
    templates = ROOT.glob("charts/tessera/templates/*.yaml")
    kinds = {kind for one in templates for kind in re.findall(r"^kind: (\w+)", one.read_text(), re.MULTILINE)}
    others = {"Namespace", "Certificate", "Issuer", "PodMonitor", "ServiceMonitor", "PrometheusRule"}
    page = (ROOT / "docs/upgrade.md").read_text()
    named = set(re.search(r"kubectl get (all\S+) -A -l app", page)[1].split(",")) | {"deviceclasses"}  # type: ignore[index]
    named |= {"services", "deployments", "daemonsets"}  # of `all`
    plurals = {re.sub("ss$", "sse", re.sub("y$", "ie", kind.lower())) + "s" for kind in kinds - others}
    assert plurals <= named
    assert "kubectl get deviceclasses -l app" in page


def test_every_page_is_found():
    """Every page of the documentation can be reached from the README."""
    linked = set(re.findall(r"\]\((docs/[^)#]+\.md)", (ROOT / "README.md").read_text()))
    assert linked == {str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md")}


def test_every_fault_has_its_tests():
    """Each numbered fault is proven by a test of that number, and each such test's fault is on the page."""
    listed = {
        int(n) for n in re.findall(r"^\| (\d+) \|", (ROOT / "docs/faults.md").read_text(), re.MULTILINE)
    }
    tested = set()
    for file in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("e2e/*.py")]:
        for numbers in re.findall(r"def test_faults?_((?:\d+_)+)", file.read_text()):
            tested |= {int(n) for n in numbers.strip("_").split("_")}
    assert listed >= set(range(1, 29))
    assert listed == tested


def test_every_promise_has_its_tests():
    """The tables of promises name tests that exist, and so does every other page that names one."""
    for name in ("security.md", "autopilot.md"):
        table = (ROOT / "docs" / name).read_text().partition("\n## Promises and their tests\n")[2]
        rows = re.findall(r"^\| (?!promise|---)(.+?) \| (.+) \|$", table, re.MULTILINE)
        assert len(rows) > 20
        assert all(
            re.fullmatch(r"`[^`]+\.py::test_\w+`(, `[^`]+\.py::test_\w+`)*", tests) for _, tests in rows
        )
    for page in PAGES:
        for file, test in re.findall(r"`((?:tests|e2e)/[\w/]+\.py)(?:::(test_\w+))?`", page.read_text()):
            there = f"def {test}(" in (ROOT / file).read_text() if test else (ROOT / file).exists()
            assert there, f"{page.name}: {file}::{test}"


def test_both_readmes_tell_the_same():
    """The Chinese README links to the same pages as the English one."""
    pages = [
        set(re.findall(r"\]\((docs/[^)#]+\.md)", (ROOT / name).read_text()))
        for name in ("README.md", "README.zh-CN.md")
    ]
    assert pages[0] == pages[1]


def test_every_command_is_documented():
    """Each command stands somewhere in the documentation."""
    text = "\n".join(page.read_text() for page in PAGES)
    for name in COMMANDS:
        assert f"tessera {name}" in text, name


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    made: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        found.add(f"{slug}-{made[slug]}" if made[slug] else slug)
        made[slug] += 1
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors(page):
    """Every link to a section leads to a heading that is there."""
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        if "://" not in target:
            there = (page.parent / target) if target else page
            assert anchor in anchors(there), f"{target}#{anchor}"


def test_the_site_has_every_page():
    """The site's menu names every page once: the READMEs first, then docs/."""
    listed = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(["index.md", "zh-CN.md", *(page.name for page in ROOT.glob("docs/*.md"))])


NAMES = re.compile(
    r"\"((?:gpu-webhook\.k8s\.io|run\.ai|task\.bkbcs\.tencent\.com|tessera\.dev(?!/v1))/[\w.-]+|"
    r"nvidia\.com/(?:mig|gpu)\.[\w.-]+)\""
)


def test_reference_has_every_name():
    """Annotations and labels in the reference are those in the code, none more and none less."""
    code = {name for file in (ROOT / "src").rglob("*.py") for name in NAMES.findall(file.read_text())}
    tables = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/reference.md").read_text(), re.MULTILINE)
    documented = {name for cell in tables for name in NAMES.findall(cell.replace("`", '"'))}
    assert documented == code


def test_reference_has_every_event():
    """Every Event that the code writes is in the reference, and every one that is there is in the code."""
    code = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    text = (ROOT / "docs/reference.md").read_text().partition("## Events")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`([A-Z]\w+)`", cell)}
    assert documented >= set(re.findall(r"(?:_events\.warn|self\._event)\(\s*\"([A-Z]\w+)\"", code))
    assert all(f'"{reason}"' in code for reason in documented)


def test_every_metric_of_the_plugin_is_documented():
    """The table of the device plugin's metrics has each with its labels' names, and nothing else."""
    text = (ROOT / "docs/device-plugin-configuration.md").read_text()
    documented = set(re.findall(r"^\| `(tessera_device_plugin_\w+)", text, re.MULTILINE))
    assert documented == {family.name for family in Metrics().families()}


def test_every_metric_of_the_controller_is_documented():
    """The page of the bridge names each of the controller's metrics, and what its counter of ways can say."""
    text = (ROOT / "docs/bridge.md").read_text()
    cells = "".join(re.findall(r"^\| (`(?:tessera_controller|…)_.*?) \|", text, re.MULTILINE))
    documented = {re.sub("^…", "tessera_controller", name) for name in re.findall(r"`([\w…]+)", cells)}
    assert documented == {
        one.name for one in ControllerMetrics().families() if one.name.startswith("tessera_controller")
    }
    ways = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| ", text.partition("| `way` |")[2].partition("\n\n")[0], re.MULTILINE
    )
    assert {name for cell in ways for name in re.findall(r"`(\w+)`", cell)} == set(CONVERSIONS)


def test_the_readme_tests_as_the_gate_does():
    """The command that the README gives for the tests is one that must pass before a change lands."""
    gate = (ROOT / ".ci/run").read_text().splitlines()
    for name in ("README.md", "README.zh-CN.md"):
        assert re.search(r"^\$ make test\b", (ROOT / name).read_text(), re.MULTILINE), name
    assert "make test" in {line.removeprefix("time ") for line in gate}


def test_quickstart_files():
    """The quickstart's pod asks for what its simulated card is not cut into."""
    values = yaml.safe_load((ROOT / "examples/quickstart/devices.yaml").read_text())
    devices = parse(json.dumps(values["devicePlugin"]["config"]))
    assert devices.simulated is not None
    assert str(devices.simulated.layout) == "1g.10gb=7"
    pod = yaml.safe_load((ROOT / "examples/quickstart/pod.yaml").read_text())
    (container,) = pod["spec"]["containers"]
    assert list(container["resources"]["limits"]) == ["nvidia.com/mig-2g.20gb"]


def test_example_of_simulated_cards():
    """The node of the device plugin's page has the slices that the page shows."""
    devices = parse((ROOT / "examples/simulated-a100.yaml").read_text()).simulated
    assert devices is not None
    assert ({card.name for card in devices.cards}, len(devices.cards)) == ({"NVIDIA A100-80GB"}, 4)
    assert devices.layout == "2g.20gb=2,3g.40gb=1"
    text = (ROOT / "docs/device-plugin.md").read_text()
    assert "layout: nvidia.com/mig-2g.20gb: 8, nvidia.com/mig-3g.40gb: 4" in text
