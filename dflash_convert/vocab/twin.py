"""A SentencePiece target without its ``tokenizer.model``: where to take it from.

In this order: what the user names, the target's own repository, the known twin of its family.  Whatever is
found stays in the Hub's cache; the target's directory is never written to, and ``load_vocabulary`` checks the
pieces against the target before it uses them.  Gemma 4 needs none of this: its tokenizer.json is enough.
"""

from __future__ import annotations

from pathlib import Path

from dflash_convert import hub
from dflash_convert.errors import HubError
from dflash_convert.notes import Note
from dflash_convert.vocab.files import TokenizerFiles

NAME = "tokenizer.model"
# repositories with the same pieces; the second is an ungated copy of the first
TWINS = {"gemma": ("google/gemma-3-4b-it", "unsloth/gemma-3-4b-it")}
SPM_CLASSES = ("LlamaTokenizer", "GemmaTokenizer")
OTHERS = (
    "tokenizer.json",
    NAME,
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "tiktoken.model",
    "merges.txt",
)


def needs_model(directory: Path) -> bool:
    """A SentencePiece tokenizer by its class, and no file that holds its pieces."""
    files = TokenizerFiles(directory)
    if any(files.has(name) for name in OTHERS) or files.glob("*.tiktoken"):
        return False
    kind = str(files.optional_json("tokenizer_config.json").get("tokenizer_class"))
    return kind.removesuffix("Fast") in SPM_CLASSES


def find_tokenizer_model(target: hub.Resolved, option: str | None) -> tuple[Path | None, list[Note]]:
    """The file to pass to ``load_vocabulary`` as ``tokenizer_model``, or None; notes say what was taken from where."""
    if option is not None:
        path = hub.fetch_file(option, NAME)
        return path, [Note("info", f"{NAME} from {option}")]
    if not target.path.is_dir() or not needs_model(target.path):
        return None, []
    family = _family(TokenizerFiles(target.path))
    places = [target.repo] if target.repo else []
    for repo in [*places, *TWINS.get(family, ())]:
        found = _from(repo, network=target.from_hub)
        if found is not None:
            return found, [Note("warning", f"the target has no {NAME}; taken from {repo} (kept in the Hub's cache)")]
    return None, []


def _from(repo: str, *, network: bool) -> Path | None:
    """The repository's file; only from the cache when the target is a local directory."""
    if not network:
        return hub.cached_file(repo, NAME)
    try:
        return hub.fetch_file(repo, NAME)
    except HubError:
        return None  # gated, gone or without the file: the next place may have it


def _family(files: TokenizerFiles) -> str:
    kind = str(files.optional_json("tokenizer_config.json").get("tokenizer_class"))
    model = str(files.optional_json("config.json").get("model_type"))
    return "gemma" if kind.startswith("Gemma") or model.startswith("gemma") else ""
