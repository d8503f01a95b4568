"""The page in a real browser: what it shows is what the API says, after each kind of change.

With `TESSERA_SCREENSHOTS=FOLDER` (`make screenshots`) the pictures of the documentation are made on the way.
"""

import base64
import json
import os
import urllib.error
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.cluster import Client
from e2e.page import (
    Api,
    Object,
    Tab,
    address_in,
    board_served,
    browser,
    embedded_api,
    go_live,
    serving,
    until,
)
from tessera.dashboard.board import Board
from tessera.dashboard.observed import read_node, read_pod

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MIG = "nvidia.com/mig-"
MOCK = "device.example.com/gpu"
NODES = """
cards: {layout: "2g.20gb=2,3g.30gb=1", devices: {simulated: {product: H200-70GB, cards: 2}}}
whole: {devices: {simulated: {product: H200-70GB, cards: 2}}}
mock:
  devices:
    static:
      - {resource: device.example.com/gpu, devices: "device_{0..3}", mounts: [{hostPath: "/mock/{id}"}]}
plain: {}
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """One browser for all tests."""
    with browser() as one:
        yield one


@dataclass(frozen=True)
class World:
    """An embedded cluster, its API, and its page."""

    api: Api
    url: str


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A fresh embedded cluster for each test."""
    file = tmp_path / "nodes.yaml"
    file.write_text(NODES)
    arguments = ("demo", "--serve", "--port", "0", "--own-nodes", str(file))
    with serving(*arguments, ready="export KUBECONFIG=") as lines:
        yield World(embedded_api(lines), address_in(lines))


def pod(name: str, resource: str, count: int = 1, **metadata: object) -> Object:
    """A pod that asks for one thing."""
    limits = {"limits": {resource: count}}
    containers = [{"name": "main", "image": "busybox", "resources": limits}]
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": containers}}


def said(
    api: Api,
) -> tuple[dict[str, list[str]], dict[str, set[tuple[str, str, str]]], dict[str, Counter[str]]]:
    """What the API says: the capacity table; per node the devices that pods hold, and how many more are free."""
    nodes, pods = api.get("/api/v1/nodes")["items"], api.get("/api/v1/pods")["items"]
    held: dict[str, set[tuple[str, str, str]]] = {node["metadata"]["name"]: set() for node in nodes}
    taken: dict[str, Counter[str]] = {name: Counter() for name in held}
    asked: Counter[str] = Counter()
    for one in pods:
        name = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
        on = one["spec"].get("nodeName")
        for container in one["spec"]["containers"]:
            limits = {k: int(v) for k, v in container["resources"]["limits"].items() if "/" in k}
            (taken[on] if on else asked).update(limits)
        for status in one["status"].get("containerStatuses", ()):
            for allocated in status.get("allocatedResourcesStatus", ()):
                held[on] |= {
                    (allocated["name"], device["resourceID"], name) for device in allocated["resources"]
                }
    has = {
        node["metadata"]["name"]: {k: int(v) for k, v in node["status"]["allocatable"].items() if "/" in k}
        for node in nodes
    }
    free = {name: Counter({k: n - taken[name][k] for k, n in one.items()}) for name, one in has.items()}
    for name, offered in has.items():
        if not (any(offered.values()) or taken[name]):  # folded on the page
            del held[name], free[name]
    totals: dict[str, list[str]] = {}
    for resource in sorted(
        {k for one in has.values() for k in one} | set(asked) | {k for t in taken.values() for k in t}
    ):
        allocatable = sum(one.get(resource, 0) for one in has.values())
        allocated = sum(one[resource] for one in taken.values())
        if allocatable or allocated or asked[resource]:
            numbers = (allocatable, allocated, allocatable - allocated, asked[resource])
            totals[resource] = [str(number) for number in numbers]
    return totals, held, {name: +one for name, one in free.items()}


def shown(
    tab: Tab,
) -> tuple[dict[str, list[str]], dict[str, set[tuple[str, str, str]]], dict[str, Counter[str]]]:
    """The same, as the page shows it."""
    tiles = tab.tiles()
    held = {n: {(t["resource"], t["id"], t["pod"]) for t in ts if t["pod"]} for n, ts in tiles.items()}
    free = {n: Counter(t["resource"] for t in ts if not t["pod"] and not t["out"]) for n, ts in tiles.items()}
    return dict(sorted(tab.totals().items())), held, free


def agree(tab: Tab, api: Api) -> None:
    """Wait until the page shows what the API says."""
    until(
        lambda: (shown(tab) == said(api), shown(tab), said(api))[0] or (shown(tab), said(api)), expected=True
    )


