"""What a program needs, a function each; ``import dflash_convert`` offers them under these names.

A drafter or target is a path or a Hub id (``owner/name[@revision]``), as on the command line.  Paths may be ``str``.
Nothing is printed; errors are :class:`~dflash_convert.errors.DflashError`.  The modules behind these functions have
more: progress, other engines' options, plans without files (docs/api.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_convert import hub, pairing, pipeline
from dflash_convert.conversion import Options, Source
from dflash_convert.drafter import Overrides
from dflash_convert.pairing import Finding, errors_of, refusal
from dflash_convert.pipeline import Result, Task
from dflash_convert.plan import TypeOptions
from dflash_convert.quantization import Quantized, quantize_file
from dflash_convert.target import Target
from dflash_convert.validation import run as validation
from dflash_convert.validation.options import Options as ValidationOptions
from dflash_convert.validation.result import ValidationResult
from dflash_convert.verification import tensors as verification
from dflash_convert.verification.drafts import add_fidelity
from dflash_convert.verification.tensors import VerifyResult
from dflash_convert.vocab.twin import find_tokenizer_model

Place = str | Path


@dataclass(frozen=True)
class Checked:
    """What the rules found of a pair: errors first, causes before their consequences."""

    drafter: str
    target: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether llama.cpp can draft with the pair; warnings do not count."""
        return not errors_of(self.findings)

    def raise_for_status(self) -> None:
        """PairingError with the first error in full; nothing when there is none."""
        refused = refusal(self.findings, self.drafter, self.target)
        if refused is not None:
            raise refused


def convert(
    drafter: Place,
    target: Place,
    types: str | Sequence[str] = "auto",
    output: Place | None = None,
    *,
    force: bool = False,
    threads: int | None = None,
    options: Options | None = None,
) -> Result:
    """A drafter's checkpoint as GGUFs, one a type, in one pass over the weights.

    ``output`` is a file (for one type), a directory, or None for the working directory.  ``options`` are the rarer
    choices; ``types`` counts, not theirs.  InputError for what cannot be read, PairingError for a pair that
    :func:`check` refuses, OutputError for what cannot be written; on an error no output has changed.
    """
    source, found = hub.resolve_drafter(str(drafter)), hub.resolve_target(str(target))
    chosen = replace(options or Options(), outtypes=_names(types))
    tokenizer_model, _ = find_tokenizer_model(found, str(chosen.tokenizer_model) if chosen.tokenizer_model else None)
    chosen = replace(chosen, tokenizer_model=tokenizer_model)
    origin = Source(source.path, source.name if source.repo else None, source.revision)
    place = None if output is None else Path(output)
    return pipeline.run(Task(origin, Target.of(found), chosen, place, force, threads))


def quantize(
    source: Place,
    output: Place,
    type: str,
    *,
    options: TypeOptions | None = None,
    allow_requantize: bool = False,
    force: bool = False,
    threads: int | None = None,
) -> Quantized:
    """A drafter's GGUF in another type, the bytes that llama-quantize would write."""
    return quantize_file(
        Path(source),
        Path(output),
        type,
        options or TypeOptions(),
        allow_requantize=allow_requantize,
        force=force,
        threads=threads,
    )


def check(drafter: Place, target: Place, *, n_max: int | None = None, overrides: Overrides | None = None) -> Checked:
    """Every problem of the pair that headers show, each with a cure; GGUFs, directories or Hub ids.

    ``n_max`` is the draft length that will be asked for.
    """
    path = Path(drafter)
    if not path.exists() and path.suffix != ".gguf":
        path = hub.resolve_drafter(str(drafter)).path
    found = Target.of(hub.resolve_target(str(target)))
    findings = pairing.check(*pairing.open_pair(path, found, overrides=overrides), n_max)
    return Checked(str(drafter), str(target), tuple(findings))


def verify(
    file: Place,
    drafter: Place,
    target: Place | None = None,
    *,
    fidelity: bool = False,
    overrides: Overrides | None = None,
    threads: int | None = None,
) -> VerifyResult:
    """Every tensor and key of a converted file against its source; without ``target`` its vocabulary is not judged.

    ``fidelity`` runs file and checkpoint side by side in numpy, too.
    """
    source = hub.resolve_drafter(str(drafter)).path
    against = Target() if target is None else Target.of(hub.resolve_target(str(target)))
    found = verification.verify(Path(file), source, against, overrides=overrides, threads=threads, engine=against.known)
    return add_fidelity(found, source, against, overrides=overrides) if fidelity else found


def validate(
    drafter: Place,
    target: Place,
    *,
    prompts: Place | None = None,
    n_max: int | Sequence[int] = (),
    quick: bool = False,
    llama_server: Place | None = None,
    options: ValidationOptions | None = None,
) -> ValidationResult:
    """The pair of two GGUFs in a real llama.cpp, with and without the drafter: whether it is well, and what it gains.

    ``n_max`` are the draft lengths to try, the first in the main run; none is the default of ``validate``.
    ``options`` are the rarer choices; what else is given here counts, not theirs.  An engine that fails is a result
    too; EngineError when there is none.
    """
    drafter, target = Path(drafter), Path(target)
    chosen = options or ValidationOptions(drafter, target)
    lengths = (n_max,) if isinstance(n_max, int) else tuple(n_max)
    chosen = replace(
        chosen,
        drafter=drafter,
        target=target,
        prompts=chosen.prompts if prompts is None else Path(prompts),
        n_max=lengths or chosen.n_max,
        quick=quick or chosen.quick,
        llama_server=chosen.llama_server if llama_server is None else str(llama_server),
    )
    return validation.validate(validation.prepare(chosen))


def _names(types: str | Sequence[str]) -> tuple[str, ...]:
    return (types,) if isinstance(types, str) else tuple(types)
