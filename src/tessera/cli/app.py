"""The root command: which commands there are, what is imported for them, and how every one of them starts and ends.

A command is imported when it is used, so that help and shell completion stay quick. Every command starts with streams
that write what the locale can.
"""

import codecs
import errno
import importlib
import os
import sys
from collections import UserDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TextIO

import click
from click.shell_completion import CompletionItem

from tessera import __version__
from tessera.cli.common.exit_codes import MEANINGS, ExitCode
from tessera.core.errors import InvalidInput, TesseraError, of_system

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # for the file that the output goes into

# name → (where it is in this package, as `module:function`, and one line of help)
Table = Mapping[str, tuple[str, str]]


class _Commands(UserDict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        module, _, function = self.data[name][0].partition(":")
        return getattr(importlib.import_module(f"tessera.cli.{module}"), function)


class LazyGroup(click.Group):
    """A group that knows its commands from a table, in the order in which a person would want to meet them.

    Help and completion list them without importing any.
    """

    def __init__(self, *args: Any, table: Table, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.commands = _Commands(table)
        self._lines = [(name, text) for name, (_, text) in table.items()]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self._lines)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        offered = [
            CompletionItem(name, help=text) for name, text in self._lines if name.startswith(incomplete)
        ]
        return offered + click.Command.shell_complete(self, ctx, incomplete)


COMMANDS: Final[Table] = {
    "admit": ("admit:command", "Decide about pods offline, with the webhook's own code."),
    "capacity": ("capacity.command:command", "Show what nodes have, what pods hold, and what is free."),
    "mig": ("mig:command", "Validate, convert, show, plan and apply MIG layouts."),
    "doctor": ("doctor:command", "Check a cluster and say what is wrong and what to type."),
    "why": ("why:command", "Say why a pod waits or was changed, and what would make it run."),
    "webhook": ("webhook:command", "Serve admission reviews over HTTPS."),
    "certs": ("certs:command", "Show, rotate and export the webhook's own certificate authority."),
    "device-plugin": (
        "device_plugin:command",
        "Report a node's devices to the kubelet, give them to containers.",
    ),
    "dra-driver": (
        "dra_driver:command",
        "Offer a node's devices to the scheduler, prepare claims for the kubelet.",
    ),
    "controller": (
        "controller:command",
        "Keep MIG layouts, make the templates of claims, evict pods that wait too long.",
    ),
    "dashboard": ("dashboard:command", "Show a cluster's GPUs in the browser, live."),
    "demo": ("demo.command:command", "See what Tessera does, story by story."),
    "config": ("config:command", "Check the configuration file, print an example or its schema."),
    "completion": ("completion:command", "Print the shell completion script for bash, zsh or fish."),
    "version": ("about:version", "Print the version."),
    "help": ("about:explain", "Explain a command."),
    "options": ("about:options", "Print the options that name a cluster."),
}

# words that people type instead of a command; near misses such as `aply` need no entry
_MEANT: Final = {
    **dict.fromkeys(("mig check", "mig verify", "mig test", "mig lint"), "validate"),
    **dict.fromkeys(("mig draw", "mig print", "mig view", "mig get"), "show"),
    **dict.fromkeys(("mig list", "mig profiles", "mig cards"), "products"),
    **dict.fromkeys(("config validate", "config verify", "config lint"), "check"),
    **dict.fromkeys(("check", "diagnose", "health"), "doctor"),
    **dict.fromkeys(("status", "nodes", "usage", "free"), "capacity"),
    **dict.fromkeys(("explain", "describe", "pending"), "why"),
    **{
        word: f"mig {word}"
        for word in ("validate", "convert", "show", "plan", "fit", "defragment", "products", "apply")
    },
    "draw": "mig show",
    "layout": "mig",
    "plugin": "device-plugin",
    "dra": "dra-driver",
    "ui": "dashboard",
}
# options that people type: those of one command that another command has, and others by the name that they have here
_OPTIONS_MEANT: Final = {
    **dict.fromkeys(("--nodes", "--filename", "-f"), "--from"),
    **dict.fromkeys(("-n", "--namespace", "--webhook-namespace"), "--tessera-namespace"),
    "--config": "--mig-config",
    **dict.fromkeys(("--deployment", "--name"), "--webhook-name"),
    "--configuration": "--webhook-configuration",
    "demo --nodes": "--own-nodes",
    **dict.fromkeys(("mig plan --product", "mig plan --cards", "mig plan --keep"), "mig fit"),
    "mig plan --from-pending": "mig plan",
    "mig plan --defragment": "mig defragment",
}


class Root(LazyGroup):
    """The root command. When the reader of its output has left (`tessera … | head`), it ends as if it had printed all."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(f"{code:d}", meaning) for code, meaning in MEANINGS.items()])

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _until_the_reader_leaves():  # help is printed here
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _until_the_reader_leaves():
            return super().invoke(ctx)


@contextmanager
def _until_the_reader_leaves() -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, BaseExceptionGroup) as error:
        if isinstance(error, BaseExceptionGroup) and error.split(BrokenPipeError)[1] is not None:
            raise
        _drop_the_rest()
        raise click.exceptions.Exit(ExitCode.DONE) from error
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _drop_the_rest()
        raise TesseraError(f"the output cannot be written: {of_system(error)}") from error


def _drop_the_rest() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no noise at exit


@click.command(cls=Root, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tessera", message="%(prog)s %(version)s")
def tessera() -> None:
    """GPUs on Kubernetes, cut into slices.

    Tessera admits pods that ask for GPU slices, gives them what the cluster really offers and the CPU and memory
    that their GPUs need, and turns MIG layouts into node resources.
    """


def _warn(line: str, *more: str) -> None:
    from tessera.cli.common.output import warn  # what `--help` does not need

    warn(line, *more)


def run(args: list[str] | None = None) -> int:
    """Run one command; every error that the user can repair is one sentence on standard error."""
    open_what_is_closed()
    write_what_the_locale_can(sys.stdout, sys.stderr)
    prog = "kubectl tessera" if os.path.basename(sys.argv[0]).startswith("kubectl-") else "tessera"  # noqa: PTH119
    try:
        result = tessera.main(args=args, prog_name=prog, standalone_mode=False)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except (click.Abort, KeyboardInterrupt):
        _warn("interrupted")
        return ExitCode.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # a group without a command: its help, as it is
        return ExitCode.BAD_INPUT
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else prog
        meant = _find_meant(error, where.removeprefix(prog).strip())
        message = f"{error.message} Did you mean {meant!r}?" if meant else error.format_message()
        message = " ".join(message.split())  # click lists choices on lines of their own
        _warn(f"{where}: {message.removesuffix('.')} (see {where} --help)")
        return ExitCode.BAD_INPUT
    except click.ClickException as error:
        _warn(f"{prog}: {error.format_message()}")
        return error.exit_code
    except TesseraError as error:
        first, *more = error.errors if isinstance(error, InvalidInput) else [str(error)]
        _warn(f"{prog}: {first}", *more)
        return ExitCode.BAD_INPUT if isinstance(error, ValueError) else ExitCode.FAILED
    return result if isinstance(result, ExitCode) else ExitCode.DONE


def _find_meant(error: click.UsageError, command: str) -> str:
    """Find the command or option that a person meant by one that `command` does not have."""
    if isinstance(error, click.exceptions.NoSuchCommand):
        return _MEANT.get(f"{command} {error.command_name}".strip(), "")
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    meant = _OPTIONS_MEANT.get(error.option_name, "")
    existing = {name for parameter in error.ctx.command.params for name in parameter.opts}
    return _OPTIONS_MEANT.get(f"{command} {error.option_name}", meant if meant in existing else "")


# what looks alike in ASCII, for a terminal or file whose encoding lacks the character
_ALIKE: Final = {
    **dict.fromkeys("┌┬┐└┴┘", "+"),
    "─": "-",
    "│": "|",
    "→": "->",
    "←": "<-",
    "×": "x",
    "…": "...",
    "✓": "+",
    "✗": "x",
    "≤": "<=",
}
_HANDLER: Final = "tessera-alike"
_ASCII: Final = "tessera-ascii"


def open_what_is_closed() -> None:
    """Give the null device to a process whose caller has closed a stream (`>&-`), as programs in Go, such as kubectl, have it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 # it stays open


def write_what_the_locale_can(*streams: TextIO) -> None:
    """Let streams that do not write UTF-8 replace the characters that they lack by ASCII that looks alike."""
    codecs.register_error(_HANDLER, _alike)
    codecs.register(_ascii)
    for stream in streams:
        if stream.encoding and "utf" not in stream.encoding.lower():
            encoding = _ASCII if codecs.lookup(stream.encoding).name == "ascii" else stream.encoding
            stream.reconfigure(encoding=encoding, errors=_HANDLER)  # type: ignore[attr-defined] # the text streams of a process have it


def _alike(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ALIKE.get(character, "?") for character in missing), error.end


def _ascii(name: str) -> codecs.CodecInfo | None:
    """ASCII by a name that click does not know: click writes to a stream of plain ASCII in UTF-8, whatever the locale says."""
    if name.replace("_", "-") != _ASCII:
        return None
    codec = codecs.lookup("ascii")
    return codecs.CodecInfo(*codec, codec.incrementalencoder, codec.incrementaldecoder, _ASCII)
