"""`tessera why`: why a pod waits, was changed or was never created, or how far a MigLayout is; and what to do."""

import click

from tessera.cli.common import completing
from tessera.cli.common.cluster import ClusterChoice, cluster_options, policy_options
from tessera.cli.common.options import option
from tessera.cli.common.output import Output, output_option
from tessera.cli.why import layouts, pods
from tessera.diagnosis.diagnosis import Diagnosis
from tessera.diagnosis.evidence import Evidence
from tessera.diagnosis.gather import Gatherer
from tessera.diagnosis.layouts.gather import LayoutEvidence, gather_layout
from tessera.diagnosis.targets import MIG_LAYOUT, parse_target
from tessera.kube.rest.client import Client
from tessera.kube.view.policy import PolicySource


@click.command()
@click.argument("target", metavar="POD|KIND/NAME", shell_complete=completing.targets)
@option(
    "-n, --namespace NAME",
    "Its namespace.  [default: the context's]",
    is_eager=True,  # known when names are completed
    shell_complete=completing.namespaces,
)
@output_option("text")
@policy_options()
@cluster_options
def command(
    target: str,
    namespace: str | None,
    output: Output,
    cluster: ClusterChoice,
    decides_by: PolicySource,
) -> int:
    """Say why a pod waits, got another slice, or was never created, and what would make it run.

    The first line is the answer. Below it: what admission did and would do now, the scheduler's words, what each node
    lacks, who holds the slices and since when, and the smallest changes that would help. For a workload (deploy/web, rs/…,
    sts/…, ds/…, job/…) the command takes the pod that waits, or that was never created. It changes nothing, and names what you may
    not read. The last line says which configuration of the webhook it judged by. Exit code 0, whatever the answer is.

    For a MigLayout (miglayout/NAME): how far it is, why nodes do not have their layout, and whether a controller keeps it, by its Lease
    in --webhook-namespace. In mode Auto: what is wanted, what would be cut and why, what gets no room, what was decided. The last lines say
    what to do next.

    \b
    tessera why train-0 -n team
    tessera why deploy/web
    tessera why miglayout/inference
    kubectl tessera why job/night -o json
    """  # fmt: skip
    kind, name = parse_target(target)
    if kind == MIG_LAYOUT:

        async def gathered(client: Client) -> LayoutEvidence:
            return await gather_layout(client, name, decides_by.namespace)

        layouts.show(cluster.run(gathered), output)
        return 0

    async def ask(client: Client) -> tuple[Diagnosis, Evidence]:
        where = namespace or client.cluster.namespace
        return await pods.diagnosed(Gatherer(client, where, decides_by=decides_by), kind, name)

    found, seen = cluster.run(ask)
    output.show(lambda: pods.document(found, seen), lambda style: pods.text(found, seen, style))
    return 0
