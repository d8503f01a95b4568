"""Which devices are in use: what the kubelet says, and what is remembered where it does not."""

from pathlib import Path

from tessera.node.usage import Usage
from tessera.simulation.node.kubelet import Kubelet
from tests.node.running import run, started

A, B = ("example.com/x", "a"), ("example.com/x", "b")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_kubelet_knows() -> None:
    """What it lists is in use, by whom it says; what was handed out just now counts too, for a while."""

    async def story(root: Path) -> None:
        clock = Clock()
        usage = Usage(root / "pod-resources" / "kubelet.sock", clock)
        async with started(Kubelet(root)) as kubelet:
            kubelet.pods = {"ml/train": {"main": {"example.com/x": ["a"]}}}
            assert usage.held([A, B]) == {A: "a pod", B: "a pod"}, (
                "nobody has been asked yet: take nothing away"
            )
            assert await usage.refresh()
            assert usage.held([A, B]) == {A: "ml/train"}
            usage.grant([B])
            assert usage.held([A, B]) == {A: "ml/train", B: "a pod"}
            clock.now = 11.0
            assert await usage.refresh()
            assert usage.held([A, B]) == {A: "ml/train"}, "that pod never came about"
            usage.grant([B])
            kubelet.pods["ml/other"] = {"main": {"example.com/x": ["b"]}}
            assert await usage.refresh()
            del kubelet.pods["ml/other"]
            assert await usage.refresh()
            assert usage.held([A, B]) == {A: "ml/train"}, "what was listed once is gone when it is not listed"

    run(story)


def test_a_kubelet_that_is_away() -> None:
    """The last answer and everything handed out since count as used."""

    async def story(root: Path) -> None:
        usage = Usage(root / "pod-resources" / "kubelet.sock")
        async with started(Kubelet(root)) as kubelet:
            kubelet.pods = {"ml/train": {"main": {"example.com/x": ["a"]}}}
            assert await usage.refresh()
        usage.grant([B])
        assert not await usage.refresh()
        assert usage.held([A, B]) == {A: "ml/train", B: "a pod"}

    run(story)


def test_a_kubelet_without_pod_resources() -> None:
    """Without the socket, only what was handed out counts."""

    async def story(root: Path) -> None:
        usage = Usage(root / "pod-resources" / "kubelet.sock")
        assert not await usage.refresh()
        assert usage.held([A, B]) == {}
        usage.grant([A])
        assert usage.held([A, B]) == {A: "a pod"}

    run(story)