def test_what_the_page_shows(world: World, chromium: "Browser") -> None:
    """Pods come, wait, are rewritten, refused and deleted; layouts change: the page always shows what the API says."""
    api = world.api
    with Tab.open(chromium, world.url) as tab:
        agree(tab, api)
        assert "plain" not in tab.tiles(), "nodes without devices are folded"
        tab.page.click("[data-group='without devices'] .fold")
        until(lambda: tab.tiles().get("plain"), [])
        tab.page.click("[data-group='without devices'] .fold")
        until(lambda: "plain" in tab.tiles(), expected=False)

        api.create(pod("train", f"{MIG}3g.30gb"))
        until(lambda: [t["pod"] for t in tab.tiles()["cards"] if t["pod"]], ["default/train"])
        agree(tab, api)
        assert tab.texts("#admissions li")[0].endswith("default/train as asked\nwhat it asks for is offered")

        api.create(pod("infer", f"{MIG}1g.10gb"))
        until(lambda: "default/infer 1g.10gb → 2g.20gb" in tab.texts("#admissions li")[0], expected=True)
        agree(tab, api)

        with pytest.raises(urllib.error.HTTPError) as refused:
            api.create(pod("huge", f"{MIG}2g.20gb", 99))
        assert refused.value.code == 403
        until(lambda: "default/huge rejected" in tab.texts("#admissions li")[0], expected=True)
        assert "asked for nvidia.com/mig-2g.20gb: 99" in tab.texts("#admissions li")[0]

        api.create(pod("mocks", MOCK, 3))
        api.create(pod("more", MOCK, 2))
        why = "0/4 nodes are available: 4 Insufficient device.example.com/gpu."
        until(lambda: [one.split("\n")[1] for one in tab.texts("#pending li")], [why])
        agree(tab, api)
        assert tab.totals()[MOCK] == ["4", "3", "1", "2"]
        api.delete("/api/v1/namespaces/default/pods/mocks")
        until(lambda: tab.texts("#pending li"), [])
        agree(tab, api)
        assert tab.totals()[MOCK] == ["4", "2", "2", "0"]


def test_demand_is_on_the_page(world: World, chromium: "Browser") -> None:
    """What is missing and rejected by the profile asked for, and what namespaces used, behind one click."""
    with Tab.open(chromium, world.url) as tab:
        world.api.create(pod("infer", f"{MIG}1g.10gb"))  # gets 2g.20gb
        world.api.create(pod("patient", "nvidia.com/gpu", 3))
        with pytest.raises(urllib.error.HTTPError):
            world.api.create(pod("huge", f"{MIG}2g.20gb", 99))
        until(lambda: tab.texts("#demand-now"), ["4 of 4 devices missing, 99 rejected"])
        tab.page.click("#demand summary")
        rows = """() => [...document.querySelectorAll("#demand-rows tr")].map((row) => [...row.cells].slice(0, 5).map((one) => one.textContent).join(" "))"""
        until(lambda: tab.page.evaluate(rows), ["gpu 3 0 3 0", "1g.10gb 1 0 1 0", "2g.20gb 0 0 0 99"])
        assert all("default" in row for row in tab.texts("#use-rows tr"))
        until(lambda: "no node has 3 × gpu together" in tab.texts("#pending li")[0], expected=True)


def test_layouts(world: World, chromium: "Browser") -> None:
    """A new layout is on the page with what it did; a slice in use stays until its pod ends; a bad one is named."""
    api, node = world.api, "/api/v1/nodes/cards"
    api.create(pod("train", f"{MIG}3g.30gb"))

    def relayout(text: str) -> None:
        api.patch(node, {"metadata": {"annotations": {"run.ai/mig.config": text}}})

    with Tab.open(chromium, world.url) as tab:
        until(lambda: [t["pod"] for t in tab.tiles()["cards"] if t["pod"]], ["default/train"])
        wide = {t["resource"]: t["width"] for t in tab.tiles()["cards"]}
        assert wide[f"{MIG}3g.30gb"] == pytest.approx(1.5 * wide[f"{MIG}2g.20gb"], rel=0.05)

        relayout("1g.10gb=7")
        until(lambda: tab.texts("[data-node=cards] .badge")[0], "layout pending")
        until(lambda: tab.totals().get(f"{MIG}1g.10gb"), ["11", "0", "11", "0"])
        (leaving,) = [tile for tile in tab.tiles()["cards"] if tile["leaving"]]
        assert (leaving["resource"], leaving["pod"]) == (f"{MIG}3g.30gb", "default/train")
        agree(tab, api)
        changes = "\n".join(tab.texts("#layouts li"))
        assert "cards 1g.10gb=7\nin progress: " in changes
        assert "offers 1g.10gb 0 → 11, 2g.20gb 4 → 0, 3g.30gb 2 → 0" in changes

        api.delete("/api/v1/namespaces/default/pods/train")
        until(lambda: tab.totals().get(f"{MIG}1g.10gb"), ["14", "0", "14", "0"])
        until(lambda: tab.texts("[data-node=cards] .badge"), ["layout success"])
        agree(tab, api)
        mapping = json.loads(base64.b64decode(api.get(node)["metadata"]["annotations"]["run.ai/mig-mapping"]))
        ids = {device["device_uuid"] for devices in mapping.values() for device in devices}
        assert {tile["id"] for tile in tab.tiles()["cards"]} == ids

        relayout("3g.30gb=9")
        until(lambda: tab.texts("[data-node=cards] .badge"), ["layout failed"])
        assert "3g.30gb ×9" in tab.texts("[data-node=cards] .reason")[0]
        agree(tab, api)

        api.patch(node, {"spec": {"unschedulable": True}})
        until(lambda: "cordoned" in tab.texts("[data-node=cards] .badge"), expected=True)
        api.delete("/api/v1/nodes/whole")
        until(lambda: sorted(tab.tiles()), ["cards", "mock"])
        agree(tab, api)


