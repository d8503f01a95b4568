"""What docs/webhook-reference.md says is what there is."""

import re
from pathlib import Path

import click

from tessera.cli.webhook import command
from tessera.core.admission.view.offers import Offers
from tessera.kube.access.cluster import Cluster, ServerAddress
from tessera.kube.event_recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.kube.view.files import FileView
from tessera.kube.view.live import LiveView
from tessera.protocol.configuration import webhook as config
from tessera.serving.reload import Followed
from tessera.webhook.certificates.manager import CertificateManager
from tessera.webhook.certificates.served import ServedCertificate
from tessera.webhook.http.listener import Listener
from tessera.webhook.http.messages import Limits
from tessera.webhook.metrics import (
    Metrics,
    controller_metrics,
    event_metrics,
    free_metrics,
    log_metrics,
    memory_metrics,
    reload_metrics,
    server_metrics,
    view_metrics,
)
from tests.build import policy
from tests.webhook.certificates.authorities import FakeStore
from tests.webhook.certificates.test_manager import NAMES, SIGNER, quiet

TEXT = (Path(__file__).parents[2] / "docs" / "webhook-reference.md").read_text()


def test_options():
    """Every option is in the table, with its default."""
    options = {
        name: one.default
        for one in command.params
        if isinstance(one, click.Option) and not one.hidden
        for name in one.opts
        if name.startswith("--")
    }
    rows = re.findall(r"^\| ((?:`--[\w-]+`(?:, )?)+) \|([^|]*)\|", TEXT, re.MULTILINE)
    documented = {
        name: default.strip("` ") for names, default in rows for name in re.findall(r"--[\w-]+", names)
    }
    assert set(documented) == set(options)
    for name, default in options.items():
        if isinstance(default, (str, int, float)) and default:
            assert documented[name] == f"{default:g}" if isinstance(default, float) else str(default)


def following_pods(client):
    view = LiveView(client)
    view.follow_pods()
    return view


def test_metrics():
    """Every metric is in the table, with its labels, and nothing else is."""
    client = Client(Cluster(ServerAddress.parse("http://127.0.0.1:1", where="test")))
    manager = CertificateManager(FakeStore(), SIGNER, ServedCertificate(), NAMES, quiet())
    families = [
        *server_metrics(Listener({}, Limits())),
        *memory_metrics(0, 0, 0),
        *reload_metrics(Followed("configuration", [], config.parse, lambda _: None, lambda *_: None)),
        *view_metrics(LiveView(client)),
        *view_metrics(FileView([])),
        *free_metrics(following_pods(client)),
        *controller_metrics(Offers(), policy("fallback: {dra: first-available}")),
        *log_metrics(quiet()),
        *event_metrics(Recorder(client, "test")),
        *manager.metrics(),
    ]
    names = {family.name for family in families} | {"gpu_webhook_ready"}
    names |= set(re.findall(r"^# TYPE (gpu_\w+)", Metrics("1").text().decode(), re.MULTILINE))
    assert set(re.findall(r"^\| `(gpu_webhook_\w+)", TEXT, re.MULTILINE)) == names
