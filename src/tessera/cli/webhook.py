"""`tessera webhook`: serve admission reviews over HTTPS."""

from pathlib import Path
from typing import Any

import click

from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.options import Listen, Seconds, env_option, log_options

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@env_option("--listen HOST:PORT", "The address for HTTPS.", type=Listen(), default=":8443")
@env_option(
    "--metrics-listen HOST:PORT",
    "The address for /metrics and probes over plain HTTP; `none` serves them over HTTPS.",
    type=Listen(),
    default=":8080",
)
@env_option("--config", "Tessera's configuration, reloaded when it changes.", type=_FILE)
@env_option(
    "--nodes",
    "Nodes (and namespaces) from files in place of a cluster, reloaded when they change. Repeatable.",
    type=_FILE,
    multiple=True,
)
@env_option(
    "--tls-cert",
    "Certificate chain in PEM, reloaded when it changes. Without it, the webhook makes and publishes its own.",
    type=_FILE,
)
@env_option("--tls-key", "The certificate's private key in PEM.", type=_FILE)
@env_option(
    "--client-ca",
    "Authorities in PEM: clients of the HTTPS port must show a certificate from one of them. Read at the start.",
    type=_FILE,
)
@env_option(
    "--kubeconfig FILE", "The kubeconfig.  [default: $KUBECONFIG, ~/.kube/config, or the pod's own cluster]"
)
@env_option("--context NAME", "The kubeconfig's context.  [default: the current one]")
@env_option("-n, --namespace NAME", "The webhook's own namespace.  [default: the context's or the pod's]")
@env_option("--service NAME", "The Service that the certificate is for.", default="gpu-webhook")
@env_option(
    "--dns-name NAME", "One more name that the certificate is for. Repeatable.", "dns_names", multiple=True
)
@env_option("--ca-secret NAME", "The Secret with the certificate authority.", default="gpu-webhook-ca")
@env_option(
    "--webhook-configuration NAME",
    "The MutatingWebhookConfiguration whose caBundle the webhook maintains.",
    default="gpu-allocation-webhook",
)
@env_option(
    "--read-only-certificates",
    "Read that Secret and that caBundle, and change neither: `tessera certs run` maintains them.",
)
@log_options()
@env_option(
    "--shutdown-delay SECONDS",
    "From the signal to stop (and not ready) until it accepts no more connections.",
    type=Seconds(),
    default=5.0,
)
@env_option(
    "--drain-timeout SECONDS",
    "After that, how long open requests may take.",
    type=Seconds(),
    default=20.0,
)
@env_option(
    "--max-connections N",
    "Beyond this, the longest idle connection is closed.",
    type=click.IntRange(1),
    default=1024,
)
def command(log_format: str, log_level: str, max_connections: int, **rest: Any) -> ExitCode:
    """Serve admission reviews over HTTPS.

    Nodes come from the cluster by list and watch, or from files. The certificate is the webhook's own, published in
    the webhook configuration and renewed automatically (by `tessera certs run`, if the webhook only reads); or it
    comes from files, for example cert-manager's. On SIGTERM and SIGINT the webhook answers open requests and ends; a second signal ends it at once.
    """
    if bool(rest["tls_cert"]) != bool(rest["tls_key"]):
        raise click.UsageError("use --tls-cert and --tls-key together")
    import uvloop

    from tessera.serving.logs import Log, choose
    from tessera.webhook.http.messages import Limits
    from tessera.webhook.process import Settings, Webhook

    settings = Settings(limits=Limits(connections=max_connections), **rest)
    log = Log(choose(log_format), log_level)

    async def serve() -> int:
        return await Webhook(settings, log).run()

    try:
        return ExitCode(uvloop.run(serve()))
    finally:
        log.close()