def test_trying_a_pod(world: World, chromium: "Browser") -> None:
    """The form explains, complains in words, and creates nothing."""
    with Tab.open(chromium, world.url) as tab:
        page = tab.page
        page.locator("#yaml").focus()
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#explanation:not([hidden])")
        assert "decision    admitted as it is" in page.locator("#explanation").inner_text()
        assert "nvidia.com/gpu: 1" not in page.input_value("#yaml"), (
            "it begins with what the cluster has most of"
        )
        wide = "(one) => one.scrollWidth - one.clientWidth"
        assert page.locator("#explanation").evaluate(wide) <= 0, "lines are wrapped"
        page.fill("#yaml", "kind: Pod\nspec: [")
        tab.page.click("#try button")
        until(lambda: "bad" in (page.locator("#explanation").get_attribute("class") or ""), expected=True)
        assert page.locator("#explanation").inner_text().startswith("YAML: line 3")
        tab.complaints.clear()  # the browser's own word about the status 400
    assert world.api.get("/api/v1/pods")["items"] == []


def test_the_answer_is_in_the_window(world: World, chromium: "Browser") -> None:
    """On a usual screen, 1,440 × 900, what Explain answers is seen without scrolling."""
    with Tab.open(chromium, world.url, width=1440, height=900) as tab:
        tab.page.click("#try button")
        tab.page.wait_for_selector("#explanation:not([hidden])")
        box = """() => { const box = document.getElementById("explanation").getBoundingClientRect();
            const aside = document.querySelector("aside").getBoundingClientRect();
            return [Math.max(0, aside.top) <= box.top, box.bottom <= Math.min(innerHeight, aside.bottom), box.height > 100]; }"""
        until(lambda: tab.page.evaluate(box), [True, True, True])


def test_pods_that_wait_alike_are_one_row(world: World, chromium: "Browser") -> None:
    """Pods of one generated name that ask for the same: one row, how many, and the answer about the oldest of them."""
    with Tab.open(chromium, world.url) as tab:
        for number in range(12):
            world.api.create(pod(f"night-{number}", "nvidia.com/gpu", 3, generateName="night-"))
        until(lambda: tab.texts("#pending-count"), ["12 in 1 group"])
        (row,) = tab.texts("#pending button.who")
        assert row.endswith(" and 11 more of night-*")
        assert "gpu ×3 each" in tab.texts("#pending li")[0]


def test_pod_that_waits_opens_the_answer(world: World, chromium: "Browser") -> None:
    """A click on a pod that waits shows what `tessera why` says of it; Escape leads back."""
    with Tab.open(chromium, world.url) as tab:
        world.api.create(pod("patient", "nvidia.com/gpu", 3))
        tab.page.click("#pending button.who")
        output = tab.page.locator("#why-text")
        answer = "pod default/patient waits: no node has 3 × gpu together (gpu: it has 2, the pod needs 3 on one node on node whole)"
        until(lambda: output.inner_text().splitlines()[0], answer)
        tab.page.keyboard.press("Escape")
        assert not tab.page.locator("#why").is_visible()


def test_seven_small_slices_are_readable(world: World, chromium: "Browser") -> None:
    """At 1,280 pixels each of seven tiles on a card shows how its pod's name begins and, whole, how it ends."""
    world.api.patch("/api/v1/nodes/cards", {"metadata": {"annotations": {"run.ai/mig.config": "1g.10gb=7"}}})
    names = [f"trainer-7c9d8b6f5-{end}" for end in ("x2k4q", "mm7wz", "p9f3d")]
    with Tab.open(chromium, world.url, width=1280) as tab:
        until(lambda: tab.totals().get(f"{MIG}1g.10gb"), ["14", "0", "14", "0"])
        for name in names:
            world.api.create(pod(name, f"{MIG}1g.10gb"))
        until(lambda: sorted(tab.texts(".tile.held .end")), sorted(name[-5:] for name in names))
        cut = """() => [...document.querySelectorAll(".tile.held .end bdi")].map((end) => {
            const text = end.getBoundingClientRect(), tile = end.closest(".tile").getBoundingClientRect();
            return text.left < tile.left || text.right > tile.right || text.bottom > tile.bottom; })"""
        assert tab.page.evaluate(cut) == [False] * 3
        assert all(tab.page.locator(".tile.held .start").nth(at).inner_text() for at in range(3))


