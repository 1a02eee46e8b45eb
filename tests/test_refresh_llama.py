"""tools/refresh_llama.py on a small tree made in the shape of llama.cpp's sources."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_convert import llama

ROOT = Path(__file__).resolve().parents[1]
GENERATED = (
    "dflash_convert/llama_tables.py",
    "dflash_convert/vocab/pre_hashes.json",
    "dflash_convert/vocab/pre_structures.json",
    "tools/pre_expressions.json",
)
GRAPH = """
std::unique_ptr<llm_graph_context> llama_model_{name}::build_arch_graph(const llm_graph_params & params) const {{
    return std::make_unique<graph>(*this, params);
}}

llama_model_{name}::graph::graph(const llama_model & model, const llm_graph_params & params) : base(params) {{
    for (int il = 0; il < n_layer; ++il) {{
        {tap}
        inpL = cur;
    }}
    cur = inpL;
    {end}
    res->t_h_nextn = cur;
}}
"""
LOADER = """
void llama_model_{name}::load_arch_tensors(llama_model_loader &) {{
    fc = create_tensor(tn(LLM_TENSOR_FC, "weight"), {{ n_embd_inp, n_embd }}, 0);
    layer.wq = create_tensor(tn(LLM_TENSOR_ATTN_Q, "weight", i), {{ n_embd, n_embd }}, TENSOR_NOT_REQUIRED);
    d2t = create_tensor(tn(LLM_TENSOR_D2T), {{ n_vocab_draft }}, 0);
}}
"""
FILES = {
    "include/llama.h": """
        LLAMA_FTYPE_ALL_F32              = 0,
        LLAMA_FTYPE_MOSTLY_Q4_0          = 2,  // except 1d tensors
        // LLAMA_FTYPE_MOSTLY_Q4_2       = 5,  // support has been removed
        LLAMA_FTYPE_MOSTLY_Q9_0          = 77, // except 1d tensors
        LLAMA_FTYPE_GUESSED = 1024, // not specified in the model file
    """,
    "ggml/include/ggml.h": """
#define GGML_MAX_DIMS           4
#   define GGML_MAX_NAME        64
        GGML_TYPE_F32     = 0,
        // GGML_TYPE_Q4_2 = 4, support has been removed
        GGML_TYPE_Q9_0    = 99,
        GGML_TYPE_COUNT   = 100,
    """,
    "common/common.h": "    int32_t n_max = 5; // maximum number of tokens to draft during speculative decoding\n",
    "common/speculative.cpp": """
    {"draft-simple", SIMPLE}, {"draft-dflash", DFLASH}, {"draft-eagle3", EAGLE3}, {"draft-mtp", MTP},
    {"draft-leap", LEAP},
        block_size = 16;
    """,
    "src/llama-hparams.h": "#define LLAMA_MAX_LAYERS  640\n",
    "src/llama-arch.cpp": """
    { LLM_ARCH_QWEN3,   "qwen3"   },
    { LLM_ARCH_LEAPER,  "leaper"  },
    { LLM_ARCH_HOPPER,  "hopper"  },
    { LLM_ARCH_STAYER,  "stayer"  },
    { LLM_TENSOR_FC,     "fc" },
    { LLM_TENSOR_ATTN_Q, "blk.%d.attn_q" },
    { LLM_TENSOR_D2T,    "d2t" },
    """,
    "src/llama-model.cpp": """
        case LLM_ARCH_QWEN3:
            return new llama_model_qwen3(params);
        case LLM_ARCH_LEAPER:
            return new llama_model_leaper(params);
        case LLM_ARCH_HOPPER:
            return new llama_model_hopper(params);
        case LLM_ARCH_STAYER:
            return new llama_model_stayer(params);
    """,
    "src/models/models.h": """
