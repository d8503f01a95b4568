"""MigLayouts, rollouts and the autopilot's plan in a real browser.

With `TESSERA_SCREENSHOTS=FOLDER` (`make screenshots`) the picture of the documentation is made on the way.
"""

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.cluster import Client
from e2e.layouts import LAYOUTS, definitions, mig_layout
from e2e.page import Tab, address_in, board_served, browser, embedded_api, serving, until
from tessera.dashboard.board import Board
from tessera.dashboard.observed import read_node
from tessera.protocol.mig.miglayout import MigLayout
from tessera.protocol.mig.rollouts import ROLLOUT, Owner, Phase, RolloutRecord, written

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NODES = """
gpu-1: {labels: {pool: inference}, layout: "1g.18gb=7", devices: {simulated: {product: H200-141GB, cards: 2}}}
gpu-2: {labels: {pool: inference}, layout: "1g.18gb=7", devices: {simulated: {product: H200-141GB, cards: 2}}}
"""
EVIL = "<img src=x onerror=document.title='gone'>"


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """One browser for all tests."""
    with browser() as one:
        yield one


def put(board: Board, name: str, text: str, *, dry: bool = True) -> None:
    """A MigLayout in mode Auto whose status has this text wherever it can."""
    counts: dict[str, Any] = {"serves": {text: 2}, "takes": {text: 4}}
    recut = {"node": text, "card": 3, "before": text, "after": text, **counts, "gain": 9.0, "cost": 4.0, "reason": text}  # fmt: skip
    autopilot = {
        "dryRun": dry,
        "summary": text,
        "demand": [{"profile": text, "waiting": 2}],
        "recuts": [{**recut, "waits": text}],
        "refusals": [{"profile": text, "number": 1, "why": text, "reason": text}],
        "history": [{**recut, "at": text, "result": text, "told": text}],
    }
    condition = {"type": "Degraded", "status": "True", "reason": text, "message": text, "lastTransitionTime": text}  # fmt: skip
    status = {
        "conditions": [condition],
        "desired": 20,
        "current": 12,
        "nodes": [{"name": "n", "state": "Updating", "reason": text}],
        "autopilot": autopilot,
    }
    one = {
        "metadata": {"name": name},
        "spec": {"mode": "Auto", "nodeSelector": {text: text}},
        "status": status,
    }
    board.put_mig_layout(MigLayout.read(json.dumps(one).encode()))


def put_node(board: Board, **annotations: str) -> None:
    board.put_node(
        read_node(json.dumps({"metadata": {"name": "n", "annotations": annotations}, "status": {}}).encode())
    )


def test_what_is_shown_and_when(chromium: "Browser") -> None:
    """Nothing where there are none; then the plan, first of all that it is a dry run; rollouts while they are under way."""
    board = Board("a test")
    with board_served(board) as url, Tab.open(chromium, url) as tab:
        until(lambda: tab.texts("#nodes-empty"), ["No nodes."])
        assert not tab.page.is_visible("#miglayouts")
        board.set_mig_layouts_unseen("you may not")
        until(lambda: tab.texts("#miglayouts-unseen"), ["MigLayouts are not shown: you may not"])
        board.set_mig_layouts_unseen("")
        put(board, "inference", "2 pods wait")
        until(lambda: tab.texts(".autopilot .badge"), ["dry run: nothing is changed"])
        assert tab.texts(".autopilot h4") == [
            "What it would cut",
            "What gets no room, and why",
            "Last decisions",
        ]
        assert tab.texts("#miglayouts-rows td")[:5] == ["Auto", "20", "12", "0", "0"]
        tab.page.click(".autopilot > summary")
        put(board, "inference", "3 pods wait", dry=False)
        until(lambda: tab.texts(".autopilot > summary span"), ["3 pods wait"])
        assert not tab.page.is_visible(".autopilot h4"), "what a person closed stays closed"
        tab.page.click(".autopilot > summary")
        assert tab.texts(".autopilot h4")[0] == "What it cuts next"
        record = RolloutRecord(Owner("inference", "u"), Phase.WRITTEN, 1.8e9, 1.8e9, 60.0, "x")
        put_node(board, **{ROLLOUT: written(record)})
        until(lambda: "n Written for MigLayout inference\n3 pods wait" in "".join(tab.texts("#rollouts li")), expected=True)  # fmt: skip
        board.remove_mig_layout("inference")
        put_node(board)
        until(lambda: tab.page.is_visible("#miglayouts"), expected=False)


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_markup(chromium: "Browser", width: int) -> None:
    """Whatever stands in a status or in a node's annotation is text on the page, and fits its window."""
    board = Board("a test")
    put(board, EVIL, EVIL)
    put(board, "long", "w" * 5000)
    put_node(board, **{ROLLOUT: EVIL})
    with board_served(board) as url, Tab.open(chromium, url, width=width) as tab:
        until(lambda: len(tab.texts(".autopilot")), 2)
        for one in tab.page.locator("#miglayouts-rows details summary").all():
            one.click()
        assert any(EVIL in text for text in tab.texts(".autopilot"))
        assert tab.page.locator("img").count() == 1  # the page's own
        assert tab.page.title() == "Tessera"
        assert tab.page.evaluate("document.documentElement.scrollWidth") == width


