"""Fallback by what is free, at the webhook: the mark, the rooms that are kept, what is remembered, counted and reported."""

import base64
import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import BoundPod, Origin, usage_of
from tessera.core.kubernetes.node import Namespace
from tessera.core.kubernetes.quota import Quota
from tessera.core.requests.record import read_asked
from tessera.serving.logs import Log
from tessera.webhook.endpoint import Admission, Endpoint
from tessera.webhook.metrics import Metrics
from tests.build import MIG, container, node, offers, pod, pod_document, policy, review
from tests.examples import examples

FULL = policy("fallback: {when: full}")
MARK, RECORD = "gpu-webhook.k8s.io/decided-when", "gpu-webhook.k8s.io/fallback"
LARGE, SMALL = {"limits": {MIG + "2g.20gb": "1"}}, {"limits": {MIG + "1g.10gb": "1"}}
ORIGIN = Origin("default", "u", "web-")


class Replica:
    """One webhook, whose followers get pods by hand."""

    def __init__(self, view: Offers, rules: Policy = FULL, follows: bool = True) -> None:
        self.time = 0.0
        self.view = view
        if follows:
            view.follow_pods()
        self.admission = Admission(view, rules, lambda: self.time)

    @property
    def free(self):
        assert self.view.free is not None
        return self.view.free

    def bind(self, name: str, where: str, **asks: object) -> None:
        self.free.put_pod(
            f"default/{name}", BoundPod(where, usage_of(pod(container(**asks))), ORIGIN), self.time
        )

    def send(self, document: Any, **request: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The response, with its patch decoded, and the pod as it is then."""
        response: dict[str, Any] = json.loads(self.admission.answer(review(document, **request)))["response"]
        after = copy.deepcopy(document)
        if "patch" in response:
            response["patch"] = json.loads(base64.b64decode(response["patch"]))
            after = jsonpatch.apply_patch(after, response["patch"])
        return response, after


def made_by(name: str, **fields: Any) -> dict[str, Any]:
    """Metadata of a pod that a ReplicaSet makes."""
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": name,
        "uid": f"uid-{name}",
        "controller": True,
    }
    return {"name": None, "generateName": f"{name}-", "ownerReferences": [owner], **fields}


def asks_for(document: Any) -> dict[str, dict[str, Any]]:
    return {
        one["name"]: (one.get("resources") or {}).get("limits", {}) for one in document["spec"]["containers"]
    }


def both(large: int = 1, small: int = 2) -> Offers:
    return offers(node("n", **{"2g.20gb": large, "1g.10gb": small}))


def test_thirty_pods_at_once():
    """Eight 2g and twenty 1g, thirty pods that ask for 2g before any of them is seen: 8 stay, 20 get 1g, 2 wait as asked; none is rejected."""
    replica = Replica(both(8, 20))
    got = [asks_for(replica.send(pod_document(LARGE, **made_by("train")))[1])["c0"] for _ in range(30)]
    assert got == [LARGE["limits"]] * 8 + [SMALL["limits"]] * 20 + [LARGE["limits"]] * 2
    assert replica.free.reservations == 30


def test_quotas_count_what_was_admitted():
    """Pods that were admitted here and were not seen yet count against their namespace's quota: none falls back to what the quota would refuse."""
    replica = Replica(both(1, 20))
    small, large = (MIG + profile for profile in ("1g.10gb", "2g.20gb"))
    replica.view.put_quota(Quota("default", "q", {small: 3, large: 30}, {small: 1}))
    got = [asks_for(replica.send(pod_document(LARGE, **made_by("train")))[1])["c0"] for _ in range(5)]
    assert got == [LARGE["limits"], SMALL["limits"], SMALL["limits"], LARGE["limits"], LARGE["limits"]]
    # the quota counts them, and they are seen
    replica.view.put_quota(Quota("default", "q", {small: 4, large: 30}, {small: 3}))
    replica.free.expire(10.0)
    replica.free.put_pod("default/a", BoundPod("n", usage_of(pod(container(**{"2g.20gb": 1}))), None), 10.0)
    assert asks_for(replica.send(pod_document(LARGE, **made_by("train")))[1])["c0"] == SMALL["limits"]


def test_what_was_admitted_counts_for_ten_seconds():
    """A pod that never appears, since the API server rejected it later, keeps its room for 10 s at most; one that is seen takes its own."""
    replica = Replica(both())
    replica.send(pod_document(LARGE, **made_by("a")))
    assert asks_for(replica.send(pod_document(LARGE, **made_by("b")))[1])["c0"] == SMALL["limits"]
    replica.time = 9.9
    replica.free.expire(9.9)
    assert replica.free.reservations == 2
    replica.time = 10.0
    replica.free.expire(10.0)
    assert replica.free.reservations == 0
    assert asks_for(replica.send(pod_document(LARGE, **made_by("c")))[1])["c0"] == LARGE["limits"]
    seen = BoundPod("n", usage_of(pod(container(**{"2g.20gb": 1}))), Origin("default", "uid-c", "c-"))
    replica.free.put_pod("default/c-1", seen, 10.0)
    assert replica.free.reservations == 0


def test_placed_as_asked_is_unchanged_but_for_the_mark():
    """The patch of a pod whose request is free is its mark alone; nothing is reported, and it counts as unchanged."""
    replica = Replica(both())
    response, after = replica.send(pod_document(LARGE))
    place = "/metadata/annotations"
    assert [one["path"] for one in response["patch"]] == [place, f"{place}/{MARK.replace('/', '~1')}"]
    assert read_asked(after["metadata"]["annotations"][MARK]) == {"c0": {MIG + "2g.20gb": 1}}
    assert after["spec"] == pod_document(LARGE)["spec"]
    assert "warnings" not in response
    assert "auditAnnotations" not in response


def test_a_marked_pod_comes_again():
    """A pod that comes again, changed by another webhook, is neither decided nor reserved again, although by now its own room is taken."""
    replica = Replica(both())
    for gets in (LARGE, SMALL, SMALL, LARGE):  # the last one waits
        _, after = replica.send(pod_document(LARGE, **made_by("web")))
        assert asks_for(after)["c0"] == gets["limits"]
        kept = replica.free.reservations
        after["spec"]["containers"].append(
            {"name": "proxy", "image": "x", "resources": {"limits": {"cpu": "1"}}}
        )
        after["metadata"]["labels"] = {"injected": "yes"}
        again, same = replica.send(after)
        assert again["allowed"]
        assert "patch" not in again
        assert same == after
        assert replica.free.reservations == kept


def test_containers_that_came_later():
    """With containers that ask for GPUs and came later the whole pod is decided about: its first room does not count, and it has one room in the end."""
    replica = Replica(both(large=1, small=1))
    _, first = replica.send(pod_document(LARGE, **made_by("web")))
    assert asks_for(first) == {"c0": LARGE["limits"]}
    first["spec"]["containers"].append({"name": "late", "image": "x", "resources": SMALL})
    _, second = replica.send(first)
    assert asks_for(second) == {"c0": LARGE["limits"], "late": SMALL["limits"]}, "its own room does not count"
    assert read_asked(second["metadata"]["annotations"][MARK]) == {"c0": {MIG + "2g.20gb": 1}, "late": {MIG + "1g.10gb": 1}}  # fmt: skip
    assert replica.free.reservations == 1
    assert "patch" not in replica.send(second)[0]
    assert replica.free.reservations == 1
    view = replica.view.now()
    assert view is not None
    assert view.anywhere() == {}, "both are kept for this pod"


def test_a_later_container_falls_back():
    """What came later gets the first that is free beside what the pod has already."""
    replica = Replica(both(large=1, small=1))
    _, first = replica.send(pod_document(LARGE, **made_by("web")))
    first["spec"]["containers"].append({"name": "late", "image": "x", "resources": LARGE})
    _, second = replica.send(first)
    assert asks_for(second) == {"c0": LARGE["limits"], "late": LARGE["limits"]}, (
        "one profile becomes one, and two 1g are not there: it waits"
    )
    roomy = Replica(both(large=1, small=2))
    _, first = roomy.send(pod_document(LARGE, **made_by("web")))
    first["spec"]["containers"].append({"name": "late", "image": "x", "resources": LARGE})
    _, second = roomy.send(first)
    assert asks_for(second) == {"c0": SMALL["limits"], "late": SMALL["limits"]}
    assert "patch" not in roomy.send(second)[0]


@pytest.mark.parametrize("request_fields", [{"dryRun": True}, {"namespace": "watched"}])
def test_dry_runs_and_observe_mode_keep_no_room(request_fields):
    """A dry run and observe mode leave what is free as it was; both say what would be. A dry run shows the mark, observe mode writes none."""
    view = both(1, 1)
    view.put_namespace(Namespace("watched", labels={"gpu-webhook": "observe"}))
    replica = Replica(view)
    for _ in range(3):
        response, after = replica.send(pod_document(LARGE), **request_fields)
        assert response["allowed"]
        assert ("patch" in response) == ("dryRun" in request_fields)
        assert asks_for(after)["c0"] == LARGE["limits"]
    assert (replica.free.reservations, replica.free.rooms) == (0, 0)
    replica.bind("other", "n", **{"2g.20gb": 1})
    response, after = replica.send(pod_document(LARGE), **request_fields)
    if "dryRun" in request_fields:
        assert asks_for(after)["c0"] == SMALL["limits"]
    else:
        assert response["warnings"] == [
            "observe mode: would be changed to 1g.10gb: no node that this pod can use has 2g.20gb free"
        ]
        assert response["auditAnnotations"] == {"mode": "observe", "would-fallback": "2g.20gb->1g.10gb", "would-fallback-reason": "full"}  # fmt: skip
    assert (replica.free.reservations, replica.free.rooms) == (0, 0)


def test_a_dry_run_gives_no_room_back():
    """A dry run of a pod with an earlier mark takes nothing from the pods that were really admitted."""
    replica = Replica(both())
    _, first = replica.send(pod_document(LARGE, **made_by("web")))
    first["spec"]["containers"].append({"name": "late", "image": "x", "resources": SMALL})
    replica.send(first, dryRun=True)
    assert replica.free.reservations == 1


def test_who_is_rejected_keeps_no_room():
    """A pod that is rejected has no room, and neither has one for which what is free does not matter."""
    replica = Replica(both(), policy("fallback: {when: full, downgrades: false, upgrades: false}"))
    assert not replica.send(pod_document({"limits": {MIG + "3g.40gb": "1"}}))[0]["allowed"]
    important = pod_document(LARGE)
    important["spec"]["priority"] = 100
    response, _ = replica.send(important)
    assert response["allowed"]
    assert "patch" not in response
    assert (replica.free.reservations, replica.free.rooms) == (0, 0)


def test_what_is_remembered():
    """Decisions by what is free are not remembered; all others are, with pods followed or not, and `missing` pods beside them too."""
    replica = Replica(both())
    memory = replica.admission.memory
    replica.send(pod_document(LARGE))
    assert len(memory) == 0
    missing = pod_document(LARGE, annotations={"gpu-webhook.k8s.io/fallback-when": "missing"})
    important = pod_document(LARGE)
    important["spec"]["priority"] = 100
    plain = pod_document({"limits": {"cpu": "1"}})
    for number, document in enumerate((missing, important, plain), start=1):
        first, again = replica.send(document), replica.send(document)
        assert first == again
        assert len(memory) == number
    never = Replica(both(), policy("fallback: {when: full, downgrades: false}"))
    never.send(pod_document({"limits": {MIG + "3g.40gb": "1"}}))
    assert len(never.admission.memory) == 1, "a rejection does not depend on what is free"
    unfollowed = Replica(both(), follows=False)
    unfollowed.send(pod_document(LARGE))
    assert len(unfollowed.admission.memory) == 1


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("metadata", "labels"), {"kueue.x-k8s.io/queue-name": "team"}),
        (("metadata", "labels"), {"kueue.x-k8s.io/managed": "true"}),
        (("metadata", "labels"), {"kueue.x-k8s.io/podset": "main"}),
        (("spec", "schedulingGates"), [{"name": "wait"}]),
        (("spec", "schedulerName"), "volcano"),
        (("spec", "priority"), 5),
        (("spec", "priorityClassName"), "high"),
        (("spec", "nodeName"), "n"),
    ],
)
def test_whom_it_does_not_concern_as_documents(place, value):
    """What keeps a pod from being decided about by what is free is read from its document, and is part of what a remembered answer depends on."""
    replica = Replica(both(1, 9))
    replica.bind("other", "n", **{"2g.20gb": 1})
    exempt = pod_document(LARGE)
    exempt[place[0]][place[1]] = value
    for _ in range(2):
        assert asks_for(replica.send(exempt)[1])["c0"] == LARGE["limits"]
        assert asks_for(replica.send(pod_document(LARGE))[1])["c0"] == SMALL["limits"]