struct llama_model_leaper : public llama_model_base {
    struct graph : public llm_graph_context {
    };
};
struct llama_model_hopper : public llama_model_leaper {
    using graph = llama_model_leaper::graph;
};
""",
    "src/models/qwen3.cpp": GRAPH.format(
        name="qwen3", tap="res->t_layer_inp[il] = inpL;", end="cur = build_norm(cur, model.output_norm);"
    ),
    "src/models/leaper.cpp": GRAPH.format(
        name="leaper", tap="res->t_layer_inp[il] = inpL;", end="res->t_layer_inp[n_layer] = cur;"
    ),
    "src/models/stayer.cpp": GRAPH.format(name="stayer", tap="", end=""),
    "src/models/dflash.cpp": LOADER.format(name="dflash"),
    "src/models/eagle3.cpp": LOADER.format(name="eagle3"),
    "src/models/gemma4-assistant.cpp": LOADER.format(name="gemma4_assistant"),
    "src/llama-vocab.cpp": """
            case LLAMA_VOCAB_PRE_TYPE_QWEN2:
            case LLAMA_VOCAB_PRE_TYPE_LEAP:
                // original regex from tokenizer.json
                regex_exprs = {
                    // "(?i:'s)",
                    "\\\\p{N}, \\\\s"
                    "+",
                    "[^\\r\\n]",
                };
                break;
            if (tokenizer_pre == "default") {
                pre_type = LLAMA_VOCAB_PRE_TYPE_DEFAULT;
            } else if (
                    tokenizer_pre == "qwen2" ||
                    tokenizer_pre == "leap") {
                pre_type = LLAMA_VOCAB_PRE_TYPE_LEAP;
                ignore_merges = true;
            }
    """,
    "gguf-py/gguf/constants.py": """
MODEL_ARCH_NAMES = {
    MODEL_ARCH.QWEN3:  "qwen3",
    MODEL_ARCH.LEAPER: "leaper",
    MODEL_ARCH.MMPROJ: "clip",
}
""",
    "conversion/base.py": """
class TextModel:
    def get_vocab_base_pre(self, tokenizer) -> str:
        chktxt = 'probe \\n 3 33'
        chkhsh = sha256(str(tokenizer.encode(chktxt)).encode()).hexdigest()
        res = None
        if chkhsh == "aa11":
            # ref: somewhere
            res = "leap"
        return res
""",
    "conversion/leaper.py": """
raise SystemExit("nothing of a tree is run")

@ModelBase.register("Qwen3ForCausalLM")
class Qwen3Model(TextModel):
    model_arch = gguf.MODEL_ARCH.QWEN3

@ModelBase.register("LeaperForCausalLM", "DFlashDraftModel")
class LeaperModel(Qwen3Model):
    model_arch = gguf.MODEL_ARCH.LEAPER

@ModelBase.register("HopperForCausalLM")
class HopperModel(LeaperModel):
    pass

@ModelBase.register("LlamaForCausalLM")
class LlamaModel(TextModel):
    model_arch = gguf.MODEL_ARCH.QWEN3

    def set_vocab(self):
        pass

@ModelBase.register("SpringerForCausalLM")
class SpringerModel(LlamaModel):
    model_arch = gguf.MODEL_ARCH.QWEN3

@ModelBase.register("OwnForCausalLM")
class OwnModel(SpringerModel):
    model_arch = gguf.MODEL_ARCH.QWEN3

    def set_vocab(self):
        pass

@ModelBase.register("HopperForCausalLM")
class HopperVision(MmprojModel):
    model_arch = gguf.MODEL_ARCH.MMPROJ
""",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tree"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the generated files, which a test may rewrite."""
    for name in GENERATED:
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, path)
    return tmp_path / "root"


