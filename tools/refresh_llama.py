"""Compare the project's tables with another llama.cpp, and write them anew.

    python tools/refresh_llama.py TREE            what changed, a line each; exit code 1 when anything did
    python tools/refresh_llama.py TREE --write    and rewrite the generated files

TREE is an unpacked source tree.  Generated are dflash_convert/llama_tables.py, the names and hashes of pre-tokenizers
in dflash_convert/vocab/ and tools/pre_expressions.json; what the report marks "by hand" is code that someone has to
look at.  docs/new-llama-cpp.md says in which order.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import llama_sources as sources

from dflash_convert import llama
from dflash_convert.container import types
from dflash_convert.families.detect import known
from dflash_convert.vocab.structure import canonical

ROOT = Path(__file__).resolve().parents[1]
TABLES = Path("dflash_convert/llama_tables.py")
HASHES = Path("dflash_convert/vocab/pre_hashes.json")
STRUCTURES = Path("dflash_convert/vocab/pre_structures.json")
EXPRESSIONS = Path("tools/pre_expressions.json")
HEAD = '''"""Tables of the pinned llama.cpp build: written by tools/refresh_llama.py, not by hand."""

from __future__ import annotations

'''
MEANING = {
    "MAX_LAYERS": "LLAMA_MAX_LAYERS (src/llama-hparams.h)",
    "DEFAULT_N_MAX": "--spec-draft-n-max when it is not given (common/common.h)",
    "DEFAULT_BLOCK": "tokens of a block when a file states no block size (common/speculative.cpp)",
    "TAPPED": "architectures whose graph sets t_layer_inp (src/models)",
    "TAPPED_BEHIND_LAST": "of those, the ones that set it behind the last layer too",
    "LAST_HIDDEN": "of those, the ones whose t_h_nextn is what leaves the last layer, before the final norm",
    "FILE_TYPES": "general.file_type (include/llama.h)",
    "CLASSES": "Hugging Face class -> architecture (conversion)",
    "LLAMA_VOCABULARY": "classes whose vocabulary the converter's LlamaModel writes (conversion)",
}

Facts = dict[str, Any]


def tree_facts(tree: Path) -> tuple[Facts, Facts]:
    """(what is generated from the tree, what the project holds by hand) as the tree has it."""

    def text(name: str) -> str:
        return sources.read(tree, name)

    names, vocab = text("src/llama-arch.cpp"), text("src/llama-vocab.cpp")
    speculative, ggml = text("common/speculative.cpp"), text("ggml/include/ggml.h")
    limits = sources.limits(text("src/llama-hparams.h"), text("common/common.h"), speculative, ggml)
    architectures = sources.architectures(names, text("src/llama-model.cpp"))
    models = [path.read_text(encoding="utf-8") for path in sorted((tree / "src/models").glob("*.cpp"))]
    graphs = sources.graphs(text("src/models/models.h"), models)
    tapped = {name: graphs[of] for name, of in architectures.items() if of in graphs and sources.taps(graphs[of])}
    modules = {path.name: path.read_text(encoding="utf-8") for path in sorted((tree / "conversion").glob("*.py"))}
    classes = sources.classes(modules, text("gguf-py/gguf/constants.py"))
    probe, hashes = sources.hashes(text("conversion/base.py"))
    generated = {
        **{name: limits.get(name) for name in ("MAX_LAYERS", "DEFAULT_N_MAX", "DEFAULT_BLOCK")},
        "TAPPED": sorted(tapped),
        "TAPPED_BEHIND_LAST": sorted(name for name, body in tapped.items() if sources.taps_behind_the_last(body)),
        "LAST_HIDDEN": sorted(name for name, body in tapped.items() if sources.hands_out_the_last(body)),
        "FILE_TYPES": dict(sorted(sources.file_types(text("include/llama.h")).items())),
        "CLASSES": {name: of for name, of in classes.items() if name not in known()},
        "LLAMA_VOCABULARY": [n for n in sources.vocabulary_classes(modules, "LlamaModel") if n not in known()],
        "pre-tokenizer probe": probe,
        "pre-tokenizer hashes": hashes,
        "pre-tokenizer names": sorted(name for name in sources.pre_types(vocab) if name != "default"),
        "pre-tokenizer expressions": sources.expressions(vocab),
    }
    held = {
        "drafting methods": sources.spec_types(speculative),
        "tensor types": sources.tensor_types(ggml),
        "bytes of a tensor's name": limits.get("MAX_NAME"),
        "dimensions of a tensor": limits.get("MAX_DIMS"),
    }
    for row in llama.DRAFTERS:
        held[f"tensors of {row.name}"] = sources.loader_tensors(text(f"src/models/{row.name}.cpp"), names)
    return generated, held


def project_facts(root: Path) -> tuple[Facts, Facts]:
    """The same of the project: generated files under ``root``, and what the package holds."""
    hashes = json.loads((root / HASHES).read_text(encoding="utf-8"))
    generated = {
        **{name: value for name, value in _tables(root / TABLES).items() if name in MEANING},
        "pre-tokenizer probe": hashes["probe"],
        "pre-tokenizer hashes": hashes["hashes"],
        "pre-tokenizer names": json.loads((root / STRUCTURES).read_text(encoding="utf-8"))["names"],
        "pre-tokenizer expressions": json.loads((root / EXPRESSIONS).read_text(encoding="utf-8")),
    }
    held = {
        "drafting methods": sorted(llama.spec_types()),
        "tensor types": {kind.name: kind.value for kind in types.TensorType},
        "bytes of a tensor's name": types.MAX_NAME + 1,
        "dimensions of a tensor": types.MAX_DIMS,
    }
    for row in llama.DRAFTERS:
        held[f"tensors of {row.name}"] = sorted({name for part in row.parts for name in part.tensors})
    return generated, held


def _tables(path: Path) -> Facts:
    """The literals of a generated module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """A line for each entry that came (+), went (-) or means something else (~)."""
    lines = []
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, dict):
            lines += _entries(name, before or {}, value)
        elif isinstance(value, list):
            lines += [f"+ {name}: {item}" for item in value if item not in (before or ())]
            lines += [f"- {name}: {item}" for item in before or () if item not in value]
        elif before != value:
            lines.append(f"~ {name}: {before} -> {value}")
    return lines