def test_the_chosen_tile(world: World, chromium: "Browser") -> None:
    """It is marked, the detail covers no tile, a gap says why it is there, and Escape ends it."""
    world.api.patch("/api/v1/nodes/cards", {"metadata": {"annotations": {"run.ai/mig.config": "2g.20gb=2"}}})
    covers = """() => { const box = document.getElementById("detail").getBoundingClientRect();
        return [...document.querySelectorAll(".tile")].filter((one) => { const tile = one.getBoundingClientRect();
            return tile.left < box.right && box.left < tile.right && tile.top < box.bottom && box.top < tile.bottom; }).length; }"""
    with Tab.open(chromium, world.url) as tab:
        until(lambda: len(tab.texts(".tile.gap")), 2)
        gap = "cards, card 0, slices 0–2: nothing is cut here; there is room for 3g.30gb"
        tab.choose(".tile.gap", gap)
        assert tab.texts("#detail") == [gap]
        assert tab.page.evaluate(covers) == 0
        world.api.create(pod("train", f"{MIG}2g.20gb"))
        until(lambda: len(tab.texts("[data-node=cards] .tile.held")), 1)
        assert tab.page.locator(".tile[aria-pressed=true]").count() == 1, (
            "it stays when its node is drawn anew"
        )
        tab.choose("[data-node=cards] .tile.held", "held by default/train")
        tab.page.keyboard.press("Escape")
        assert (tab.texts("#detail"), tab.page.locator(".tile[aria-pressed]").count()) == ([], 0)


def test_cards_that_are_cut_on_demand(tmp_path: Path, chromium: "Browser") -> None:
    """What claims hold is drawn where it lies, with the pod's name, and the rest as free room."""
    file = tmp_path / "nodes.yaml"
    file.write_text(
        "cut: {dra: true, devices: {simulated: {product: H200-70GB, cards: 2, partitioning: dynamic, profiles: [2g.20gb]}}}"
    )
    arguments = ("demo", "--serve", "--port", "0", "--own-nodes", str(file))
    with (
        serving(*arguments, ready="export KUBECONFIG=") as lines,
        Tab.open(chromium, address_in(lines)) as tab,
    ):
        api = embedded_api(lines)
        until(lambda: len(tab.texts("[data-node=cut] .tile.gap")), 2)
        assert tab.texts("[data-node=cut] .tile.held") == []
        api.create(pod("train", f"{MIG}2g.20gb"))
        until(lambda: [t["pod"] for t in tab.tiles()["cut"] if t["pod"]], ["default/train"])
        tab.choose("[data-node=cut] .tile.held", "held by default/train")
        assert len(tab.texts("[data-node=cut] .tile.gap")) >= 2, "the rest is free room"
        api.delete("/api/v1/namespaces/default/pods/train")
        until(lambda: tab.texts("[data-node=cut] .tile.held"), [])
        until(lambda: len(tab.texts("[data-node=cut] .tile.gap")), 2)


def test_nodes_of_nvidias_operator(tmp_path: Path, chromium: "Browser") -> None:
    """Cards without an annotation are drawn, with the source's name; places that are not certain are marked, and what is not known has its reason."""
    file = tmp_path / "nodes.json"
    labels = {"gpu.product": "NVIDIA-A100-SXM4-80GB", "mig.strategy": "mixed", "mig.config": "x", "mig.config.state": "success"}  # fmt: skip
    nodes = []
    for name, cards, counts in (
        ("sure", 8, {"1g.10gb": 56}),
        ("unplaced", 1, {"1g.10gb": 6}),
        ("unknown", 4, {"1g.10gb": 8, "2g.20gb": 4, "3g.40gb": 4}),
    ):
        has = {f"{MIG}{profile}": str(number) for profile, number in counts.items()}
        own = {f"nvidia.com/{key}": value for key, value in {**labels, "gpu.count": str(cards)}.items()}
        nodes.append({"kind": "Node", "metadata": {"name": name, "labels": own}, "status": {"allocatable": has, "capacity": has}})  # fmt: skip
    file.write_text(json.dumps({"kind": "List", "items": nodes}))
    arguments = ("dashboard", "--from", str(file), "--port", "0")
    with serving(*arguments, ready="^C") as lines, Tab.open(chromium, address_in(lines)) as tab:
        until(lambda: len(tab.texts("[data-node=sure] .card")), 8)
        assert len(tab.texts("[data-node=sure] .card .tile:not(.gap)")) == 56
        assert tab.texts("[data-node=sure] .source") == ["layout known from: the node's capacity"]
        assert (len(tab.texts(".card.unplaced")), len(tab.texts("[data-node=unplaced] .card.unplaced"))) == (
            1,
            1,
        )
        (source,) = tab.texts("[data-node=unplaced] .source")
        assert source.endswith("; where on a card its slices lie is not known")
        tab.choose(
            "[data-node=unplaced] .tile:not(.gap) >> nth=0", "card 0, where on it is not known: 1g.10gb, free"
        )
        assert tab.texts("[data-node=unknown] .badge.note") == ["layout not known"]
        (reason,) = tab.texts("[data-node=unknown] .reason")
        assert reason.startswith("there is more than one way to cut its cards")


