"""`tessera webhook`: serve admission reviews over HTTPS."""

from pathlib import Path
from typing import Any

import click

from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.help import CONNECTION, Command
from tessera.cli.common.options import (
    Duration,
    Listen,
    WholeNumber,
    env_option,
    log_options,
    tessera_namespace_option,
    webhook_configuration_option,
)

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(cls=Command)
@env_option("--listen [HOST]:PORT", "The address for HTTPS.", type=Listen(), default=":8443", group="Serving")
@env_option(
    "--metrics-listen [HOST]:PORT",
    "The address for /metrics and probes over plain HTTP; `none` serves them over HTTPS.",
    type=Listen(),
    default=":8080",
    group="Serving",
)
@env_option(
    "--config FILE", "Tessera's configuration, reloaded when it changes.", type=_FILE, group="Tessera"
)
@env_option(
    "--from FILE",
    "Nodes and namespaces saved with kubectl, instead of a cluster; reloaded when they change. Repeatable.",
    "nodes",
    type=_FILE,
    multiple=True,
)
@env_option(
    "--tls-cert FILE",
    "Certificate chain in PEM, reloaded when it changes. Without it, the webhook makes and publishes its own.",
    type=_FILE,
    group="Certificates",
)
@env_option("--tls-key FILE", "The certificate's private key in PEM.", type=_FILE, group="Certificates")
@env_option(
    "--client-ca FILE",
    "Authorities in PEM: clients of the HTTPS port must show a certificate from one of them. Read at the start.",
    type=_FILE,
    group="Certificates",
)
@env_option(
    "--kubeconfig FILE",
    "The kubeconfig.  [default: $KUBECONFIG, ~/.kube/config, or the pod's own cluster]",
    group=CONNECTION,
)
@env_option("--context NAME", "The kubeconfig's context.  [default: the current one]", group=CONNECTION)
@tessera_namespace_option(
    "The webhook's own namespace.  [default: the context's or the pod's]", "namespace", env_option
)
@env_option(
    "--service NAME",
    "The webhook's Service: the certificate is for it.",
    default="gpu-webhook",
    group="Tessera",
)
@env_option(
    "--dns-name NAME",
    "One more name that the certificate is for. Repeatable.",
    "dns_names",
    multiple=True,
    group="Certificates",
)
@env_option(
    "--ca-secret NAME",
    "The Secret with the certificate authority.",
    default="gpu-webhook-ca",
    group="Tessera",
)
@webhook_configuration_option(env_option)
@env_option(
    "--read-only-certificates",
    "Read that Secret and that caBundle, and change neither: `tessera certs run` maintains them.",
    group="Certificates",
)
@log_options()
@env_option(
    "--shutdown-delay",
    "From the signal to stop (and not ready) until it accepts no more connections.",
    type=Duration(may_be_zero=True),
    default="5s",
    group="Ending",
)
@env_option(
    "--drain-timeout",
    "After that, how long open requests may take.",
    type=Duration(may_be_zero=True),
    default="20s",
    group="Ending",
)
@env_option(
    "--max-connections N",
    "Beyond this, the longest idle connection is closed.",
    type=WholeNumber(1),
    default=1024,
    group="Serving",
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