def refresh(*args: object) -> tuple[int, list[str], str]:
    command = [sys.executable, str(ROOT / "tools" / "refresh_llama.py"), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_what_changed_is_told_line_by_line(tree: Path, root: Path) -> None:
    code, lines, _ = refresh(tree, "--root", root)
    assert code == 1
    assert {
        "~ MAX_LAYERS: 512 -> 640",
        "~ DEFAULT_N_MAX: 3 -> 5",
        "+ TAPPED: leaper",
        "+ TAPPED: hopper",
        "- TAPPED: llama",
        "+ TAPPED_BEHIND_LAST: leaper",
        "+ LAST_HIDDEN: leaper",
        "- LAST_HIDDEN: gpt-oss",
        "+ FILE_TYPES: 77 = Q9_0",
        "+ CLASSES: LeaperForCausalLM = leaper",
        "+ LLAMA_VOCABULARY: SpringerForCausalLM",
        "+ CLASSES: HopperForCausalLM = leaper",
        "+ pre-tokenizer hashes: aa11 = leap",
        "+ pre-tokenizer names: leap",
        "+ pre-tokenizer expressions: LEAP = ['\\\\p{N}, \\\\s+', '[^\\r\\n]']",
        "+ drafting methods: draft-leap  (by hand)",
        "- drafting methods: draft-dspark  (by hand)",
        "+ tensor types: Q9_0 = 99  (by hand)",
        "- tensors of dflash: enc.output_norm.weight  (by hand)",
        "~ pre-tokenizer structure of llama-bpe: no type has its expressions any more  (by hand)",
    } <= set(lines)
    named = {line.split("(by hand)")[0].split(":", 1)[-1].strip() for line in lines}
    assert "qwen3" not in named, "what both have is not told"
    assert "stayer" not in named, "a graph without taps"
    assert not [line for line in lines if "DEFAULT_BLOCK" in line or "DFlashDraftModel" in line or "Q4_2" in line]
    assert (root / GENERATED[0]).read_text() == (ROOT / GENERATED[0]).read_text(), "only --write writes"


def test_written_tables_are_those_of_the_tree(tree: Path, root: Path) -> None:
    code, lines, _ = refresh(tree, "--root", root, "--write")
    assert code == 1
    assert [line for line in lines if line.startswith("written: ")] == [f"written: {root / name}" for name in GENERATED]
    tables: dict[str, object] = {}
    exec((root / GENERATED[0]).read_text(), tables)
    assert tables["TAPPED"] == ("hopper", "leaper", "qwen3")
    assert tables["TAPPED_BEHIND_LAST"] == tables["LAST_HIDDEN"] == ("hopper", "leaper")
    assert tables["FILE_TYPES"] == {0: "F32", 2: "Q4_0", 77: "Q9_0"}
    assert (tables["MAX_LAYERS"], tables["DEFAULT_N_MAX"], tables["DEFAULT_BLOCK"]) == (640, 5, 16)
    hashes = json.loads((root / GENERATED[1]).read_text())
    assert hashes == {"probe": "probe \n 3 33", "hashes": {"aa11": "leap"}}
    structures = json.loads((root / GENERATED[2]).read_text())
    assert structures["names"] == ["leap", "qwen2"]
    assert structures["structures"] == json.loads((ROOT / GENERATED[2]).read_text())["structures"]
    # what is left needs a person
    _, lines, _ = refresh(tree, "--root", root)
    assert lines
    assert all(line.endswith("(by hand)") for line in lines)


def test_a_generated_module_is_formatted(tree: Path, root: Path) -> None:
    refresh(tree, "--root", root, "--write")
    ruff = Path(sys.executable).with_name("ruff")
    check = [str(ruff), "format", "--check", "--config", str(ROOT / "pyproject.toml"), str(root / GENERATED[0])]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_sources_that_look_otherwise_are_not_taken_for_empty_ones(tree: Path, root: Path) -> None:
    (tree / "include" / "llama.h").write_text("enum class FileType : int { F32 };\n")
    code, lines, said = refresh(tree, "--root", root, "--write")
    assert (code, lines) == (2, [])
    assert "nothing was found for FILE_TYPES" in " ".join(said.split())
    assert (root / GENERATED[0]).read_text() == (ROOT / GENERATED[0]).read_text()


def test_another_directory_is_refused(tmp_path: Path) -> None:
    code, _, said = refresh(tmp_path)
    assert code == 2
    assert "no source tree of llama.cpp" in said


def test_the_package_uses_the_generated_tables() -> None:
    tables: dict[str, object] = {}
    exec((ROOT / GENERATED[0]).read_text(), tables)
    assert llama.TAPPABLE | set(llama.NO_TARGET) == set(tables["TAPPED"])  # type: ignore[call-overload]
    assert llama.file_types() == tables["FILE_TYPES"]
    assert llama.class_of("qwen3") == "Qwen3ForCausalLM"
    assert llama.class_of("leaper") is None
