"""`tessera admit`: the webhook's decision, without the webhook.

`-o summary`: how many pods would change, by namespace and by what becomes of them.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import click

from tessera.cli.admit_explanation import explain
from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.help import Command
from tessera.cli.common.options import NO_CLUSTER, ClusterChoice, cluster_options, option, policy_options
from tessera.cli.common.output import Output, Style, echo, output_option, print_document, table, warn
from tessera.cli.common.reading import warn_of_classes
from tessera.core.admission.explanation import asked
from tessera.core.admission.outcome import Decision, Denied, Patched
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.pod import ENDED, Pod
from tessera.core.requests.asking import asked_profiles
from tessera.core.resources import short
from tessera.core.text import first_of, number_of
from tessera.kube.object_files import (
    FileObject,
    called,
    documents_in,
    files_in,
    naming,
    objects_in_documents,
    objects_in_text,
    read_file,
)
from tessera.kube.rest.client import Client
from tessera.kube.view.files import DescribedCluster, put_spaces
from tessera.kube.view.lease import controller_at_work, controller_in
from tessera.kube.view.live import LiveView
from tessera.kube.view.policy import PolicySource, UsedPolicy
from tessera.kube.watch.listing import list_once
from tessera.kube.watch.table import UNFINISHED_PODS, TableEntry
from tessera.protocol import yaml
from tessera.webhook.offline import Admitted, admit, admit_again
from tessera.webhook.reviewed import KnownReviews

_MOST_NAMES: Final = 3
_MOST_REJECTED: Final = 10  # listed one by one


class Summary:
    """What was decided about many pods."""

    def __init__(self, offers: Offers, policy: Policy, namespace: str) -> None:
        self._offers, self._policy, self._namespace = offers, policy, namespace
        self._known = KnownReviews()
        self._pods = 0  # of whatever kind
        self._with_gpus: Counter[str] = Counter()  # by namespace, as all that follow
        self._changed: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._replacements: dict[tuple[str, str], Counter[str]] = {}  # from, to
        self._messages: list[str] = []  # of rejections
        self.claims = False  # whether any request becomes a claim

    def add(self, document: dict[str, Any]) -> None:
        """Count what would be decided about an object's pods if it were created now."""
        status, metadata = document.get("status"), document.get("metadata")
        is_pod = document.get("kind") == "Pod"
        if (
            is_pod and isinstance(status, dict) and status.get("phase") in ENDED
        ):  # clusters keep thousands of them
            return
        if is_pod and isinstance(metadata, dict) and metadata.get("uid"):
            self._count(admit_again(document, self._offers, self._policy, self._known))
        else:
            self._count(admit(document, self._offers, self._policy, self._namespace, self._known))

    def _count(self, one: Admitted) -> None:
        self.claims |= one.claims
        for place, reviewed in one.reviewed.items():
            self._pods += 1
            space, would = reviewed.pod.namespace, reviewed.would
            if asked(reviewed.pod):
                self._with_gpus[space] += 1
            if isinstance(would, Denied):
                self._rejected[space] += 1
                self._messages.append(f"{one.title_at(place)}: {would.message}")
            elif isinstance(would, Patched):
                self._changed[space] += 1
            for pair in _replacements(reviewed.pod, would):
                self._replacements.setdefault(pair, Counter())[space] += 1

    def draw(self, style: Style) -> list[str]:
        """The summary for a person."""
        counters = (self._with_gpus, self._changed, self._rejected)
        gpus, changed, rejected = (each.total() for each in counters)
        asking = f"{gpus} of them {'asks' if gpus == 1 else 'ask'} for GPUs"
        would = f"{changed} would be changed, {rejected} would be rejected"
        lines = [style.bold(f"{number_of(self._pods, 'pod')}, {asking}: {would}")]
        if spaces := sorted(set().union(*counters)):
            rows = [(space, *(str(each[space]) for each in counters)) for space in spaces]
            lines += ["", *table([("NAMESPACE", "ASK FOR GPUS", "CHANGED", "REJECTED"), *rows])]
        if self._replacements:
            replacements = sorted(self._replacements.items(), key=lambda pair: (-pair[1].total(), pair[0]))
            rows = [(*pair, str(by.total()), first_of(sorted(by), _MOST_NAMES)) for pair, by in replacements]
            lines += ["", *table([("FROM", "TO", "PODS", "NAMESPACES"), *rows])]
        if self._messages:
            lines += ["", *self._messages[:_MOST_REJECTED]]
            if (more := len(self._messages) - _MOST_REJECTED) > 0:
                lines.append(f"… and {more} more that would be rejected")
        return lines


