"""MIG layout documents in three formats."""

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.errors import InvalidInput, InvalidInputs
from tessera.core.mig.geometry import SIMULATED_H200_70GB, product_named
from tessera.core.mig.layout import LayoutEntry, Slot
from tessera.core.mig.placement import Wish
from tessera.core.mig.profile import MigProfile
from tessera.protocol.mig.documents import Format, MigDocument, convert, read, read_layout, write
from tessera.protocol.mig.entries import read_counts, write_counts
from tessera.protocol.mig.nodes import MappedDevice, decode_mapping, encode_mapping, mapping_of

RUNAI = """\
version: v1
mig-configs:
  selected:
  - devices: [0, 1, 2, 3]
    mig-enabled: true
    mig-devices: [2g.20gb, 2g.20gb, 3g.30gb]
"""
PLACED = """\
version: v1
mig-configs:
  selected:
  - devices: ["0"]
    mig-enabled: true
    mig-devices:
    - {name: 4g.71gb, position: 0, size: 4}
    - {name: 3g.71gb, position: 4, size: 4}
  - devices: [1]
    mig-enabled: false
"""
PARTED = """\
version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  all-balanced:
  - device-filter: ["0x233510DE", "0x233B10DE"]
    devices: all
    mig-enabled: true
    mig-devices: {"1g.18gb": 2, "2g.35gb": 1, "3g.71gb": 1}
  - device-filter: "0x20B710DE"
    devices: [0, 1]
    mig-enabled: true
    mig-devices: {"1g.6gb": 2, "1g.6gb+me": 0, "2g.12gb": 1}
"""
P = MigProfile.parse
OFF = LayoutEntry(None, mig_enabled=False)
OFF_1 = LayoutEntry((1,), mig_enabled=False)


def on(
    cards: tuple[int, ...] | None, wishes: tuple[Wish, ...], device_filter: tuple[int, ...] = ()
) -> LayoutEntry:
    return LayoutEntry(cards, mig_enabled=True, wishes=wishes, device_filter=device_filter)


def test_runai():
    """run.ai's list of names."""
    assert read(RUNAI) == MigDocument(
        Format.RUNAI,
        {"selected": (on((0, 1, 2, 3), (Wish(P("2g.20gb")), Wish(P("2g.20gb")), Wish(P("3g.30gb")))),)},
    )


def test_runai_with_places():
    """run.ai's list of places; card numbers may be texts, as its own reader has them."""
    assert read(PLACED).select() == (
        on((0,), (Wish(P("4g.71gb"), 0, 4), Wish(P("3g.71gb"), 4, 4))),
        OFF_1,
    )


def test_mig_parted():
    """mig-parted's map of counts, with filters and several configurations."""
    document = read(PARTED)
    assert document.format is Format.MIG_PARTED
    assert document.select("all-disabled") == (OFF,)
    assert document.select("all-balanced") == (
        on(
            None,
            (Wish(P("1g.18gb")),) * 2 + (Wish(P("2g.35gb")), Wish(P("3g.71gb"))),
            (0x233510DE, 0x233B10DE),
        ),
        on((0, 1), (Wish(P("1g.6gb")),) * 2 + (Wish(P("2g.12gb")),), (0x20B710DE,)),
    )


@pytest.mark.parametrize("text", ["2g.20gb=2,3g.30gb=1", " 2g.20gb=2\n3g.30gb=1\n", "2g.20gb=2, 3g.30gb=1"])
def test_counts(text):
    """Plain counts, by commas, spaces or lines."""
    assert read(text) == MigDocument(
        Format.COUNTS, {"selected": (on(None, (Wish(P("2g.20gb")),) * 2 + (Wish(P("3g.30gb")),)),)}
    )


def test_from_annotation_to_resources():
    """An annotation's text becomes a node's layout in one step."""
    node = read_layout(RUNAI, [SIMULATED_H200_70GB] * 4)
    assert node.resources() == {"nvidia.com/mig-2g.20gb": 8, "nvidia.com/mig-3g.30gb": 4}