def test_pods_are_followed_later():
    """What was decided before it was known what is free, or after it was known no more, is not answered again."""
    replica = Replica(both(), follows=False)
    for _ in range(2):
        assert "patch" not in replica.send(pod_document(LARGE))[0]
    replica.view.follow_pods()
    replica.bind("other", "n", **{"2g.20gb": 1})
    assert asks_for(replica.send(pod_document(LARGE))[1])["c0"] == SMALL["limits"]
    replica.view.forget_pods()
    assert "patch" not in replica.send(pod_document(LARGE))[0]


def test_a_rejection_by_injection_is_not_remembered():
    """What injection rejects today it may not have to reject tomorrow: something else is free then."""
    rules = policy(
        """
        fallback: {when: full}
        injection: {resourceMap: {V100: {nvidia.com/mig-2g.20gb: {resourceList: [{name: cpu, coefficient: 1}]}}}}
        """
    )
    replica = Replica(both(), rules)
    document = pod_document(
        LARGE, {"limits": {"cpu": "2"}}, annotations={"task.bkbcs.tencent.com/gpu-type": "V100"}
    )
    assert not replica.send(document)[0]["allowed"]
    assert len(replica.admission.memory) == 0
    replica.bind("other", "n", **{"2g.20gb": 1})
    response, after = replica.send(document)
    assert response["allowed"]
    assert asks_for(after)["c0"] == SMALL["limits"]