def test_filters(world: World, chromium: "Browser") -> None:
    """By product, profile, namespace and trouble; all together, and all at once undone."""
    world.api.create(pod("train", f"{MIG}3g.30gb"))
    with Tab.open(chromium, world.url) as tab:
        page = tab.page
        until(lambda: [t["pod"] for t in tab.tiles()["cards"] if t["pod"]], ["default/train"])
        for control, value, found in (
            ("#by-product", "Simulated H200-70GB", ["cards", "whole"]),
            ("#by-profile", "gpu", ["whole"]),
            ("#by-profile", MOCK, ["mock"]),
            ("#by-namespace", "default", ["cards"]),
        ):
            page.select_option(control, value)
            until(lambda found=found: sorted(tab.tiles()), found)  # type: ignore[misc] # bound here
            page.click("#clear")
            until(lambda: len(tab.tiles()), 3)
        page.check("#by-trouble")
        until(lambda: page.locator("#nodes-count").inner_text(), "0 of 4")
        world.api.patch(
            "/api/v1/nodes/cards", {"metadata": {"annotations": {"run.ai/mig.config": "3g.30gb=9"}}}
        )
        until(lambda: sorted(tab.tiles()), ["cards"])
        assert page.locator("#show-trouble").inner_text() == "1 node in trouble"
        page.click("#clear")
        page.select_option("#group-by", "use")
        until(
            lambda: tab.texts(".group .fold > span:first-child"),
            ["less than half in use", "free", "without devices"],
        )


def test_history(world: World, chromium: "Browser") -> None:
    """What this server saw is a small chart for each resource, with words for those who cannot see it."""
    with Tab.open(chromium, world.url) as tab:
        chart = f"[data-resource='{MIG}3g.30gb'] svg.chart"
        tab.page.wait_for_selector(chart)
        world.api.create(pod("train", f"{MIG}3g.30gb"))
        until(
            lambda: (
                "allocated 0 to 1, waiting at most 0"
                in (tab.page.locator(chart).get_attribute("aria-label") or "")
            ),
            expected=True,
        )


def many_nodes(count: int) -> str:
    """The configuration of an embedded cluster with many small nodes."""
    node = '{layout: "1g.10gb=7", devices: {simulated: {product: H200-70GB, cards: 1}}}'
    return "".join(f"node-{number:03d}: {node}\n" for number in range(count))


def test_many_nodes(tmp_path: Path, chromium: "Browser") -> None:
    """All are cells of an overview; only nodes near the window have elements; a cell leads to its node."""
    file = tmp_path / "nodes.yaml"
    file.write_text(many_nodes(60))
    arguments = ("demo", "--serve", "--port", "0", "--own-nodes", str(file))
    with (
        serving(*arguments, ready="export KUBECONFIG=") as lines,
        Tab.open(chromium, address_in(lines)) as tab,
    ):
        page = tab.page
        until(lambda: page.locator("#nodes-count").inner_text(), "60")
        assert tab.tiles() == {}, "groups of many begin folded"
        bottom = page.locator("#groups").evaluate("(one) => one.getBoundingClientRect().bottom")
        assert bottom <= 900, "the overview fits a screen"
        page.click(".fold")
        until(lambda: "node-000" in tab.tiles(), expected=True)
        assert "node-059" not in tab.tiles()
        assert len(tab.tiles()) < 60
        page.evaluate("scrollTo(0, document.scrollingElement.scrollHeight)")
        until(lambda: len(tab.tiles().get("node-059", [])), 7)
        until(lambda: "node-000" in tab.tiles(), expected=False)
        page.evaluate("scrollTo(0, 0)")
        page.locator("canvas.heat").focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("#hint").inner_text().startswith("node-001 · Simulated H200-70GB · 0 % in use")
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.dataset.node") == "node-059"
        until(lambda: len(tab.tiles().get("node-059", [])), 7)


