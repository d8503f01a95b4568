"""The device plugin's configuration: what it means, and every mistake at once."""

from pathlib import Path

import jsonschema
import pytest

from tessera.core.devices.device import Device, DeviceNode, Edits, Handover, Mount
from tessera.core.errors import InvalidInputs
from tessera.core.mig.geometry import SIMULATED_H200_70GB
from tessera.core.mig.layout import Strategy
from tessera.protocol import yaml
from tessera.protocol.configuration.devices import DOCUMENT, DeviceConfiguration, NvmlCards, parse, reference

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_mock_devices_are_exactly_these() -> None:
    """Eight devices, each with its device node and its library."""
    text = (EXAMPLES / "mock-devices.yaml").read_text()
    assert parse(text).static == tuple(
        Device(
            f"device_{n}",
            resource="device.example.com/gpu",
            cdi_kind="device.example.com/gpu",
            edits=Edits(
                nodes=(DeviceNode(f"/dev/mock/device_{n}", f"/dev/mock/device_{n}", "rw"),),
                mounts=(Mount(f"/mock/lib/device_{n}.so", f"/mock/lib/device_{n}.so", read_only=True),),
            ),
        )
        for n in range(8)
    )


def test_the_simulated_node_is_four_cards() -> None:
    """Four 70 GB cards, cut into eight 2g.20gb and four 3g.30gb."""
    configuration = parse((EXAMPLES / "simulated-h200.yaml").read_text())
    assert configuration.simulated is not None
    assert configuration.simulated.cards == (SIMULATED_H200_70GB,) * 4
    assert configuration.simulated.strategy is Strategy.MIXED
    assert configuration.simulated.layout == "2g.20gb=2,3g.30gb=1"
    assert configuration.fault_file == "/etc/tessera/faults.yaml"


@pytest.mark.parametrize("name", ["mock-devices.yaml", "simulated-h200.yaml"])
def test_examples_agree_with_the_schema(name: str) -> None:
    """The JSON Schema takes what the reader takes."""
    jsonschema.Draft202012Validator(DOCUMENT.schema).validate(yaml.load((EXAMPLES / name).read_text()))


def test_what_else_can_be_said() -> None:
    """Lists of patterns, other places in the container, variables, kinds, NVML, a product by name."""
    configuration = parse(
        """
        handover: both
        static:
        - resource: example.com/nic
          devices: [eth0, "port-{8..9}-x"]
          cdiKind: net.example.com/port
          env: {PORT_{n}: x}
          devicesVariable: PORTS
          deviceNodes: [{hostPath: "/dev/{id}", containerPath: "/dev/nic{n}", permissions: rwm}]
        simulated: {product: H200, cards: 2, migStrategy: single, layout: 1g.18gb=7, numaNodes: 2}
        nvml:
        """.replace("{PORT_{n}: x}", '{PORT: "{n}"}')
    )
    assert configuration.handover is Handover.BOTH
    assert [(device.id, dict(device.edits.env)["PORT"]) for device in configuration.static] == [
        ("eth0", ""),
        ("port-8-x", "8"),
        ("port-9-x", "9"),
    ]
    last = configuration.static[-1]
    assert last.cdi_name == "net.example.com/port=port-9-x"
    assert last.edits.nodes == (DeviceNode("/dev/nic9", "/dev/port-9-x", "rwm"),)
    assert last.env_list == "PORTS"
    assert configuration.simulated is not None
    assert [card.name for card in configuration.simulated.cards] == ["NVIDIA H200"] * 2
    assert configuration.nvml == NvmlCards(
        Strategy.NONE, "NVIDIA_VISIBLE_DEVICES", "tessera.nvml/gpu", described_by_us=True
    )
    assert parse("nvml: {cdi: nvidia-ctk, migStrategy: mixed}").nvml == NvmlCards(
        Strategy.MIXED, "NVIDIA_VISIBLE_DEVICES", "nvidia.com/gpu", described_by_us=False
    )