def _replacements(pod: Pod, would: Decision) -> Iterator[tuple[str, str]]:
    """What becomes of what, in a few words."""
    if isinstance(would, Denied):
        yield ", ".join(map(short, asked_profiles(pod))) or "no profile", f"rejected ({would.code})"
        return
    if not isinstance(would, Patched):
        return
    yield from dict.fromkeys(would.replaced)
    if would.gpu_type is not None:
        yield f"GPU type {would.gpu_type}", "with injected resources"
    if not would.replaced and would.gpu_type is None:
        yield "a request alone", "with its limit"


_Given = list[tuple[str, list[dict[str, Any]]]]  # files and the objects in them


@click.command(cls=Command)
@option(
    "-f, --filename FILE",
    "Pods or workloads, YAML or JSON; a folder is all such files in it, - is standard input. Repeatable. "
    "With -o summary and without this, the pods of the cluster.",
    "files",
    multiple=True,
)
@option(
    "--from, --nodes DIR|FILE",
    "The cluster's nodes, as `kubectl get nodes -o yaml` prints them; Namespaces, ResourceQuotas, "
    "DeviceClasses, ResourceSlices, the controller's Lease, the webhook's ConfigMap and pods count too. Repeatable.  "
    "[default: the cluster is asked]",
    "sources",
    multiple=True,
)
@option(
    "-n, --namespace NAME",
    "The namespace of objects that name none.  [default: that of the context, or default]",
)
@policy_options()
@output_option(
    "patch",
    "explain",
    "summary",
    default="yaml",
    text="The admitted objects, their JSON patches (a line each), the whole reasoning, or how many pods would be changed.",
)
@cluster_options
def command(
    files: tuple[str, ...],
    sources: tuple[str, ...],
    namespace: str | None,
    output: Output,
    cluster: ClusterChoice,
    decides_by: PolicySource,
) -> ExitCode:
    """Decide about pods, with the very code of the webhook.

    The command admits pods, and the pod templates of Deployments, Jobs and any other object that has some (Volcano, Kubeflow, JobSet,
    Ray …), against the cluster that kubectl would ask, or against the given nodes. An object without a template passes as it is. The
    command creates and changes nothing in the cluster. Warnings and rejections go to standard error, except with -o explain, where
    they are part of the reasoning. In observe mode it prints objects as they came, and rejects nothing. Where fallback.when is full, it
    decides by what is free now, by the cluster's pods or those among the given nodes. What a pod that is there already has itself does not
    count. It keeps no room for what it admits.

    The command decides with the configuration that the webhook is installed with, where you may read it, and says which configuration
    it used: on standard error, or at the end of the reasoning.

    -o summary counts how many pods would be changed or rejected if they were created now. For pods that are in a cluster already, it
    ignores the node that the scheduler chose, undoes a recorded fallback, and does not count their own use against their quota.

    \b
    Exit code 3: a pod was rejected.

    \b
    Examples:
      tessera admit -f pod.yaml -o explain
      tessera admit -f manifests/ --from nodes.yaml
      tessera admit -o summary
      kubectl get pods -A -o yaml | tessera admit -f - -o summary
    """  # fmt: skip
    if list(files).count("-") + list(sources).count("-") > 1:
        raise InvalidInput("standard input (-) can be read only once")
    if not files and (output.form != "summary" or sources):
        raise click.UsageError("give -f FILE (only -o summary can read the cluster's pods)")
    if sources and cluster != NO_CLUSTER:
        raise click.UsageError("--from reads files: it does not go with --kubeconfig, --context or --as")
    counts = output.form == "summary"
    given = [(file, documents_in(file, none_of_a_list=counts)) for file in files_in(files)]
    if sources:
        (offers, at_work, used), space = _offers_in(sources, decides_by), namespace or "default"
        unknown = "its Lease is not among the files"
    else:
        offers, at_work, used, context = cluster.run(lambda client: _offers_of(client, decides_by))
        unknown, space = f"you may not get leases in namespace {decides_by.namespace}", namespace or context
    policy = used.policy
    offers.put_controller(at_work is not False)
    _put_from(given, offers, space)
    if counts:
        begin = partial(Summary, offers, policy, space)
        summary = _counted(given, begin()) if files else cluster.run(partial(_count_pods, begin=begin))
        echo(summary.draw(Style.of(sys.stdout)))
        claims, rejected = summary.claims, False
    else:
        results = list(_admitted(given, offers, policy, space))
        _print(results, offers, used, output)
        claims, rejected = any(one.claims for one in results), any(one.rejected for one in results)
    if claims and at_work is None:
        warn(f"tessera controller is taken to be running ({unknown}): requests become claims")
    if claims and output.form != "summary":
        warn(
            "the pods are shown without a ticket, which only the webhook can add: create them as you wrote them"
        )
    if output.form != "explain":
        warn(str(used))
    return ExitCode.NO if rejected else ExitCode.DONE