def test_names_for_screen_readers(world: World, chromium: "Browser") -> None:
    """Everything that can be reached has a name, and every region too."""
    world.api.create(pod("train", f"{MIG}3g.30gb"))
    world.api.create(pod("waits", MOCK, 9))
    with Tab.open(chromium, world.url) as tab:
        until(lambda: len(tab.texts("#pending li")), 1)
        until(lambda: len(tab.texts(".tile.held")), 1)
        nameless = """() => [...document.querySelectorAll("button, input, select, textarea, canvas, svg, [role=meter], section, [tabindex='0']")]
            .filter((one) => { const by = one.getAttribute("aria-labelledby");
                const text = one.getAttribute("aria-label") || (by && document.getElementById(by)?.textContent)
                    || one.labels?.[0]?.textContent || (one.matches("button, pre") && one.textContent) || "";
                return !text.trim() && one.checkVisibility(); })
            .map((one) => one.outerHTML.slice(0, 120))"""
        assert tab.page.evaluate(nameless) == []


def test_nothing_is_markup(world: World, chromium: "Browser") -> None:
    """Whatever a user writes into a name or an annotation is text on the page."""
    evil = "<img src=x onerror=document.title='gone'>"
    world.api.create(pod(evil, MOCK, annotations={"gpu-webhook.k8s.io/fallback": evil}))
    world.api.create(pod("b", MOCK, 9, annotations={"gpu-webhook.k8s.io/fallback": evil}))
    with Tab.open(chromium, world.url) as tab:
        until(lambda: [t["pod"] for t in tab.tiles()["mock"] if t["pod"]], [f"default/{evil}"])
        until(lambda: len(tab.texts("#pending li")), 1)
        assert tab.page.locator("img").count() == 1  # the page's own
        assert tab.page.title() == "Tessera"


def test_keyboard(world: World, chromium: "Browser") -> None:
    """Everything can be reached without a mouse: skip link, filter, tiles, form."""
    world.api.create(pod("train", f"{MIG}3g.30gb"))
    with Tab.open(chromium, world.url) as tab:
        page = tab.page
        until(lambda: [t["pod"] for t in tab.tiles()["cards"] if t["pod"]], ["default/train"])
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("/")
        page.keyboard.type("train")
        until(lambda: list(tab.tiles()), ["cards"])
        until(page.locator("#nodes-count").inner_text, "1 of 4")
        page.locator("article.node button.tile").first.focus()
        first = page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert first.startswith("cards, card 0, slices 0–1: 2g.20gb, free (MIG-")
        until(page.locator("#detail").inner_text, first)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        # which of the node's slices it has is only known when the kubelet has told
        until(lambda: "3g.30gb, held by default/train" in page.locator("#detail").inner_text(), expected=True)
        world.api.create(pod("other", f"{MIG}2g.20gb"))  # redrawn, and the focus stays
        until(lambda: len([t for t in tab.tiles()["cards"] if t["pod"]]), 2)
        focused = "document.activeElement.getAttribute('aria-label')"
        until(lambda: "held by default/train" in (page.evaluate(focused) or ""), expected=True)
        page.keyboard.press("/")
        page.keyboard.press("Escape")
        until(lambda: len(tab.tiles()), 3)


def test_history_on_a_phone(world: World, chromium: "Browser") -> None:
    """On a narrow window bar and chart stand below the numbers, and a screen reader still reads a table."""
    with Tab.open(chromium, world.url, width=360) as tab:
        row = f"[data-resource='{MIG}3g.30gb']"
        tab.page.wait_for_selector(f"{row} svg.chart")
        left = tab.page.locator(f"{row} .track").bounding_box()
        right = tab.page.locator(f"{row} svg.chart").bounding_box()
        number = tab.page.locator(f"{row} td").nth(1).bounding_box()
        assert left is not None
        assert right is not None
        assert number is not None
        assert min(left["width"], right["width"]) > 100
        assert left["x"] + left["width"] < right["x"]
        assert number["y"] + number["height"] <= min(left["y"], right["y"])
        told = tab.page.locator("#totals-table").aria_snapshot()
        assert 'columnheader "waiting"' in told
        assert 'rowheader "3g.30gb"' in told


@pytest.mark.parametrize("width", [360, 768, 1600])
@pytest.mark.parametrize("dark", [False, True])
def test_windows(world: World, chromium: "Browser", width: int, dark: bool) -> None:
    """No window is too narrow, and it is dark where the system is."""
    with Tab.open(chromium, world.url, width=width, dark=dark) as tab:
        until(lambda: len(tab.tiles()), 3)
        overflow = "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"
        assert tab.page.evaluate(overflow) == 0
        colour = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
        assert (brightness < 200) is dark


def test_a_server_that_refuses_for_a_while(world: World, chromium: "Browser") -> None:
    """A page whose stream was refused, by a server with too many listeners or by a proxy, asks again by itself."""
    page = chromium.new_page()
    page.route("**/events", lambda route: route.fulfill(status=503, body="too many"), times=1)
    page.goto(world.url)
    page.wait_for_selector("#link[data-state=lost]")
    page.wait_for_selector("#link[data-state=live]")
    page.wait_for_selector("article.node", state="attached")
    page.close()


