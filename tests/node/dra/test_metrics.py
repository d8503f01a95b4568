"""What can be seen of the driver from outside."""

from tessera.node.metrics import DraMetrics
from tessera.node.sources.layout import State
from tessera.serving.metrics import exposition
from tests.node.dra.samples import card, mig


def lines(metrics: DraMetrics) -> list[str]:
    text = exposition(metrics.families()).decode()
    return [line for line in text.splitlines() if line.startswith("tessera_dra_driver")]


def test_everything_is_shown_from_the_beginning() -> None:
    """Series that are known beforehand begin at 0: Prometheus sees no increase in one that begins with 1."""
    shown = lines(DraMetrics())
    for one in (
        'prepares_total{result="failed"} 0',
        "unprepares_total 0",
        'slice_writes_total{verb="create"} 0',
        "claims 0",
        "stale_claims 0",
        'prepare_seconds_bucket{le="+Inf"} 0',
        "layout_age_seconds -1",
    ):
        assert f"tessera_dra_driver_{one}" in shown


def test_what_happens_is_counted() -> None:
    """Devices by type and health, prepares with how long they took, and what went wrong."""
    metrics = DraMetrics(clock=lambda: 100.0)
    metrics.devices([card(0), mig("2g.20gb", 0, 1), mig("2g.20gb", 2, 1, problem="ill")])
    metrics.devices([card(0)])
    for seconds in (0.004, 0.03, 41.0):
        metrics.prepared("prepared", seconds)
    metrics.prepared("failed")
    metrics.failed("disk")
    metrics.layout(State.PENDING)
    shown = lines(metrics)
    for one in (
        'devices{type="gpu",health="healthy"} 1',
        'devices{type="mig",health="unhealthy"} 0',
        'prepares_total{result="prepared"} 3',
        'prepares_total{result="failed"} 1',
        'prepare_seconds_bucket{le="0.005"} 1',
        'prepare_seconds_bucket{le="0.05"} 2',
        'prepare_seconds_bucket{le="40.0"} 2',
        'prepare_seconds_bucket{le="+Inf"} 3',
        "prepare_seconds_count 3",
        'failures_total{what="disk"} 1',
        'layout_state{state="pending"} 1',
        "layout_age_seconds 0.0",
    ):
        assert f"tessera_dra_driver_{one}" in shown
