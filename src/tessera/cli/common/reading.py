"""Reading a cluster, or files, into an `Inventory`: the option for the files, and a progress bar where a person waits."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tessera.cli.common.options import ClusterChoice, option
from tessera.cli.common.output import warn
from tessera.inventory.inventory import Inventory
from tessera.kube.object_files import called, read_text_file

if TYPE_CHECKING:
    from tessera.protocol.mig.operator import MigManagerConfig

F = TypeVar("F", bound=Callable[..., Any])

_WORTH_SHOWING: Final = 2000  # objects; fewer are there in an instant
_STEP: Final = 100  # objects between two drawings of the bar


def files_option(when: str = "", group: str = "Options") -> Callable[[F], F]:
    """Give a command `--from`; it gets `sources`, for `read_inventory`. `when`: the options that it goes with."""
    what = f"{when}{'nodes' if when else 'Nodes'} and pods saved with kubectl, instead of a cluster; "
    more = "- is standard input. DeviceClasses, ResourceSlices and ResourceClaims count too. Repeatable."
    return option("--from DIR|FILE", what + more, "sources", multiple=True, group=group)


def mig_parted_option(when: str = "", group: str = "Options") -> Callable[[F], F]:
    """Give a command `--mig-parted`; it gets `mig_manager`, for its inventory. `when`: the options that it goes with."""
    what = f"{when}{'the' if when else 'The'} file that mig-manager reads"
    return option(
        "--mig-parted FILE",
        f"{what}, instead of its ConfigMap: the nodes' label nvidia.com/mig.config names a configuration in it.",
        "mig_manager",
        group=group,
        callback=lambda _ctx, _param, value: _mig_parted(value) if value else None,
    )


def _mig_parted(argument: str) -> "MigManagerConfig":
    from tessera.protocol.mig.operator import config_in

    return config_in(read_text_file(argument), called(argument))


def read_inventory(
    inventory: Inventory, cluster: ClusterChoice, sources: Sequence[str] = (), *, pods: bool = True
) -> None:
    """Read files where there are any, else the cluster."""
    if sources:
        inventory.read_files(sources)
    else:
        progress = _bar if sys.stderr.isatty() else None
        cluster.run(lambda client: inventory.read_cluster(client, pods=pods, progress=progress))
    warn_of_mig_manager(inventory)


def warn_of_mig_manager(inventory: Inventory) -> None:
    """Say why mig-manager's configurations could not be read, where they could not."""
    if inventory.mig_manager is not None and inventory.mig_manager.error:
        warn(f"Warning: mig-manager's configurations are not known: {inventory.mig_manager.error}")


def warn_of_dra(inventory: Inventory) -> None:
    """Say which devices of DRA could not be read."""
    if inventory.dra.unseen:
        warn(f"Warning: devices of DRA are not counted: {inventory.dra.unseen}")
    warn_of_classes(inventory.dra.class_errors)


def warn_of_classes(class_errors: Mapping[str, str]) -> None:
    """Name the DeviceClasses whose selectors cannot be evaluated."""
    for name, why in class_errors.items():
        warn(f"Warning: device class {name}: its selectors cannot be evaluated, so all devices count: {why}")


@contextmanager
def _bar(what: str, number: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error for a long list; for a short one, nothing."""
    if number < _WORTH_SHOWING:
        yield lambda _: None
        return
    with click.progressbar(length=number, label=f"Reading {what}", file=sys.stderr, show_pos=True) as bar:

        def so_far(count: int) -> None:
            if count % _STEP == 0 or count < bar.pos:  # less than before: the list was begun again
                bar.update(count - bar.pos)

        yield so_far
