"""Objects as the stand-in API server keeps them."""

import pytest

from tessera.simulation.control_plane.kinds import MIG_LAYOUTS, NODES, PODS
from tessera.simulation.control_plane.store import StatusError, Store


def pod(name: str, **spec: object) -> dict[str, object]:
    return {"metadata": {"name": name}, "spec": spec}


def test_versions_grow():
    """Every change has a version of its own, the largest so far."""
    store = Store()
    versions = [
        store.create(PODS, pod("a"), "x").version,
        store.update(PODS, "a", pod("a", nodeName="n"), "x").version,
        store.delete(PODS, "a", "x").version,
    ]
    assert versions == sorted(set(versions))
    assert store.version == versions[-1]
    store.create(NODES, {"metadata": {"name": "n"}})
    assert [store.last_change(PODS), store.last_change(NODES)] == [versions[-1], store.version]


def test_no_change_is_no_event():
    """An update that changes nothing leaves the version alone, and followers hear nothing."""
    store = Store()
    made = store.create(PODS, pod("a"), "x")
    told: list[str] = []
    store.follow(PODS, store.version, lambda change: told.append(change.type))
    assert store.update(PODS, "a", made.document, "x") is made
    assert told == []


def test_status_is_apart():
    """The status changes through its own door only, and the rest only through the other."""
    store = Store()
    node = {"metadata": {"name": "n"}, "spec": {"unschedulable": True}, "status": {"a": 1}}
    store.create(NODES, node)
    assert store.update(NODES, "n", {"status": {"a": 2}, "spec": {}}, status=True).document["spec"] == {
        "unschedulable": True
    }
    after = store.update(NODES, "n", {"status": {"a": 3}, "spec": {}}, status=False).document
    assert (after["spec"], after["status"]) == ({}, {"a": 2})


def test_generations():
    """The generation of a MigLayout grows with its spec, and with nothing else."""
    store, one = Store(), {"metadata": {"name": "l"}, "spec": {"paused": False}}

    def generation(**changes: object) -> int:
        stored = store.update(MIG_LAYOUTS, "l", {**one, **changes}, status="status" in changes)
        found: int = stored.document["metadata"]["generation"]
        return found

    store.create(MIG_LAYOUTS, one)
    assert [generation(), generation(status={"current": 1}), generation(spec={"paused": True})] == [1, 1, 2]


def test_history():
    """A follower hears what came after its version, and Expired when that is no longer known."""
    store = Store()
    store.create(PODS, pod("a"), "x")
    since = store.version
    store.create(PODS, pod("b"), "x")
    told: list[tuple[str, str]] = []
    stop = store.follow(PODS, since, lambda change: told.append((change.type, change.after.key[1])))
    store.delete(PODS, "a", "x")
    stop()
    store.create(PODS, pod("c"), "x")
    assert told == [("ADDED", "b"), ("DELETED", "a")]
    store.forget_history()
    with pytest.raises(StatusError, match="too old resource version") as caught:
        store.follow(PODS, since, lambda change: None)
    assert caught.value.code == 410


@pytest.mark.parametrize(
    ("document", "code", "message"),
    [
        ({}, 422, "name or generateName"),
        ({"metadata": {"name": "taken"}}, 409, "already exists"),
        ({"metadata": {"name": "a", "namespace": "other"}}, 400, "does not match the namespace"),
        ({"metadata": {"name": "a", "resourceVersion": "1"}}, 400, "should not be set"),
        ({"metadata": 7}, 400, "must be an object"),
    ],
)
def test_refusals(document, code, message):
    """What a real server refuses is refused, in its words."""
    store = Store()
    store.create(PODS, pod("taken"), "x")
    with pytest.raises(StatusError, match=message) as caught:
        store.create(PODS, document, "x")
    assert caught.value.code == code


def test_generated_names():
    """A name that is to be generated gets an ending, a different one each time."""
    store = Store()
    keys = {store.create(PODS, {"metadata": {"generateName": "job-"}}, "x").key for _ in range(5)}
    assert len(keys) == 5
    assert all(namespace == "x" and name.startswith("job-") for namespace, name in keys)
