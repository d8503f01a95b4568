"""What the parts of the webhook show of themselves, as metrics."""

from collections.abc import Iterable

from tessera.kube.watch.file_view import FileView
from tessera.kube.watch.view import LiveView
from tessera.serving.logs import Log
from tessera.webhook.http.site import Site
from tessera.webhook.metrics import Family, counter, gauge
from tessera.webhook.reload import Reloads


def server_families(site: Site) -> Iterable[Family]:
    """The HTTPS side."""
    tally = site.tally
    yield gauge("gpu_webhook_connections", "Connections that are open.", len(site.connections))
    yield counter("gpu_webhook_connections_accepted_total", "Connections that were opened.", tally.accepted)
    yield counter("gpu_webhook_connections_refused_total", "Connections ended to make room.", tally.refused)
    yield counter(
        "gpu_webhook_tls_handshake_failures_total",
        "Connections that never got through TLS.",
        tally.handshake_failures,
    )
    yield counter(
        "gpu_webhook_http_bad_requests_total", "Requests refused before they were read.", tally.bad_requests
    )
    yield counter("gpu_webhook_http_timeouts_total", "Requests that did not arrive in time.", tally.timeouts)
    yield counter("gpu_webhook_http_faults_total", "Exceptions that were answered with 500.", tally.faults)


def reload_families(reloads: Reloads) -> Iterable[Family]:
    """The configuration file."""
    yield counter("gpu_webhook_config_reloads_total", "Configurations taken into use.", reloads.good)
    yield counter("gpu_webhook_config_reload_errors_total", "Configurations refused.", reloads.bad)
    yield gauge(
        "gpu_webhook_config_last_reload_successful",
        "1 while the configuration in use is the one in the file.",
        int(reloads.current),
    )
    yield gauge(
        "gpu_webhook_config_last_reload_success_timestamp_seconds",
        "When the configuration in use was read, Unix time.",
        reloads.last_good,
    )


def view_families(view: LiveView | FileView) -> Iterable[Family]:
    """The view of the cluster."""
    yield gauge("gpu_webhook_node_view_nodes", "Nodes in the view.", len(view.offers.nodes))
    yield gauge(
        "gpu_webhook_node_view_complete", "1 once everything was listed.", int(view.missing() is None)
    )
    if isinstance(view, FileView):
        yield counter("gpu_webhook_node_view_file_errors_total", "Node files refused.", view.failures)
        return
    followed = view.reflectors
    ages = [(one.resource.name, age) for one in followed if (age := one.age) is not None]
    yield Family(
        "gpu_webhook_node_view_age_seconds",
        "gauge",
        "Time since the API server last said anything.",
        [("", {"resource": name}, age) for name, age in ages],
    )
    yield Family(
        "gpu_webhook_node_view_lists_total",
        "counter",
        "Complete lists read; more than one is a relist.",
        [("", {"resource": one.resource.name}, one.health.lists) for one in followed],
    )
    yield Family(
        "gpu_webhook_node_view_watches_total",
        "counter",
        "Watches begun.",
        [("", {"resource": one.resource.name}, one.health.watches) for one in followed],
    )
    yield Family(
        "gpu_webhook_node_view_errors_total",
        "counter",
        "Failures to list or watch, by kind.",
        [
            ("", {"resource": one.resource.name, "kind": kind}, count)
            for one in followed
            for kind, count in one.health.errors.items()
        ],
    )


def log_families(log: Log) -> Iterable[Family]:
    """The log."""
    yield counter("gpu_webhook_log_lines_dropped_total", "Log lines that nobody took in time.", log.dropped)