def test_select():
    """A document with several configurations must be told which, unless one is `selected`."""
    with pytest.raises(
        InvalidInput,
        match=r"^2 configurations, choose one \(--mig-config NAME\): all-disabled, all-balanced$",
    ):
        read(PARTED).select()
    with pytest.raises(InvalidInput, match=r'^no configuration "x"; there are all-disabled, all-balanced$'):
        read(PARTED).select("x")
    assert read("2g.20gb=1").select() == read("2g.20gb=1").select("selected")


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("", ["layout: empty; expected a layout"]),
        ("3g.30gb", ["layout: 3g.30gb; expected a map"]),
        ("[]", ["layout: a list; expected a map"]),
        ("a: [", None),
        ("version: v1\nversion: v1\n", ['layout: line 2, column 1: "version" appears twice']),
        ("version: v1", ["layout: mig-configs: expected a map of configurations, at least one"]),
        ("{version: v1, mig-configs: {}}", ["layout: mig-configs: expected a map of configurations, at least one"]),
        ("{version: v1, mig-configs: {a: []}}", ["layout: mig-configs.a: expected a list of entries, at least one"]),
        ("{version: v2, mig-configs: {selected: [{devices: all}]}}", ["layout: version: unknown; expected v1"]),
        (
            "{mig-configs: {a: [{devices: all, mig-enabled: false, mig-devices: {}}]}}",
            ["layout: version: missing; expected v1"],
        ),
        (
            ("{version: v1, x: 1, mig-configs: {selected: [3, {devices: [0, 0, -1, b, true], foo: 1, mig-devices: [1g.5, 7, "
            "{name: 1g.5gb, position: -1, size: 0, at: 1}, {position: 1}]}, {mig-enabled: false, mig-devices: [1g.5gb]}]}}"),
            [
                "layout: x: unknown field; known are version, mig-configs",
                "layout: mig-configs.selected[0]: 3; expected a map",
                "layout: mig-configs.selected[1].foo: unknown field; known are devices, mig-enabled, mig-devices",
                "layout: mig-configs.selected[1].devices[1]: card 0 appears twice",
                "layout: mig-configs.selected[1].devices[2]: -1; expected a card number such as 0",
                "layout: mig-configs.selected[1].devices[3]: b; expected a card number such as 0",
                "layout: mig-configs.selected[1].devices[4]: true; expected a card number such as 0",
                'layout: mig-configs.selected[1].mig-devices[0]: "1g.5" is not a MIG profile such as 1g.10gb or 1g.10gb+me',
                "layout: mig-configs.selected[1].mig-devices[1]: 7; expected a map",
                "layout: mig-configs.selected[1].mig-devices[2].at: unknown field; known are name, position, size",
                "layout: mig-configs.selected[1].mig-devices[2].position: -1; expected a number from 0 on",
                "layout: mig-configs.selected[1].mig-devices[2].size: 0; expected a number from 1 on",
                "layout: mig-configs.selected[1].mig-devices[3].name: missing; expected a profile such as 1g.10gb",
                'layout: mig-configs.selected[2].devices: missing; expected "all" or a list of card numbers such as [0, 1]',
                "layout: mig-configs.selected[2].mig-devices: must be empty while mig-enabled is false",
            ],
        ),
        (
            ("{version: v1, mig-configs: {a: [{device-filter: A100, devices: everything, mig-devices: {1g.5gb: -1, "
            "1g.5gb+me: 1, 1g.5gb.me: 1, 2g.10gb: 100, x: 1}}], b: [{devices: [0], mig-enabled: true, mig-devices: 5}]}}"),
            [
                'layout: mig-configs.a[0].devices: everything; expected "all" or a list of card numbers such as [0, 1]',
                "layout: mig-configs.a[0].mig-devices.1g.5gb: -1; expected a count from 0 to 99",
                "layout: mig-configs.a[0].mig-devices.1g.5gb.me: 1g.5gb+me appears twice",
                "layout: mig-configs.a[0].mig-devices.2g.10gb: 100; expected a count from 0 to 99",
                'layout: mig-configs.a[0].mig-devices.x: "x" is not a MIG profile such as 1g.10gb or 1g.10gb+me',
                "layout: mig-configs.a[0].mig-enabled: missing; expected true or false",
                'layout: mig-configs.a[0].device-filter: A100; expected PCI ids such as "0x233510DE"',
                "layout: mig-configs.b[0].mig-devices: 5; expected a map of counts, as in the rest of the document",
            ],
        ),
        (
            "{version: v1, mig-configs: {a: [{devices: all, mig-devices: [1g.5gb]}, {devices: all, mig-devices: {}}]}}",
            ["layout: mig-configs.a[1].mig-devices: a map; expected a list of profiles, as in the rest of the document"],
        ),
        ("1g.5gb=", ['layout: "1g.5gb=": expected a count from 0 to 99, such as 1g.5gb=2']),
        (
            "1g.5gb=2,1g.5gb=1,foo=1\x1b,2g.10gb=-1",
            [
                "layout: 1g.5gb appears twice",
                'layout: "foo" is not a MIG profile such as 1g.10gb or 1g.10gb+me',
                'layout: "2g.10gb=-1": expected a count from 0 to 99, such as 2g.10gb=2',
            ],
        ),
    ],
)  # fmt: skip
def test_refused(text, complaints):
    """What cannot be is refused with its path, all of it at once."""
    with pytest.raises(InvalidInput) as caught:
        read(text)
    if complaints is not None:
        assert str(caught.value).split("\n") == complaints


