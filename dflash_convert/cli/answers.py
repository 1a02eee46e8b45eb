"""Answers to lines that mean another command, another program's option, or nothing at all."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from dflash_convert.errors import UsageError

LEAVE_OUT = "leave it out: "
# options of llama.cpp's converter and quantizer, of its server, and of neighbours -> what to do here
OPTIONS: Mapping[str, str] = {
    "--outfile": "-o FILE names the output",
    "--output-dir": "-o DIRECTORY takes the default names",
    "--outdir": "-o DIRECTORY takes the default names",
    "--out": "-o FILE names the output",
    "--remote": "give the Hub id as it is: dflash-convert owner/name --target-model-dir owner/target",
    "--repo": "give the Hub id as it is: dflash-convert owner/name",
    "--revision": "a revision follows the id: owner/name@revision",
    "--token": "HF_TOKEN in the environment, or: hf auth login",
    "--type": "-t TYPE (--outtype) names the output's type",
    "--quant": "-t TYPE (--outtype) names the output's type",
    "--quantize": "-t TYPE (--outtype) names the output's type",
    "--quantization": "-t TYPE (--outtype) names the output's type",
    "--target": "--target-model-dir TARGET",
    "--target-model": "--target-model-dir TARGET",
    "--target-dir": "--target-model-dir TARGET",
    "--model": "DRAFTER stands without an option in front",
    "--model-draft": "DRAFTER stands without an option in front",
    "--draft-model": "DRAFTER stands without an option in front",
    "--metadata": "--model-name NAME; everything else is read from the drafter's README.md and config.json",
    "--mmproj": "llama.cpp's own converter writes projectors; a drafter has none",
    "--mtp": "llama.cpp's own converter writes the prediction layers of a target (--mtp)",
    "--no-mtp": "llama.cpp's own converter leaves prediction layers out of a target",
    "--no-nextn": "llama.cpp's own converter leaves prediction layers out of a target",
    "--dspark": LEAVE_OUT + "the family is recognised; a DeepSeek-V4 target's own DSpark stages too",
    "--vocab-only": LEAVE_OUT + "the target's vocabulary is always in the drafter's file",
    "--no-lazy": LEAVE_OUT + "weights are always streamed",
    "--use-temp-file": LEAVE_OUT + "weights are always streamed",
    "--bigendian": "files are little-endian: llama.cpp reads no drafter of the other order on usual machines",
    "--split-max-size": LEAVE_OUT + "a drafter is one file",
    "--split-max-tensors": LEAVE_OUT + "a drafter is one file",
    "--no-tensor-first-split": LEAVE_OUT + "a drafter is one file",
    "--keep-split": LEAVE_OUT + "a drafter is one file",
    "--mistral-format": LEAVE_OUT + "the tokenizer's form is recognised",
    "--disable-mistral-community-chat-template": LEAVE_OUT + "the target's own template is copied, no other",
    "--fp8-as-q8": "-t q8_0 does it, from any checkpoint",
    "--fuse-qkv": LEAVE_OUT + "llama.cpp loads drafters unfused",
    "--fuse-gate-up-exps": LEAVE_OUT + "llama.cpp loads drafters unfused",
    "--print-supported-models": "dflash-convert DRAFTER … names the known classes when it does not know one",
    "--leave-output-tensor": "--output-tensor-type TYPE says what output.weight becomes",
    "--include-weights": "--tensor-type REGEX=TYPE chooses single tensors",
    "--exclude-weights": "--tensor-type REGEX=TYPE chooses single tensors",
    "--tensor-type-file": "--tensor-type REGEX=TYPE, once for each line of the file",
    "--override-kv": "--block-size, --mask-token-id, --taps, --rope-theta overrule the drafter's config.json",
    "--prune-layers": "a drafter's layers are all needed",
}


TYPE, OUTPUT = "-t", "-o"
OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
CLOSE = 0.85  # how alike an option and a slip of the pen are


def foreign_option(error: click.ClickException, argv: Sequence[str] = ()) -> tuple[str, str] | None:
    """A sentence and a tip for an option of another program, without the parser's guesses by letters; else None."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return None
    name, command = error.option_name, error.ctx.command
    own = {spelled for parameter in command.params for spelled in parameter.opts}
    name = {"-m": "--model", "--outtype": "--type"}.get(name, name)
    if name not in OPTIONS:  # one that is spelled almost so, unless an option of ours is nearer
        name = next(iter(difflib.get_close_matches(name, {*OPTIONS, *own}, 1, CLOSE)), name)
    tip = OPTIONS.get(name, "")
    meant = tip.split()[0] if tip.startswith("-") else name
    if command.name == "quantize" and meant in (TYPE, OUTPUT):
        return "quantize takes IN.gguf OUT.gguf TYPE, without options in front", _quantize_line(command, argv)
    if not tip or (tip.startswith("-") and not own.issuperset(OPTION.findall(tip))):  # the cure is another command's
        return None
    return f"there is no option {error.option_name} here", tip


