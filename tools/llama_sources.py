"""What can be read off llama.cpp's sources: every function takes texts of a tree and gives plain data.

The sources are C++ and Python of a known style; what no longer looks like it gives an empty table, and the comparison
in refresh_llama.py shows everything as gone.  Nothing of the tree is imported or run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

PROJECTOR = "clip"
CPP_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|[,}]', re.DOTALL)


def read(tree: Path, name: str) -> str:
    """A file of the tree; empty when there is none."""
    path = tree / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


# --- file types, limits, drafting methods ------------------------------------------------------------------------


def file_types(header: str) -> dict[int, str]:
    """general.file_type of include/llama.h: number -> name; retired numbers stand in comments and are left out."""
    rows = re.findall(r"^\s*LLAMA_FTYPE_(?:MOSTLY|ALL)_(\w+)\s*=\s*(\d+)", header, re.MULTILINE)
    return {int(number): name for name, number in rows}


def tensor_types(header: str) -> dict[str, int]:
    """ggml_type of ggml/include/ggml.h: name -> id."""
    rows = re.findall(r"^\s*GGML_TYPE_(\w+)\s*=\s*(\d+)", header, re.MULTILINE)
    return {name: int(number) for name, number in rows if name != "COUNT"}


def spec_types(source: str) -> list[str]:
    """Values of --spec-type that load a drafter of a kind of its own (common/speculative.cpp)."""
    return sorted(set(re.findall(r'"(draft-(?!simple)[a-z0-9]+)"', source)))


def limits(hparams: str, common: str, speculative: str, ggml: str) -> dict[str, int]:
    """Numbers that the runtime is built with, by the names that the project gives them."""
    found = {
        "MAX_LAYERS": re.search(r"#define LLAMA_MAX_LAYERS\s+(\d+)", hparams),
        "DEFAULT_N_MAX": re.search(r"int32_t n_max = (\d+); // maximum number of tokens to draft", common),
        "DEFAULT_BLOCK": re.search(r"^\s*block_size = (\d+);", speculative, re.MULTILINE),
        "MAX_NAME": re.search(r"#\s*define GGML_MAX_NAME\s+(\d+)", ggml),
        "MAX_DIMS": re.search(r"#\s*define GGML_MAX_DIMS\s+(\d+)", ggml),
    }
    return {name: int(match.group(1)) for name, match in found.items() if match}


# --- architectures -------------------------------------------------------------------------------------------------


def architectures(names: str, models: str) -> dict[str, str]:
    """general.architecture -> the class that runs it (src/llama-arch.cpp, src/llama-model.cpp)."""
    text = dict(re.findall(r'\{\s*(LLM_ARCH_\w+),\s*"([^"]+)"\s*\}', names))
    found = {}
    for cases, class_name in re.findall(r"((?:case LLM_ARCH_\w+:\s*)+)return new llama_model_(\w+)\(", models):
        for case in re.findall(r"LLM_ARCH_\w+", cases):
            found[text.get(case, case)] = class_name
    return found


def graphs(classes: str, sources: Iterable[str]) -> dict[str, str]:
    """Class -> the body of its graph, one that it takes from another class included (src/models)."""
    bodies = {}
    for source in sources:
        for match in re.finditer(
            r"^llama_model_(\w+)::graph(?:<\w+>)?::graph\(.*?^\}", source, re.DOTALL | re.MULTILINE
        ):
            bodies[match.group(1)] = match.group(0)
    for match in re.finditer(r"^struct llama_model_(\w+) .*?^\};", classes, re.DOTALL | re.MULTILINE):
        other = re.search(r"using graph\s*=\s*llama_model_(\w+)::graph", match.group(0))
        if other and match.group(1) not in bodies and other.group(1) in bodies:
            bodies[match.group(1)] = bodies[other.group(1)]
    return bodies


def taps(body: str) -> bool:
    """Whether the graph hands out what enters its layers."""
    return "t_layer_inp[il] =" in body


def taps_behind_the_last(body: str) -> bool:
    return "t_layer_inp[n_layer] =" in body


def hands_out_the_last(body: str) -> bool:
    """Whether t_h_nextn is what leaves the last layer: set from ``cur`` with no norm since the layers' end."""
    parts = re.split(r"\bcur = inpL;", body)
    end = parts[-1] if len(parts) > 1 else ""
    before, set_, _ = end.partition("t_h_nextn = cur;")
    return bool(set_) and "build_norm" not in before


def loader_tensors(source: str, names: str) -> list[str]:
    """The tensors that a loader creates, ``{}`` for the layer (src/models/X.cpp, names of src/llama-arch.cpp)."""
    text = dict(re.findall(r'\{\s*(LLM_TENSOR_\w+),\s*"([^"]+)"\s*\}', names))
    calls = re.findall(r'create_tensor\(tn\((LLM_TENSOR_\w+)(?:,\s*"(\w+)")?(?:,\s*\w+)?\)', source)
    full = (text.get(name, name) + (f".{suffix}" if suffix else "") for name, suffix in calls)
    return sorted({name.replace("%d", "{}") for name in full})


# --- Hugging Face classes --------------------------------------------------------------------------------------------


