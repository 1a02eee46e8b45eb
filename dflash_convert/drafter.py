"""What a drafter is, between a checkpoint and a file: what was read, what was understood, what is to be written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dflash_convert import llama
from dflash_convert.checkpoint import SourceTensor
from dflash_convert.container.types import KV
from dflash_convert.notes import Note

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Taps:
    """The target's hidden states that a drafter reads, in the order it was trained with.

    A checkpoint (and ``--taps``) counts layers whose output is read, from 0; llama.cpp counts the layers before which
    it is read, so the output of layer 3 is its number 4.  Make one with :meth:`from_outputs` or :meth:`from_inputs`,
    ask for :attr:`outputs` or :attr:`inputs`: the bare numbers do not say which they are.  Output -1 is the embeddings.
    """

    outputs: tuple[int, ...] = ()

    @classmethod
    def from_outputs(cls, layers: Iterable[int]) -> Taps:
        return cls(outputs=tuple(int(layer) for layer in layers))

    @classmethod
    def from_inputs(cls, layers: Iterable[int]) -> Taps:
        return cls(outputs=tuple(int(layer) - 1 for layer in layers))

    @property
    def inputs(self) -> tuple[int, ...]:
        return tuple(layer + 1 for layer in self.outputs)

    @property
    def distinct(self) -> bool:
        """Every tap another layer, none before the embeddings."""
        return len(set(self.outputs)) == len(self.outputs) and min(self.outputs, default=0) >= -1

    @property
    def ascending(self) -> bool:
        return list(self.outputs) == sorted(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def __str__(self) -> str:
        if not self.outputs:
            return "no taps"
        layers = [str(layer) for layer in self.outputs if layer != -1]
        plural = "s" if len(layers) > 1 else ""
        said = [f"output{plural} of target layer{plural} {', '.join(layers)}"] if layers else []
        return " and ".join((["the embeddings"] if -1 in self.outputs else []) + said)


class Rule(NamedTuple):
    """``shape``: symbols outermost first; ``transform``: a name of :mod:`dflash_convert.encode.transforms`."""

    name: str
    shape: str
    transform: str = "copy"


@dataclass(frozen=True)
class Overrides:
    """What the caller says instead of config.json; None means what config.json says.

    ``rope_style`` is neox (a head's halves are rotated) or norm (neighbours).  ``plain`` takes llama.cpp's converter's
    keys where it writes others than the runtime reads.
    """

    block_size: int | None = None
    mask_token_id: int | None = None
    taps: Taps | None = None
    rope_dimension_count: int | None = None
    rope_theta: float | None = None
    rope_style: str | None = None
    sample_from_anchor: bool | None = None
    keep_unclaimed: bool = False
    plain: bool = False

    def stated(self) -> dict[str, str]:
        """What was overruled, by the name of its option, as it is written on the command line."""
        shown = {
            "block-size": self.block_size,
            "mask-token-id": self.mask_token_id,
            "taps": None if self.taps is None else ",".join(map(str, self.taps.outputs)),
            "rope-dimension-count": self.rope_dimension_count,
            "rope-theta": None if self.rope_theta is None else f"{self.rope_theta:g}",
            "rope-style": self.rope_style,
            "sample-from-anchor": None if self.sample_from_anchor is None else str(self.sample_from_anchor).lower(),
        }
        return {name: str(value) for name, value in shown.items() if value is not None}


def spelled(name: str, value: str) -> str:
    """An override of :meth:`Overrides.stated` as it is given on the command line."""
    if value in ("true", "false"):
        return f"--{name}" if value == "true" else f"--no-{name}"
    return f"--{name} {value}"


class Weight(NamedTuple):
    """A tensor of the checkpoint as the tables see it.

    ``name`` is its canonical name, ``shape`` that of its values (a packed tensor's bytes have another one),
    ``sources`` the tensor itself and then its scales, ``scheme`` how they become values (empty: as they are)
    and ``block`` the rows and columns that share one scale.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[SourceTensor, ...]
    scheme: str = ""
    block: tuple[int, int] = (0, 0)

    @property
    def where(self) -> str:
        """File and tensor, for messages."""
        return f"{self.sources[0].file.name}: tensor {self.sources[0].name!r}"


@dataclass(frozen=True)
class TensorPlan:
    """One tensor to write: ``shape`` outermost first, ``sources`` the tensors it is made of.

    ``transform`` names a function of :mod:`dflash_convert.encode.transforms`, ``argument`` is its parameter (for
    ``rope_rows`` the head size, for ``stack`` the first matrix among the sources), ``constant`` the values of a
    tensor that is derived rather than read (with sources: the part that replaces theirs, or the rows to ``select``).
    ``scheme`` and ``block`` say how quantized sources become values.  ``type`` is a type of the GGUF that no output
    type changes (empty: the output type decides).
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[SourceTensor, ...] = ()
    _: KW_ONLY
    transform: str = "copy"
    argument: int = 0
    constant: npt.NDArray[Any] | None = field(default=None, compare=False)
    scheme: str = ""
    block: tuple[int, int] = (0, 0)
    type: str = ""


@dataclass(frozen=True)
class Description:
    """A drafter, read and understood; nothing of it depends on the output type.

    ``keys`` precede general.file_type in the file, ``late_keys`` follow it, both in the reference's order;
    ``first_keys`` come directly after general.architecture, and so does the chat template if ``early_template``.
    ``file_type`` is that of a family whose tensors' types are the checkpoint's own; such a drafter has no quantized
    output types.
    """

    family: str
    architecture: str
    keys: tuple[KV, ...]
    late_keys: tuple[KV, ...]
    tensors: tuple[TensorPlan, ...]
    vocab_size: int
    block_size: int | None
    taps: Taps
    mask_token_id: int | None
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[Note, ...] = ()
    eagle3_vocab: bool = False
    first_keys: tuple[KV, ...] = ()
    early_template: bool = False
    file_type: int | None = None

    @property
    def row(self) -> llama.DrafterArchitecture:
        """What llama.cpp makes of it; ValueError for an architecture without a row in ``llama.DRAFTERS``."""
        row = llama.drafter(self.architecture)
        if row is None:
            raise ValueError(f"the family {self.family} writes {self.architecture}, which has no row in llama.DRAFTERS")
        return row

    @property
    def variant(self) -> llama.Variant:
        return self.row.variant([plan.name for plan in self.tensors])

    @property
    def n_max(self) -> int:
        """How many tokens to draft when nobody measured."""
        return self.row.n_max(*self._block)

    @property
    def max_drafts(self) -> int | None:
        """The most tokens that a block drafts; None without blocks."""
        return self.row.max_drafts(*self._block)

    @property
    def _block(self) -> tuple[list[str], int | None, bool | None]:
        anchor = self.values.get(self.row.key("sample_from_anchor"))
        return [plan.name for plan in self.tensors], self.block_size, anchor

    @property
    def all_keys(self) -> tuple[KV, ...]:
        """Every key of the architecture's own, without general.* and the vocabulary."""
        return (*self.first_keys, *self.keys, *self.late_keys)

    @property
    def values(self) -> dict[str, Any]:
        """The same as plain values by name, with the architecture and the mask token, as a file would state them."""
        found = {kv.name: kv.value for kv in self.all_keys}
        found["general.architecture"] = self.architecture
        if self.mask_token_id is not None:
            found["tokenizer.ggml.mask_token_id"] = self.mask_token_id
        return found
