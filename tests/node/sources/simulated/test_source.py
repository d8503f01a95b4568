"""The simulated cards as a whole: desired text in, devices out."""

import asyncio
from pathlib import Path

import pytest

from tessera.core.devices.device import by_resource, transition
from tessera.core.errors import InvalidInput
from tessera.kube.access.cluster import Cluster, ServerAddress
from tessera.kube.rest.client import Client
from tessera.node.metrics import Metrics
from tessera.node.sources import SourceFailed
from tessera.node.sources.simulated import SimulatedSource
from tessera.protocol.configuration import devices as device_config
from tests.node.running import sample

EXAMPLE = (Path(__file__).parents[4] / "examples" / "simulated-h200.yaml").read_text()
ONE, SEVEN = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-7g.70gb"


def source(tmp_path: Path, metrics: Metrics | None = None) -> SimulatedSource:
    configuration = device_config.parse(EXAMPLE).simulated
    assert configuration is not None
    return SimulatedSource(
        configuration,
        node="node-1",
        state_dir=tmp_path / "state",
        metrics=metrics or Metrics(),
        layout_file=tmp_path / "layout",
    )


def counted(simulated: SimulatedSource) -> dict[str, int]:
    devices = asyncio.run(simulated.devices())
    return {resource: len(some) for resource, some in by_resource(devices).items()}


def test_a_file_becomes_devices(tmp_path: Path) -> None:
    """Each look reads the file once more; a bad text leaves the devices as they are."""
    simulated = source(tmp_path)
    assert counted(simulated) == {"nvidia.com/mig-2g.20gb": 8, "nvidia.com/mig-3g.30gb": 4}
    for text, expected in (("7g.70gb=1", {SEVEN: 4}), ("nonsense", {SEVEN: 4}), ("1g.10gb=7", {ONE: 28})):
        (tmp_path / "layout").write_text(text)
        assert counted(simulated) == expected


def test_the_outcome_is_measured(tmp_path: Path) -> None:
    """What became of the devices is in the metrics, one state at a time."""
    metrics = Metrics()
    simulated = source(tmp_path, metrics)

    def states() -> list[str]:
        found = ("success", "pending", "failed")
        name = "tessera_device_plugin_layout_state"
        return [one for one in found if sample(metrics, name, state=one) == 1]

    simulated.report(transition((), (), {}))
    assert states() == [], "no layout is known yet"
    before = asyncio.run(simulated.devices())
    simulated.report(transition((), before, {}))
    assert states() == ["success"]
    (tmp_path / "layout").write_text("7g.70gb=1")
    wanted = asyncio.run(simulated.devices())
    simulated.report(transition(before, wanted, {before[0].key: "ml/train"}))
    assert states() == ["pending"]
    (tmp_path / "layout").write_text("nonsense")
    simulated.report(transition(wanted, asyncio.run(simulated.devices()), {}))
    assert states() == ["failed"]


def test_nothing_is_said_before_the_layout_is_known(tmp_path: Path) -> None:
    """A cluster is followed and has not answered: there are no devices yet, and no cards to measure."""
    configuration = device_config.parse(EXAMPLE).simulated
    assert configuration is not None

    async def story() -> None:
        simulated = SimulatedSource(
            configuration,
            node="node-1",
            state_dir=tmp_path,
            metrics=Metrics(),
            client=Client(Cluster(ServerAddress("http", "nowhere", 80))),  # it is never asked: nothing runs
        )
        with pytest.raises(SourceFailed, match="not known yet"):
            await simulated.devices()
        assert simulated.use(frozenset()) == ()

    asyncio.run(story())


def test_cards_that_are_cut_on_demand(tmp_path: Path) -> None:
    """Every place of the allowed profiles, not cut yet, and each card as a whole; the same devices at every look."""
    configuration = device_config.parse(
        "simulated: {product: Simulated H200-70GB, cards: 2, partitioning: dynamic, profiles: [3g.30gb, 7g.70gb]}"
    ).simulated
    assert configuration is not None
    simulated = SimulatedSource(configuration, node="node-1", state_dir=tmp_path, metrics=Metrics())
    devices = asyncio.run(simulated.devices())
    found = [
        (d.model.profile, d.place.span.start, d.model.cut) for d in devices if d.place and d.place.card.index
    ]
    assert found == [("", 0, True), *(("3g.30gb", start, False) for start in range(5)), ("7g.70gb", 0, False)]
    assert len({device.id for device in devices}) == len(devices) == 14
    assert asyncio.run(simulated.devices()) == devices


def test_a_layout_file_and_cutting_on_demand_exclude_each_other(tmp_path: Path) -> None:
    """Said at the start, before anything is offered."""
    configuration = device_config.parse(
        "simulated: {product: H200, cards: 1, partitioning: dynamic}"
    ).simulated
    assert configuration is not None
    with pytest.raises(InvalidInput, match="exclude each other"):
        SimulatedSource(
            configuration, node="n", state_dir=tmp_path, metrics=Metrics(), layout_file=tmp_path / "layout"
        )
