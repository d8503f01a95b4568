"""ResourceQuotas and what can replace a pod's request."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.admission.decision import decide
from tessera.core.admission.explanation import rules
from tessera.core.admission.outcome import Allowed, Denied, Patched
from tessera.core.kubernetes.node import Namespace
from tessera.core.kubernetes.pod import needs
from tessera.core.kubernetes.quota import Allowance, Quota
from tessera.core.kubernetes.scheduling import Requirement
from tessera.core.requests.record import apply
from tessera.core.resources import of_short
from tests.build import container, node, offers, pod, policy, resource
from tests.examples import examples

EVERYTHING = node("n", **{"1g.10gb": 8, "1g.20gb": 8, "2g.20gb": 8, "gpu": 8})


def quota(name="gpus", *, used=None, scopes=(), namespace="default", **hard):
    return Quota(
        namespace,
        name,
        {resource(key): value for key, value in hard.items()},
        {resource(key): value for key, value in (used or {}).items()},
        scopes,
    )


def cluster(*quotas, nodes=(EVERYTHING,), namespaces=()):
    made = offers(*nodes, namespaces=namespaces)
    for one in quotas:
        made.put_quota(one)
    return made


def replaced(asker, *quotas, text="", nodes=(EVERYTHING,)):
    """What the profiles became; the message where the pod was rejected."""
    decision = decide(asker, cluster(*quotas, nodes=nodes), policy(text))
    if isinstance(decision, Denied):
        return decision.message
    return dict(decision.replaced) if isinstance(decision, Patched) else {}


THREE = pod(container(**{"3g.30gb": 1}))


@pytest.mark.parametrize(
    ("quotas", "becomes"),
    [
        ([], {"3g.30gb": "2g.20gb"}),
        ([quota(**{"1g.10gb": 2})], {"3g.30gb": "1g.10gb"}),
        ([quota(**{"1g.10gb": 2}, used={"1g.10gb": 1})], {"3g.30gb": "1g.10gb"}),
        ([quota(**{"1g.10gb": 2}, namespace="other")], {"3g.30gb": "2g.20gb"}),
        ([quota("a", **{"1g.10gb": 2}), quota("b", **{"1g.20gb": 1})], {"3g.30gb": "1g.20gb"}),
        ([quota("a", **{"2g.20gb": 2}), quota("b", **{"2g.20gb": 1}, used={"2g.20gb": 1}), quota("c", gpu=1)], {"3g.30gb": "gpu"}),
        ([quota(gpu=1)], {"3g.30gb": "gpu"}),
        ([quota(**{"3g.30gb": 0}), quota("b", **{"1g.10gb": 1})], {"3g.30gb": "1g.10gb"}),
    ],
    ids=["none", "named", "within", "another namespace", "best named", "all of them", "a whole GPU", "what was asked"],
)  # fmt: skip
def test_only_what_a_quota_names_replaces(quotas, becomes):
    """The best that some quota names and every quota has room for."""
    assert replaced(THREE, *quotas) == becomes


def test_the_reason_names_the_quota():
    """A tenant with a quota for 1g never ends up on anything else; the message says by which quota."""
    full = quota(**{"1g.10gb": 2}, used={"1g.10gb": 2})
    assert replaced(THREE, full) == (
        "asked for nvidia.com/mig-3g.30gb: 1, and no node that this pod can use offers it; tried "
        '2g.20gb (over the quota: "gpus" does not name 2g.20gb), 1g.20gb (over the quota: "gpus" does not name 1g.20gb), '
        '1g.10gb (over the quota "gpus": 2 used and 1 needed of 2), gpu (over the quota: "gpus" does not name gpu); '
        "the nodes that this pod can use offer gpu (up to 8 a node), 1g.10gb (up to 8 a node), 1g.20gb (up to 8 a node), "
        "2g.20gb (up to 8 a node)"
    )


def test_what_was_asked_is_for_the_api_server():
    """A pod whose profile is offered is not touched, whatever quotas say."""
    asker = pod(container(**{"2g.20gb": 1}))
    full = quota(**{"1g.10gb": 0, "2g.20gb": 0})
    assert decide(asker, cluster(full), policy()) == Allowed("what it asks for is offered")


def test_quotas_can_be_ignored():
    """`fallback.quota: ignore` leaves them to the API server."""
    text = "fallback: {quota: ignore}"
    assert replaced(THREE, quota(**{"1g.10gb": 0}), text=text) == {"3g.30gb": "2g.20gb"}


def test_counted_by_the_most_at_one_time():
    """Init containers run before the others: the pod needs the larger of the two, whole GPUs besides included."""
    asker = pod(container(**{"3g.30gb": 1}), init=(container(**{"3g.30gb": 2}),))
    assert replaced(asker, quota(**{"1g.10gb": 2})) == {"3g.30gb": "1g.10gb"}
    assert "2 needed of 1" in replaced(asker, quota(**{"1g.10gb": 1}))
    beside = pod(container(**{"3g.30gb": 1}), container("b", gpu=1))
    assert "2 needed of 1" in replaced(beside, quota(gpu=1))
    assert replaced(beside, quota(gpu=2)) == {"3g.30gb": "gpu"}


def test_two_profiles_that_become_one_count_together():
    """Each alone has room, both have none."""
    asker = pod(container(**{"3g.30gb": 1}), container("b", **{"4g.40gb": 1}))
    assert replaced(asker, quota(**{"1g.10gb": 2})) == {"3g.30gb": "1g.10gb", "4g.40gb": "1g.10gb"}
    assert replaced(asker, quota(**{"1g.10gb": 1, "1g.20gb": 1})) == {
        "3g.30gb": "1g.20gb",
        "4g.40gb": "1g.10gb",
    }
    assert "not together with the rest" in replaced(asker, quota(**{"1g.10gb": 1}))
    kept = pod(container(**{"1g.10gb": 1}), container("b", **{"3g.30gb": 1}))
    assert isinstance(replaced(kept, quota(**{"1g.10gb": 1})), str), "with what is asked for as it is"
    assert replaced(kept, quota(**{"1g.10gb": 2})) == {"3g.30gb": "1g.10gb"}


BATCH, SERVING = Requirement("Terminating", "Exists"), Requirement("NotTerminating", "Exists")
PLAIN = pod(container(gpu=1))


@pytest.mark.parametrize(
    ("scopes", "asker", "counts"),
    [
        ((), PLAIN, True),
        ((BATCH,), pod(has_deadline=True), True),
        ((BATCH,), PLAIN, False),
        ((SERVING,), PLAIN, True),
        ((SERVING,), pod(has_deadline=True), False),
        ((Requirement("BestEffort", "Exists"),), PLAIN, True),
        ((Requirement("BestEffort", "Exists"),), pod(container(gpu=1, cpu=1)), False),
        ((Requirement("BestEffort", "Exists"),), pod(container(gpu=1, cpu=0)), True),
        ((Requirement("BestEffort", "Exists"),), pod(container(gpu=1), init=(container(memory=1),)), False),
        ((Requirement("BestEffort", "Exists"),), pod(pod_requests={"cpu": 1}), False),
        ((Requirement("NotBestEffort", "Exists"),), PLAIN, False),
        ((Requirement("NotBestEffort", "Exists"),), pod(container(gpu=1, memory=1)), True),
        ((Requirement("PriorityClass", "Exists"),), PLAIN, False),
        ((Requirement("PriorityClass", "Exists"),), pod(priority_class="high"), True),
        ((Requirement("PriorityClass", "DoesNotExist"),), PLAIN, True),
        ((Requirement("PriorityClass", "In", ("high", "top")),), pod(priority_class="high"), True),
        ((Requirement("PriorityClass", "In", ("high",)),), pod(priority_class="low"), False),
        ((Requirement("PriorityClass", "In", ("high",)),), PLAIN, False),
        ((Requirement("PriorityClass", "NotIn", ("high",)),), PLAIN, True),
        ((Requirement("PriorityClass", "NotIn", ("high",)),), pod(priority_class="high"), False),
        ((Requirement("CrossNamespacePodAffinity", "Exists"),), PLAIN, False),
        ((Requirement("CrossNamespacePodAffinity", "Exists"),), pod(looks_across_namespaces=True), True),
        ((BATCH, Requirement("PriorityClass", "Exists")), pod(has_deadline=True), False),
        ((Requirement("VolumeAttributesClass", "Exists"),), PLAIN, False),
    ],
)  # fmt: skip
def test_scopes(scopes, asker, counts):
    """A pod is counted in a quota when it is in all its scopes, as the quota controller has them."""
    assert quota(scopes=scopes, gpu=1).counts(asker) is counts


def test_scopes_bound_and_names_allow():
    """A resource is named by any quota of the namespace, and bounded by those that count the pod."""
    serving = quota("serving", scopes=(SERVING,), **{"2g.20gb": 0})
    batch = quota("batch", scopes=(BATCH,), **{"1g.10gb": 0})
    assert replaced(THREE, serving, batch) == {"3g.30gb": "1g.10gb"}
    assert replaced(pod(container(**{"3g.30gb": 1}), has_deadline=True), serving, batch) == {
        "3g.30gb": "2g.20gb"
    }


def test_best_effort_is_not_known_before_injection():
    """What is injected makes a pod more than best effort: then both kinds of quotas bound it."""
    for scope in ("BestEffort", "NotBestEffort"):
        bound = Allowance([quota(scopes=(Requirement(scope, "Exists"),), gpu=0)], PLAIN, qos_known=False)
        assert bound.obstacle(resource("gpu"), 1)


def test_a_pods_own_use():
    """A pod that is counted is taken out of what is used, never below nothing; any other changes nothing."""
    asker = pod(container(**{"1g.10gb": 2}))
    one = quota(**{"1g.10gb": 4, "gpu": 1}, used={"1g.10gb": 3, "gpu": 1})
    assert one.without(asker).used == {resource("1g.10gb"): 1, resource("gpu"): 1}
    assert quota(**{"1g.10gb": 4}, used={"1g.10gb": 1}).without(asker).used == {resource("1g.10gb"): 0}
    elsewhere = quota(scopes=(BATCH,), **{"1g.10gb": 4}, used={"1g.10gb": 3})
    assert elsewhere.without(asker) is elsewhere


def test_offers_keep_quotas():
    """The very same tuple as long as nothing changes; a quota that names no GPU is none."""
    made = cluster(quota("b", gpu=1), quota("a", gpu=1))
    before = made.quotas["default"]
    assert [one.name for one in before] == ["a", "b"]
    made.put_quota(quota("a", gpu=1))
    assert made.quotas["default"] is before
    made.put_quota(quota("a", gpu=1, used={"gpu": 1}))
    assert made.quotas["default"] is not before
    made.put_quota(quota("a"))
    assert [one.name for one in made.quotas["default"]] == ["b"]
    made.remove_quota("default", "b")
    made.remove_quota("default", "never there")
    assert made.quotas == {}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 'replacements within the quota "gpus" (1g.10gb 1 of 2 used)'),
        ("fallback: {quota: ignore}", "quotas do not matter (fallback.quota: ignore)"),
    ],
)
def test_explained(text, line):
    """The rules that hold for a pod name its quotas."""
    made = cluster(quota(**{"1g.10gb": 2}, used={"1g.10gb": 1}))
    assert line in list(rules(THREE, made, policy(text)))


def test_namespace_never_pod_any():
    """A pod cannot allow itself what its namespace forbids, with or without a quota."""
    key = "gpu-webhook.k8s.io/fallback-policy"
    team = Namespace("default", annotations={key: "never"})
    asker = pod(container(**{"3g.30gb": 1}), annotations={key: "any"})
    found = decide(asker, cluster(quota(**{"1g.10gb": 2}), namespaces=(team,)), policy())
    assert isinstance(found, Allowed)
    assert found.reason.endswith("; namespace default's fallback-policy is `never`")


names = st.sampled_from(["1g.10gb", "1g.20gb", "2g.20gb", "gpu"])
quotas = st.lists(
    st.builds(
        lambda name, hard, used, scopes: quota(name, used=used, scopes=scopes, **hard),
        st.sampled_from("abc"),
        st.dictionaries(names, st.integers(0, 4), min_size=1, max_size=3),
        st.dictionaries(names, st.integers(0, 4), max_size=2),
        st.sampled_from([(), (BATCH,), (SERVING,)]),
    ),
    max_size=3,
    unique_by=lambda one: one.name,
)
askers = st.builds(
    lambda some, init, deadline: pod(
        *(container(f"c{i}", **one) for i, one in enumerate(some)),
        init=tuple(container(**one) for one in init),
        has_deadline=deadline,
    ),
    st.lists(st.dictionaries(st.sampled_from(["1g.10gb", "3g.30gb", "4g.40gb", "gpu"]), st.integers(1, 2), max_size=2), min_size=1, max_size=2),
    st.lists(st.dictionaries(st.sampled_from(["3g.30gb", "gpu"]), st.integers(1, 2), max_size=1), max_size=1),
    st.booleans(),
)  # fmt: skip


@given(askers, quotas, st.dictionaries(names, st.integers(0, 8)))
@settings(max_examples=examples(300))
def test_a_replacement_never_exceeds_a_quota(asker, some, has):
    """Whatever was chosen: a quota names it, and every quota that counts the pod has room for all of it."""
    decision = decide(asker, cluster(*some, nodes=(node("n", **has),)), policy("fallback: {maxWholeGPUs: 9}"))
    if not some or not isinstance(decision, Patched) or not decision.replaced:
        return
    by = {of_short(old): of_short(new) for old, new in decision.replaced}
    needed = needs(apply(asker, by), lambda _: True)
    for to in by.values():
        assert any(to in one.hard for one in some)
        for one in some:
            if to in one.hard and one.counts(asker):
                assert one.used.get(to, 0) + needed[to] <= one.hard[to]