def _entries(name: str, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> list[str]:
    lines = [f"+ {name}: {key} = {_short(after[key])}" for key in after if key not in before]
    lines += [f"- {name}: {key} = {_short(before[key])}" for key in before if key not in after]
    changed = [key for key in after if key in before and before[key] != after[key]]
    return lines + [f"~ {name}: {key}: {_short(before[key])} -> {_short(after[key])}" for key in changed]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def write(root: Path, facts: Facts) -> list[Path]:
    """The generated files under ``root``; returns their paths."""
    structures = json.loads((root / STRUCTURES).read_text(encoding="utf-8"))
    structures["names"] = facts["pre-tokenizer names"]
    texts = {
        TABLES: HEAD + "\n".join(_assignment(name, facts[name]) for name in MEANING),
        HASHES: _json({"probe": facts["pre-tokenizer probe"], "hashes": facts["pre-tokenizer hashes"]}),
        STRUCTURES: _json(structures),
        EXPRESSIONS: _json(facts["pre-tokenizer expressions"]),
    }
    for path, text in texts.items():
        (root / path).write_text(text, encoding="utf-8")
    return [root / path for path in texts]


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


def _assignment(name: str, value: object) -> str:
    """A table as the formatter would have it: one entry a line."""
    lines = [f"# {MEANING[name]}"]
    if isinstance(value, int):
        return "\n".join([*lines, f"{name}: int = {value}", ""])
    quoted = json.dumps
    if isinstance(value, dict):
        kinds = "int, str" if name == "FILE_TYPES" else "str, str"
        rows = [f"    {key if isinstance(key, int) else quoted(key)}: {quoted(item)}," for key, item in value.items()]
        return "\n".join([*lines, f"{name}: dict[{kinds}] = {{", *rows, "}", ""])
    rows = [f"    {quoted(item)}," for item in value] if isinstance(value, list) else []
    return "\n".join([*lines, f"{name}: tuple[str, ...] = (", *rows, ")", ""])


def unread(facts: Mapping[str, Any]) -> list[str]:
    """Tables that came out empty: the sources do not look as they did."""
    return [name for name, value in facts.items() if not value]


def stale_structures(root: Path, facts: Mapping[str, Any]) -> list[str]:
    """Split expressions that stand in pre_structures.json as llama.cpp had them, and that it has no more."""
    known_lists = {tuple(map(canonical, each)) for each in facts["pre-tokenizer expressions"].values()}
    rows = json.loads((root / STRUCTURES).read_text(encoding="utf-8"))["structures"]
    before = json.loads((root / EXPRESSIONS).read_text(encoding="utf-8")).values()
    own = {tuple(map(canonical, each)) for each in before}
    return [row["name"] for row in rows if tuple(row["expressions"]) in own - known_lists]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("tree", type=Path, metavar="TREE", help="an unpacked llama.cpp")
    parser.add_argument("--write", action="store_true", help="rewrite the generated files")
    parser.add_argument("--root", type=Path, default=ROOT, help="where they lie (default: this checkout)")
    given = parser.parse_args()
    if not (given.tree / "src" / "llama-arch.cpp").is_file():
        parser.error(f"{given.tree} is no source tree of llama.cpp: it has no src/llama-arch.cpp")
    generated, held = tree_facts(given.tree)
    if empty := unread(generated | held):
        parser.error(
            f"nothing was found for {', '.join(empty)}: the sources look otherwise, mend tools/llama_sources.py"
        )
    own, own_held = project_facts(given.root)
    lines = changes(own, generated)
    lines += [f"{line}  (by hand)" for line in changes(own_held, held)]
    stale = stale_structures(given.root, generated)
    lines += [f"~ pre-tokenizer structure of {name}: no type has its expressions any more  (by hand)" for name in stale]
    sys.stdout.write("".join(f"{line}\n" for line in lines) or "no difference\n")
    if given.write:
        for path in write(given.root, generated):
            sys.stdout.write(f"written: {path}\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
