"""The benchmark of the tools' growth leaves no command and no form of output out."""

from typing import Any

import click
import pytest
from benchmarks.results import Results
from benchmarks.tool_cases import COMMANDS, ELSEWHERE, OMITTED, PLACES, SERVERS

from benchmarks import guard, tools
from tessera.cli.app import tessera
from tessera.cli.common.output import Output

VALUES = dict.fromkeys(PLACES, "1")


def leaves(command, context, path=()):
    """Every command that is no group, by its words."""
    if not isinstance(command, click.Group):
        return {" ".join(path): (command, context)}
    found: dict[str, Any] = {}
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        found |= leaves(inner, click.Context(inner, context, name), (*path, name))
    return found


LEAVES = leaves(tessera, click.Context(tessera))


def choices_of(option):
    """The values of an option that make a difference to what a command does; none where a person types any text."""
    if option.is_flag:
        return [True]
    if isinstance(option.type, click.Choice):
        return list(option.type.choices)
    if option.name == "output":
        return [*option.type.names, "jsonpath"]
    return []


def measured(command):
    """The values of its options that the table has, by option."""
    found: dict[str, set[object]] = {}
    for case in COMMANDS:
        words = case.arguments(VALUES)
        length = len(command.split())
        if words[:length] != command.split():
            continue
        context = LEAVES[command][0].make_context(words[length - 1], words[length:], resilient_parsing=True)
        for name, value in context.params.items():
            found.setdefault(name, set()).add(value.form if isinstance(value, Output) else value)
    return found


def expected():
    """Every value that must be in the table."""
    for name, (command, _) in LEAVES.items():
        for option in command.params:
            if name not in ELSEWHERE and isinstance(option, click.Option):
                for value in choices_of(option):
                    yield name, option.name, value


def test_every_command_is_measured_or_named():
    """A command is in the table, or in the list of those that read no cluster, and in one of them only."""
    in_table = {name for name in LEAVES if measured(name)}
    assert in_table | ELSEWHERE.keys() == LEAVES.keys()
    assert in_table & ELSEWHERE.keys() == set()


@pytest.mark.parametrize(("command", "option", "value"), list(expected()))
def test_every_form_is_measured_or_named(command, option, value):
    """Every form of -o, every choice and every flag is in the table, or in the list of those that are left out."""
    assert value in measured(command)[option] or (command, option) in OMITTED


def test_nothing_is_named_that_is_not_there():
    """The list of what is left out has no command and no option that is gone."""
    for command, option in OMITTED:
        assert option in {one.name for one in LEAVES[command][0].params}


def test_every_case_has_a_name_of_its_own():
    """Rows do not hide each other in the report."""
    assert len(tools.rows()) == len(COMMANDS) + len(SERVERS)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent(power):
    """Of values that grow with a power it is that power, whatever the unit; too small values say nothing."""
    values = {size: 0.003 * size**power for size in tools.NODES}
    assert tools.exponent(values, 0.001) == pytest.approx(power)
    assert tools.exponent(values, 1e9) == 0


@pytest.mark.parametrize(("value", "code"), [(tools.MOST, 0), (tools.MOST + 0.01, 1)])
def test_a_tool_that_grows_too_fast_fails_the_check(value, code, capsys):
    """Every exponent is printed; one above the limit is enough."""
    results = Results()
    results.add(tools.RUN, "capacity", tools.EXPONENT, tools.TIME, [1.0])
    results.add(tools.RUN, "doctor", tools.EXPONENT, tools.TIME, [value])
    assert guard.check(results, Results()) == code
    printed = capsys.readouterr().out
    assert "capacity: exponent of processor time 1.00" in printed
    assert f"doctor: exponent of processor time {value:.2f}" in printed
