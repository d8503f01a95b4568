"""Layouts, as NVIDIA's programs and Tessera see them, on the stand-in driver and without a cluster."""

import itertools
import os
import random
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.cluster import program
from e2e.nvidia import Driver
from e2e.nvidia.machine import Machine
from tessera.core.mig.geometry import Product
from tessera.core.mig.placement import Wish, place
from tessera.core.mig.product import product_named

#: How many layouts are tried of each product; `all` tries every one of up to seven slices, which takes long.
_LAYOUTS = os.environ.get("TESSERA_E2E_LAYOUTS", "20")


def _multisets(product: Product) -> list[tuple[str, ...]]:
    names = [str(shape.profile) for shape, _ in product.listed]
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
        _mig_parted(driver, machine, "apply", *options)  # which calls it a success if it has made nothing
        made = _mig_parted(driver, machine, "assert", *options)
        if made != _fits(product, profiles):
            different.append(profiles)
        assert not made or sorted(driver.layout(0)) == sorted(profiles)
    assert different == []


def _mig_parted(driver: Driver, machine: Machine, *arguments: str) -> bool:
    """Whether it succeeds."""
    command = machine.seen_by(program("nvidia-mig-parted"), *arguments)
    return subprocess.run(command, env=driver.environment, capture_output=True, check=False).returncode == 0
