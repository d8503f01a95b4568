"""A cluster for code that has an event loop of its own: the stand-in API server in a thread, and a kubeconfig that leads to it."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tessera.simulation.control_plane.kinds import NODES, PODS
from tests.kube.apiserver import MisbehavingApiServer

T = TypeVar("T")
SECONDS = 20.0  # the longest that anything is waited for


class ServedCluster:
    """Objects are made and changed in the server's own thread, one call at a time."""

    def __init__(self, folder: Path) -> None:
        self.server = MisbehavingApiServer()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._await(self.server.start())
        self.kubeconfig = str(folder / "kubeconfig")
        Path(self.kubeconfig).write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                    "clusters": [{"name": "test", "cluster": {"server": self.server.url}}],
                    "users": [{"name": "test", "user": {}}],
                }
            )
        )

    def stop(self) -> None:
        self._await(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS)
        self.loop.close()

    def _await(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS)

    def call(self, work: Callable[[], T]) -> T:
        """Do something in the server's thread."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001 # raised again where it was asked for
                done.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return done.result(SECONDS)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on requests or watches holds."""
        self._await(asyncio.wait_for(self.server.until(condition), SECONDS))

    def add(self, *documents: dict[str, Any]) -> None:
        """Make objects."""
        for one in documents:
            kind = next(kind for kind in self.server.kinds.values() if kind.kind == one["kind"])
            namespace = one["metadata"].get("namespace", "default") if kind.namespaced else ""
            self.call(lambda one=one, kind=kind, space=namespace: self.server.store.create(kind, one, space))  # type: ignore[misc]

    def node(self, name: str) -> dict[str, Any]:
        """A node as it is now."""
        return self.call(lambda: self.server.store.get(NODES, name).document)

    def change_node(self, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Change a node, its status too."""
        self.call(lambda: self.changing_node(name, change))

    def changing_node(self, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        """The same, for callers in the server's thread already."""
        document = self.server.store.get(NODES, name).document
        change(document)
        self.server.store.update(NODES, name, document, status=None)

    def change_pod(self, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Change a pod of namespace default, its status too."""
        self.call(lambda: self.changing_pod(name, change))

    def changing_pod(self, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        """The same, for callers in the server's thread already."""
        document = self.server.store.get(PODS, name, "default").document
        change(document)
        self.server.store.update(PODS, name, document, "default", status=None)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedCluster]:
    """A cluster that commands and clients can talk to."""
    cluster = ServedCluster(tmp_path)
    yield cluster
    cluster.stop()
