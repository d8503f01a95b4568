"""Offers that come from DRA count like those of a device plugin, and say where they come from."""

from dataclasses import replace

import pytest

from tessera.core.admission import explanation
from tessera.core.admission.decision import decide
from tessera.core.admission.outcome import Allowed, Denied, Patched
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.usable import Usable
from tessera.core.kubernetes.node import MOST_OF_A_CLAIM
from tests.build import container, node, offers, pod, resource


def dra_node(name="dra", has=None, **serves):
    """A node whose devices are in ResourceSlices: `dra_node("a", **{"2g.20gb": 3})`."""
    return replace(node(name, **(has or {})), dra={resource(name): count for name, count in serves.items()})


@pytest.mark.parametrize(
    ("allocatable", "served", "counts", "dra"),
    [
        ({}, {"2g.20gb": 3}, {"2g.20gb": 3}, {"2g.20gb"}),
        ({"1g.10gb": 7}, {"2g.20gb": 3}, {"1g.10gb": 7, "2g.20gb": 3}, {"2g.20gb"}),
        # the scheduler asks DRA only where nothing of the resource is allocatable
        ({"2g.20gb": 1}, {"2g.20gb": 3}, {"2g.20gb": 1}, set()),
        ({"2g.20gb": 0}, {"2g.20gb": 3}, {"2g.20gb": 3}, {"2g.20gb"}),
        # all that DRA serves of a pod is one claim
        ({}, {"1g.10gb": 56}, {"1g.10gb": MOST_OF_A_CLAIM}, {"1g.10gb"}),
        ({}, {"2g.20gb": 0}, {}, set()),
        ({}, {"example.com/nic": 2}, {}, set()),
    ],
)
def test_what_a_node_offers(allocatable, served, counts, dra):
    """Allocatable first, else DRA, as the scheduler does; the offer says which of the two it is."""
    offer = dra_node(has=allocatable, **served).offer
    assert dict(offer.counts) == {resource(name): count for name, count in counts.items()}
    assert offer.dra == {resource(name) for name in dra}


def test_where_a_candidate_comes_from():
    """Of each resource it is known whether a plugin, DRA or both serve it on the nodes that the pod can use."""
    two, one = resource("2g.20gb"), resource("1g.10gb")
    cluster = offers(dra_node("a", **{"1g.10gb": 7, "2g.20gb": 3}), node("b", **{"2g.20gb": 1}))
    usable = Usable(cluster.columns, cluster.for_pod(pod()))
    assert (usable.from_plugin(one), usable.from_dra(one)) == (False, True)
    assert (usable.from_plugin(two), usable.from_dra(two)) == (True, True)
    assert (usable.from_plugin("nvidia.com/gpu"), usable.from_dra("nvidia.com/gpu")) == (False, False)


def test_a_pod_that_dra_can_serve_is_left_alone():
    """Neither rewritten nor rejected; a type of DRA is a replacement like any other."""
    cluster = offers(dra_node(**{"4g.71gb": 2}), node("plugin", **{"3g.30gb": 2}))
    assert isinstance(decide(pod(container(**{"4g.71gb": 1})), cluster, Policy()), Allowed)
    assert isinstance(decide(pod(container(**{"4g.71gb": 3})), cluster, Policy()), Denied)
    replaced = decide(pod(container(**{"7g.141gb": 1})), cluster, Policy())
    assert isinstance(replaced, Patched)
    assert replaced.replaced == (("7g.141gb", "4g.71gb"),)


def test_other_resources_of_dra_count():
    """A network card that a DeviceClass serves is room for it, as one in allocatable is."""
    cluster = offers(dra_node(has={"2g.20gb": 1}, **{"example.com/nic": 1}))
    asks = container(**{"2g.20gb": 1, "example.com/nic": 1})
    assert isinstance(decide(pod(asks), cluster, Policy()), Allowed)
    twice = container(**{"2g.20gb": 1, "example.com/nic": 2})
    assert isinstance(decide(pod(twice), cluster, Policy()), Denied)


def test_explained():
    """An explanation says where an offer comes from."""
    asks = pod(container(**{"2g.20gb": 1}))
    only_dra = offers(dra_node(**{"2g.20gb": 3}))
    both = offers(dra_node(**{"2g.20gb": 3}), node("plugin", **{"2g.20gb": 1}))
    for cluster, words in (
        (only_dra, "offered, up to 3 a node, through DRA"),
        (both, "offered, up to 3 a node, through a device plugin or DRA"),
    ):
        first, *_ = explanation.trials(asks, cluster, Policy())
        assert first.reason == words