async def _offers_of(client: Client, decides_by: PolicySource) -> tuple[Offers, bool | None, UsedPolicy, str]:
    """What a cluster offers now, whether the controller is at work (None: unknown), the policy, and the context's namespace."""
    # explanations are about all nodes; a command that has no past decides as a webhook that has run for long
    view, used = LiveView(client, keep=None, first_sight=False), await decides_by.read(client)
    view.configure(used.policy.fallback)
    async with view.following():
        warn_of_classes(view.dra.class_errors)
        if view.pods is not None and view.pods.unknown:
            warn(f"what is free is not known ({view.pods.unknown}): the webhook may decide otherwise")
        if view.offers.free is not None:
            view.offers.free.block_by_times(client.clock.wall())
        at_work = await controller_at_work(client, decides_by.namespace)
        return view.offers, at_work, used, client.cluster.namespace or "default"


async def _count_pods(client: Client, begin: Callable[[], Summary]) -> Summary:
    """Count what would become of the pods of a cluster; each is forgotten when it is counted."""
    summary = begin()

    def start() -> None:
        nonlocal summary
        summary = begin()  # a list that is begun again is counted again

    entry = TableEntry(json.loads, lambda pod: summary.add({"kind": "Pod", **pod}), begin=start)
    await list_once(client, {UNFINISHED_PODS: entry})
    return summary


def _counted(given: _Given, summary: Summary) -> Summary:
    for _, found in given:
        for one in found:
            summary.add(one)
    return summary


def _offers_in(files: tuple[str, ...], decides_by: PolicySource) -> tuple[Offers, bool | None, UsedPolicy]:
    """What files say that a cluster offers, whether the controller is at work (None: unknown), and the policy."""
    found: list[FileObject] = []
    for file in files_in(files):
        some = list(objects_in_text(read_file(file), called(file)))
        if not some:  # what a kubectl that failed leaves behind
            raise InvalidInput(f"{called(file)}: no nodes")
        found += some
    described = DescribedCluster(found)
    if not described.nodes:
        raise InvalidInput(f"{called(*files)}: no nodes")
    used = decides_by.among(described.config_maps)
    offers = described.offers_for(used.policy.fallback)
    warn_of_classes(described.dra.class_errors)
    return offers, controller_in(described.leases), used


def _put_from(given: _Given, offers: Offers, namespace: str) -> None:
    """The Namespaces and ResourceQuotas among the objects count wherever they stand."""
    for file, found in given:
        some = [one for one in found if one.get("kind") in ("Namespace", "ResourceQuota")]
        put_spaces(offers, objects_in_documents(some, called(file)), namespace)


def _admitted(given: _Given, offers: Offers, policy: Policy, namespace: str) -> Iterator[Admitted]:
    known = KnownReviews()
    for file, found in given:
        with naming(called(file)):
            yield from [admit(one, offers, policy, namespace, known) for one in found]


def _print(results: list[Admitted], offers: Offers, used: UsedPolicy, output: Output) -> None:
    if output.form == "explain":
        style = Style.of(sys.stdout)
        explained = [explain(one, offers, used.policy, style) for one in results]
        echo("\n\n".join([*explained, style.dim(str(used))]).split("\n"))
        return
    admitted = [one for one in results if not one.rejected]
    if output.form == "patch":
        for one in admitted:
            if one.reviewed:
                print_document(json.dumps(one.operations))
    elif output.form == "yaml":
        print_document("---\n".join(yaml.dump(one.after) for one in admitted), ends_line=False)
    elif admitted:
        after = [one.after for one in admitted]
        several = {"apiVersion": "v1", "kind": "List", "items": after}
        output.print(several if len(after) > 1 else after[0])
    _report(results)


def _report(results: list[Admitted]) -> None:
    """Warnings and rejections, as kubectl would print them; warnings name their pod where there are several."""
    several = sum(len(one.reviewed) for one in results) > 1
    for one in results:
        for place, reviewed in one.reviewed.items():
            decision = reviewed.decision
            if isinstance(decision, Denied):
                warn(f"{one.title_at(place)}: rejected: {decision.message}")
                continue
            whose = f"{one.title_at(place)}: " if several else ""
            warn(*(f"Warning: {whose}{warning}" for warning in decision.warnings))
