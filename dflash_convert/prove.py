"""check, verify and validate behind a conversion: the first failure stops, nothing unproved gets its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_convert.convert import Options

if TYPE_CHECKING:
    from dflash_convert.pairing import Finding
    from dflash_convert.validation.result import ValidationResult
    from dflash_convert.verification.tensors import VerifyResult


@dataclass(frozen=True)
class Proof:
    """What the three steps found about one file."""

    findings: tuple[Finding, ...]
    verified: VerifyResult
    validated: ValidationResult

    def json(self) -> dict[str, Any]:
        return {
            "check": {"findings": [finding.json() for finding in self.findings]},
            "verify": self.verified.json(),
            "validate": self.validated.to_json(),
        }


def prove(
    file: Path,
    drafter: Path,
    target_files: Path,
    target: Path,
    *,
    options: Options | None = None,
    prompts: Path | None = None,
    n_max: Sequence[int] = (),
    quick: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Proof:
    """Check ``file`` against the target GGUF, verify it against its checkpoint, run the pair.

    ``options`` are those of the conversion: what they overrule is no difference.
    PairingError, VerificationError, ValidationError or EngineError for the first step that fails.
    """
    from dflash_convert.pairing import check, errors_of, open_pair, refusal
    from dflash_convert.validation import options as validation
    from dflash_convert.validation import run
    from dflash_convert.verification.tensors import add_round_trip, verify

    findings = check(*open_pair(file, target), max(n_max, default=None))
    chosen = options or Options()
    errors = errors_of(findings)
    say(f"check: errors {len(errors)}, warnings {len(findings) - len(errors)}")
    for finding in findings:
        say(f"  {finding.severity}: {finding.name}: {finding.cure}")
    refused = None if chosen.force_pair else refusal(findings, file.name, target.name)
    if refused is not None:
        raise refused
    compared = verify(
        file,
        drafter,
        target_files,
        overrides=chosen.overrides,
        tokenizer_model=chosen.tokenizer_model,
        pre=chosen.pre,
    )
    verified = add_round_trip(compared, target_files)
    verified.raise_for_status()
    say(f"verify: {len(verified.tensors)} tensors and {verified.keys_checked} keys are what the source says")
    setup = run.prepare(validation.Options(file, target, prompts=prompts, n_max=tuple(n_max), quick=quick))
    validated = run.validate(setup, lambda text, detail: None if detail else say(f"validate: {text}"))
    validated.raise_for_status()
    return Proof(tuple(findings), verified, validated)