def test_bombs():
    """Texts made to exhaust a reader are refused while they are small."""
    with pytest.raises(InvalidInput, match="longer than 256 KiB"):
        read("x" * 300_000)
    with pytest.raises(InvalidInput):
        read("[" * 200_000)
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 20):
        laughs += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n"
    with pytest.raises(InvalidInput):
        read(laughs)
    with pytest.raises(InvalidInput):
        read("mig-configs: &a {selected: [*a]}")
    many = "\n".join(f"    - {{devices: all, x{n}: 1}}" for n in range(1000))
    with pytest.raises(InvalidInputs) as caught:
        read(f"version: v1\nmig-configs:\n  selected:\n{many}\n")
    assert len(caught.value.errors) == 21
    assert caught.value.errors[-1] == "layout: and 980 more"


@given(st.text() | st.binary().map(lambda b: b.decode("latin-1")))
def test_any_text_is_read_or_refused(text):
    """No text makes the reader fail in another way."""
    with contextlib.suppress(InvalidInput):
        read(text)


profiles = st.sampled_from(
    [P(name) for name in ("1g.10gb", "1g.10gb+me", "2g.20gb", "3g.40gb", "1g.24gb-me")]
)
cards = st.lists(st.integers(0, 63), min_size=1, max_size=8, unique=True).map(tuple)
names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12)
grouped = st.dictionaries(profiles, st.integers(1, 7)).map(
    lambda counts: tuple(Wish(profile) for profile, count in counts.items() for _ in range(count))
)
placed = st.lists(
    st.builds(Wish, profiles, st.none() | st.integers(0, 7), st.none() | st.integers(1, 8)), max_size=7
).map(tuple)
pci_ids = st.lists(st.integers(0, 0xFFFFFFFF), max_size=3).map(tuple)
runai_entries = placed.flatmap(
    lambda ws: st.builds(LayoutEntry, cards, st.booleans() if not ws else st.just(value=True), st.just(ws))
)
parted_entries = grouped.flatmap(
    lambda ws: st.builds(
        LayoutEntry, cards | st.none(), st.booleans() if not ws else st.just(value=True), st.just(ws), pci_ids
    )
)
entry_lists = st.lists(runai_entries, min_size=1, max_size=3).map(tuple)
documents = st.one_of(
    st.builds(MigDocument, st.just(Format.RUNAI), st.fixed_dictionaries({"selected": entry_lists})),
    st.builds(
        MigDocument,
        st.just(Format.MIG_PARTED),
        st.dictionaries(names, st.lists(parted_entries, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3).filter(
            lambda configs: list(configs) != ["selected"]
        ),
    ),
    grouped.filter(bool).map(
        lambda ws: MigDocument(Format.COUNTS, {"selected": (on(None, ws),)})
    ),
)  # fmt: skip


@given(documents)
def test_what_is_written_is_read_again(document):
    """parse(format(x)) = x, in every format."""
    assert read(write(document)) == document


@given(st.dictionaries(profiles, st.integers(1, 999_999), min_size=1))
def test_counts_are_read_again(counts):
    """parse(format(x)) = x for counts."""
    assert read_counts(write_counts(counts)) == counts


@pytest.mark.parametrize(
    ("text", "to", "options", "written"),
    [
        (RUNAI, Format.COUNTS, {}, "2g.20gb=2,3g.30gb=1\n"),
        (RUNAI, Format.COUNTS, {"cards": 4}, "2g.20gb=2,3g.30gb=1\n"),
        (
            RUNAI,
            Format.MIG_PARTED,
            {},
            (
                "version: v1\nmig-configs:\n  selected:\n  - devices:\n    - 0\n    - 1\n    - 2\n    - 3\n"
                "    mig-enabled: true\n    mig-devices:\n      2g.20gb: 2\n      3g.30gb: 1\n"
            ),
        ),
        (
            "3g.30gb=1",
            Format.RUNAI,
            {"cards": 1},
            (
                "version: v1\nmig-configs:\n  selected:\n  - devices:\n    - 0\n    mig-enabled: true\n    mig-devices:\n"
                "    - 3g.30gb\n"
            ),
        ),
        (
            "3g.30gb=1",
            Format.RUNAI,
            {"cards": 1, "product": SIMULATED_H200_70GB},
            (
                "version: v1\nmig-configs:\n  selected:\n  - devices:\n    - 0\n    mig-enabled: true\n    mig-devices:\n"
                "    - name: 3g.30gb\n      position: 4\n      size: 3\n"
            ),
        ),
        (
            "3g.30gb=1",
            Format.MIG_PARTED,
            {},
            (
                "version: v1\nmig-configs:\n  selected:\n  - devices: all\n    mig-enabled: true\n    mig-devices:\n"
                "      3g.30gb: 1\n"
            ),
        ),
    ],
)
def test_convert(text, to, options, written):
    """Layouts go from each format to the others."""
    assert write(convert(read(text), to, **options).document) == written


def test_convert_decides_filters():
    """Device filters, which only mig-parted has, are decided for the product that is named."""
    one = MigDocument(Format.MIG_PARTED, {"all-balanced": read(PARTED).select("all-balanced")})
    assert write(convert(one, Format.COUNTS, product=product_named("A30")).document) == "1g.6gb=2,2g.12gb=1\n"
    runai = convert(one, Format.RUNAI, cards=2, product=product_named("H200")).document
    assert [entry.cards for entry in runai.select()] == [(0, 1)]


@pytest.mark.parametrize(
    ("text", "to", "options", "sentence"),
    [
        ("3g.30gb=1", Format.RUNAI, {}, "devices: all: run.ai's format names cards one by one; give their number with --cards N"),
        (PLACED, Format.COUNTS, {}, "counts are the same for all cards, but these cards differ"),
        (RUNAI, Format.COUNTS, {"cards": 5}, "counts are the same for all cards, but these cards differ"),
        (PARTED, Format.RUNAI, {"cards": 1}, "device-filter: only mig-parted has it; give the cards' product with --product NAME"),
        (PARTED, Format.RUNAI, {"cards": 1, "product": product_named("B200")}, "device-filter: no entry is for this product"),
        (
            "{mig-configs: {selected: [{devices: [0], mig-enabled: true}]}}",
            Format.COUNTS,
            {},
            "counts cannot express a card without MIG devices",
        ),
    ],
)  # fmt: skip
def test_convert_refuses(text, to, options, sentence):
    """What the other format cannot say is not said wrongly."""
    with pytest.raises(InvalidInput) as caught:
        convert(read(text), to, **options)
    assert str(caught.value) == sentence


def test_convert_tells_what_is_lost():
    """Places, which only run.ai's format has, do not vanish silently."""
    assert convert(read(PLACED), Format.MIG_PARTED).losses == ("positions are left out: mig-parted has none",)
    assert convert(read(RUNAI), Format.MIG_PARTED).losses == ()


def test_mapping():
    """The mapping is base64 of JSON, cards by number, with the profile's id."""
    node = read_layout(PLACED, [product_named("H200")] * 2)
    mapping = mapping_of(node, "node-1")
    assert {card: [(d.position, d.gpu_instance_id) for d in ds] for card, ds in mapping.items()} == {
        0: [(0, 5), (4, 9)]
    }
    assert decode_mapping(encode_mapping(mapping)) == mapping
    one = encode_mapping({0: (MappedDevice(0, "MIG-1", 19),)})
    assert base64.b64decode(one) == b'{"0":[{"position":0,"device_uuid":"MIG-1","gpu_instance_id":19}]}'


def test_mapping_while_devices_leave():
    """What stays for its pod is there and says so, what waits for it is not; a card that a pod has whole is no MIG card."""
    cards = [product_named("H200-70GB")] * 4
    before, after = read_layout("2g.20gb=2,3g.30gb=1", cards), read_layout("1g.10gb=7", cards)
    (three,) = [one for one in before.cards[1].instances if one.size == 3]
    leaving = {Slot(1, three).uuid("node-1"), Slot(2).uuid("node-1"), "of-another-source"}
    mapping = mapping_of(after, "node-1", leaving)
    assert {
        card: [(d.position, d.gpu_instance_id, d.leaving) for d in ds] for card, ds in mapping.items()
    } == {
        0: [(at, 0, False) for at in range(7)],
        1: [*((at, 0, False) for at in range(4)), (4, 2, True)],
        3: [(at, 0, False) for at in range(7)],
    }
    assert mapping[1][-1].device_uuid in leaving
    assert decode_mapping(encode_mapping(mapping)) == mapping
    whole = read_layout("{version: v1, mig-configs: {selected: [{devices: [0], mig-enabled: false}]}}", cards)
    assert [*mapping_of(whole, "node-1", leaving)] == [1], (
        "slices that are leaving, where a whole GPU is to be"
    )


@pytest.mark.parametrize("text", ["!", "e30", base64.b64encode(b'{"x":[]}').decode(), base64.b64encode(b'{"0":[{}]}').decode(), base64.b64encode(b"[" * 100000).decode()])  # fmt: skip
def test_no_mapping(text):
    """A value that is no mapping is refused in one sentence."""
    with pytest.raises(InvalidInput, match=r"^run.ai/mig-mapping: not base64 of a JSON map of MIG devices: "):
        decode_mapping(text)
