"""A page under test: the command that serves it, the API behind it, and a real browser in front of it.

The browser is Debian's chromium, driven by Playwright (`requirements/browser.txt`).
"""

import asyncio
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from e2e.cluster import Unavailable
from e2e.cluster.programs import install_debian_packages
from e2e.cluster.versions import DebianPackage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tessera.dashboard.board import Board

Object = dict[str, Any]

PATIENCE = 120.0
_CHROMIUM = DebianPackage("chromium", ("/usr/bin/chromium",))
_DROPPED = "ERR_NETWORK_CHANGED"  # the clusters of other lanes bring and take networks of the machine
_TRIES = 5
# as root, and without a network: no sandbox, and nothing that calls home
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextlib.contextmanager
def browser() -> Iterator["Browser"]:
    """A browser, installed first where that is possible."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise Unavailable("the page's tests need Playwright: `make .venv/.browser` installs it") from None
    install_debian_packages([_CHROMIUM], what="the page's tests")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(_FLAGS))
        try:
            yield launched
        finally:
            launched.close()


def go_live(page: "Page", url: str, complaints: list[str]) -> None:
    """Open the page, and again where the browser dropped a request because a network of the machine changed."""
    for tries_left in reversed(range(_TRIES)):
        try:
            page.goto(url)
            page.wait_for_selector("#link[data-state=live]")
        except Exception as error:
            error.add_note(f"the page says {page.locator('#link').all_inner_texts()}; {complaints}")
            if not tries_left or _DROPPED not in f"{error}{complaints}":
                raise
            complaints.clear()
        else:
            return


@dataclass
class Tab:
    """A page in the browser, and everything that went wrong or went out there."""

    page: "Page"
    url: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, browser: "Browser", url: str, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> Iterator["Tab"]:
        """Open a page; when it is left, nothing must have gone wrong."""
        page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        tab = cls(page, url)
        page.on("pageerror", lambda error: tab.complaints.append(str(error)))
        page.on(
            "console",
            lambda said: tab.complaints.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.on("request", lambda request: tab.requests.append(request.url))
        go_live(page, url, tab.complaints)
        try:
            yield tab
        except Exception as error:
            error.add_note(f"the page said {tab.complaints}")
            raise
        page.close()
        assert [one for one in tab.complaints if _DROPPED not in one] == []
        assert [one for one in tab.requests if not one.startswith(url)] == []

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements there."""
        found: list[str] = self.page.locator(selector).all_inner_texts()
        return found

    def tiles(self) -> dict[str, list[Object]]:
        """Every node's tiles: resource, id, pod and how they are drawn; none for a node that is not drawn yet."""
        found: dict[str, list[Object]] = self.page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll("article.node")].map((node) => [
                node.dataset.node,
                [...node.querySelectorAll("button.tile:not(.gap)")].map((tile) => ({
                    resource: tile.dataset.resource, id: tile.dataset.id || "", pod: tile.dataset.pod || "",
                    out: tile.classList.contains("out"), leaving: tile.classList.contains("leaving"),
                    guessed: tile.classList.contains("guessed"), width: tile.getBoundingClientRect().width,
                }))]))"""
        )
        return defaultdict(list, found)

    def choose(self, selector: str, said: str) -> None:
        """Click a tile, and again after some seconds, until the detail says this: a tile that is drawn anew loses a click."""
        deadline, next_click = time.monotonic() + PATIENCE, 0.0
        while not any(said in one for one in self.texts("#detail")):
            assert time.monotonic() < deadline, self.texts("#detail")
            if time.monotonic() > next_click:
                self.page.locator(selector).first.click()
                next_click = time.monotonic() + 5.0
            time.sleep(0.05)

    def totals(self) -> dict[str, list[str]]:
        """The capacity table: resource → allocatable, allocated, available, waiting."""
        found: dict[str, list[str]] = self.page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll("#totals-rows tr")].map((row) => [
                row.dataset.resource, [...row.cells].slice(2, 6).map((cell) => cell.textContent)]))"""
        )
        return found


@dataclass(frozen=True)
class Api:
    """The cluster's API, asked without any of Tessera's code."""

    url: str

    def get(self, path: str) -> Object:
        """An object, or a list of them."""
        return self._call("GET", path)

    def create(self, pod: Object) -> Object:
        """Create a pod; `urllib.error.HTTPError` when it is refused."""
        return self.make("/api/v1/namespaces/default/pods", pod)

    def make(self, path: str, one: Object) -> Object:
        """Create an object of any kind."""
        return self._call("POST", path, one)

    def delete(self, path: str) -> None:
        """Delete an object."""
        self._call("DELETE", path)

    def patch(self, path: str, patch: Object) -> Object:
        """Change an object."""
        return self._call("PATCH", path, patch, "application/merge-patch+json")

    def _call(
        self, method: str, path: str, body: Object | None = None, kind: str = "application/json"
    ) -> Object:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(  # noqa: S310 # the address is ours
            f"{self.url}{path}", data, {"Content-Type": kind}, method=method
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            found: Object = json.load(answer)
            return found


@contextlib.contextmanager
def serving(*arguments: str, ready: str) -> Iterator[list[str]]:
    """A command of Tessera that serves a page: the lines that it printed until it was ready. ^C at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tessera", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    try:
        lines: list[str] = []
        for line in process.stdout or ():
            lines.append(line)
            if ready in line:
                break
        yield lines
    finally:
        process.send_signal(signal.SIGINT)
        try:
            _, complaint = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
            process.wait()
    assert (process.returncode, complaint.strip()) == (130, "interrupted")


@contextlib.contextmanager
def board_served(board: "Board") -> Iterator[str]:
    """The page of a board that is filled by hand, in a thread of its own: its address."""
    from tessera.dashboard.server import HOST, Page
    from tessera.serving.address import Address

    address: queue.Queue[str] = queue.Queue()
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def echo(text: str) -> str:
        return text

    async def serve() -> None:
        page = Page(board, echo)
        address.put(await page.start(Address(HOST, 0)))
        sending = asyncio.create_task(page.run())
        await ended.wait()
        sending.cancel()
        await page.stop()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield address.get(timeout=PATIENCE)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def address_in(lines: Sequence[str]) -> str:
    """The page's address among what a command printed."""
    return next(line for line in lines if line.startswith("http://")).split()[0]


def embedded_api(lines: Sequence[str]) -> Api:
    """The API of the embedded cluster whose command printed these lines."""
    import yaml

    path = next(line for line in lines if line.startswith("export KUBECONFIG=")).split()[1]
    config = yaml.safe_load(Path(path.removeprefix("KUBECONFIG=")).read_text())
    return Api(config["clusters"][0]["cluster"]["server"])


def until(look: Callable[[], Any], expected: Any) -> None:
    """Look until it is as expected; else show what it is."""
    deadline = time.monotonic() + PATIENCE
    while (found := look()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found == expected
