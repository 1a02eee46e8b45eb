"""Convert, then prove: check, verify, validate.  The first failure stops, and nothing unproved gets its name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_convert import conversion as convert
from dflash_convert.container.shards import files_in
from dflash_convert.conversion import Conversion, Source, Written
from dflash_convert.encode.pool import Pool, pool_for
from dflash_convert.notes import Note
from dflash_convert.output import refuse_input, withheld
from dflash_convert.pairing import Finding, check, errors_of, open_pair, refusal
from dflash_convert.pairing.finding import findings_json
from dflash_convert.target import Target

if TYPE_CHECKING:
    from dflash_convert.head.options import HeadOptions
    from dflash_convert.shrink import Choice
    from dflash_convert.validation.options import Options as ValidationOptions
    from dflash_convert.validation.result import ValidationResult
    from dflash_convert.verification.tensors import VerifyResult


@dataclass(frozen=True)
class Proving:
    """What has to hold of a file before it gets its name: the static check, the comparison with its source, with
    ``fidelity`` also by the numpy forward, and with ``validation`` a run of the pair.

    The drafter in ``validation`` is the file that was made, whatever stands there.  Without ``validation`` the check
    compares with the target's directory, and ``n_max`` is the draft length that will be asked for.
    """

    validation: ValidationOptions | None = None
    n_max: int | None = None
    fidelity: bool = False
    keep_failed: bool = False


@dataclass(frozen=True)
class Task:
    """One drafter for one target.  ``output`` is a file, a directory or None for the working directory; ``threads``
    None leaves the number of workers to us; without ``proving`` the files are converted and no more.  ``head``: with
    an output head of its own, from the target's GGUF or from the weights in its directory."""

    drafter: Source
    target: Target
    options: convert.Options = field(default_factory=convert.Options)
    output: Path | None = None
    force: bool = False
    threads: int | None = None
    proving: Proving | None = None
    head: HeadOptions | None = None


@dataclass(frozen=True)
class Prepared:
    """What will be written where; ``choice`` is that of a reduced head's rows."""

    conversion: Conversion
    paths: tuple[Path, ...]
    choice: Choice | None = None


@dataclass(frozen=True)
class Proof:
    """What the steps found about one file; ``validated`` is None when the pair was not run."""

    findings: tuple[Finding, ...]
    verified: VerifyResult
    validated: ValidationResult | None = None

    def json(self) -> dict[str, Any]:
        document = {"check": findings_json(self.findings), "verify": self.verified.json()}
        return document | ({"validate": self.validated.json()} if self.validated else {})


@dataclass(frozen=True)
class Made:
    """A finished file."""

    written: Written
    proof: Proof | None = None


