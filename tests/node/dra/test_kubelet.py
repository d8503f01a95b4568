"""The driver's sockets at the kubelet."""

import asyncio
import socket
import tempfile
from pathlib import Path

from tessera.node.dra import kubelet
from tessera.node.dra.kubelet import DriverEndpoint
from tessera.node.metrics import DraMetrics
from tessera.node.rpc import serve


def bound(path: Path) -> None:
    """A socket that does not listen: of a killed process, or of one that is just starting."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def test_cleaning_leaves_our_own_sockets():
    """What killed processes left is removed; a socket of ours that does not listen yet is not."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = DriverEndpoint(Path(folder), "mine", [], DraMetrics())
        plugins, registry = Path(folder) / "plugins" / "gpu.tessera.dev", Path(folder) / "plugins_registry"
        for token in ("mine", "dead"):
            bound(plugins / f"{token}.sock")
            bound(registry / f".gpu.tessera.dev-{token}-reg.sock")
        endpoint.clean()
        left = sorted(path.name for path in (*plugins.iterdir(), *registry.iterdir()))
        assert left == [".gpu.tessera.dev-mine-reg.sock", "mine.sock"]


def test_a_socket_that_is_gone_before_it_was_ever_seen(monkeypatch):
    """Another process took it for a dead one while it was made: it is served again at the next check."""

    async def main(folder):
        served = serve
        calls = []

        async def losing(path, handlers):
            server = await served(path, handlers)
            calls.append(path)
            if len(calls) == 1:
                path.unlink()
            return server

        monkeypatch.setattr(kubelet, "serve", losing)
        endpoint = DriverEndpoint(folder, "mine", [], DraMetrics())
        path = folder / "plugins" / "gpu.tessera.dev" / "mine.sock"
        await endpoint.ensure_registered()
        assert not path.exists()
        await endpoint.ensure_registered()
        assert path.exists()
        await endpoint.ensure_registered()
        assert len(calls) == 4, "and then it is let be"
        await endpoint.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
