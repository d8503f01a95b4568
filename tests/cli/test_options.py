"""One option has one meaning, in all commands."""

import re
from collections import defaultdict
from pathlib import Path

import click
import pytest

from tessera.cli.app import run, tessera
from tessera.cli.common.options import Duration
from tests.cli.test_exit_codes import TREE

ROOT = Path(__file__).parents[2]
# options whose values differ: a product may be given with a number of cards, and the webhook follows single files
SEVERAL_FORMS = {"--product": {"NAME", "NAME[=N]"}, "--from": {"FILE", "DIR|FILE"}}
TYPES = {
    "TEXT",
    "INTEGER",
    "INTEGER RANGE",
    "PATH",
    "FLOAT RANGE",
}  # what click prints where nobody named a value


def options() -> dict[str, list[click.Option]]:
    """The options of the whole tree, by name."""
    by_name = defaultdict[str, list[click.Option]](list)
    for command in TREE.values():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for name in parameter.opts:
                    by_name[name].append(parameter)
    return by_name


def form_of(option: click.Option) -> str:
    """What help prints as the option's value."""
    return "" if option.is_flag else option.make_metavar(click.Context(tessera))


@pytest.mark.parametrize("name", [name for name in options() if name.startswith("--")])
def test_an_option_has_one_form(name):
    """The value of an option looks the same wherever the option is, and has a name that says what it is."""
    forms = {form_of(option) for option in options()[name]}
    assert not forms & TYPES
    if name in SEVERAL_FORMS:
        assert forms == SEVERAL_FORMS[name]
    elif name != "--output":
        assert len(forms) == 1


def test_a_letter_is_short_for_one_option():
    """`-n` is always the namespace of objects, `-o` always a form of output, `-f` always the objects to work on."""
    meant = defaultdict[str, set[str]](set)
    for name, found in options().items():
        if not name.startswith("--"):
            meant[name] |= {option.opts[-1] for option in found}
    assert meant == {
        "-A": {"--all-namespaces"},
        "-f": {"--filename"},
        "-l": {"--selector"},
        "-n": {"--namespace"},
        "-o": {"--output"},
        "-w": {"--watch"},
        "-y": {"--yes"},
    }


@pytest.mark.parametrize("name", TREE)
def test_connection_options_are_one_line_of_help(name):
    """A command that asks a cluster names its connection options; `tessera options` explains them."""
    command = TREE[name]
    context = click.Context(command, info_name=name)
    help_text = command.get_help(context)
    connects = any("--kubeconfig" in parameter.opts for parameter in command.params)
    assert help_text.count("--kubeconfig,") == connects
    assert ("see tessera options" in help_text) is connects


def test_the_connection_options(capsys):
    """`tessera options` explains each of them."""
    assert run(["options"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines() if line.startswith("  --")] == [
        "--kubeconfig",
        "--context",
        "--as",
        "--as-group",
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("1d", 86400),
        ("14d", 14 * 86400),
        ("0.5m", 30),
        ("0.0005h", 1.8),
    ],
)
def test_a_time(text, seconds):
    """A duration is numbers with units, each number with its own."""
    assert Duration().convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, f'"{text}" is not a duration such as 30s, 5m, 1h30m or 14d')
            for text in ("", "soon", "-5m", "0s", "5 m", "1.s", "0.1.2s", "2", "5m30", "PT5M", " 5m", "5min")
        ),
        ("99999999h", '"99999999h" is more than 3650d'),
        ("9" * 400 + "s", f'"{"9" * 60}"… is more than 3650d'),
    ],
)
def test_no_time(text, message):
    """What is none, or longer than anybody waits, is refused in one sentence."""
    with pytest.raises(click.BadParameter) as refused:
        Duration().convert(text, None, None)
    assert refused.value.message == message


def test_no_time_at_all():
    """A duration may be zero where that has a meaning; it needs its unit then, too."""
    assert Duration(may_be_zero=True).convert("0s", None, None) == 0
    with pytest.raises(click.BadParameter):
        Duration(may_be_zero=True).convert("0", None, None)


@pytest.mark.parametrize("name", ["", *TREE])
def test_help_fits_into_a_terminal(name, capsys, monkeypatch):
    """No line of help is longer than 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*name.split(), "--help"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


# of every command, and of the root
OTHERS = {"--help", "--version"}


@pytest.mark.parametrize("name", TREE)
def test_help_names_options_that_exist(name):
    """Every option in the text of a command's help is an option of some command, and examples have a heading."""
    command = TREE[name]
    texts = [command.help or "", *(str(getattr(one, "help", "")) for one in command.params)]
    named = {word for text in texts for word in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
    assert named <= {*options(), *OTHERS}, named - options().keys()
    assert ("    tessera " in (command.help or "")) <= ("Examples:" in (command.help or ""))


def test_pages_name_options_that_exist():
    """Every command line of `tessera` in the pages has options that the commands have."""
    for page in (*ROOT.glob("README*.md"), *ROOT.glob("docs/*.md")):
        lines = re.findall(r"(?<![\w/.-])tessera (?:[a-z-]+ )+[^`\n|;#]*", page.read_text())
        for line in lines:
            before = line.partition(" -- ")[0]
            named = set(re.findall(r"(?<=\s)--[a-z][a-z-]+", before))
            assert named <= {*options(), *OTHERS}, (page.name, line, named - options().keys())


def test_the_chart_passes_options_that_exist():
    """Every argument of a program in the chart is an option of some command."""
    passed = {
        name
        for template in (ROOT / "charts/tessera/templates").rglob("*.yaml")
        for name in re.findall(r"^ +- (--[a-z-]+)", template.read_text(), re.MULTILINE)
    }
    assert len(passed) > 20
    assert passed <= options().keys()