@dataclass(frozen=True)
class Result:
    """What was decided, and the finished files in the order of the types."""

    prepared: Prepared
    files: tuple[Made, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(made.written.path for made in self.files)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was derived or skipped, and warnings."""
        return self.prepared.conversion.notes


class Watcher:
    """What a caller may see on the way; each method may stay as it is."""

    def step(self, name: str) -> None:
        """``convert``, ``check``, ``verify`` or ``validate`` begins."""

    def say(self, text: str, detail: bool = False) -> None:
        """A sentence for a person."""

    def notes(self, notes: Iterable[Note]) -> None:
        """What was derived or is worth a warning, of a validation."""

    def planned(self, prepared: Prepared) -> None:
        """All is decided, nothing is written."""

    def wrote(self, elements: int) -> None:
        """So many more of the tensors' elements are encoded."""

    def amount(self, total: int) -> None:
        """The step has so many weights to compare, or requests to make."""

    def advanced(self, done: int) -> None:
        """So many more of them are done."""

    def at(self, item: str) -> None:
        """The prompt that is answered now."""

    def report(self, step: str, document: dict[str, Any]) -> None:
        """What a step found, also when it then fails."""


def prepare(task: Task) -> Prepared:
    """Decide all of ``task``'s files; PairingError for a pair that ``check`` would refuse."""
    conversion, choice = convert.prepare(task.drafter, task.target, task.options), None
    if task.head is not None:
        # a head of its own is rare, and its modules take as long to import as a small conversion does to write
        from dflash_convert.shrink import shrink_conversion

        conversion, choice = shrink_conversion(conversion, task.head, task.target, force=task.options.force_pair)
    paths = convert.output_paths(conversion, task.output)
    for path in paths:
        refuse_input(path, files_in(task, "output"))
    return Prepared(conversion, tuple(paths), choice)


def run(task: Task, watcher: Watcher | None = None, started: Pool | None = None) -> Result:
    """Carry out ``task``.  On an error each output path is as it was or complete; with ``proving`` it is as it was
    unless everything holds.  ``started``: workers that were started earlier, for this task alone.

    InputError for the conversion, PairingError, VerificationError, ValidationError or EngineError for the first step
    that fails, OutputError for what cannot be written.
    """
    watcher = watcher or Watcher()
    watcher.step("convert")
    with nullcontext(started) if started else pool_for(task.drafter.path, task.threads) as pool:
        prepared = prepare(task)
        convert.refuse_taken_paths(prepared.conversion, prepared.paths, force=task.force)
        watcher.planned(prepared)
        if task.proving is None:
            return Result(prepared, tuple(Made(one) for one in _write(task, prepared, prepared.paths, watcher, pool)))
        keep = task.proving.keep_failed
        with withheld(prepared.paths, force=task.force, keep_failed=keep) as places:
            written = _write(task, prepared, places, watcher, pool)
            proofs = [prove(place, task, watcher, path) for place, path in zip(places, prepared.paths, strict=True)]
    named = [replace(one, path=path) for one, path in zip(written, prepared.paths, strict=True)]
    return Result(prepared, tuple(Made(one, proof) for one, proof in zip(named, proofs, strict=True)))


def _write(task: Task, prepared: Prepared, paths: Sequence[Path], watcher: Watcher, pool: Pool | None) -> list[Written]:
    return convert.write(
        prepared.conversion, paths, force=task.force, threads=task.threads, progress=watcher.wrote, pool=pool
    )


def prove(file: Path, task: Task, watcher: Watcher, shown: Path | None = None) -> Proof:
    """Check, verify and validate ``file`` as ``task`` says; reports call it ``shown``.  Raises as :func:`run` does.

    What the conversion's caller overruled is no difference to its source.
    """
    proving = task.proving or Proving()
    shown = shown or file
    watcher.step("check")
    findings = _check(file, task, proving, watcher, shown)
    watcher.step("verify")
    verified = replace(_verify(file, task, proving, watcher), path=shown)
    watcher.report("verify", verified.json())
    verified.raise_for_status()
    watcher.say(f"verify: {len(verified.tensors)} tensors and {verified.keys_checked} keys are what the source says")
    if proving.validation is None:
        return Proof(findings, verified)
    from dflash_convert.validation import expected  # a conversion alone need not wait for these
    from dflash_convert.validation import run as validation
    from dflash_convert.validation.table import gain_lines, verdict_line  # nor for this one

    watcher.step("validate")
    options = replace(proving.validation, drafter=file, force_pair=task.options.force_pair)
    setup = validation.prepare(options)
    watcher.notes(setup.notes)
    watcher.amount(expected.requests(setup))
    found = validation.validate(setup, lambda text, detail: _seen(watcher, text, detail))
    validated = replace(found, drafter=replace(found.drafter, path=str(shown)))
    watcher.report("validate", validated.json())
    for line in (verdict_line(validated), *gain_lines(validated)):
        watcher.say(f"validate: {line.strip()}")
    validated.raise_for_status()
    return Proof(findings, verified, validated)


def _seen(watcher: Watcher, text: str, detail: bool) -> None:
    watcher.say(f"validate: {text}", detail)
    if detail:  # a prompt
        watcher.at(text)
        watcher.advanced(1)


def _check(file: Path, task: Task, proving: Proving, watcher: Watcher, shown: Path) -> tuple[Finding, ...]:
    wanted = proving.validation
    target = wanted.target if wanted else task.target
    n_max = max(wanted.n_max, default=None) if wanted else proving.n_max
    findings = tuple(check(*open_pair(file, target), n_max))
    watcher.report("check", findings_json(findings))
    errors = len(errors_of(findings))
    watcher.say(f"check: errors {errors}, warnings {len(findings) - errors}")
    for finding in findings:
        watcher.say(f"  {finding.severity}: {finding.name}: {finding.cure}")
    refused = (
        None
        if task.options.force_pair
        else refusal(findings, str(shown), str(target) if isinstance(target, Path) else target.shown)
    )
    if refused is not None:
        raise refused
    return findings


def _target(task: Task, proving: Proving) -> Target:
    """With the GGUF that it is validated with, unless a head was copied from elsewhere."""
    copied = task.head is not None
    return replace(task.target, gguf=proving.validation.target) if proving.validation and not copied else task.target


def _verify(file: Path, task: Task, proving: Proving, watcher: Watcher) -> VerifyResult:
    # nor for these
    from dflash_convert.verification.drafts import add_fidelity
    from dflash_convert.verification.tensors import verify

    options, drafter, target = task.options, task.drafter.path, _target(task, proving)
    found = verify(
        file,
        drafter,
        target,
        overrides=options.overrides,
        tokenizer_model=options.tokenizer_model,
        pre=options.pre,
        threads=task.threads,
        engine=True,
        begin=watcher.amount,
        progress=watcher.advanced,
    )
    return add_fidelity(found, drafter, target, overrides=options.overrides) if proving.fidelity else found
