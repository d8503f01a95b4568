"""The table of products."""

import json
from pathlib import Path

import pytest

from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import (
    PRODUCTS,
    SIMULATED_H200_70GB,
    find_product,
    product_named,
    simulated_product,
)
from tessera.core.mig.profile import MigProfile

H200 = json.loads((Path(__file__).parents[2] / "data" / "h200-mig-nvml.json").read_text())


def test_h200_is_what_the_hardware_says():
    """Profiles, ids, counts, memory and placements of H200 are those that NVML reported on a real one."""
    product = product_named(H200["product"])
    assert int(H200["pciDeviceId"], 16) in product.pci_ids
    told = {
        str(shape.profile): {
            "id": shape.profile_id,
            "slices": shape.compute,
            "instances": shape.most,
            "memoryMiB": shape.memory_mib,
            "placements": [[start, shape.size] for start in shape.starts],
        }
        for shape in product.shapes
    }
    measured = {
        name: {key: value for key, value in row.items() if key != "multiprocessors"}
        for name, row in H200["profiles"].items()
    }
    assert told == measured


@pytest.mark.parametrize(
    ("name", "profiles"),
    [
        ("A100-40GB", "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
        ("A100-80GB", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.79gb 7g.80gb"),
        ("H100-80GB", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("H100-94GB", "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"),
        ("H100-96GB", "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
        ("H20", "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
        ("GH200-96GB", "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
        ("GH200-144GB", "1g.18gb 1g.18gb+me 1g.36gb 2g.36gb 3g.72gb 4g.72gb 7g.144gb"),
        ("H200", "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
        ("B200", "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"),
        ("GB200", "1g.23gb 1g.23gb+me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb"),
        ("B300", "1g.34gb 1g.34gb+me 1g.67gb 2g.67gb 3g.135gb 4g.135gb 7g.269gb"),
        ("GB300", "1g.35gb 1g.35gb+me 1g.70gb 2g.70gb 3g.139gb 4g.139gb 7g.278gb"),
        ("A30", "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb"),
        ("RTX PRO 6000 Blackwell", "1g.24gb 1g.24gb+me 1g.24gb+gfx 1g.24gb+me.all 2g.48gb 4g.96gb"),
        ("Simulated H200-70GB", "1g.10gb 2g.20gb 3g.30gb 7g.70gb"),
    ],
)
def test_profiles_of_every_product(name, profiles):
    """Every product has the profiles that NVIDIA gives it, smallest first."""
    assert " ".join(map(str, product_named(name).profiles)) == profiles
    assert len(PRODUCTS) == 16


def test_shapes_lie_on_their_card():
    """No placement of any product leaves the card, and most instances of a profile can really be placed."""
    for product in PRODUCTS:
        for shape in product.shapes:
            assert shape.starts == tuple(sorted(set(shape.starts)))
            assert shape.starts[-1] + shape.size <= product.memory_slices
            assert shape.most * shape.compute <= product.compute_slices
            assert shape.most <= len(shape.starts)


def test_a_device_filter_means_one_product():
    """Every real card has a PCI id by which mig-parted's configurations choose it, and no two have the same."""
    ids = [number for product in PRODUCTS for number in product.pci_ids]
    assert len(ids) == len(set(ids))
    assert [product.name for product in PRODUCTS if not product.pci_ids] == ["Simulated H200-70GB"]


def test_the_simulated_card():
    """The 70 GB card: 1g.10gb ×7, 2g.20gb ×3, 3g.30gb ×2, 7g.70gb ×1, seven slices of 10 GB."""
    assert {str(s.profile): (s.most, s.size) for s in SIMULATED_H200_70GB.shapes} == {
        "1g.10gb": (7, 1),
        "2g.20gb": (3, 2),
        "3g.30gb": (2, 3),
        "7g.70gb": (1, 7),
    }
    assert SIMULATED_H200_70GB.memory_mib == 70 * 1024


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"slices": 0}, "T: 40 GB in 0 slices: a card has 1 to 16 slices, of 1 GB or more each"),
        ({"slices": 64}, "T: 40 GB in 64 slices: a card has 1 to 16 slices, of 1 GB or more each"),
        ({"profiles": []}, "T: a card that can be cut has at least one profile"),
        ({"profiles": ["1g.50gb"]}, "T: 1g.50gb needs 5 slices, the card has 4"),
    ],
)
def test_simulated_cards_that_cannot_be(change, complaint):
    """A simulated card that makes no sense is refused with the reason."""
    given = {"slices": 4, "profiles": ["1g.10gb"]} | change
    with pytest.raises(InvalidInput) as caught:
        simulated_product(
            "T", memory_gb=40, slices=given["slices"], profiles=map(MigProfile.parse, given["profiles"])
        )
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("label", "memory", "name"),
    [
        ("NVIDIA-H200", None, "NVIDIA H200"),
        ("NVIDIA-H200", 143771, "NVIDIA H200"),
        ("NVIDIA H200", 143771, "NVIDIA H200"),
        ("NVIDIA-H200", 71680, "Simulated H200-70GB"),
        ("NVIDIA-H200-70GB", 71680, "Simulated H200-70GB"),
        ("H200-70GB", None, "Simulated H200-70GB"),
        ("NVIDIA-A100-SXM4-40GB", 40960, "NVIDIA A100-40GB"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", 4864, "NVIDIA A100-40GB"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me", 4864, "NVIDIA A100-40GB"),
        ("NVIDIA-A100-PCIE-40GB-SHARED", 40960, "NVIDIA A100-40GB"),
        ("NVIDIA-A100-80GB-PCIe", None, "NVIDIA A100-80GB"),
        ("NVIDIA-H100-80GB-HBM3", 81559, "NVIDIA H100-80GB"),
        ("NVIDIA-H100-PCIe", None, "NVIDIA H100-80GB"),
        ("NVIDIA-H100-NVL", 95830, "NVIDIA H100-94GB"),
        ("H100", 97871, "NVIDIA H100-96GB"),
        ("NVIDIA-GH200-480GB", 97871, "NVIDIA GH200-96GB"),
        ("NVIDIA-GH200-144G-HBM3e", None, "NVIDIA GH200-144GB"),
        ("NVIDIA-H20", 97871, "NVIDIA H20"),
        ("NVIDIA-B300-SXM6-AC", 275040, "NVIDIA B300"),
        ("NVIDIA-A30", 24576, "NVIDIA A30"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", 97887, "NVIDIA RTX PRO 6000 Blackwell"),
        ("rtx pro 6000", None, "NVIDIA RTX PRO 6000 Blackwell"),
        ("NVIDIA-A100-SXM-64GB", 65536, None),  # a card of which nothing is known
        ("NVIDIA-H100-80GB-HBM3", 0, None),
        ("Tesla-T4", 15360, None),
        ("A100", None, None),
        ("", None, None),
    ],
)
def test_labels(label, memory, name):
    """A node's labels name its product; a card of which nothing is known is none."""
    found = find_product(label, memory)
    assert (found and found.name) == name


def test_every_product_is_found_by_what_it_calls_itself():
    """Names and labels of the table lead back to their product."""
    for product in PRODUCTS:
        for text in (product.name, product.short_name, *product.labels):
            assert product_named(text) is product
            assert find_product(text, product.memory_mib) is product


def test_names_that_nobody_knows():
    """The error lists the names that would do."""
    with pytest.raises(InvalidInput, match=r'^product "A100" may be one of several: A100-40GB, A100-80GB$'):
        product_named("A100")
    with pytest.raises(
        InvalidInput, match=r'^unknown product "V100\\n"; known are A100-40GB, A100-80GB, H100'
    ):
        product_named("V100\n")
