"""`tessera mig products`: the cards whose geometry is known."""

import json

from tessera.core.mig.geometry import PRODUCTS, product_named


def test_table(command):
    """A row for each card that is asked for; wide adds the label and how many of each profile fit."""
    code, out, err = command("mig", "products", "H200", "a30")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "PRODUCT  MEMORY  SLICES  PROFILES",
        "H200     141 GB  8       1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
        "A30      24 GB   4       1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb",
    ]
    assert command("mig", "products", "A30", "-o", "wide", "--no-headers") == (
        0,
        "A30      24 GB   4       NVIDIA-A30  1g.6gb×4 1g.6gb+me×1 2g.12gb×2 2g.12gb+me×1 4g.24gb×1\n",
        "",
    )


def test_every_name_is_understood(command):
    """`-o name` prints what --product takes, for all products there are."""
    _, out, _ = command("mig", "products", "-o", "name")
    assert [product_named(name) for name in out.split()] == list(PRODUCTS)


def test_document(command):
    """Everything that is known of a card, for programs."""
    _, out, _ = command("mig", "products", "A30", "-o", "json")
    (card,) = json.loads(out)
    assert {name: value for name, value in card.items() if name != "profiles"} == {
        "name": "A30",
        "product": "NVIDIA A30",
        "label": "NVIDIA-A30",
        "simulated": False,
        "memoryMiB": 24576,
        "computeSlices": 4,
        "memorySlices": 4,
    }
    assert card["profiles"][2] == {
        "name": "2g.12gb",
        "memorySlices": 2,
        "most": 2,
        "starts": [0, 2],
        "memoryMiB": 12288,
    }


def test_unknown(command):
    """A card that there is not is refused with those that there are."""
    code, _, err = command("mig", "products", "H300")
    assert code == 2
    assert err.startswith('tessera: unknown product "H300"; known are A100-40GB, ')
