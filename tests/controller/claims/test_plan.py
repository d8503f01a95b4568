"""What is to be done about templates and records."""

import json
import tracemalloc
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tessera.controller.claims.plan import UNUSED_FOR, Make, Mark, Remove, plan
from tessera.controller.claims.state import (
    ClaimState,
    FollowedPod,
    PodsClaim,
    Record,
    Template,
)
from tessera.core.requests.alternatives import read
from tessera.kube.watch.table import Key
from tessera.protocol.dra.objects import template_spec
from tests.controller.claims import objects
from tests.controller.claims.objects import RECORD, TEMPLATE, TEXT

NOW = 1_800_000_000.0
KEY = Key("a", TEMPLATE)
THERE = Template(KEY, "t", "1")


def pods(*documents):
    found = [FollowedPod.read(json.dumps(one).encode()) for one in documents]
    assert all(one and one.template for one in found)
    return {one.key: one for one in found if one is not None}


def claims(*documents):
    return [PodsClaim.read(json.dumps(one).encode()) for one in documents]


def state_of(some, templates=(), allocated=()):
    state = ClaimState()
    state.use_keys(objects.KEYS)
    for pod in some.values():
        state.put_pod(pod)
    for template in templates:
        state.put_template(template)
    for claim in allocated:
        state.put_claim(claim)
    return state


def planned(some, templates=(), allocated=(), now=NOW):
    return list(chain(*plan(state_of(some, templates, allocated), now)))


def test_a_template_that_is_not_there():
    """Made once, however many pods wait for it, in each namespace; not for pods that have a node or are being deleted."""
    some = pods(objects.pod("p"), objects.pod("q"), objects.pod("r", namespace="b"))
    assert planned(some) == [
        Make(KEY, some[Key("a", "p")]),
        Make(Key("b", TEMPLATE), some[Key("b", "r")]),
    ]
    going = objects.pod("p")
    going["metadata"]["deletionTimestamp"] = "2026-11-15T00:00:00Z"
    assert planned(pods(objects.pod("q", node="n"), going)) == []
    assert planned(pods(objects.pod()), [THERE]) == []


@pytest.mark.parametrize(
    ("text", "template"),
    [
        (TEXT, "tessera-0"),
        (TEXT + ",gpu/tessera-any", TEMPLATE),
        ("junk", None),
        ("1*2g.20gb=2g.20gb/c", TEMPLATE),
    ],
)
def test_nothing_for_a_pod_whose_hash_does_not_match(text, template):
    """What it carries must be what its template is named by, and be what the webhook writes."""
    some = pods(objects.pod(text=text, template=template))
    assert planned(some) == []
    assert [one.alternatives for one in some.values()] == [None]


def test_pods_that_are_not_bridged():
    """A pod without the annotation, or without the claim, is none of the controller's business."""
    plain = {"metadata": {"name": "p", "namespace": "a"}, "spec": {"nodeName": "n"}}
    assert FollowedPod.read(json.dumps(plain).encode()) is None
    claimless = objects.pod()
    claimless["spec"]["resourceClaims"] = [{"name": "other", "resourceClaimTemplateName": TEMPLATE}]
    pod = FollowedPod.read(json.dumps(claimless).encode())
    assert pod is not None
    assert not pod.template


def test_unused_templates():
    """Marked when no pod names it, removed a day later, unmarked when one does again; a mark from the future begins anew."""
    assert planned({}, [THERE]) == [Mark(THERE, NOW)]
    marked = replace(THERE, unused_since=NOW - UNUSED_FOR + 1)
    assert planned({}, [marked]) == []
    assert planned({}, [marked], now=NOW + 1) == [Remove(marked)]
    assert planned(pods(objects.pod()), [marked]) == [Mark(marked, None)]
    assert planned(pods(objects.pod(node="n")), [marked]) == [Mark(marked, None)], "a running pod uses it too"
    future = replace(THERE, unused_since=NOW + 5)
    assert planned({}, [future]) == [Mark(future, NOW)]


@pytest.mark.parametrize(
    ("results", "before", "text"),
    [
        ((), "", None),  # not allocated yet
        (("gpu-0/2g-20gb",), "", None),  # what was asked
        (("gpu-0/1g-10gb",), "", "2g.20gb->1g.10gb"),
        (("gpu-0/1g-10gb",), "2g.20gb->1g.10gb", None),  # written already
        (("gpu-0/1g-10gb",), "3g.30gb->2g.20gb", "3g.30gb->2g.20gb,2g.20gb->1g.10gb"),
        (("gpu-0/1g-10gb",), "junk", "2g.20gb->1g.10gb"),
        (("gpu-0/3g-30gb", "x"), "", None),  # nothing that is in the claim
    ],
)
def test_records(results, before, text):
    """What a claim got in place of what was asked is recorded, as the webhook records a fallback."""
    some = pods(objects.pod(node="n", **({RECORD: before} if before else {})))
    found = planned(some, [THERE], claims(objects.claim("uid-p", *results)))
    expected = [Record(some[Key("a", "p")], (("2g.20gb", "1g.10gb"),), text)] if text else []
    assert found == expected