def test_counted_and_logged(tmp_path):
    """Metrics distinguish a fallback for want of what is free from one for want of an offer, and why what is free did not matter; the log has the reason."""
    replica = Replica(both(1, 4))
    metrics = Metrics("1")
    with (tmp_path / "log").open("wb") as file:
        endpoint = Endpoint(replica.admission, lambda: None, metrics, Log("json", "info", file.fileno()))
        important = pod_document(LARGE)
        important["spec"]["priority"] = 100
        large, larger = pod_document(LARGE, **made_by("a")), pod_document({"limits": {MIG + "3g.40gb": "1"}})
        for one in (large, large, larger, important, replica.send(pod_document(SMALL))[1]):
            endpoint.handle(review(one))
    text = metrics.text().decode()
    for line in (
        'gpu_webhook_fallback_total{from="2g.20gb",to="1g.10gb"} 1',
        'gpu_webhook_fallback_total{from="3g.40gb",to="1g.10gb"} 1',
        'gpu_webhook_fallback_reason_total{reason="full"} 2',
        'gpu_webhook_fallback_reason_total{reason="missing"} 0',
        'gpu_webhook_fallback_full_total{way="full"} 3',
        'gpu_webhook_fallback_full_total{way="priority"} 1',
        'gpu_webhook_fallback_full_total{way="marked"} 1',
        'gpu_webhook_fallback_full_total{way="no_view"} 0',
        'gpu_webhook_demand_total{profile="2g.20gb",result="asked"} 3',
        'gpu_webhook_demand_total{profile="2g.20gb",result="got"} 2',
    ):
        assert line in text
    assert 'profile="1g.10gb"' not in text, "a marked pod was counted when it came first"
    assert "2g.20gb is taken, 1g.10gb is the first that is free" in (tmp_path / "log").read_text()