def _quantize_line(command: click.Command, argv: Sequence[str]) -> str:
    """The line that was meant by one with the type or the output behind an option."""
    takes_value = {o for p in command.params for o in p.opts if o[0] == "-" and not getattr(p, "is_flag", False)}
    found: dict[str, str] = {}
    words, rest = [], iter(argv[1:])
    for word in rest:
        name, _, value = word.partition("=")
        if name[:1] == "-" and name[1:2] != "-":
            name, value = name[:2], value or name[2:]
        if name in takes_value:
            next(rest if not value else iter(()), None)
        elif name[:1] != "-":
            words.append(word)
        else:
            meant = TYPE if name == "--outtype" else OPTIONS.get(name, name).split()[0]
            if meant in (TYPE, OUTPUT):
                found[meant] = value or next(rest, "")
    source = words.pop(0) if words else "IN.gguf"
    output = found.get(OUTPUT) or (words.pop(0) if words else "OUT.gguf")
    kind = found.get(TYPE) or (words.pop(0) if words else "TYPE")
    return shlex.join(["dflash-convert", "quantize", source, output, kind])


def empty_name(command: click.Command | None, argv: Sequence[str]) -> str | None:
    """What the help page calls the argument of ``command`` that is empty in ``argv``; None where that is unclear."""
    if command is None:
        return None
    context = click.Context(command, info_name=command.name, resilient_parsing=True)
    try:
        values, _, _ = command.make_parser(context).parse_args(list(argv))
    except click.ClickException:
        return None
    for parameter in command.params:
        value = values.get(str(parameter.name))
        given = value if isinstance(value, (list, tuple)) else [value]
        if isinstance(parameter, click.Argument) and any(isinstance(each, str) and not each.strip() for each in given):
            return parameter.make_metavar(context)
    return None


def refuse_empty(argv: Sequence[str], called: Callable[[], str | None] = lambda: None) -> None:
    """UsageError for an argument that is empty, as an unset variable leaves it, and for ``-``, which is no file.

    ``called`` tells the name of the empty one, where it is no option's.
    """
    mine = argv[: list(argv).index("--")] if "--" in argv else argv
    for at, argument in enumerate(mine):
        name, _, value = argument.partition("=")
        option = name if name.startswith("--") and "=" in argument else None
        before = mine[at - 1] if at and mine[at - 1].startswith("-") else None
        if not (value if option else argument).strip():
            where = f"{option or before} has" if option or before else f"{called() or f'argument {at + 1}'} is"
            raise UsageError(
                f"{where} an empty value: a variable that is not set?" if option or before else f"{where} empty",
                tip='an unset variable in quotes ("$NAME") gives an empty argument',
            )
        if argument == "-":
            raise UsageError(
                f"{before or 'an argument'} is -: nothing is read from standard input or written to standard output",
                tip="give the name of a file; a GGUF is written at its place, whole or not at all",
            )


def refuse_gguf(text: str) -> None:
    """UsageError for a GGUF where a drafter's checkpoint belongs, with the command that takes it."""
    from dflash_convert.hub import is_gguf

    path = Path(text).expanduser()
    if not is_gguf(path):
        return
    from dflash_convert.container.reader import open_gguf
    from dflash_convert.gguf_kind import DRAFTER, FORK, MODEL, kind_of

    kind = kind_of(open_gguf(path))
    tips = {
        DRAFTER: f"its type changes with: dflash-convert quantize {path} OUT.gguf TYPE; it runs with: dflash-convert "
        f"validate {path} TARGET.gguf",
        FORK: f"it is rewritten with: dflash-convert migrate {path} NEW.gguf",
        MODEL: "a target's GGUF goes behind --target-model-dir; DRAFTER is the drafter's checkpoint",
    }
    tip = tips.get(kind.group, f"it is for {kind.use}; DRAFTER is the drafter's checkpoint")
    raise UsageError(f"{path} is {kind.text}, not a checkpoint to convert", tip=tip)