def test_the_end_of_the_server(tmp_path: Path, chromium: "Browser") -> None:
    """When the command ends, the page says that it is no longer live, and goes on showing what it knew."""
    file = tmp_path / "nodes.yaml"
    file.write_text("plain: {}\n")
    page = chromium.new_page()
    with serving(
        "demo", "--serve", "--port", "0", "--own-nodes", str(file), ready="export KUBECONFIG="
    ) as lines:
        go_live(page, address_in(lines), [])
        page.click(".fold")
        page.wait_for_selector("article.node")
    page.wait_for_selector("#link[data-state=lost]")
    assert page.locator("article.node").count() == 1
    page.close()


def test_a_real_cluster(control_plane: Client, namespace: str, chromium: "Browser") -> None:
    """On a real API server and scheduler: nodes, pods that were bound and pods that wait are on the page, live."""
    resource = f"{MIG}2g.20gb"
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H200-70GB",
        "nvidia.com/gpu.count": "1",
        "nvidia.com/gpu.memory": "71680",
    }
    layout = {"run.ai/mig.config": "2g.20gb=3"}
    control_plane.add_node("page-1", allocatable={resource: 3}, labels=labels, annotations=layout)
    arguments = ("dashboard", "--kubeconfig", str(control_plane.kubeconfig), "--port", "0")
    try:
        with serving(*arguments, ready="^C") as lines, Tab.open(chromium, address_in(lines)) as tab:
            until(lambda: len(tab.tiles()["page-1"]), 3)
            for number in (1, 2, 3):
                one = pod(f"p-{number}", resource, 1 if number < 3 else 2)
                one["spec"]["containers"][0]["image"] = "localhost/pause:1"
                control_plane.api.create(
                    f"/api/v1/namespaces/{namespace}/pods", {"kind": "Pod", "apiVersion": "v1", **one}
                )
            until(
                lambda: sorted(tile["pod"] for tile in tab.tiles()["page-1"]),
                ["", f"{namespace}/p-1", f"{namespace}/p-2"],
            )
            assert all(tile["guessed"] for tile in tab.tiles()["page-1"] if tile["pod"])
            # the diagnosis' words take the place of the scheduler's
            why = "2 × 2g.20gb is taken on node page-1 (2g.20gb: 2 of 3 in use)"
            until(lambda: [why in one for one in tab.texts("#pending li")], [True])
            assert tab.totals()[resource] == ["3", "2", "1", "2"]
            control_plane.set_allocatable("page-1", {resource: 2})
            until(lambda: tab.totals()[resource], ["2", "2", "0", "2"])
            until(lambda: [tile["out"] for tile in tab.tiles()["page-1"] if not tile["pod"]], [True])
    finally:
        control_plane.remove_node("page-1")


def a_large_cluster(nodes: int) -> Board:
    """Nodes of three products in four pools, some in trouble, with four pods each, and pods that wait."""
    kinds = (("NVIDIA-H200", "143771", "1g.18gb", 56), ("NVIDIA-A100-SXM4-80GB", "81920", "2g.20gb", 24), ("NVIDIA-H100-80GB-HBM3", "81559", "1g.10gb", 56))  # fmt: skip
    board = Board("a large cluster")
    for number in range(nodes):
        name = f"node-{number:04d}"
        product, memory, profile, count = kinds[number * 7 // nodes % 3]
        labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": memory, "nvidia.com/gpu.count": "8", "pool": f"pool-{number % 4}"}  # fmt: skip
        labels["nvidia.com/mig.config.state"] = "failed" if number % 97 == 0 else "success"
        layout = {"run.ai/mig.config": f"{profile}={count // 8}"}
        allocatable = {f"{MIG}{profile}": count} if number % 10 else {"cpu": 8}
        one = {"metadata": {"name": name, "labels": labels if number % 10 else {}, "annotations": layout if number % 10 else {}}, "status": {"allocatable": allocatable}}  # fmt: skip
        board.put_node(read_node(json.dumps(one).encode()))
        held = number * 37 % 5 * count // 16
        for at in range(4 if number % 10 and held else 0):
            work = pod(f"trainer-{number:04d}-{at}", f"{MIG}{profile}", held, namespace=f"team-{number % 7}")
            work["spec"]["nodeName"] = name
            board.put_pod(read_pod(json.dumps({**work, "status": {"phase": "Running"}}).encode()))
    for number in range(12):
        waits = pod(f"waits-{number}", f"{MIG}7g.141gb", creationTimestamp=f"2026-01-0{1 + number % 9}T08:00:00Z", namespace="team-1")  # fmt: skip
        board.put_pod(read_pod(json.dumps(waits).encode()))
    board.sample()
    return board


def test_every_profile_of_a_card_has_its_colour(chromium: "Browser") -> None:
    """Two kinds of 1g beside each other differ, and legend, table and tiles say the same of each."""
    board = Board("two kinds of 1g")
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H200",
        "nvidia.com/gpu.memory": "143771",
        "nvidia.com/gpu.count": "1",
    }
    node = {"name": "n", "labels": labels, "annotations": {"run.ai/mig.config": "1g.18gb=3,1g.35gb=2"}}
    has = {f"{MIG}1g.18gb": 3, f"{MIG}1g.35gb": 2, MOCK: 1}
    board.put_node(read_node(json.dumps({"metadata": node, "status": {"allocatable": has}}).encode()))
    colours = """([where, text]) => [...document.querySelectorAll(where)].filter((one) => one.textContent.startsWith(text))
        .map((one) => getComputedStyle(one).getPropertyValue("--full"))"""
    with board_served(board) as url, Tab.open(chromium, url) as tab:
        until(lambda: len(tab.tiles().get("n", [])), 6)
        found = {
            profile: {
                *tab.page.evaluate(colours, ["#legend li", profile]),
                *tab.page.evaluate(colours, [".tile", profile]),
                tab.page.locator(f"[data-resource='{MIG}{profile}'] .swatch").evaluate(
                    "(one) => getComputedStyle(one).getPropertyValue('--full')"
                ),
            }
            for profile in ("1g.18gb", "1g.35gb")
        }
        assert [len(one) for one in found.values()] == [1, 1]
        assert found["1g.18gb"] != found["1g.35gb"]
        assert tab.page.locator(f".tile.gx[data-resource='{MOCK}']").count() == 1, "no GPU of NVIDIA's"


