"""A class's expressions mean what they mean to the scheduler; what cannot be evaluated is unknown."""

import pytest

from tessera.core.dra.slices import Attribute, DeviceClass, Kind
from tessera.protocol.dra.selectors import Selectors

D = "gpu.example.com"
DEVICE = Kind(
    D,
    (
        Attribute("other.example.com", "rack", "string", "a"),
        Attribute(D, "driverVersion", "version", "580.95.5"),
        Attribute(D, "healthy", "bool", value=True),
        Attribute(D, "index", "int", 1),
        Attribute(D, "model", "string", "NVIDIA H200"),
        Attribute(D, "profile", "string", "1g.18gb"),
        Attribute(D, "type", "string", "mig"),
    ),
    (Attribute(D, "memory", "quantity", 18 * 2**30),),
)
A, C = f"device.attributes['{D}']", f"device.capacity['{D}']"


def selected(*expressions, kind=DEVICE):
    one = DeviceClass("c", expressions)
    selectors = Selectors()
    selectors.use([one])
    return selectors.selects(one, kind)


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        # what the documentation and the drivers write
        (f"device.driver == '{D}'", True),
        ("device.driver == 'gpu.nvidia.com'", False),
        (f"device.driver == '{D}' && {A}.type == 'mig' && {A}.profile == '1g.18gb'", True),
        (f"device.driver == 'gpu.nvidia.com' && {A}.nothing == 'x'", False),  # the guard comes first
        (f"{C}.memory.compareTo(quantity('10Gi')) >= 0", True),
        (f"{C}.memory.isGreaterThan(quantity('18Gi'))", False),
        (f"{C}.memory == quantity('18432Mi')", True),
        (f"{A}.driverVersion.isGreaterThan(semver('580.95.4'))", True),
        (f"{A}.driverVersion.compareTo(semver('v580.100', true)) < 0", True),
        (f"{A}.driverVersion.major() == 580", True),
        (f"semver('1.0.0-rc.2').isLessThan(semver('1.0.0-rc.10')) && semver('1.0.0-rc.1').isLessThan({A}.driverVersion)", True),
        ("semver('1.2.3+a') == semver('1.2.3+b')", True),
        ("semver('1.2-rc1', true).major() == 1", None),
        (f"{C}.memory.add(quantity('2Gi')).sub(1).isLessThan(quantity('20Gi')) && sign({C}.memory) == 1", True),
        (f"{A}.model.lowerAscii().matches('^.*h200$')", True),
        (f"{A}.profile in ['1g.18gb', '2g.35gb']", True),
        (f"{A}.profile.split('.')[0] == '1g'", True),
        (f"['1g.18gb'].exists(p, p == {A}.profile)", True),
        (f"cel.bind(gpu, {A}, gpu.type == 'mig' && gpu.index < 4)", True),
        (f"{A}.?nothing.orValue('none') == 'none'", True),
        (f"has({A}.nothing)", False),
        (f"'profile' in {A}", True),
        ("'rack' in device.attributes['other.example.com']", True),
        ("device.allowMultipleAllocations", False),
        # a domain that the device has nothing of is empty, not missing
        ("has(device.attributes['nowhere.example.com'].x)", False),
        ("device.attributes[?'nowhere.example.com'].?x.orValue(1) == 1", True),
        ("'nowhere.example.com' in device.attributes", False),
        ("device.attributes.exists(domain, domain == 'other.example.com')", True),
        ("has(device.attributes.nowhere) && has(device.capacity.nowhere)", True),
        ("device.attributes[?'nowhere.example.com'].hasValue()", True),
        ("device.attributes['nowhere.example.com'] == {}", True),
        ("device.attributes['nowhere.example.com'].exists(name, name == 'x')", False),
        ("size(device.attributes) == 2", True),
        ("'nowhere.example.com' in device.attributes || device.attributes[?'nowhere.example.com'].hasValue()", None),
        ("[device].exists(d, has(d.attributes.nowhere))", None),
        ("device.attributes[?'nowhere' + '.example.com'].hasValue()", None),
        # CEL's libraries that Kubernetes has
        (f"sets.contains(['mig', 'gpu'], [{A}.type])", True),
        (f"{A}.exists(name, value, name == 'type' && value == 'gpu')", False),
        (f"{A}.profile.split('.').slice(0, 1) == ['1g']", True),
        # a function that is not known here matters where it is reached: never to another driver's devices
        (f"device.driver == 'gpu.nvidia.com' && {A}.model.find('H[0-9]+') == 'H200'", False),
        (f"device.driver == '{D}' && {A}.model.find('H[0-9]+') == 'H200'", None),
        (f"!device.allowMultipleAllocations || newer({A}.model)", True),
        # an error that does not matter is none
        (f"{A}.nothing == 'x' || true", True),
        # what the scheduler cannot evaluate either, or only a newer one can
        (f"{A}.nothing == 'x'", None),
        (f"{A}.type < 3", None),
        (f"{A}.type", None),
        ("device.driver ==", None),
        ("", None),
        ("quantity('many') == quantity('1')", None),
        ("isQuantity('many') || isSemver('1.2')", False),
        ("isSemver('', true) || isSemver('1.', true) || isSemver('.1', true)", False),
        ("isSemver('v01.0', true) && semver('v01.0', true) == semver('1.0.0')", True),
    ],
)  # fmt: skip
def test_evaluated(expression, holds):
    """True, False, or None where nobody can say."""
    assert selected(expression) is holds


