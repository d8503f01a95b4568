"""What Prometheus reads."""

from prometheus_client.parser import text_string_to_metric_families

from tessera.webhook.metrics import Metrics, OutcomeLabel


def scrape(metrics: Metrics) -> dict[tuple[object, ...], float]:
    """Read the text as Prometheus does: name and labels → value."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def test_admissions():
    """Outcomes are counted and durations fall into the buckets they belong to."""
    metrics = Metrics("1.2.3")
    for outcome, nanoseconds in [
        (OutcomeLabel.PATCHED, 30_000),
        (OutcomeLabel.PATCHED, 50_000),
        (OutcomeLabel.UNCHANGED, 50_001),
        (OutcomeLabel.REJECTED, 2_000_000_000),
    ]:
        metrics.count(outcome, nanoseconds, metrics.enforced)
    metrics.enforced.fallbacks.add("2g.20gb", "1g.10gb")
    metrics.enforced.injected += 1
    seen = scrape(metrics)
    assert seen["gpu_webhook_requests_total", ("outcome", "patched")] == 2
    assert seen["gpu_webhook_requests_total", ("outcome", "error")] == 0
    assert seen["gpu_webhook_fallback_total", ("from", "2g.20gb"), ("to", "1g.10gb")] == 1
    assert seen["gpu_webhook_injected_pods_total",] == 1
    assert seen["gpu_webhook_request_duration_seconds_bucket", ("le", "5e-05")] == 2
    assert seen["gpu_webhook_request_duration_seconds_bucket", ("le", "0.0001")] == 3
    assert seen["gpu_webhook_request_duration_seconds_bucket", ("le", "1.0")] == 3
    assert seen["gpu_webhook_request_duration_seconds_bucket", ("le", "+Inf")] == 4
    assert seen["gpu_webhook_request_duration_seconds_count",] == 4
    assert 2.0001 < seen["gpu_webhook_request_duration_seconds_sum",] < 2.0002


def test_fault_43_the_text_is_written_once_a_second():
    """Clients that scrape again and again cost nothing: they get the same text until a second has passed."""
    metrics = Metrics("1.2.3")
    first = metrics._scraped(100.0)
    metrics.enforced.injected += 1
    assert metrics._scraped(100.9) is first
    assert b"gpu_webhook_injected_pods_total 1\n" in metrics._scraped(101.0).body
