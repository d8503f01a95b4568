"""What is free on single nodes: the quick question says what the search says."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.admission.view.pods import BoundPod, gpus_of, usage_of
from tests.build import container, node, offers, pod
from tests.examples import examples

NAMES = ["a", "b", "c"]
gpus = st.dictionaries(st.sampled_from(["1g.10gb", "2g.20gb", "gpu"]), st.integers(1, 3), max_size=3)
changes = st.lists(
    st.tuples(st.sampled_from(["p1", "p2", "p3", "p4"]), st.none() | st.tuples(st.sampled_from(NAMES), gpus)),
    max_size=12,
)


@settings(max_examples=examples(200))
@given(st.lists(gpus, min_size=3, max_size=3), changes, st.integers(1, 7), st.lists(gpus, max_size=4))
def test_a_request_is_free_where_a_node_is_found(shapes, happened, among, asked):
    """On one node or several, however often it is asked, and whatever was taken or given back since."""
    view = offers(*(node(name, cpu=4, **has) for name, has in zip(NAMES, shapes, strict=True)))
    free = view.follow_pods()
    nodes = free._nodes
    bits = [view._bits[name] for name in NAMES if name in view._bits]
    among = sum(bit for number, bit in enumerate(bits) if among >> number & 1)
    for key, taken in [("p0", None), *happened]:
        if taken is None:
            free.remove_pod(key)
        else:
            free.put_pod(key, BoundPod(taken[0], usage_of(pod(container(**taken[1])))), 0.0)
        for asks in asked:
            wanted = gpus_of(usage_of(pod(container(**asks))))
            if among and wanted:
                assert bool(nodes.find_free(among, [wanted])) == (nodes.first(among, wanted) is not None)