def test_cards_that_cannot_be_cut() -> None:
    """A product without profiles is a whole GPU and nothing else."""
    configuration = parse("simulated: {product: {name: Tesla T4, memory: 16}, cards: 1}")
    assert configuration.simulated is not None
    (card,) = configuration.simulated.cards
    assert (card.name, card.label, card.memory_mib, card.shapes) == ("Tesla T4", "Tesla-T4", 16384, ())


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("{}", ["no devices: at least one of static, simulated and nvml is needed"]),
        ("", ["no devices: at least one of static, simulated and nvml is needed"]),
        ("# static:\n---\n", ["no devices: at least one of static, simulated and nvml is needed"]),
        ("null", ["no devices: at least one of static, simulated and nvml is needed"]),
        ("[]", ["a list is not a map"]),
        (
            """
            handover: magic
            faultFile: faults.yaml
            statics: []
            static:
            - resource: gpu
              devices: device_{7..0}
              deviceNodes: [{hostPath: dev/x, permissions: rx}, {hostPath: /a/../b}]
            - {resource: nodes.kubernetes.io/gpu, devices: a/b, env: {A-B: c}}
            - {resource: example.com/a, devices: 7}
            - {resource: example.com/b, devices: "x{0..99999}", mounts: [{hostPath: /x, readonly: yes}]}
            simulated: {product: T5, cards: 0, migStrategy: any}
            nvml: {cdi: theirs}
            """,
            [
                'statics: unknown field; did you mean "static"?',
                'handover: "magic" is not one of cdi, inline, both',
                'faultFile: "faults.yaml" is not an absolute path without ".."',
                'static[0].resource: "gpu" is not an extended resource such as device.example.com/gpu',
                'static[0].deviceNodes[0].hostPath: "dev/x" is not an absolute path without ".."',
                'static[0].deviceNodes[0].permissions: "rx": permissions are some of r, w and m, such as rw',
                'static[0].deviceNodes[1].hostPath: "/a/../b" is not an absolute path without ".."',
                'static[1].resource: "nodes.kubernetes.io/gpu": kubernetes.io belongs to Kubernetes; use your own domain',
                'static[1].env.A-B: "A-B" is not a name of an environment variable',
                "static[2].devices: 7 is not a list",
                'static[3].mounts[0].readonly: unknown field; did you mean "readOnly"?',
                'simulated.product: unknown product "T5"; known are ',
                "simulated.cards: 0 is not a whole number from 1 to 64",
                'simulated.migStrategy: "any" is not one of none, single, mixed',
                'nvml.cdi: "theirs" is not one of own, nvidia-ctk',
                'static[0].devices: "device_{7..0}": a range must go up, such as {0..7}',
                'static[1].devices: "a/b" is no CDI device name: ',
                "static[2]: a device needs at least one of deviceNodes, mounts and env",
                "static[3].devices: more than 10000 devices",
            ],
        ),
        (
            "simulated: {product: {name: X, memory: 70, slices: 7, profiles: [9g.90gb]}, cards: 1}",
            ["simulated.product: X: 9g.90gb needs 9 slices, the card has 7"],
        ),
        (
            "simulated: {product: H200, cards: 1, layout: 7g.141gb=2}",
            ["simulated.layout: card 0: "],
        ),
        (
            "simulated: {product: H200, cards: 1, migStrategy: single, layout: '1g.18gb=1,2g.35gb=1'}",
            ["simulated.layout: MIG strategy single: one profile on all cards"],
        ),
        (
            """
            simulated: {product: H200, cards: 1, layout: 1g.18gb=1, partitioning: dynamic, migStrategy: none,
              profiles: [2g.20gb, big]}
            """,
            [
                'simulated.profiles[1]: "big" is not a MIG profile',
                "simulated.layout: not with partitioning: dynamic",
                "simulated.migStrategy: partitioning: dynamic needs mixed",
                "simulated.profiles[0]: 2g.20gb is not a profile of the card; it has 1g.18gb, 1g.18gb+me, 1g.35gb",
            ],
        ),
        (
            "simulated: {product: H200, cards: 1, profiles: [1g.18gb]}",
            ["simulated.profiles: only with partitioning: dynamic"],
        ),
        (
            """
            static:
            - {resource: a.com/x, devices: "d{0..1}", env: {A: b}, cdiKind: v.com/c}
            - {resource: a.com/y, devices: d1, env: {A: b}, cdiKind: v.com/c}
            """,
            ["static[1].devices: v.com/c=d1 appears twice; set cdiKind to distinguish them"],
        ),
    ],
)
def test_every_mistake_is_named_at_once(text: str, complaints: list[str]) -> None:
    """Each complaint says where and what, and none hides another."""
    with pytest.raises(InvalidInputs) as raised:
        parse(text)
    found = raised.value.errors
    assert len(found) == len(complaints)
    for complaint, beginning in zip(found, complaints, strict=True):
        assert complaint.startswith(beginning)