def test_thousands_of_nodes(chromium: "Browser", tmp_path: Path) -> None:
    """5,000 nodes fit a screen of 1,280 × 900; those of an open group have elements only where they are seen."""
    folder = Path(os.environ.get("TESSERA_SCREENSHOTS") or tmp_path)
    with board_served(a_large_cluster(5000)) as url, Tab.open(chromium, url) as tab:
        page = tab.page
        until(lambda: page.locator("#nodes-count").inner_text(), "5000")
        bottom = "(one) => one.getBoundingClientRect().bottom"
        assert page.locator("#groups").evaluate(bottom) <= 900
        page.screenshot(path=folder / "dashboard-overview.png")
        page.click(".fold")
        until(lambda: len(tab.tiles()) > 0, expected=True)
        assert page.evaluate("document.querySelectorAll('*').length") < 20_000
        page.fill("#filter", "trainer-4321-2")
        until(lambda: list(tab.tiles()), ["node-4321"])


def charts_are_full(tab: Tab) -> bool:
    """Whether charts are as wide as they get: they span ten seconds at least, and begin where the server began to look."""
    go_live(tab.page, tab.url, tab.complaints)
    tab.page.wait_for_selector("svg.chart")
    width: float = tab.page.locator(".chart .used").first.evaluate(
        "(one) => one.getBoundingClientRect().width"
    )
    return width > 120


def _shows(tab: Tab, place: str, text: str) -> bool:
    return any(text in one for one in tab.texts(place))


def test_screenshots(chromium: "Browser", tmp_path: Path) -> None:
    """The pictures in the documentation, which show a cluster with a bit of everything."""
    folder = Path(os.environ.get("TESSERA_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    with serving("demo", "--serve", "--fast", "--port", "0", ready="export KUBECONFIG=") as lines:
        api, url = embedded_api(lines), address_in(lines)
        api.patch("/api/v1/nodes/a100", {"metadata": {"annotations": {"run.ai/mig.config": "1g.10gb=7"}}})
        for name, width, dark in (("dark", 1400, True), ("narrow", 400, False), ("light", 1400, False)):
            height = 1500 if name == "light" else 900
            with Tab.open(chromium, url, width=width, height=height, dark=dark) as tab:
                until(lambda tab=tab: bool(tab.tiles().get("a100")), expected=True)  # type: ignore[misc] # bound here
                until(lambda tab=tab: tab.texts("[data-node=a100] .badge")[:1], ["layout pending"])  # type: ignore[misc]
                assert any(tile["leaving"] for tile in tab.tiles()["a100"])
                # what is known a moment later: why the pod waits, and what is missing
                until(partial(_shows, tab, "#pending li", "nodes are available"), expected=False)
                until(partial(_shows, tab, "summary", "0 of 0"), expected=False)
                if name == "light":
                    until(lambda tab=tab: charts_are_full(tab), expected=True)  # type: ignore[misc]
                    tab.page.click("#try button")
                    tab.page.wait_for_selector("#explanation:not([hidden])")
                    # back from the answer, which stands below the window
                    tab.page.evaluate(
                        "document.querySelectorAll('*').forEach((one) => { one.scrollTop = 0; })"
                    )
                tab.page.screenshot(path=folder / f"dashboard-{name}.png")