def test_claims_of_others():
    """Claims of other pods, and other claims of the same pod, record nothing."""
    some = pods(objects.pod(node="n"))
    other = objects.claim("uid-p", "gpu-0/1g-10gb")
    other["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "own"}
    assert planned(some, [THERE], claims(other, objects.claim("uid-q", "gpu-0/1g-10gb"))) == []


def test_a_claim_in_another_namespace():
    """A claim can name any pod as its owner: only those of the pod's own namespace are its claims."""
    some = pods(objects.pod(node="n"))
    foreign = objects.claim("uid-p", "gpu-0/1g-10gb", namespace="b")
    assert planned(some, [THERE], claims(foreign)) == []


def test_a_forged_record():
    """However much its owner has written there, what is recorded is read again: it is written once."""
    forged = ",".join(f"{n}g.{n}gb->1g.5gb" for n in range(1, 100))
    for before in (forged, forged + ",2g.20gb->1g.10gb", "x" * 200_000, "," * 200_000):
        some = pods(objects.pod(node="n", **{RECORD: before}))
        allocated = claims(objects.claim("uid-p", "gpu-0/1g-10gb"))
        [record] = planned(some, [THERE], allocated)
        assert record.text.endswith("2g.20gb->1g.10gb")
        assert planned(pods(objects.pod(node="n", **{RECORD: record.text})), [THERE], allocated) == []


def test_namespaces_take_turns():
    """Thousands of pods in one namespace keep the first of another waiting for one template."""
    few = [read(f"{n}*2g.20gb=2g.20gb/c,1g.10gb/c") for n in range(1, 31)]
    some = pods(
        *(objects.pod(f"p{n}", str(one)) for n, one in enumerate(few)), objects.pod("q", namespace="b")
    )
    assert [one.key.namespace for one in planned(some)][:4] == ["a", "b", "a", "a"]


def test_unused_templates_are_few():
    """Of more than a hundred in one namespace, those that are unused for longest go at once."""
    marked = [Template(Key("a", f"t{n}"), f"u{n}", "1", NOW - n) for n in range(102)]
    other = Template(Key("b", "t"), "u", "1", NOW - 500)
    assert planned({}, [*marked, other]) == [Remove(marked[100]), Remove(marked[101])]
    new = [replace(one, unused_since=None) for one in marked[:3]]
    found = planned({}, [*new, *marked[3:]])
    assert found == [*(Mark(one, NOW) for one in new), Remove(marked[100]), Remove(marked[101])]


def test_a_template_that_leaves():
    """One with a finalizer is not removed again and again; while it is there it serves."""
    document = {"metadata": {"name": TEMPLATE, "namespace": "a", "deletionTimestamp": "2026-11-15T00:00:00Z"}}
    leaving = Template.read(json.dumps(document).encode())
    assert planned({}, [leaving], now=NOW) == []
    assert planned({}, [replace(leaving, unused_since=1.0)], now=NOW) == []
    assert planned(pods(objects.pod()), [leaving]) == []


def test_the_largest_pods_take_little_memory():
    """Each of them little more than its text, however large a tenant makes them: the controller has 192 MiB for all."""

    def raw(number):
        names = [f"{n}g.10gb/{'c' * 16}{number:05}" for n in range(1, 9)]
        text = ";".join(f"1*2g.20gb={','.join(names)}" for _ in range(31))
        assert 7_500 < len(text) < 8 * 1024
        return json.dumps(objects.pod(f"p{number}", text, **{RECORD: "x" * 200_000})).encode()

    tracemalloc.start()
    try:
        found = [FollowedPod.read(raw(number)) for number in range(40)]
        FollowedPod.read(json.dumps(objects.pod()).encode())
        read.cache_clear()  # of the last ones
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(one and one.text for one in found)
    assert held < 40 * 12 * 2**10


def test_reading_templates():
    """A mark that is no time is none."""
    metadata = {"name": "t", "namespace": "a", "uid": "u", "resourceVersion": "3"}
    marked = {**metadata, "annotations": {"gpu-webhook.k8s.io/unused-since": "2027-01-15T08:00:00Z"}}
    one = Template.read(json.dumps({"metadata": marked, "spec": {}}).encode())
    assert one == Template(Key("a", "t"), "u", "3", NOW)
    junk = {**metadata, "annotations": {"gpu-webhook.k8s.io/unused-since": "yesterday"}}
    assert Template.read(json.dumps({"metadata": junk}).encode()).unused_since is None


def test_the_template():
    """The whole content, word for word: a request for each, and what the API server would fill in is there."""
    assert template_spec(read("2*2g.20gb=2g.20gb/tessera-any,1g.10gb/own")) == {
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "gpu-0",
                        "firstAvailable": [
                            {
                                "name": "2g-20gb",
                                "deviceClassName": "tessera-any",
                                "allocationMode": "ExactCount",
                                "count": 2,
                                "selectors": [
                                    {
                                        "cel": {
                                            "expression": "device.driver == 'gpu.tessera.dev' && "
                                            "device.attributes['gpu.tessera.dev'].profile == '2g.20gb'"
                                        }
                                    }
                                ],
                            },
                            {
                                "name": "1g-10gb",
                                "deviceClassName": "own",
                                "allocationMode": "ExactCount",
                                "count": 2,
                            },
                        ],
                    }
                ]
            }
        }
    }


