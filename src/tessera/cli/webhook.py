"""`tessera webhook`: serve admission reviews over HTTPS."""

from pathlib import Path
from typing import Any

import click

from tessera.cli.common import completing
from tessera.cli.common.options import env_option, log_options

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@env_option("--listen", default=":8443", metavar="HOST:PORT", help="The address for HTTPS.")
@env_option(
    "--metrics-listen",
    default=":8080",
    metavar="HOST:PORT",
    help="The address for /metrics and probes over plain HTTP; `none` serves them over HTTPS.",
)
@env_option("--config", type=_FILE, help="Tessera's configuration, reloaded when it changes.")
@env_option(
    "--nodes",
    type=_FILE,
    multiple=True,
    help="Nodes (and namespaces) from files in place of a cluster, reloaded when they change. Repeatable.",
)
@env_option(
    "--tls-cert",
    type=_FILE,
    help="Certificate chain in PEM, reloaded when it changes. Without it, the webhook makes and publishes its own.",
)
@env_option("--tls-key", type=_FILE, help="The certificate's private key in PEM.")
@env_option(
    "--client-ca",
    type=_FILE,
    help="Authorities in PEM: clients of the HTTPS port must show a certificate from one of them. Read at the start.",
)
@env_option(
    "--kubeconfig",
    metavar="FILE",
    shell_complete=completing.files,
    help="The kubeconfig.  [default: $KUBECONFIG, ~/.kube/config, or the pod's own cluster]",
)
@env_option("--context", metavar="NAME", help="The kubeconfig's context.  [default: the current one]")
@env_option(
    "--namespace",
    "-n",
    metavar="NAME",
    help="The webhook's own namespace.  [default: the context's or the pod's]",
)
@env_option(
    "--service", default="gpu-webhook", metavar="NAME", help="The Service that the certificate is for."
)
@env_option(
    "--dns-name",
    "dns_names",
    multiple=True,
    metavar="NAME",
    help="One more name that the certificate is for. Repeatable.",
)
@env_option(
    "--ca-secret",
    default="gpu-webhook-ca",
    metavar="NAME",
    help="The Secret with the certificate authority.",
)
@env_option(
    "--webhook-configuration",
    default="gpu-allocation-webhook",
    metavar="NAME",
    help="The MutatingWebhookConfiguration whose caBundle the webhook maintains.",
)
@env_option(
    "--read-only-certificates",
    is_flag=True,
    help="Read that Secret and that caBundle, and change neither: `tessera certs run` maintains them.",
)
@log_options
@env_option(
    "--shutdown-delay",
    type=click.FloatRange(0),
    default=5.0,
    metavar="SECONDS",
    help="From the signal to stop (and not ready) until it accepts no more connections.",
)
@env_option(
    "--drain-timeout",
    type=click.FloatRange(0),
    default=20.0,
    metavar="SECONDS",
    help="After that, how long open requests may take.",
)
@env_option(
    "--max-connections",
    type=click.IntRange(1),
    default=1024,
    metavar="N",
    help="Beyond this, the longest idle connection is closed.",
)
def command(
    listen: str,
    metrics_listen: str,
    log_format: str,
    log_level: str,
    max_connections: int,
    **rest: Any,
) -> int:
    """Serve admission reviews over HTTPS.

    Nodes come from the cluster by list and watch, or from files. The certificate is the webhook's own, published in
    the webhook configuration and renewed automatically (by `tessera certs run`, if the webhook only reads); or it
    comes from files, for example cert-manager's. On
    SIGTERM and SIGINT the webhook answers open requests and ends; a second signal ends it at once.
    """
    if bool(rest["tls_cert"]) != bool(rest["tls_key"]):
        raise click.UsageError("use --tls-cert and --tls-key together")
    import uvloop

    from tessera.serving.address import Address
    from tessera.serving.logs import Log, choose
    from tessera.webhook.http.messages import Limits
    from tessera.webhook.process import Settings, Webhook

    settings = Settings(
        listen=Address.parse(listen),
        metrics_listen=None if metrics_listen == "none" else Address.parse(metrics_listen),
        limits=Limits(connections=max_connections),
        **rest,
    )
    log = Log(choose(log_format), log_level)

    async def serve() -> int:
        return await Webhook(settings, log).run()

    try:
        return uvloop.run(serve())
    finally:
        log.close()