@pytest.mark.parametrize("given", ["optional.of(1)", "optional.none()", "[optional.of(1)]", "{'a': optional.of(1)}", "[{'a': optional.of(1)}]", f"dyn({A}.?type)"])  # fmt: skip
@pytest.mark.parametrize("called", ["{}", "{}.major() == 1", "sign({}) == 1", "{}.add(1) == 1", "semver('1.0.0').compareTo({}) == 1", "{}.includes(1)", "'a'.includes({})"])  # fmt: skip
def test_optional_values_in_the_wrong_place(given, called):
    """They are errors, and not the end of the process."""
    assert selected(called.format(given)) is None


def test_what_the_binding_throws():
    """Errors of C++ are errors of the expression."""
    assert selected("lists.range(9223372036854775807).size() > 0") is None


def test_all_must_hold():
    """A class selects what all of its expressions select; one that surely does not is enough to say no."""
    assert selected() is True
    assert selected("true", "false") is False
    assert selected("nonsense(", "true") is None
    assert selected("nonsense(", "false") is False


def test_a_hostile_expression_ends():
    """Loops within loops end by themselves, and count as unknown."""
    many = f"[{','.join(map(str, range(100)))}]"
    assert selected(f"{many}.all(a, {many}.all(b, {many}.all(c, a + b + c >= 0)))") is None
    assert selected("(" * 200 + "true" + ")" * 200) in (True, None)
    assert selected("!" * 10 * 1024 + "true") is None


LISTS = Kind(
    D,
    (
        Attribute(D, "flags", "bools", (True,)),
        Attribute(D, "name", "string", "a"),
        Attribute(D, "numbers", "ints", (1, 3)),
        Attribute(D, "versions", "versions", ("1.2.3", "2.0.0")),
        Attribute(D, "words", "strings", ("a", "b")),
    ),
)


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        (f"'a' in {A}.words && size({A}.words) == 2", True),
        (f"{A}.words.exists(word, word == 'c')", False),
        (
            f"{A}.name.includes('a') && {A}.numbers[0].includes(1.0) && {A}.versions[0].includes(semver('1.2.3'))",
            True,
        ),
        (f"{A}.name.includes('b') || {A}.numbers[0].includes(true) || {A}.flags[0].includes(1)", False),
        (f"{A}.numbers.all(n, n < 4) && {A}.flags[0]", True),
        (f"{A}.versions[1] == semver('2.0.0') && {A}.versions[0].isLessThan({A}.versions[1])", True),
        (f"{A}.words.includes('a')", None),
        (f"{A}.words == 'a'", False),
    ],
)
def test_lists(expression, holds):
    """Attributes may be lists; `includes` is of single values only, here."""
    assert selected(expression, kind=LISTS) is holds


def test_unknown_types_and_kinds():
    """An attribute that this release cannot read, or a kind that was not kept, is unknown."""
    newer = Kind(D, (Attribute(D, "list", "other", None),))
    assert selected(f"{A}.list == 1", kind=newer) is None
    assert selected("device.driver == 'x'", kind=Kind(D, known=False)) is None


@pytest.mark.parametrize(
    ("expressions", "names", "every"),
    [
        (("true",), set(), False),
        ((f"device.driver == '{D}'",), set(), False),
        ((f"{A}.type == 'mig' && has({A}.profile)",), {"type", "profile"}, False),
        ((f"{A}['type'] == 'mig'", f"sign({C}.memory) > 0"), {"type", "memory"}, False),
        ((f"cel.bind(g, {A}, g.?type.orValue('') == 'mig') && 'uuid' in {A}",), {"type", "uuid"}, False),
        (("device.attributes[device.driver].type == 'mig'",), {"type"}, False),
        (("['a', 'b'].exists(x, device.attributes[x].type == 'mig')",), {"type"}, False),
        ((f"{A}['ty' + 'pe'] == 'mig'",), set(), True),
        ((f"newer({A}.type)",), {"type"}, False),
        ((f"{A}.exists(name, name == 'type')",), set(), True),
        (("size(device.attributes) > 1",), set(), True),
        (("device.attributes == device.capacity",), set(), True),
        (("has(device.attributes.example)",), set(), False),
        (("'example' in device.attributes",), set(), True),
        ((f"[{A}].exists(g, g.type == 'mig')",), set(), True),
    ],
)
def test_what_an_expression_looks_at(expressions, names, every):
    """Names of attributes and capacities, or all of them where that is not known."""
    found = Selectors().use([DeviceClass("c", expressions)])
    assert (set(found.some), found.every) == (names, every)
