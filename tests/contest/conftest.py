from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dflash_convert.cli import main

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "fixtures" / "tiny-js" / "target-bf16.gguf"


class Ran(NamedTuple):
    """One call of the command line in this process."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        data: dict[str, Any] = json.loads(self.out)
        return data


@pytest.fixture(scope="session")
def drafter(tiny_drafter: Path) -> Path:
    return tiny_drafter


@pytest.fixture
def played(
    drafter: Path, tmp_path: Path, fake_server: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """played('compare', 'ngram-simple', …) runs target and drafter in an engine that plays; ``mode`` as the fake's,
    ``lines`` are the prompts, ``first`` stands in place of target and drafter."""
    two = ['{"prompt": "one", "n_predict": 8}', '{"prompt": "two", "n_predict": 8}']

    def run(
        command: str, *args: object, mode: str = "normal", lines: list[str] = two, first: Sequence[object] = ()
    ) -> Ran:
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text("\n".join(lines) + "\n")
        options = ["--prompts", prompts, "--fresh", "--llama-server", fake_server(mode)]
        words = list(map(str, args))
        behind = words.index("--") if "--" in words else len(words)
        call = [command, *(first or (TARGET, drafter)), *words[:behind], *options, *words[behind:]]
        try:
            main(list(map(str, call)))
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Ran(code, out, err)

    return run
