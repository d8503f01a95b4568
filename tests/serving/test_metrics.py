"""The text format, read as Prometheus reads it."""

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from tessera.serving.metrics import Counts, Family, exposition, process_metrics


def scrape(families: Iterable[Family]) -> dict[tuple[object, ...], float]:
    """Name and labels → value."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition(families).decode())
        for sample in family.samples
    }


def test_process():
    """The process shows itself under the usual names."""
    seen = scrape(process_metrics())
    assert 5e6 < seen["process_resident_memory_bytes",] < 1e9
    assert seen["process_open_fds",] > 2
    assert seen["process_start_time_seconds",] > 1.6e9
    assert seen["process_cpu_seconds_total",] > 0


def test_labels_from_pods():
    """Label values are escaped, and their number is limited."""
    counts = Counts("from", "to", known=[("x", "y")])
    counts.add('a"\\\n', "b")
    for n in range(1000):
        counts.add(str(n), "x")
    seen = scrape([counts.family("extra_total", "More.")])
    assert seen["extra_total", ("from", "x"), ("to", "y")] == 0
    assert seen["extra_total", ("from", 'a"\\\n'), ("to", "b")] == 1
    assert len(seen) == 201
    assert seen["extra_total", ("from", "other"), ("to", "other")] == 802


def test_numbers():
    """Numbers are written as Prometheus reads them."""
    values = [1, 0.5, True, float("inf"), float("-inf"), 1e300]
    family = Family("x", "gauge", "X.", [("", {"n": str(n)}, value) for n, value in enumerate(values)])
    seen = scrape([family])
    assert [seen["x", ("n", str(n))] for n in range(len(values))] == values