def test_pods_wait_then_run(chromium: "Browser", tmp_path: Path) -> None:
    """With the controller behind it: pods wait, the page has the plan as a dry run; once the autopilot may act, what it did, and they run."""
    folder, file = Path(os.environ.get("TESSERA_SCREENSHOTS") or tmp_path), tmp_path / "nodes.yaml"
    file.write_text(NODES)
    with serving(
        "demo", "--serve", "--port", "0", "--own-nodes", str(file), ready="export KUBECONFIG="
    ) as lines:
        api = embedded_api(lines)
        for name in ("train-1", "train-2"):
            limits = {"limits": {"nvidia.com/mig-3g.71gb": 1}}
            never = {"gpu-webhook.k8s.io/fallback-policy": "never"}
            api.create({"metadata": {"name": name, "annotations": never}, "spec": {"containers": [{"name": "main", "image": "busybox", "resources": limits}]}})  # fmt: skip
        api.make(LAYOUTS, {"metadata": {"name": "inference"}, "spec": {"mode": "Auto", "nodeSelector": {"pool": "inference"}}})  # fmt: skip
        with Tab.open(chromium, address_in(lines), height=1000) as tab:
            until(lambda: tab.texts(".autopilot .badge"), ["dry run: nothing is changed"])
            until(lambda: any("→" in one and "3g.71gb" in one for one in tab.texts("[aria-label='What it would cut'] li")), expected=True)  # fmt: skip
            until(lambda: len(tab.texts("#pending li")), 2)
            tab.page.screenshot(path=folder / "dashboard-layouts.png")
            api.patch(f"{LAYOUTS}/inference", {"spec": {"autopilot": {"dryRun": False}}})
            until(lambda: tab.texts("#pending li"), [])
            until(lambda: any("\ndone\n" in one for one in tab.texts("[aria-label='Last decisions'] li")), expected=True)  # fmt: skip
            until(lambda: tab.texts(".autopilot .badge"), [])
            until(lambda: tab.page.is_visible("#rollouts-part"), expected=False)


def test_who_may_not_read_them(control_plane: Client, tmp_path: Path) -> None:
    """On a real API server: who may not read MigLayouts is told so where there are some, and nothing where there are none."""
    person, rules = "page-reader", [{"apiGroups": [""], "resources": ["nodes", "pods", "namespaces"], "verbs": ["get", "list", "watch"]}]  # fmt: skip
    group = "/apis/rbac.authorization.k8s.io/v1"
    role = {"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": person}
    control_plane.api.create(f"{group}/clusterroles", {"metadata": {"name": person}, "rules": rules})
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": person}
    control_plane.api.create(f"{group}/clusterrolebindings", {"metadata": {"name": person}, "roleRef": role, "subjects": [subject]})  # fmt: skip

    def shown(*options: str) -> Any:
        arguments = ("dashboard", "--kubeconfig", str(control_plane.kubeconfig), "--port", "0", *options)
        with (
            serving(*arguments, ready="^C") as lines,
            urllib.request.urlopen(f"{address_in(lines)}state") as answer,  # noqa: S310 # the address is ours
        ):
            return json.load(answer)["miglayouts"]

    try:
        assert shown(f"--as={person}") == {"unseen": "", "count": 0, "first": []}
        with definitions(control_plane, tmp_path):
            control_plane.api.create(LAYOUTS, mig_layout("page"))
            assert [one["name"] for one in shown()["first"]] == ["page"]
            assert 'resource "miglayouts"' in shown(f"--as={person}")["unseen"]
    finally:
        control_plane.api.delete(f"{group}/clusterrolebindings/{person}")
        control_plane.api.delete(f"{group}/clusterroles/{person}")
