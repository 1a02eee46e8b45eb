"""mask_embedding.pt: the mask token's own vector, put into the embedding table (MiMo's drafters ship one)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dflash_convert.checkpoint import Checkpoint, SourceTensor, open_checkpoint
from dflash_convert.drafter import TensorPlan
from dflash_convert.errors import CheckpointError, ConfigError
from dflash_convert.families.backbone import Sizes
from dflash_convert.hparams import Config
from dflash_convert.notes import Note
from dflash_convert.tables import find_table
from dflash_convert.target import Target
from dflash_convert.torchfile import read_mask_embedding

FILE = "mask_embedding.pt"


def patch(
    checkpoint: Checkpoint,
    config: Config,
    target: Target,
    sizes: Sizes,
    mask: int,
    plans: Sequence[TensorPlan],
    notes: list[Note],
) -> list[TensorPlan]:
    """Replace the mask row of token_embd, which then comes from the drafter or from the target's weights.

    A patched table must not serve as the head, so the target's head is written beside it when the drafter has
    none: the reference's order, head first.
    """
    path = checkpoint.directory / FILE
    if not path.is_file():
        return list(plans)
    token, vector = read_mask_embedding(path)
    if token != mask:
        raise ConfigError(f"{FILE} is for token {token}, {config.file} says mask_token_id {mask}")
    if vector.shape != (sizes.hidden,):
        raise ConfigError(f"{FILE} holds {vector.size} values, hidden_size is {sizes.hidden}")
    own = {plan.name: plan for plan in plans}
    added = []
    if "output.weight" not in own:
        tied = target.stated.boolean("tie_word_embeddings") is True
        head = _target_tensor(target.directory, "embed_tokens.weight" if tied else "lm_head.weight")
        added.append(TensorPlan("output.weight", _table(head, sizes), (head,)))
    table = own["token_embd.weight"].sources[0] if "token_embd.weight" in own else None
    if table is None:
        table = _target_tensor(target.directory, "embed_tokens.weight")
    plan = TensorPlan(
        "token_embd.weight", _table(table, sizes), (table,), transform="patch_row", argument=mask, constant=vector
    )
    notes.append(Note("derived", f"embeddings with row {mask} from {FILE}"))
    return [*added, plan, *(p for p in plans if p.name != "token_embd.weight")]


def _table(source: SourceTensor, sizes: Sizes) -> tuple[int, int]:
    if source.shape != (sizes.vocab, sizes.hidden):
        raise CheckpointError(
            f"{source.file}: tensor {source.name!r} has shape {list(source.shape)}, {FILE} needs "
            f"[{sizes.vocab}, {sizes.hidden}]"
        )
    return sizes.vocab, sizes.hidden


def _target_tensor(directory: Path | None, name: str) -> SourceTensor:
    """A tensor of the target by its last name, under any of the usual prefixes."""
    tip = f"{FILE} patches the target's embeddings, so the target's weights must be in its directory"
    if directory is None:
        raise CheckpointError(f"{FILE} needs the target's tensor {name!r}", tip=tip)
    try:
        tensors = open_checkpoint(directory).tensors
    except CheckpointError as error:
        raise CheckpointError(f"{FILE} needs the target's tensor {name!r}: {error}", tip=tip) from None
    found = find_table(tensors, name)
    if found is None:
        text = f"{FILE} needs the target's tensor {name!r}, which {directory} does not have"
        raise CheckpointError(text, tip=tip)
    return found
