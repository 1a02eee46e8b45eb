"""The command line: parse, call, render. Commands load when they are called, so ``--help`` is fast."""

from __future__ import annotations

import atexit
import difflib
import importlib
import io
import os
import sys

import click
from click.shell_completion import CompletionItem

from dflash_convert import __version__
from dflash_convert.cli.answers import empty_name, foreign_option, refuse_empty
from dflash_convert.cli.broken import FULL, discard_output, end_with_pipe
from dflash_convert.cli.interrupts import end_as, interrupt_behind, unwind_on_signals
from dflash_convert.cli.terminal import INTERRUPTED, Call, call_of, causes, engine_log, kind_of, report
from dflash_convert.errors import DflashError, InputError, OutputError, UsageError
from dflash_convert.gguf_library import nobody_else_imports
from dflash_convert.text import one_line

# command -> (module, one-line help); the module holds a click command named ``command``
COMMANDS = {
    "convert": ("convert", "Convert a drafter checkpoint to GGUF (the bare command does this)."),
    "quantize": ("quantize", "Quantize a drafter GGUF to another type."),
    "inspect": ("inspect", "Describe a GGUF, a drafter directory or a target directory."),
    "check": ("check", "Check statically that a drafter and a target belong together."),
    "verify": ("verify", "Compare a converted file with its source, tensor by tensor and key by key."),
    "validate": ("validate", "Run the pair in llama.cpp and judge acceptance, speed and text."),
    "compare": ("compare", "Run several drafters and settings on the same work and say which to take."),
    "tune": ("tune", "Find the settings of a drafter that pay on this machine."),
    "head": ("head", "Give a drafter an output head of its own, reduced to the tokens that pay."),
    "diff": ("diff", "Show keys and tensors in which two GGUF files differ."),
    "migrate": ("migrate", "Rewrite a fork's drafter GGUF for llama.cpp."),
    "package": ("package", "Prepare a release directory: card, checksums, manifest, preset."),
    "publish": ("publish", "Upload a packaged directory to the Hub."),
    "batch": ("batch", "Convert and release many pairs from a release.toml."),
    "doctor": ("doctor", "Show versions, engines, disk and Hub login, with a cure for each problem."),
}


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"dflash_convert.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands, and files: the bare command takes a drafter. No command is loaded for it."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        names = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return names or [CompletionItem(incomplete, type="file")]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        line = with_default_command(args)
        refuse_empty(args, lambda: empty_name(self.get_command(ctx, line[0]), line[1:]))
        return super().parse_args(ctx, line)


def with_default_command(args: list[str]) -> list[str]:
    """The bare command converts: ``DRAFTER …`` becomes ``convert DRAFTER …``; ``help [COMMAND]`` shows a help page."""
    if args and args[0] == "help":
        return [*(name for name in args[1:2] if name in COMMANDS), "--help"]
    if not args or args[0] in COMMANDS or args[0] in ("--help", "-h", "--version"):
        return args
    return ["convert", *args]


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: dflash-convert z-lab/Qwen3-8B-DFlash-b16 --target-model-dir Qwen/Qwen3-8B -t q8_0",
)
@click.version_option(__version__, prog_name="dflash-convert")
def cli() -> None:
    """Turn a DFlash drafter into a GGUF that llama.cpp runs, and show what it gains.

    DRAFTER and TARGET are directories or Hub ids (owner/name, optionally owner/name@revision).
    """


def main(args: list[str] | None = None) -> None:
    """Entry point: one sentence and a tip on stderr for every foreseen error, never a traceback."""
    argv = sys.argv[1:] if args is None else args
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as with 2>&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # file names come out as the bytes that they are
    unwind_on_signals()
    nobody_else_imports()
    call, stdout = call_of(argv), sys.stdout
    try:
        code = cli.main(argv, prog_name="dflash-convert", standalone_mode=False, obj=call)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        usual = error.format_message(), _usage_tip(argv, error)
        report(call, UsageError.__name__, *(foreign_option(error, argv) or usual), error.exit_code)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt) as error:
        _end_interrupted(call, error)
    except BrokenPipeError:
        end_with_pipe()
    except SystemExit:
        if sys.stdout is not stdout:  # click meets a broken pipe itself: it takes the stream away and exits with 1
            end_with_pipe()
        raise
    except Exception as error:
        if _verbosity(argv) >= 2:
            sys.excepthook(type(error), error, error.__traceback__)
        if interrupt_behind(error):
            _end_interrupted(call, error)
        code = _explain(call, error)
        if _verbosity(argv) == 1:
            causes(error)
        if _verbosity(argv):
            engine_log(error)
        sys.exit(code)
    sys.exit(code or 0)


def run() -> None:
    """:func:`main` as all that a process does; it then ends at once, where the interpreter would tidy up for 50 ms."""
    status: list[int] = []

    def end() -> None:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):  # the interpreter has its own way of saying so
            return
        if status:
            os._exit(status[0])

    atexit.register(end)  # before all others, so that it comes after them
    try:
        main()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            status.append(ended.code)
        raise


def _end_interrupted(call: Call, error: BaseException) -> None:
    report(call, "Interrupted", "interrupted", call.how_to_go_on, INTERRUPTED)
    end_as(interrupt_behind(error), INTERRUPTED)


def _explain(call: Call, error: Exception) -> int:
    """One sentence and a tip on stderr; returns the exit code."""
    name, text, tip = kind_of(error), str(error), getattr(error, "tip", None)
    tip = tip and one_line(tip)
    if isinstance(error, DflashError):
        code = error.exit_code
    elif isinstance(error, OSError) and error.filename is None and error.errno in FULL:  # nobody prints to a file else
        name, code = OutputError.__name__, OutputError.exit_code
        text = f"standard output cannot be written: {error.strerror}"
        discard_output()
    elif isinstance(error, OSError):  # a file that disappeared or may not be read; writers raise OutputError themselves
        name, code = InputError.__name__, InputError.exit_code
        text = f"{error.filename or 'a file'} cannot be used: {error.strerror or error}"
    elif isinstance(error, MemoryError):
        code, text = DflashError.exit_code, "there is not enough memory for this"
        tip = "end other programs, or raise the limit of this shell (ulimit -v)"
    else:
        code = DflashError.exit_code
        text = f"unexpected {type(error).__name__}: {error}"
        tip = "run again with -vv and report the traceback"
    report(call, name, text, tip, code)
    return code


def _usage_tip(argv: list[str], error: click.ClickException) -> str | None:
    """A mistyped command was taken for a drafter: name the command that was meant; else the usage, or where it is."""
    context: click.Context | None = getattr(error, "ctx", None)
    close = difflib.get_close_matches(argv[0], COMMANDS, 1, 0.7) if argv and argv[0] not in COMMANDS else []
    if close:
        return f"did you mean: dflash-convert {close[0]}"
    if context and isinstance(error, click.MissingParameter):
        line = " ".join([context.command_path, *context.command.collect_usage_pieces(context)])
        return f"usage: {line}; see {context.command_path} --help"
    return f"see {context.command_path} --help" if context else None


def _verbosity(argv: list[str]) -> int:
    return sum(a.count("v") for a in argv if a.startswith("-v") and set(a[1:]) == {"v"}) + argv.count("--verbose")
