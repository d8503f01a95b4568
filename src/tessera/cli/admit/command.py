"""`tessera admit`: the webhook's decision, without the webhook."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from tessera.cli.admit.explanation import explain
from tessera.cli.admit.summary import Summary
from tessera.cli.common.cluster import NO_CLUSTER, ClusterChoice, cluster_options
from tessera.cli.common.options import option, read_parsed
from tessera.cli.common.output import Output, output_option
from tessera.cli.common.reading import warn_of_classes
from tessera.cli.common.terminal import Style
from tessera.core.admission.outcome import Denied
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.kube.object_files import (
    ClusterObjects,
    FileObject,
    called,
    cluster_objects,
    documents_in,
    files_in,
    naming,
    objects_in_documents,
    objects_in_text,
    read_file,
)
from tessera.kube.rest.client import Client
from tessera.kube.view.dra import put_served
from tessera.kube.view.lease_look import controller_at_work, controller_in
from tessera.kube.view.live import LiveView
from tessera.kube.watch.listing import PAGE, read_list
from tessera.kube.watch.resource import UNFINISHED_PODS
from tessera.protocol import yaml
from tessera.protocol.configuration import webhook as config
from tessera.webhook.offline import Admitted, admit
from tessera.webhook.reviewed import KnownReviews

EXIT_REJECTED: Final = 3


@click.command()
@option(
    "-f, --filename FILE",
    "Pods or workloads, YAML or JSON; a folder is all such files in it, - is standard input. Repeatable. "
    "With -o summary and without this, the pods of the cluster.",
    "files",
    multiple=True,
)
@option(
    "--nodes FILE",
    "The cluster's nodes, as `kubectl get nodes -o yaml` prints them; Namespaces, ResourceQuotas, "
    "DeviceClasses, ResourceSlices and the controller's Lease count too. Repeatable.  [default: the cluster is asked]",
    "node_files",
    multiple=True,
)
@option("--config FILE", "Tessera's configuration file (see `tessera config example`).", "config_file")
@option(
    "-n, --namespace NAME",
    "The namespace of objects that name none.  [default: that of the context, or default]",
)
@option(
    "--webhook-namespace",
    "Where the webhook is installed, and the Lease of tessera controller is.",
    default="gpu-webhook",
)
@output_option(
    "patch",
    "explain",
    "summary",
    default="yaml",
    help="The admitted objects, their JSON patches (a line each), the whole reasoning, or how many pods would be changed.",
)
@cluster_options
def command(
    files: tuple[str, ...],
    node_files: tuple[str, ...],
    config_file: str | None,
    namespace: str | None,
    webhook_namespace: str,
    output: Output,
    cluster: ClusterChoice,
) -> int:
    """Decide about pods, with the very code of the webhook.

    The command admits pods, and the pod templates of Deployments, Jobs and any other object that has some (Volcano, Kubeflow, JobSet,
    Ray …), against the cluster that kubectl would ask, or against the given nodes. An object without a template passes as it is. The
    command creates and changes nothing in the cluster. Warnings and rejections go to standard error, except with -o explain, where
    they are part of the reasoning. In observe mode it prints objects as they came, and rejects nothing.

    -o summary counts how many pods would be changed or rejected if they were created now. For pods that are in a cluster already, it
    ignores the node that the scheduler chose, undoes a recorded fallback, and does not count their own use against their quota.

    \b
    Exit codes: 0 admitted, 1 the cluster cannot be asked, 2 bad input, 3 rejected.

    \b
    tessera admit -f pod.yaml -o explain
    tessera admit -f manifests/ --nodes nodes.yaml
    tessera admit -o summary
    kubectl get pods -A -o yaml | tessera admit -f - -o summary
    """  # fmt: skip
    if list(files).count("-") + list(node_files).count("-") > 1:
        raise InvalidInput("standard input (-) can be read only once")
    if not files and (output.form != "summary" or node_files):
        raise click.UsageError(
            "say with -f which pods; only -o summary counts those of the cluster by itself"
        )
    if node_files and cluster != NO_CLUSTER:
        raise click.UsageError("--nodes reads files: it does not go with --kubeconfig or --context")
    policy = read_policy(config_file)
    given = [(file, _objects(file)) for file in files_in(files)]
    if node_files:
        (offers, assumed), space = read_offers(node_files), namespace or "default"
    elif files:
        offers, assumed, context = cluster.run(lambda client: _offers_of(client, webhook_namespace))
        space = namespace or context
    else:
        return cluster.run(lambda client: _summarize_cluster(client, policy, webhook_namespace))
    _put_from(given, offers, space)
    if output.form == "summary":
        summary = Summary(offers, policy, space)
        for _, found in given:
            for one in found:
                summary.add(one)
        _print_summary(summary, assumed)
        return 0
    results = list(_admitted(given, offers, policy, space))
    if output.form == "explain":
        style = Style.of(sys.stdout)
        click.echo("\n\n".join(explain(one, offers, policy, style) for one in results))
    else:
        _print([one for one in results if not one.rejected], output)
        _report(results)
    claims = any(one.claims for one in results)
    _tell_assumed(assumed, claims=claims)
    if claims:
        what = "the pods are shown without a ticket, which only the webhook can add: create them as you wrote them"
        click.echo(what, err=True)
    return EXIT_REJECTED if any(one.rejected for one in results) else 0


async def _offers_of(client: Client, webhook_namespace: str) -> tuple[Offers, str, str]:
    """What a cluster offers now, why it is not known whether the controller is at work, and the context's namespace."""
    # explanations tell of all nodes; a command that has no past decides as a webhook that has run for long
    async with LiveView(client, keep=None, first_sight=False).following() as view:
        warn_of_classes(view.dra.class_errors)
        at_work = await controller_at_work(client, webhook_namespace)
        assumed = _take_controller(
            view.offers, at_work, f"you may not get leases in namespace {webhook_namespace}"
        )
        return view.offers, assumed, client.cluster.namespace or "default"


