"""The names that the driver gives its devices, and what they say."""

import pytest

from tessera.core.dra.device_names import cut_now, slot_name
from tessera.core.mig.geometry import PRODUCTS, Product, product_named
from tessera.core.mig.layout import CardLayout, DoesNotFit, Slot
from tessera.core.mig.placement import every_place


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda one: one.name)
def test_every_device_is_known_by_its_name(product: Product):
    """Of any card, any device that a claim can hold is found again by its name, and no other is."""
    for one in every_place(product):
        assert cut_now(product, 2, {slot_name(Slot(1, one))}).cards == (
            CardLayout(product, mig_enabled=True),
            CardLayout(product, mig_enabled=True, instances=(one,)),
        )
    assert cut_now(product, 1, {slot_name(Slot(0))}).cards == (CardLayout(product),)


def test_names_that_cannot_be_there_together():
    """Two devices on one memory slice are no layout."""
    product = product_named("H200")
    assert product is not None
    first, second = [one for one in every_place(product) if one.position == 0][:2]
    with pytest.raises(DoesNotFit):
        cut_now(product, 1, {slot_name(Slot(0, first)), slot_name(Slot(0, second))})