worlds = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"]), st.sampled_from(["", "n"]), st.booleans()),
    max_size=6,
)


@given(worlds, st.sampled_from([None, NOW - 10, NOW - 2 * UNUSED_FOR]))
def test_settled(world, since):
    """Once all of a plan is done, there is nothing more to do; and what waiting pods need is never removed."""
    some = pods(*(
        objects.pod(f"p{number}", namespace=space, node=node, template=None if good else "tessera-0")
        for number, space, node, good in world
    ))  # fmt: skip
    templates = {
        one.key: one for one in [replace(THERE, unused_since=since), replace(THERE, key=Key("b", "old"))]
    }
    for _ in range(3):
        for action in planned(some, templates.values()):
            match action:
                case Make(key, _):
                    templates[key] = Template(key, "new", "1")
                case Mark(template, marked):
                    templates[template.key] = replace(template, unused_since=marked)
                case Remove(template):
                    del templates[template.key]
    assert planned(some, templates.values()) == []
    for one in some.values():
        if one.waits and one.alternatives is not None:
            assert Key(one.key.namespace, one.template) in templates


changes = st.lists(
    st.tuples(
        st.sampled_from(["pod", "claim", "no pod", "no claim"]),
        st.integers(0, 2),  # which
        st.integers(0, 2),  # UID of the pod
        st.booleans(),  # a pod: with a node; a claim: served with less
        st.booleans(),  # a pod: with a record
    ),
    max_size=20,
)


@given(changes)
def test_what_happened_before_does_not_matter(happened):
    """A plan after any changes is the plan for what is there now; only the order within a kind may differ."""
    state = ClaimState()
    for what, which, uid, yes, recorded in happened:
        match what:
            case "pod":
                record = {RECORD: "2g.20gb->1g.10gb"} if recorded else {}
                made = objects.pod(f"p{which}", uid=f"u{uid}", node="n" if yes else "", **record)
                [pod] = pods(made).values()
                state.put_pod(pod)
            case "claim":
                results = ("gpu-0/1g-10gb",) if yes else ()
                [claim] = claims(objects.claim(f"u{uid}", *results, name=f"c{which}"))
                state.put_claim(claim)
            case "no pod":
                state.remove_pod(Key("a", f"p{which}"))
            case _:
                state.remove_claim(Key("a", f"c{which}"))
    fresh = state_of(state.pods, state.templates.values(), state.claims.values())
    assert (state.users, set(state.waiting)) == (fresh.users, set(fresh.waiting))
    assert state.records.keys() == fresh.records.keys()
    if len({pod.uid for pod in state.pods.values()}) == len(state.pods):  # as API servers give them out
        assert state.records == fresh.records


def test_a_plan_does_not_look_at_settled_pods():
    """What is settled costs nothing: ten thousand running pods with their records leave nothing to iterate over."""
    [text] = pods(objects.pod(node="n", **{RECORD: "2g.20gb->1g.10gb"})).values()
    state = ClaimState()
    state.put_template(THERE)
    for number in range(10_000):
        state.put_pod(structs.replace(text, key=Key("a", f"p{number}"), uid=f"u{number}"))
        state.put_claim(PodsClaim(Key("a", f"c{number}"), f"u{number}", ("gpu-0/1g-10gb",)))
    assert (state.waiting, state.records, len(state.users)) == ({}, {}, 1)
    assert list(chain(*plan(state, NOW))) == []