def classes(modules: Mapping[str, str], constants: str) -> dict[str, str]:
    """Hugging Face class of a text model -> architecture string (conversion/*.py, gguf/constants.py)."""
    names = dict(re.findall(r'MODEL_ARCH\.(\w+):\s*"([^"]+)"', constants))
    arch: dict[str, str] = {}
    bases: dict[str, list[str]] = {}
    registered: dict[str, list[str]] = {}
    for module in modules.values():
        for node in ast.walk(ast.parse(module)):
            if not isinstance(node, ast.ClassDef):
                continue
            bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
            own = [found for found in map(_model_arch, node.body) if found]
            arch |= {node.name: own[-1]} if own else {}
            for name in _registered(node):
                registered.setdefault(name, []).append(node.name)

    def of(name: str, seen: frozenset[str] = frozenset()) -> str | None:
        if name in arch:
            return names.get(arch[name])
        return next(
            (found for base in bases.get(name, ()) if base not in seen and (found := of(base, seen | {name}))), None
        )

    found: dict[str, str] = {}
    for name, class_names in sorted(registered.items()):  # a vision encoder is registered under the same name
        known = [text for each in class_names if (text := of(each)) and text != PROJECTOR]
        found |= {name: known[0]} if known else {}
    return found


def vocabulary_classes(modules: Mapping[str, str], owner: str) -> list[str]:
    """Hugging Face classes whose vocabulary is written by ``set_vocab`` of the converter's class ``owner``."""
    nodes = {
        node.name: node
        for module in modules.values()
        for node in ast.walk(ast.parse(module))
        if isinstance(node, ast.ClassDef)
    }

    def writer(name: str, seen: frozenset[str] = frozenset()) -> str | None:
        node = nodes.get(name)
        if node is None or name in seen:
            return None
        if any(isinstance(part, ast.FunctionDef) and part.name == "set_vocab" for part in node.body):
            return name
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        return next((found for base in bases if (found := writer(base, seen | {name}))), None)

    return sorted({text for name, node in nodes.items() if writer(name) == owner for text in _registered(node)})


def _model_arch(statement: ast.stmt) -> str | None:
    """X of ``model_arch = gguf.MODEL_ARCH.X``."""
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Attribute):
        targets = [target.id for target in statement.targets if isinstance(target, ast.Name)]
        return statement.value.attr if targets == ["model_arch"] else None
    return None


def _registered(node: ast.ClassDef) -> list[str]:
    return [
        argument.value
        for call in node.decorator_list
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "register"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


# --- pre-tokenizers ------------------------------------------------------------------------------------------------


def hashes(base: str) -> tuple[str, dict[str, str]]:
    """The probe text and hash -> name of get_vocab_base_pre (conversion/base.py)."""
    if not base:
        return "", {}
    functions = [node for node in ast.walk(ast.parse(base)) if isinstance(node, ast.FunctionDef)]
    body = [node for each in functions if each.name == "get_vocab_base_pre" for node in ast.walk(each)]
    probe = ""
    table: dict[str, str] = {}
    for node in body:
        if isinstance(node, ast.Assign) and _assigns(node, "chktxt") and isinstance(node.value, ast.Constant):
            probe = str(node.value.value)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare):
            value = node.test.comparators[0]
            named = [n.value for n in node.body if isinstance(n, ast.Assign) and _assigns(n, "res")]
            if isinstance(value, ast.Constant) and named and isinstance(named[0], ast.Constant):
                table[str(value.value)] = str(named[0].value)
    return probe, table


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def pre_types(vocab: str) -> dict[str, tuple[str, bool]]:
    """Name of a BPE pre-tokenizer -> (its type, whether merges are ignored) (src/llama-vocab.cpp)."""
    found: dict[str, tuple[str, bool]] = {}
    names: list[str] = []
    token = re.compile(r'tokenizer_pre == "([^"]+)"|pre_type = LLAMA_VOCAB_PRE_TYPE_(\w+);|(ignore_merges = true;)')
    assigned: list[str] = []
    for name, kind, ignore in (match.groups() for match in token.finditer(vocab)):
        if name:
            names.append(name)
        elif kind:
            found |= dict.fromkeys(names, (kind, False))
            names, assigned = [], names
        elif ignore:
            found |= {each: (found[each][0], True) for each in assigned}
    return found


def expressions(vocab: str) -> dict[str, list[str]]:
    """Type of a pre-tokenizer -> the expressions that split text (src/llama-vocab.cpp)."""
    found: dict[str, list[str]] = {}
    pattern = r"((?:case LLAMA_VOCAB_PRE_TYPE_\w+:\s*)+)(?://[^\n]*\s*)*regex_exprs = \{"
    for match in re.finditer(pattern, vocab):
        literals = _literals(vocab[match.end() :])
        found |= dict.fromkeys(re.findall(r"LLAMA_VOCAB_PRE_TYPE_(\w+)", match.group(1)), literals)
    return found


def _literals(text: str) -> list[str]:
    """The strings of a C++ initializer list up to its closing brace; neighbours are one string."""
    items, current = [], ""
    for match in CPP_TOKEN.finditer(text):
        token = match.group(0)
        if token.startswith('"'):
            current += ast.literal_eval(token)
        elif token in (",", "}"):
            items += [current] if current else []
            current = ""
            if token == "}":
                break
    return items
