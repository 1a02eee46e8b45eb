"""llama.cpp's converter as a process that takes one case a line; runs under its own Python, with torch.

    PYTHON reference.py TREE

A line in: {"drafter": DIR, "target": DIR, "out": FILE, "outtype": TYPE, "name": NAME}.  A line out: {"error": null}, or
what stopped it.  The converter is imported once; its table of pre-tokenizers does not know the fixtures'
tokenizers, which nobody published: ``qwen2`` stands for an unknown one.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any


def main(tree: Path) -> None:
    sys.dont_write_bytecode = True
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
    sys.path[:0] = [str(tree), str(tree / "gguf-py")]
    warnings.filterwarnings("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the converter prints is no answer
    import convert_hf_to_gguf as converter  # type: ignore[import-not-found]
    from conversion.base import TextModel  # type: ignore[import-not-found]

    logging.disable(logging.CRITICAL)
    known = TextModel.get_vocab_base_pre

    def base_pre(self: Any, tokenizer: Any) -> str:
        try:
            return str(known(self, tokenizer))
        except NotImplementedError:
            return "qwen2"

    TextModel.get_vocab_base_pre = base_pre
    for line in sys.stdin:
        case = json.loads(line)
        answers.write(json.dumps({"error": _convert(converter, case)}) + "\n")
        answers.flush()


def _convert(converter: Any, case: dict[str, str]) -> str | None:
    sys.argv = ["convert_hf_to_gguf.py", case["drafter"], "--target-model-dir", case["target"], "--outfile"]
    sys.argv += [case["out"], "--outtype", case["outtype"], "--model-name", case["name"]]
    try:
        converter.main()
    except SystemExit as end:
        return None if end.code in (0, None) else f"SystemExit: {end.code}"
    except Exception as error:  # what stops it is the answer
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