def _take_controller(offers: Offers, at_work: bool | None, unknown: str) -> str:  # as the view has it
    """Decide as the webhook would by the controller's Lease; why it is not known, and so taken to be at work."""
    offers.put_controller(at_work is not False)
    return unknown if at_work is None else ""


def _tell_assumed(assumed: str, *, claims: bool) -> None:
    if assumed and claims:
        click.echo(f"tessera controller is taken to be running ({assumed}): requests become claims", err=True)


async def _summarize_cluster(client: Client, policy: Policy, webhook_namespace: str) -> int:
    """Count what would become of the pods of a cluster; each is forgotten when it is counted."""
    offers, assumed, space = await _offers_of(client, webhook_namespace)
    summary = Summary(offers, policy, space)

    def begin() -> Callable[[bytes], None]:
        nonlocal summary
        summary = Summary(offers, policy, space)  # a list that is begun again is counted again
        return lambda raw: summary.add({"kind": "Pod", **json.loads(raw)})

    await read_list(client, UNFINISHED_PODS.path, {**UNFINISHED_PODS.query, "limit": PAGE}, begin)
    _print_summary(summary, assumed)
    return 0


def _print_summary(summary: Summary, assumed: str) -> None:
    click.echo(summary.text(Style.of(sys.stdout)))
    _tell_assumed(assumed, claims=summary.claims)


def read_policy(file: str | None) -> Policy:
    """The configuration's policy; without a file, everything has its default."""
    return Policy() if file is None else read_parsed(file, config.parse).policy


def read_offers(files: tuple[str, ...]) -> tuple[Offers, str]:
    """What files say a cluster offers, and why it is not known whether the controller is at work; nodes must be among it."""
    found: list[FileObject] = []
    for file in files_in(files):
        some = list(objects_in_text(read_file(file), called(file)))
        if not some:  # what a kubectl that failed leaves behind
            raise InvalidInput(f"{called(file)}: no nodes")
        found += some
    described, offers = cluster_objects(found), Offers()
    if not described.nodes:
        raise InvalidInput(f"{called(*files)}: no nodes")
    _put(offers, described)
    if described.classes and described.slices:
        warn_of_classes(put_served(offers, described.classes, described.slices).class_errors)
    return offers, _take_controller(
        offers, controller_in(described.leases), "its Lease is not among the files"
    )


def _put(offers: Offers, found: ClusterObjects) -> None:
    for node in found.nodes:
        offers.put(node)
    for namespace in found.namespaces:
        offers.put_namespace(namespace)
    for quota in found.quotas:
        offers.put_quota(quota)


_Given = list[tuple[str, list[dict[str, Any]]]]  # files and the objects in them


def _put_from(given: _Given, offers: Offers, namespace: str) -> None:
    """The Namespaces and ResourceQuotas among the objects count wherever they stand."""
    for file, found in given:
        some = [one for one in found if one.get("kind") in ("Namespace", "ResourceQuota")]
        _put(offers, cluster_objects(objects_in_documents(some, called(file)), namespace=namespace))


def _admitted(given: _Given, offers: Offers, policy: Policy, namespace: str) -> Iterator[Admitted]:
    known = KnownReviews()
    for file, found in given:
        with naming(called(file)):
            yield from [admit(one, offers, policy, namespace, known) for one in found]


def _objects(file: str) -> list[dict[str, Any]]:
    """The objects in a file; none at all is what a kubectl that failed leaves behind."""
    if not (found := documents_in(file)):
        raise InvalidInput(f"{called(file)}: no objects")
    return found


def _print(results: list[Admitted], output: Output) -> None:
    if output.form == "patch":
        for one in results:
            if one.reviewed:
                click.echo(json.dumps(one.operations))
        return
    after = [one.after for one in results]
    if not after:
        return
    if output.form == "yaml":
        click.echo("---\n".join(map(yaml.dump, after)), nl=False)
    else:
        several = {"apiVersion": "v1", "kind": "List", "items": after}
        output.print(several if len(after) > 1 else after[0])


def _report(results: list[Admitted]) -> None:
    """Warnings and rejections, as kubectl would print them."""
    for one in results:
        for place, reviewed in one.reviewed.items():
            decision = reviewed.decision
            if isinstance(decision, Denied):
                click.echo(f"{one.title_at(place)}: rejected: {decision.message}", err=True)
                continue
            for warning in decision.warnings:
                click.echo(f"Warning: {warning}", err=True)