def test_dynamic_partitioning() -> None:
    """The profiles of an allow-list, or all that the card has; without the word a layout says what is cut."""
    text = "simulated: {product: H200, cards: 1, partitioning: dynamic%s}"
    some = parse(text % ", profiles: [1g.18gb, 2g.35gb]").simulated
    every = parse(text % "").simulated
    static = parse("simulated: {product: H200, cards: 1}").simulated
    assert some is not None
    assert every is not None
    assert static is not None
    assert some.dynamic is not None
    assert [str(profile) for profile in some.dynamic] == ["1g.18gb", "2g.35gb"]
    assert every.dynamic == every.cards[0].profiles
    assert static.dynamic is None


def test_defaults() -> None:
    """What is left out has its default."""
    assert parse("static: []") == DeviceConfiguration()


def test_the_documentation_has_every_field() -> None:
    """The table in the documentation is the one that the fields make."""
    assert reference() in (EXAMPLES.parent / "docs" / "device-plugin-configuration.md").read_text()


def test_cutting_real_cards() -> None:
    """Off unless it is said; refused where it cannot work."""
    read, cut = parse("nvml: {}").nvml, parse("nvml: {migStrategy: mixed, cut: true, switchMode: true}").nvml
    assert read is not None
    assert cut is not None
    assert (read.cut, read.switch_mode, cut.cut, cut.switch_mode) == (False, False, True, True)
    with pytest.raises(InvalidInputs) as refused:
        parse("nvml: {cut: true, cdi: nvidia-ctk}\nsimulated: {product: H200, cards: 1}")
    assert [text for text in str(refused.value).splitlines() if "nvml" in text] == [
        "nvml.cut: needs migStrategy: mixed, not none",
        "nvml.cut: needs cdi: own; the spec of nvidia-ctk lacks slices that are cut after it was written",
        "nvml.cut: not beside simulated: the node has one layout",
    ]
    with pytest.raises(InvalidInputs, match=r"nvml\.switchMode: only with cut: true"):
        parse("nvml: {switchMode: true}")


def test_cutting_real_cards_on_demand() -> None:
    """`partitioning: dynamic` names profiles or takes all; it needs `cut`, which is the permission to cut real cards."""
    every = parse("nvml: {migStrategy: mixed, cut: true, partitioning: dynamic}").nvml
    some = parse("nvml: {migStrategy: mixed, cut: true, partitioning: dynamic, profiles: [2g.35gb]}").nvml
    read = parse("nvml: {migStrategy: mixed, cut: true}").nvml
    assert every is not None
    assert some is not None
    assert read is not None
    assert (every.dynamic, read.dynamic) == ((), None)
    assert [*map(str, some.dynamic or ())] == ["2g.35gb"]
    for text, error in (
        ("partitioning: dynamic", r"nvml\.partitioning: dynamic cuts real cards: set cut: true as well"),
        ("profiles: [2g.35gb]", r"nvml\.profiles: only with partitioning: dynamic"),
    ):
        with pytest.raises(InvalidInputs, match=error):
            parse(f"nvml: {{{text}}}")
