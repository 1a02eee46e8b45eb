"""Write docs/differences.md from differential/purpose.py; with --check, fail when it is out of date.

python docs/make_differences.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "fixtures")]

from differential.purpose import PURPOSE, Purpose  # noqa: E402

OUTPUT = Path(__file__).with_name("differences.md")
INTRODUCTION = """# Where the files differ from llama.cpp's

Made from `differential/purpose.py` by `docs/make_differences.py`; edit the table or the text there, not this file.

Without `--plain` a file holds what llama.cpp's converter writes and some keys more. With it the file is byte-equal to
the reference's, but for what the table below lists. The reference is llama.cpp [b11434](glossary.md#b11434).

## Keys that only we write

`--plain` leaves them out.

- `dflash_convert.*`: version, family, the drafter's and target's repository, revision and file hashes, the original
  taps.
- `rope.scaling.attn_factor`, and `rope_freqs` for a YaRN with betas of its own, where the reference writes keys that
  llama.cpp never reads (`yarn_attn_factor`, `yarn_beta_*`); with `--plain` the reference's keys, and a warning.
- ids of special tokens that the reference loses (a SentencePiece target without `tokenizer.json`), eot and eom from an
  eos list, `add_bos_token=false` where llama.cpp would add one unasked, `add_space_prefix=false` from a SentencePiece
  model.
- `chat_template.jinja` wins over `tokenizer_config.json` when the two differ; with `--plain` the reference's order
  holds.

## Different on purpose, also with `--plain`

`make differential` holds this list: seeded variations of all the fixtures' configs, tensors, targets and tokenizers go
through both converters, each in a process of its own, and every difference is on the list or a failure.

"""
OTHERS = """
Beside what the variations reach: taps in `eagle_config` count (the reference drops them); a token text that occurs
twice becomes an unused placeholder, since llama.cpp aborts on it; a bos, eos or mask id outside the vocabulary is an
error; NaN and Inf in a weight are an error; an f32 checkpoint is quantized from f32, not by way of bf16.
[gaps.md](gaps.md) has the rest.

## The run

```
make differential LLAMA_CPP=TREE PYTHON=PYTHON [SEED=1] [CASES=200] [FIRST=0]
```

TREE is llama.cpp's sources, PYTHON one with `torch`, `transformers` and `sentencepiece`; nothing else here needs them.
What the converter cannot read has nothing to be compared with and counts as *only ours*. Some differences depend on the
version of transformers.
"""
RESULT = """
Without llama.cpp, `tests/differential` holds of 64 variations that a plan is made the same twice, that every source
tensor is written or named as skipped, that the file reads back key by key and type by type, that `verify` finds no
difference, and that two workers write the bytes of one.
"""


def page() -> str:
    """The whole page."""
    lines = ["| difference | why | gap |", "|---|---|---|", *map(_row, PURPOSE)]
    return INTRODUCTION + "\n".join(lines) + "\n" + OTHERS + RUN + RESULT


def _row(each: Purpose) -> str:
    gap = f"[{each.gap}](gaps.md)" if each.gap else ""
    return f"| {each.name} | {each.reason} | {gap} |"


# of the last run, by hand
RUN = """
The last run, `make differential SEED=20261203 CASES=2000` (in parts of 200; torch 2.14.1, transformers 5.24.0): 631
files equal byte for byte, 679 with differences and 250 refusals that are all on the list, 355 only ours, 85 that
neither converts; no difference off the list.
"""


def main(arguments: list[str]) -> int:
    text = page()
    if "--check" in arguments:
        return 0 if OUTPUT.is_file() and OUTPUT.read_text(encoding="utf-8") == text else 1
    OUTPUT.write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
