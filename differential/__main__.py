"""Differential run against llama.cpp's converter: the same seeded cases through both, every byte compared.

    python -m differential --llama-cpp TREE --python PYTHON [--seed 1] [--cases 200] [--first 0]

TREE is llama.cpp's sources, PYTHON one with torch, transformers and sentencepiece.  Both sides are one process each.  A
difference is on the list of those on purpose (purpose.py) or a failure; then the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "fixtures")]

from dflash_convert.conversion import Options, Source, prepare, write  # noqa: E402
from dflash_convert.errors import DflashError  # noqa: E402
from dflash_convert.target import Target  # noqa: E402
from differential.compare import differences  # noqa: E402
from differential.purpose import PURPOSE, Facts, purpose_of  # noqa: E402
from differential.variations import Variation, variation  # noqa: E402

NAME = "case"


class Reference:
    """llama.cpp's converter in its own process."""

    def __init__(self, python: str, tree: Path) -> None:
        call = [python, str(Path(__file__).with_name("reference.py")), str(tree)]
        self._process = subprocess.Popen(
            call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def convert(self, drafter: Path, target: Path, out: Path, outtype: str) -> str | None:
        """None, or what stopped it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        case = {"drafter": drafter, "target": target, "out": out, "outtype": outtype, "name": NAME}
        self._process.stdin.write(json.dumps({name: str(value) for name, value in case.items()}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("the converter's process ended: does PYTHON have torch, transformers and sentencepiece?")
        error: str | None = json.loads(answer)["error"]
        return error

    def close(self) -> None:
        self._process.communicate()


def convert(v: Variation, drafter: Path, target: Path, out: Path) -> str | None:
    """Our side, with ``--plain``; None, or the sentence that stopped it."""
    pre = "qwen2" if v.tokenizer == "bytelevel" else None
    options = Options(outtypes=(v.outtype,), plain=True, model_name=NAME, pre=pre, force_pair=True)
    try:
        conversion = prepare(Source(drafter), Target.read(target), options)
        write(conversion, [out], threads=1)
    except DflashError as error:
        return str(error)
    return None


@dataclass
class Outcome:
    """One case: ``listed`` differences by the purpose's name, ``failures`` off the list."""

    kind: str
    listed: list[str]
    failures: list[str]


def run_case(v: Variation, reference: Reference, directory: Path) -> Outcome:
    drafter, target = v.write(directory)
    ours, theirs = directory / "ours.gguf", directory / "theirs.gguf"
    stopped = reference.convert(drafter, target, theirs, v.outtype)
    mine = convert(v, drafter, target, ours)
    facts = Facts(v, mine, stopped)
    if stopped is not None:
        # what the converter cannot read is nobody's reference; a crash of ours would have ended the run
        return Outcome("only ours" if mine is None else "neither", [], [])
    found = [f"refused: {mine}"] if mine is not None else differences(ours, theirs)
    listed, failures = [], []
    for difference in found:
        purpose = purpose_of(facts, difference)
        (failures if purpose is None else listed).append(difference if purpose is None else purpose.name)
    return Outcome("refused" if mine is not None else "equal" if not found else "differs", listed, failures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="keep the files of failing cases here")
    args = parser.parse_args()
    if not (args.llama_cpp / "convert_hf_to_gguf.py").is_file():
        parser.error(f"--llama-cpp {args.llama_cpp}: no convert_hf_to_gguf.py there")
    begin, kinds, listed, failed = time.monotonic(), Counter[str](), Counter[str](), 0
    reference = Reference(args.python, args.llama_cpp)
    for number in range(args.first, args.first + args.cases):
        v = variation(args.seed, number)
        with tempfile.TemporaryDirectory(prefix="differential-") as name:
            outcome = run_case(v, reference, Path(name))
            if outcome.failures and args.keep:
                _keep(Path(name), args.keep / v.name)
        kinds[outcome.kind] += 1
        listed.update(set(outcome.listed))
        if outcome.failures:
            failed += 1
            _say(f"{v.name} -t {v.outtype}: {'; '.join(v.changes)}", *(f"    {text}" for text in outcome.failures))
    reference.close()
    _say("", f"{args.cases} cases of seed {args.seed} from {args.first}, {time.monotonic() - begin:.0f} s")
    _say(*(f"{count:>6}  {kind}" for kind, count in kinds.most_common()))
    _say("on purpose:", *(f"{listed[each.name]:>6}  {each.name}" for each in PURPOSE if listed[each.name]))
    _say(f"{failed} cases with a difference off the list")
    return 1 if failed else 0


def _keep(source: Path, to: Path) -> None:
    import shutil

    shutil.copytree(source, to, dirs_exist_ok=True)


def _say(*lines: Any) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