# Marks that an author writes


def mark(**asked: dict[str, str]) -> str:
    return json.dumps(asked, separators=(",", ":"))


OWN = mark(c0={MIG + "2g.20gb": "1"})


@pytest.mark.parametrize(
    ("text", "resources", "rules", "is_missing"),
    [
        pytest.param(OWN, LARGE, "{}", True, id="its own request: it stays, and waits, as with missing"),
        pytest.param(mark(c0={MIG + "3g.40gb": "1"}), {"limits": {MIG + "3g.40gb": "1"}}, "{}", True, id="what is not offered at all: replaced as with missing"),
        pytest.param(mark(c0={MIG + "3g.40gb": "1"}), {"limits": {MIG + "3g.40gb": "1"}}, "{downgrades: false}", True, id="what is not offered, and nothing may replace it: rejected as with missing"),
        pytest.param(mark(c0={MIG + "3g.40gb": "1"}), {"limits": {MIG + "3g.40gb": "1"}}, "{minMemory: 20Gi}", True, id="below the minimum: as with missing"),
        pytest.param(mark(c0={MIG + "2g.20gb": "9"}), {"limits": {MIG + "2g.20gb": "9"}}, "{}", True, id="more than one node has: as with missing"),
        pytest.param(mark(c0={MIG + "1g.10gb": "1"}), LARGE, "{}", False, id="something else"),
        pytest.param(mark(c0={MIG + "2g.20gb": "2"}), LARGE, "{}", False, id="another number"),
        pytest.param(mark(other={MIG + "2g.20gb": "1"}), LARGE, "{}", False, id="another container"),
        pytest.param(mark(c0={MIG + "2g.20gb": "1"}, gone={MIG + "1g.10gb": "1"}), LARGE, "{}", False, id="a container that is not there"),
        pytest.param("full", LARGE, "{}", False, id="no mark at all"),
        pytest.param("", LARGE, "{}", False, id="empty"),
        pytest.param(OWN + " " * 5000, LARGE, "{}", False, id="too long"),
        pytest.param(OWN.replace(":", ": "), LARGE, "{}", False, id="not as the webhook writes it"),
    ],
)  # fmt: skip
def test_a_forged_mark_gains_nothing(text, resources, rules, is_missing):
    """A mark that agrees says no more than `fallback-when: missing` does, which an author may say. Any other is none, and is overwritten."""
    full, missing = (policy(f"fallback: {{when: {when}, {rules[1:]}") for when in ("full", "missing"))
    replica, plain = Replica(both(), full), Replica(both(), missing)
    for one in (replica, plain):
        one.bind("other", "n", **{"2g.20gb": 1})
    response, after = replica.send(pod_document(resources, annotations={MARK: text}))
    without, expected = plain.send(pod_document(resources))
    assert response["allowed"] == without["allowed"]
    if is_missing:
        assert asks_for(after) == asks_for(expected)
        assert response.get("status") == without.get("status")
        assert after["metadata"]["annotations"].get(MARK) == text
        assert replica.free.reservations == 0
    else:
        honest = Replica(both(), full)
        honest.bind("other", "n", **{"2g.20gb": 1})
        assert after == honest.send(pod_document(resources))[1], "as if there were no mark"
        assert replica.free.reservations == 1


