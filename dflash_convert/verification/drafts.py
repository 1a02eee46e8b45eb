"""What quantization does to what a drafter says: a written file and its source through the numpy forward."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_convert import llama
from dflash_convert.checkpoint import read_config
from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import array_length
from dflash_convert.errors import UsageError
from dflash_convert.forward.fidelity import fidelity, random_contexts, real_contexts
from dflash_convert.forward.hyper import TARGET
from dflash_convert.forward.load import (
    drafter_from_checkpoint,
    drafter_from_gguf,
    target_from_checkpoint,
    target_from_gguf,
)
from dflash_convert.hparams import architectures
from dflash_convert.notes import Note
from dflash_convert.text import size
from dflash_convert.watching import UNSEEN, Watch

if TYPE_CHECKING:
    from dflash_convert.drafter import Overrides
    from dflash_convert.forward import target as forward_target
    from dflash_convert.target import Target
    from dflash_convert.verification.tensors import VerifyResult

MAX_TARGET = 256 << 20  # bytes of a target that the numpy forward can run in seconds
PROMPTS = ("function add(a, b) {", "const items = [1, 2, 3];", "The weather today is", "def main():")


def add_fidelity(
    result: VerifyResult,
    drafter: Path,
    target: Target,
    *,
    overrides: Overrides | None = None,
    watch: Watch = UNSEEN,
) -> VerifyResult:
    """The same contexts through checkpoint and GGUF in the numpy forward; hidden states and logits compared.

    ``overrides`` are those of the conversion, so that the source is read as it was; ``watch`` counts contexts.

    With a small Qwen3-type target whose weights are at hand (its GGUF, or in its directory) the context is
    that target's own greedy text, and drafts are compared too; else it is noise, and a note says why.
    """
    source = drafter_from_checkpoint(drafter, target, overrides)
    encoded = {result.path.name: drafter_from_gguf(result.path)}
    model, why = _small_target(target.directory, target.gguf)
    if model is None or not target.known:
        note = Note("info", f"fidelity compares no drafts: {why}")
        result = dataclasses.replace(result, notes=(*result.notes, note))
        tokens = array_length(open_gguf(result.path).get("tokenizer.ggml.tokens"))
        model = None
        contexts = random_contexts(source.hyper, tokens or source.hyper.mask_token + 1)
    else:
        contexts = real_contexts(model, _prompts(target), watch=watch)
    found = fidelity(source, encoded, contexts, target=model, watch=watch)
    return dataclasses.replace(result, fidelity=found, notes=(*result.notes, *found.notes))


def _small_target(directory: Path | None, gguf: Path | None) -> tuple[forward_target.Target | None, str]:
    """The target's forward when it is of the type that is modelled and small enough for numpy, else why not."""
    if gguf is not None:
        header = open_gguf(gguf)
        kind = header.architecture
        if llama.drafter(kind) is not None:
            raise UsageError(f"--target-gguf {gguf} is a drafter ({kind})", tip="give the target's GGUF")
        if kind != TARGET:
            return None, f"the numpy forward runs {TARGET} targets, and {gguf} is {kind}"
        if gguf.stat().st_size > MAX_TARGET or header.get("split.count", 1) != 1:
            return None, f"{gguf} is larger than the {size(MAX_TARGET)} that the numpy forward runs"
        return target_from_gguf(gguf), ""
    if directory is None or architectures(read_config(directory))[:1] != ["Qwen3ForCausalLM"]:
        return None, f"the target's weights are not available, or it is not a {TARGET}; give --target-gguf"
    sizes = [path.stat().st_size for path in directory.glob("*.safetensors")]
    if not sizes:
        return None, "the target's weights are not available; give --target-gguf"
    if sum(sizes) > MAX_TARGET:
        return None, f"the target is larger than the {size(MAX_TARGET)} that the numpy forward runs"
    return target_from_checkpoint(directory), ""


def _prompts(target: Target) -> list[list[int]]:
    """Token ids of some texts; from a GGUF's own tokens and merges when it brings no tokenizer.json."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    if target.directory is None and target.header is not None:
        tokens, merges = (list(target.header.get(f"tokenizer.ggml.{name}") or ()) for name in ("tokens", "merges"))
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
        tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=pairs))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return [tokenizer.encode(text).ids for text in PROMPTS]
    file = target.files / "tokenizer.json"
    if not file.is_file():
        raise UsageError(f"{target.files}: no tokenizer.json to make a context with", tip="leave --target-gguf out")
    tokenizer = Tokenizer.from_file(str(file))
    return [tokenizer.encode(text).ids for text in PROMPTS]
