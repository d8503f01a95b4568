"""`-o`: the forms of documents, and kubectl's templates."""

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.cli.common.jsonpath import JsonPathTemplate
from tessera.cli.common.output import Output, format_age
from tessera.core.errors import InvalidInput
from tessera.protocol import yaml
from tests.cli.test_mig import sessions

ROOT = Path(__file__).parents[2]

DOCUMENT = {
    "nodes": [
        {"name": "gpu-1", "state": "ready", "has": {"nvidia.com/gpu": {"available": "4"}}},
        {"name": "gpu-2", "state": "cordoned", "has": {"nvidia.com/gpu": {"available": "10"}}},
    ],
    "number": 3,
    "right": True,
    "none": None,
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.nodes[*].name}", "gpu-1 gpu-2"),
        (".nodes[0].name", "gpu-1"),
        ("nodes[0].name", "gpu-1"),
        ("{$.nodes[-1]['name']}", "gpu-2"),
        ('{range .nodes[*]}{.name}{"\\t"}{.state}{"\\n"}{end}', "gpu-1\tready\ngpu-2\tcordoned\n"),
        ("{range .nodes[*]}{range .has.*}{.available},{$.number} {end}{end}", "4,3 10,3 "),
        (r"{.nodes[*].has.nvidia\.com/gpu.available}", "4 10"),
        ('{.nodes[0].has["nvidia.com/gpu"]}', '{"available": "4"}'),
        ('{.nodes[?(@.state=="ready")].name}', "gpu-1"),
        ("{.nodes[?(@.state!='ready')].name}", "gpu-2"),
        (r"{.nodes[?(@.has.nvidia\.com/gpu.available>5)].name}", "gpu-2"),  # not as texts: "10" < "5"
        ("{.nodes[?(@.has)].name}", "gpu-1 gpu-2"),
        ("{.nodes[?(@.state>5)].name}", ""),
        ("{..name}", "gpu-1 gpu-2"),
        ("{.nodes[0,1].name}", "gpu-1 gpu-2"),
        ("{.nodes[1:].name}", "gpu-2"),
        ("{.nodes[0:2:2].name}", "gpu-1"),
        ("{.nodes[7].name}{.nope}{.number.nope}", ""),
        ("n={.number}, {.right}, {.none}", "n=3, true, null"),
        ('{"it\'s"}', "it's"),
        ("{@.number}", "3"),
        ("{.nodes.[0].name}", "gpu-1"),
    ],
)
def test_templates_read_as_kubectl_reads_them(template, text):
    """Paths, ranges, quoted texts, filters; what is not there is nothing."""
    assert JsonPathTemplate(template).render(DOCUMENT) == text


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{range .nodes[*]}{.name}", "jsonpath: a {range …} without its {end}"),
        ("{.name}{end}", "jsonpath: an {end} without its {range …}"),
        ("{.name", "jsonpath: a brace is not closed, or not opened, at {.name"),
        ("{.a} }", "jsonpath: a brace is not closed, or not opened, at }"),
        ("{}", "jsonpath: a path is missing"),
        ("{.a[}", "jsonpath: .a[: not a path from [ on"),
        ("{.nodes[?(state)]}", 'jsonpath: state: not a condition such as @.state=="ready"'),
        ("{.nodes[?(@.state==ready)]}", "jsonpath: ready: not a text in quotes, a number, true or false"),
        ('{"\\x"}', 'jsonpath: "\\x": not a text in quotes'),
    ],
)
def test_a_template_that_cannot_be_read(template, complaint):
    """One sentence says what is wrong with it."""
    with pytest.raises(InvalidInput) as error:
        JsonPathTemplate(template)
    assert str(error.value) == complaint


@given(st.text(alphabet="{}[]().,:?@$*'\"\\=<>!- \nabc019", max_size=40))
def test_any_template_is_rendered_or_refused(template):
    """No text makes anything but a text or a complaint."""
    try:
        found = JsonPathTemplate(template)
    except InvalidInput:
        return
    assert isinstance(found.render(DOCUMENT), str)


@given(st.text(min_size=1).filter(lambda name: not name.isspace()))
def test_every_key_can_be_named(key):
    """A key of any characters is found when it is quoted."""
    quoted = json.dumps(key, ensure_ascii=False)
    assert JsonPathTemplate(f"{{[{quoted}]}}").render({key: "found"}) == "found"


def test_forms():
    """The same document as JSON and YAML; where many follow each other, each is told from the next."""
    assert json.loads(Output("json").text(DOCUMENT)) == DOCUMENT
    assert yaml.load(Output("yaml").text(DOCUMENT)) == DOCUMENT
    assert Output("json").text({"a": 1}, one_of_many=True) == '{"a":1}'
    assert Output("yaml").text({"a": 1}, one_of_many=True) == "---\na: 1"


def test_a_template_ends_its_lines_itself(command):
    """As with kubectl, nothing is printed that the template does not say."""
    assert command("version", "-o", "jsonpath={.version}") == (0, "0.1.0", "")
    assert command("version", "-o", "yaml") == (0, "version: 0.1.0\n", "")


@pytest.mark.parametrize(
    ("form", "complaint"),
    [
        ("xml", "tessera version: Invalid value for '-o' / '--output': 'xml' is not one of 'text', 'json', 'yaml', jsonpath=… (see tessera version --help)\n"),
        ("jsonpath={.a", "tessera: jsonpath: a brace is not closed, or not opened, at {.a\n"),
    ],
)  # fmt: skip
def test_a_form_that_there_is_not(command, form, complaint):
    """Bad input, before anything is done."""
    assert command("version", "-o", form) == (2, "", complaint)


@pytest.mark.parametrize(
    ("seconds", "printed"),
    [
        (-5, "0s"),
        (119, "119s"),
        (120, "2m"),
        (245, "4m5s"),
        (600, "10m"),
        (10799, "179m"),
        (3 * 3600, "3h"),
        (26000, "7h13m"),
        (47 * 3600, "47h"),
        (3 * 86400 + 7200, "3d2h"),
        (8 * 86400 + 7200, "8d"),
        (800 * 86400, "2y70d"),
        (4000 * 86400, "10y"),
    ],
)
def test_ages_look_as_in_kubectl(seconds, printed):
    """An age is written as kubectl's column AGE has it."""
    assert format_age(2e9, 2e9 - seconds) == printed
    assert format_age(2e9, None) == "<unknown>"


@pytest.mark.parametrize(("line", "printed"), sessions(ROOT / "docs" / "command-line.md"))
def test_the_page_tells_the_truth(command, line, printed, monkeypatch):
    """Every command on the page prints what the page says."""
    monkeypatch.chdir(ROOT)
    _, out, err = command(*shlex.split(line)[1:])
    assert out + err == printed
