"""Where `tessera mig` gets layouts from: files of any format, standard input, Node objects, counts as they are typed."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from tessera.cli.common import completing
from tessera.cli.common.options import (
    NO_CLUSTER,
    ClusterChoice,
    WholeNumber,
    cluster_options,
    gathered,
    option,
    selector_option,
)
from tessera.cli.common.reading import read_inventory
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import GPU_PRODUCT_LABEL
from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.core.mig.geometry import Product, product_named
from tessera.core.mig.profile import InvalidProfile, MigProfile
from tessera.core.resources import is_any_gpu
from tessera.inventory.inventory import Inventory
from tessera.inventory.layouts import Source, Unreadable, node_layouts
from tessera.kube.object_files import called, objects_in_documents, read_text_file
from tessera.kube.rest.client import is_name
from tessera.protocol import yaml
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.entries import looks_like_counts, write_counts
from tessera.protocol.mig.operator import MigManagerConfig

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """What the options say about where layouts are."""

    names: tuple[str, ...]  # files, counts, `-`; with `in_cluster` nodes
    product: Product | None
    cards: int | None
    in_cluster: bool
    selector: str
    cluster: ClusterChoice

    @classmethod
    def read(
        cls,
        names: tuple[str, ...],
        product: Product | None,
        cards: int | None,
        in_cluster: bool,  # as the option has it
        selector: str,
        cluster: ClusterChoice,
    ) -> "LayoutOptions":
        """Tell nodes from files: `--cluster`, a selector, or a name that no file has asks the cluster."""
        nodes = [name for name in names if _is_node_name(name)]
        if nodes and len(nodes) < len(names) and not in_cluster:
            raise click.UsageError(f"{nodes[0]} is not a file; name either nodes, or files and counts")
        in_cluster = in_cluster or bool(nodes or (selector and not names))
        if not in_cluster and (selector or cluster != NO_CLUSTER):
            raise click.UsageError("use -l, --kubeconfig, --context and --as only with nodes or --cluster")
        return cls(names, product, cards, in_cluster, selector, cluster)


def mig_config_option(text: str) -> Callable[[F], F]:
    """`--mig-config`, the name of one of several MIG configurations."""
    return option("--mig-config NAME", text, group="Layout")


def product_option(text: str, **settings: Any) -> Callable[[F], F]:
    """`--product`; a command gets the product itself."""
    return option(
        "--product NAME",
        text,
        callback=lambda _ctx, _param, value: product_named(value) if value else None,
        shell_complete=completing.names(completing.product_names),
        **settings,
    )


def cards_option(text: str, **settings: Any) -> Callable[[F], F]:
    """`--cards`, a number of cards."""
    return option("--cards N", text, type=WholeNumber(1, 1024), **settings)


# the arguments and options of every command that reads layouts; beside `given` the command gets `mig_config`
source_options: Final = gathered(
    "given",
    LayoutOptions.read,
    click.argument("names", nargs=-1, metavar="[FILE|COUNTS|NODE]...", shell_complete=completing.layouts),
    mig_config_option("The configuration to use, if there are several."),
    product_option("The cards' product, such as H200, A100-80GB or A30.", group="Layout"),
    cards_option("How many cards the node has.", show_default="as many as the layout names", group="Layout"),
    option(
        "--cluster",
        "Take the layouts of a cluster's nodes. Without it, only of those that are named.",
        "in_cluster",
        group="Nodes",
    ),
    selector_option("Take the layouts of a cluster's nodes with such labels.", group="Nodes"),
    cluster_options,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read beside layouts."""

    pods: bool = False
    every: bool = False  # also nodes that no annotation describes: other sources show how their cards are cut
    mig_manager: MigManagerConfig | None = None  # its configurations, from a file


def read_sources(given: LayoutOptions, reading: Reading = Reading()) -> list[Source | Unreadable]:  # noqa: B008 # frozen
    """The layouts that a person named; what the options say about the cards goes before what a node says."""
    if given.in_cluster:
        return _of_cluster(given, reading)
    if not given.names and sys.stdin.isatty():
        raise click.UsageError(
            "give a node, a file, counts such as 2g.20gb=2,3g.40gb=1, - for standard input, or --cluster"
        )
    if given.names.count("-") > 1:
        raise InvalidInput("standard input (-) can be read only once")
    return [source for name in given.names or ("-",) for source in _read(name, given, reading)]


def read_text(argument: str) -> tuple[str, str]:
    """What an argument names, and its text: a file, standard input, or counts as they stand."""
    if looks_like_counts(argument) and not os.path.exists(argument):  # noqa: PTH110 # Path.exists raises where it is too long
        return "counts", argument
    try:
        return called(argument), read_text_file(argument)
    except InvalidInput as error:
        raise InvalidInput(f"{error}{_meant_as_counts(argument)}") from error


def _is_node_name(argument: str) -> bool:
    """Whether an argument can only be a node: it has a node's name, and is neither a file nor counts nor meant as one."""
    if not is_name(argument) or argument.endswith((".yaml", ".yml", ".json")) or looks_like_counts(argument):
        return False
    return not os.path.exists(argument) and not _meant_as_counts(argument)  # noqa: PTH110 # as in `read_text`


def _meant_as_counts(argument: str) -> str:
    """What to write where the argument names profiles and no counts, which is no file."""
    try:
        profiles = [MigProfile.parse(name) for name in argument.split(",")]
    except InvalidProfile:
        return ""
    return f"; for counts write {write_counts(dict.fromkeys(profiles, 1))}"


def _read(argument: str, given: LayoutOptions, reading: Reading) -> list[Source | Unreadable]:
    where, text = read_text(argument)
    found = [] if looks_like_counts(text) else yaml.load_all(text, where)
    if any(isinstance(document, dict) and "kind" in document for document in found):
        inventory = Inventory(is_any_gpu, with_devices=True, mig_manager=reading.mig_manager)
        pods = "Pod" in inventory.take(objects_in_documents(found, where))
        nodes = node_layouts(inventory, given.product, given.cards, with_used=pods, every=reading.every)
        if not nodes:
            raise InvalidInput(f"{where}: no node with the {_mark(reading)}")
        return nodes
    if len(found) < 2:
        return [Source(where, mig.read(text, where), given.product, given.cards)]
    return [Source(where, mig.read_object(document, where), given.product, given.cards) for document in found]


def _of_cluster(given: LayoutOptions, reading: Reading) -> list[Source | Unreadable]:
    inventory = Inventory(
        is_any_gpu,
        LabelSelector.parse(given.selector),
        with_devices=reading.pods,
        with_layouts=reading.every,
        mig_manager=reading.mig_manager,
    )
    read_inventory(inventory, given.cluster, pods=reading.pods)
    missing = [name for name in given.names if name not in inventory.capacity]
    if missing:
        raise InvalidInput(f"the cluster has no node {', '.join(missing)}")
    found = node_layouts(
        inventory, given.product, given.cards, with_used=reading.pods, only=given.names, every=reading.every
    )
    if not found:
        if given.names:
            raise InvalidInput(f"node {', '.join(given.names)}: no {_mark(reading)}")
        chosen = f'that matches "{given.selector}"' if given.selector else "of the cluster"
        raise InvalidInput(f"no node {chosen} has the {_mark(reading)}")
    return sorted(found, key=lambda one: one.where)


def _mark(reading: Reading) -> str:
    """What a node must have, to be read."""
    return f"label {GPU_PRODUCT_LABEL}" if reading.every else f"annotation {mig.RUNAI_CONFIG}"