def test_a_mark_in_a_template_written_by_hand():
    """Each pod of a template that someone copied with a mark is decided about as with `missing` while it agrees, and again when the request is edited."""
    replica = Replica(both())
    replica.bind("other", "n", **{"2g.20gb": 1})
    copied = pod_document(LARGE, **made_by("web", annotations={MARK: OWN}))
    assert asks_for(replica.send(copied)[1])["c0"] == LARGE["limits"]
    edited = pod_document({"limits": {MIG + "2g.20gb": "2"}}, **made_by("web", annotations={MARK: OWN}))
    assert asks_for(replica.send(edited)[1])["c0"] == {MIG + "1g.10gb": "2"}


def test_quotas_hold_for_marked_pods():
    """A mark lifts no quota: a replacement still stays within it."""
    view = both()
    view.put_quota(Quota("default", "q", {MIG + "3g.40gb": 4}, {}))
    replica = Replica(view)
    text = mark(c0={MIG + "3g.40gb": "1"})
    response, _ = replica.send(pod_document({"limits": {MIG + "3g.40gb": "1"}}, annotations={MARK: text}))
    assert not response["allowed"]
    assert "quota" in response["status"]["message"]


# Laws

PROFILES = ["1g.10gb", "2g.20gb", "3g.40gb"]
sizes = st.dictionaries(st.sampled_from(PROFILES), st.integers(1, 3), min_size=1)
requests = st.dictionaries(
    st.sampled_from([MIG + one for one in PROFILES]), st.sampled_from(["1", "2"]), max_size=2
)
INJECTING = policy(
    """
    fallback: {when: full}
    injection: {resourceMap: {V100: {nvidia.com/mig-1g.10gb: {resourceList: [{name: cpu, coefficient: 1}, {name: memory, coefficient: 4, unit: Gi}]}}}}
    """
)


@given(
    st.lists(sizes, min_size=1, max_size=2),
    st.lists(st.lists(requests, min_size=1, max_size=2), min_size=1, max_size=5),
    st.lists(requests, max_size=1),
    st.sampled_from([FULL, INJECTING]),
)
@settings(max_examples=examples(200))
def test_admission_twice_is_admission_once(shapes, every, later, rules):
    """Pods admitted one after the other, each sent again by another webhook, at once and after all others: none changes again, and no room is kept twice.

    With a container that came later, the pod is decided about once more; then it stays.
    """
    replica = Replica(offers(*(node(f"n{i}", **has) for i, has in enumerate(shapes))), rules)
    admitted = []
    for number, asked in enumerate(every):
        typed = {"annotations": {"task.bkbcs.tencent.com/gpu-type": "V100"}} if number % 2 else {}
        response, after = replica.send(
            pod_document(*({"limits": one} for one in asked), **made_by(f"w{number}", **typed))
        )
        if not response["allowed"]:
            continue
        kept = replica.free.reservations
        after["spec"]["containers"] += [
            {"name": f"late{i}", "image": "x", "resources": {"limits": one}} for i, one in enumerate(later)
        ]
        response, second = replica.send(after)
        if not response["allowed"]:  # nothing may stand for what came later
            continue
        if not any(later):
            assert second == after
            assert replica.free.reservations == kept
        assert replica.free.reservations <= kept + 1
        admitted.append(second)
    kept = replica.free.reservations
    assert kept == sum(MARK in (one["metadata"].get("annotations") or {}) for one in admitted), "one for each"
    for one in admitted:
        response, again = replica.send(one)
        assert response["allowed"]
        assert again == one
    assert replica.free.reservations == kept
