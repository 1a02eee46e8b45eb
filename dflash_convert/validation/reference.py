"""Stored runs: measured once, for example with the bf16 drafter on a CUDA server, and replayed anywhere."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_convert.engine.trace import EngineInfo
from dflash_convert.errors import ConfigError
from dflash_convert.jsonfile import parse_json, refuse_html
from dflash_convert.named_file import read_named
from dflash_convert.output import write_text
from dflash_convert.validation.options import Options
from dflash_convert.validation.pair import Pair
from dflash_convert.validation.prompts import Item
from dflash_convert.validation.result import (
    FileFacts,
    PromptResult,
    ReferenceComparison,
    RunResult,
    Settings,
    ValidationResult,
    build,
)

KIND = "validation-reference"
SCHEMA = 1
MAX_BYTES = 1 << 29
MAX_ITEMS = 1 << 25  # nearly all of them tokens
HOW = "write one with: dflash-convert validate … --save-reference R.json"


@dataclass(frozen=True)
class StoredPrompt:
    """One request as it was sent, and the answer: token ids, text, counts."""

    name: str
    set: str
    prompt: str
    n_predict: int
    tokens: tuple[int, ...]
    text: str
    drafted: int
    accepted: int


@dataclass(frozen=True)
class Reference:
    """A stored run of one pair; ``drafter`` and ``target`` carry their hashes."""

    path: str
    created_at: str
    engine: EngineInfo
    drafter: FileFacts
    target: FileFacts
    settings: Settings
    drafted: int
    accepted: int
    prompts: tuple[StoredPrompt, ...]

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    def apply(self, options: Options) -> Options:
        """The options that repeat this run: its n-max, its prompts, nothing beside the main run."""
        context = max(options.context, self.settings.context)
        return dataclasses.replace(options, n_max=(self.settings.n_max,), quick=True, context=context)

    def items(self) -> tuple[Item, ...]:
        """The stored prompts, already rendered: they are sent word for word."""
        return tuple(Item(p.name, p.set, p.n_predict, prompt=p.prompt) for p in self.prompts)

    def compare(self, pair: Pair, main: RunResult, tolerance: float) -> ReferenceComparison:
        """Passed when acceptance fell by at most ``tolerance`` (a fraction) and every text is the same."""
        drop = round(self.acceptance - main.total.acceptance, 6)
        differing = tuple(
            stored.name for stored, found in zip(self.prompts, main.prompts, strict=True) if not _same(stored, found)
        )
        return ReferenceComparison(
            path=self.path,
            engine=f"{self.engine.name} {', '.join(self.engine.devices)}".strip(),
            acceptance=round(self.acceptance, 6),
            drop=drop,
            tolerance=tolerance,
            differing=differing,
            same_drafter=self.drafter.sha256 == pair.drafter.sha256,
            same_target=self.target.sha256 == pair.target.sha256,
            passed=drop <= tolerance and not differing,
        )


def _same(stored: StoredPrompt, found: PromptResult) -> bool:
    if stored.tokens and found.tokens:
        return stored.tokens == found.tokens
    return stored.text == found.text


def warnings(compared: ReferenceComparison | None) -> list[str]:
    if compared is None or compared.same_target:
        return []
    return ["the reference was measured with another target file: its text can differ for that reason alone"]


def document(result: ValidationResult) -> dict[str, Any]:
    """What ``--save-reference`` writes: the main run with the prompts as they were sent."""
    stored = [
        {
            "name": p.name,
            "set": p.set,
            "prompt": p.sent,
            "n_predict": p.n_predict,
            "tokens": list(p.tokens),
            "text": p.text,
            "drafted": p.figures.drafted,
            "accepted": p.figures.accepted,
        }
        for p in result.prompts
    ]
    whole = result.json()
    head = {"schema": SCHEMA, "kind": KIND, "created_at": result.settings.started_at}
    copied = {name: whole[name] for name in ("engine", "drafter", "target", "settings", "verdict")}
    counts = {"drafted": result.total.drafted, "accepted": result.total.accepted}
    return {**head, **copied, **counts, "prompts": stored}


def save(path: Path, data: dict[str, Any], *, force: bool = False) -> None:
    """Write a reference; :class:`OutputError` when the place is not writable, or holds a file (without ``force``)."""
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n", force=force)


def load(path: Path) -> Reference:
    """Read a reference; :class:`ConfigError` names the file and what is wrong with it."""
    read = read_named(path, MAX_BYTES, "a stored reference", HOW)
    refuse_html(read, path, HOW)
    data = parse_json(read, str(path), max_items=MAX_ITEMS)
    if data.get("kind") != KIND or data.get("schema") != SCHEMA:
        raise ConfigError(f"{path} is not a validation reference", tip=HOW)
    try:
        loaded = build(Reference, {**data, "path": str(path)})
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from None
    if not loaded.prompts:
        raise ConfigError(f"{path} holds no prompts")
    return loaded
