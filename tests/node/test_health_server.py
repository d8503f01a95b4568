"""Probes and metrics."""

import asyncio

import pytest

from tessera.core.errors import TesseraError
from tessera.node.health_server import HealthServer
from tessera.node.metrics import Metrics


async def fetch(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def test_pages() -> None:
    """Liveness and readiness follow the plugin; metrics are Prometheus'; everything else is told apart."""

    async def story() -> None:
        state = {"alive": True, "ready": False}
        metrics = Metrics()
        metrics.registered("example.com/x", "success")
        server = HealthServer(metrics.registry, alive=lambda: state["alive"], ready=lambda: state["ready"])
        port = await server.start("127.0.0.1", 0)

        async def get(path: str, method: str = "GET") -> tuple[str, str]:
            answer = await fetch(port, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head, _, body = answer.decode().partition("\r\n\r\n")
            return head.split(" ", 2)[1], body

        assert await get("/livez") == ("200", "ok\n")
        assert await get("/readyz") == ("503", "not yet\n")
        state["ready"] = True
        assert await get("/readyz?verbose") == ("200", "ok\n")
        state["alive"] = False
        assert await get("/livez") == ("503", "not yet\n")
        status, page = await get("/metrics")
        assert status == "200"
        assert (
            'tessera_device_plugin_registrations_total{resource="example.com/x",result="success"} 1.0' in page
        )
        assert "tessera_device_plugin_layout_age_seconds -1.0" in page
        assert await get("/metrics", "HEAD") == ("200", "")
        assert (await get("/nowhere"))[0] == "404"
        assert (await get("/livez", "POST"))[0] == "405"
        assert await fetch(port, b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n") == b""
        assert await get("/livez") == ("503", "not yet\n")
        await server.stop()

    asyncio.run(story())


def test_a_port_that_is_taken() -> None:
    """One sentence, not a traceback."""

    async def story() -> None:
        first, second = (HealthServer(Metrics().registry, lambda: True, lambda: True) for _ in range(2))
        port = await first.start("127.0.0.1", 0)
        with pytest.raises(TesseraError, match=rf"cannot listen on 127.0.0.1:{port}: .*in use"):
            await second.start("127.0.0.1", port)
        await first.stop()

    asyncio.run(story())


def test_layout_age() -> None:
    """The layout's state is one of three, and its age grows from the change."""
    moment = [100.0]
    metrics = Metrics(clock=lambda: moment[0])

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"tessera_device_plugin_layout_{name}", labels)

    metrics.layout("pending")
    metrics.layout("success")
    moment[0] = 142.0
    assert value("age_seconds") == 42.0
    assert [value("state", state=state) for state in ("success", "pending", "failed")] == [1.0, 0.0, 0.0]
