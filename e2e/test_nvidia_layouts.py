"""Layouts, as NVIDIA's programs and Tessera see them, on the stand-in driver and without a cluster."""

import itertools
import os
import random
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from e2e.cluster import program
from e2e.nvidia import Driver
from e2e.nvidia.listed import discovered, offered
from e2e.nvidia.machine import Machine
from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.core.mig.geometry import Product, product_named
from tessera.core.mig.known import KnownLayout
from tessera.core.mig.placement import Wish, place
from tessera.core.resources import is_any_gpu
from tessera.inventory.inventory import Inventory
from tessera.kube.object_files import objects_in_documents

pytestmark = pytest.mark.usefixtures("nvidia_programs")

#: How many layouts are tried of each product; `all` tries every one of up to seven slices, which takes long.
_LAYOUTS = os.environ.get("TESSERA_E2E_LAYOUTS", "20")


def _multisets(product: Product) -> list[tuple[str, ...]]:
    names = _names(product)
    return [one for size in range(1, 8) for one in itertools.combinations_with_replacement(names, size)]


def _chosen(product: Product) -> Sequence[tuple[str, ...]]:
    """Half of them fit; mig-parted tries every order of one that does not, so those are short."""
    every = _multisets(product)
    if _LAYOUTS == "all":
        return every
    draw, half = random.Random(26), int(_LAYOUTS) // 2
    return [
        *draw.sample([one for one in every if _fits(product, one)], half),
        *draw.sample([one for one in every if len(one) < 6 and not _fits(product, one)], half),
    ]


def _fits(product: Product, profiles: Sequence[str]) -> bool:
    return place(product, [Wish(Driver.wish(one).profile) for one in profiles]) is not None


@pytest.mark.timeout(36000 if _LAYOUTS == "all" else 300, func_only=True)
@pytest.mark.parametrize(("name", "highest_first"), [("A100-40GB", False), ("H200", True)])
def test_mig_parted_can_cut_what_is_valid(name: str, highest_first: bool, tmp_path: Path) -> None:
    """The layouts that mig-parted makes are those that `tessera mig validate` accepts, wherever the driver puts slices by itself."""
    product = product_named(name)
    driver = Driver(tmp_path / "driver", name)
    driver.state.highest_first = highest_first
    machine = Machine(tmp_path / "machine", driver)
    chosen = _chosen(product)
    config = tmp_path / "config.yaml"
    lines = ["version: v1", "mig-configs:"]
    for number, profiles in enumerate(chosen):
        lines += [f"  c{number}:", "  - devices: all", "    mig-enabled: true", "    mig-devices:"]
        lines += [f'      "{profile}": {count}' for profile, count in Counter(profiles).items()]
    config.write_text("\n".join(lines) + "\n")
    different = []
    for number, profiles in enumerate(chosen):
        options = (f"--config-file={config}", f"--selected-config=c{number}")
        # `apply` calls it a success, too, if it has made nothing
        made = all(_mig_parted(driver, machine, command, *options) for command in ("apply", "assert"))
        if made != _fits(product, profiles):
            different.append(profiles)
        assert not made or sorted(driver.layout(0)) == sorted(profiles)
    assert different == []


def _mig_parted(driver: Driver, machine: Machine, *arguments: str) -> bool:
    """Whether it succeeds."""
    command = machine.seen_by(program("nvidia-mig-parted"), *arguments)
    return subprocess.run(command, env=driver.environment, capture_output=True, check=False).returncode == 0


#: A card: its slices, or None with MIG off.
Cut = tuple[str, ...] | None


@pytest.mark.parametrize("name", ["A100-80GB", "H200"])
def test_what_is_shown_is_what_tessera_infers(name: str, tmp_path: Path) -> None:
    """Over random layouts GPU Feature Discovery and NVIDIA's plugin show the devices that there are; Tessera knows of them how the cards
    are cut, exactly where there is only one way to cut them."""
    product, draw = product_named(name), random.Random(name)
    driver = Driver(tmp_path / "driver", name, cards=2)
    machine = Machine(tmp_path / "machine", driver)
    possible: list[Cut] = [None, (), *(one for one in _multisets(product) if _fits(product, one))]
    uniform: list[list[Cut]] = [[(str(shape.profile),) * shape.most] * 2 for shape, _ in product.listed]
    drawn = [draw.choices(possible, k=2) for _ in range(8)]
    known = 0
    off: list[Cut] = [None, None]
    for cards in (off, *uniform, *drawn):
        _cut(driver, cards)
        labels, capacity = discovered(driver, machine, tmp_path), offered(driver, machine, tmp_path)
        counts = _counts(cards)
        labelled = {key.removesuffix(".count"): int(n) for key, n in labels.items() if key.endswith(".count")}
        assert labelled == {**counts, "nvidia.com/gpu": 2}  # which counts cards, cut or not
        plain = Counter[str]()  # the plugin (0.19) does not tell those with media engines apart
        for resource, number in counts.items():
            plain[resource.removesuffix(".me")] += number
        assert capacity == +plain
        ways = [pair for pair in itertools.product(possible, repeat=2) if _counts(pair) == counts]
        found = _known(labels, capacity)
        assert (found is not None) == (len(ways) == 1), (cards, len(ways))
        if found is not None:
            assert found == [None if one is None else tuple(sorted(one)) for one in cards]
            known += 1
    assert known > len(uniform) / 2, "what is meant to be known is"


def _names(product: Product) -> list[str]:
    return [str(shape.profile) for shape, _ in product.listed]


def _cut(driver: Driver, cards: Sequence[Cut]) -> None:
    for number, profiles in enumerate(cards):
        driver.cut(number, *(profiles or ()))
        driver.switch(number, mig=profiles is not None)


def _counts(cards: Sequence[Cut]) -> Counter[str]:
    """The devices that cards are cut into, by resource."""
    names = ["nvidia.com/gpu" if one is None else "" for one in cards]
    names += [f"nvidia.com/mig-{profile.replace('+', '.')}" for one in cards for profile in one or ()]
    return Counter(filter(None, names))


def _known(labels: Mapping[str, str], capacity: Mapping[str, int]) -> list[Cut] | None:
    """How Tessera says that the cards are cut; None: it does not know."""
    amounts = {resource: str(number) for resource, number in capacity.items()}
    status = {"capacity": amounts, "allocatable": amounts}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "labels": dict(labels)},
        "status": status,
    }
    inventory = Inventory(is_any_gpu, LabelSelector.parse(""), lambda _: True)
    inventory.take(objects_in_documents([node], "node"))
    found = inventory.known("n")
    if not isinstance(found, KnownLayout):
        return None
    return [
        tuple(sorted(str(one.profile) for one in card.instances)) if card.mig_enabled else None
        for card in found.layout.cards
    ]
