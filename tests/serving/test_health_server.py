"""Probes and metrics."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from tessera.node.metrics import Metrics
from tessera.node.sources.layout import State
from tessera.serving.address import Address
from tessera.serving.http_server import health_server
from tessera.serving.metrics import exposition
from tests.node.running import sample


async def fetch(port: int, path: str, method: str = "GET") -> tuple[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.0\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return head.split(" ", 2)[1], body


def test_pages() -> None:
    """Liveness and readiness follow the plugin; metrics are Prometheus'; anything else is 404 or 405."""

    async def story() -> None:
        state = {"alive": True, "ready": False}
        metrics = Metrics()
        metrics.registrations.add("example.com/x", "success")
        server = health_server(metrics.families, alive=lambda: state["alive"], ready=lambda: state["ready"])
        port = (await server.start(Address("127.0.0.1", 0))).port
        assert await fetch(port, "/livez") == ("200", "ok\n")
        assert await fetch(port, "/readyz") == ("503", "not yet\n")
        state["ready"] = True
        assert await fetch(port, "/readyz?verbose") == ("200", "ok\n")
        state["alive"] = False
        assert await fetch(port, "/livez") == ("503", "not yet\n")
        status, page = await fetch(port, "/metrics")
        assert status == "200"
        registrations = "tessera_device_plugin_registrations_total"
        assert f'{registrations}{{resource="example.com/x",result="success"}} 1\n' in page
        assert "tessera_device_plugin_layout_age_seconds -1\n" in page
        assert await fetch(port, "/metrics", "HEAD") == ("200", "")
        assert (await fetch(port, "/nowhere"))[0] == "404"
        assert (await fetch(port, "/livez", "POST"))[0] == "405"
        await server.stop()

    asyncio.run(story())


def test_the_metrics_and_their_types() -> None:
    """The names and types that dashboards and alerts are built on."""
    metrics = Metrics()
    metrics.allocations.add("example.com/x", "granted")
    families = text_string_to_metric_families(exposition(metrics.families()).decode())
    assert {family.name.removeprefix("tessera_device_plugin_"): family.type for family in families} == {
        "devices": "gauge",
        "allocations": "counter",  # the parser takes _total away
        "registrations": "counter",
        "failures": "counter",
        "layout_state": "gauge",
        "mig_room": "gauge",
        "events": "counter",
        "layout_age_seconds": "gauge",
    }


def test_layout_age() -> None:
    """The layout's state is one of three, and its age grows from the change."""
    moment = [100.0]
    metrics = Metrics(clock=lambda: moment[0])

    def value(name: str, **labels: str) -> float | None:
        return sample(metrics, f"tessera_device_plugin_layout_{name}", **labels)

    metrics.layout(State.PENDING)
    metrics.layout(State.SUCCESS)
    moment[0] = 142.0
    metrics.layout(State.SUCCESS)
    assert value("age_seconds") == 42.0
    assert [value("state", state=state) for state in ("success", "pending", "failed")] == [1.0, 0.0, 0.0]
