"""A repository id or a path becomes a local directory, with where it came from.

A path that exists never touches the network.  Of a Hub target only its configuration, tokenizer and template
files are fetched, or the header of its GGUF; of a drafter its configuration, README, index and weights.  HF_HOME,
HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE work as everywhere (huggingface_hub reads them); interrupted downloads resume.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath

from dflash_convert import hub_names
from dflash_convert.arrivals import Arrivals
from dflash_convert.checkpoint import listed_files
from dflash_convert.container.reader import Gguf
from dflash_convert.container.types import MAGIC
from dflash_convert.errors import DflashError, HubError, UsageError
from dflash_convert.hub_cache import cached, checked, hashes, remember
from dflash_convert.hub_gguf import models_of, remote_header
from dflash_convert.hub_trouble import check_variables, explain, no_connection
from dflash_convert.hub_weights import coming
from dflash_convert.notes import Note
from dflash_convert.system import kind_of_place, tip_for

TARGET_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "*.model.v*",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "tiktoken.model",
    "*.tiktoken",
    "tokenization_*.py",  # read as text for its split expression, never run
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)
# of these, what does not say that a tokenizer is there
SETTINGS = ("config.json", "generation_config.json", "chat_template.jinja", "chat_template.json")
# what stands for each side
TAKEN = {
    "target": "give the directory with the tokenizer files, its config.json, or the target's GGUF",
    "drafter": "give the checkpoint's directory, or the config.json or a safetensors file in it",
}
DRAFTER_FILES = ("config.json", "README.md", "mask_embedding.pt")
_SPEC = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?P<sub>(?:/[\w.-]+)*)(?:@(?P<rev>[\w./-]+))?")
_SNAPSHOT = re.compile(r"models--(?P<repo>.+)")
Choice = Callable[[Sequence[str]], list[str]]


@dataclass(frozen=True)
class Resolved:
    """A local directory or a target's GGUF; ``repo``, ``revision`` (a commit) and ``subfolder`` if it is the Hub's.

    ``header`` is that of a GGUF that stays on the Hub: then ``path`` is only its name.  ``from_hub``: it was asked for
    by its repository id, so the network may be used for more of it.
    """

    path: Path
    repo: str | None = None
    revision: str | None = None
    subfolder: str | None = None
    notes: tuple[Note, ...] = ()
    from_hub: bool = False
    header: Gguf | None = None

    @cached_property
    def files(self) -> Mapping[str, str]:
        """Each file's name and its SHA-256; large files outside the Hub's cache are left out."""
        return hashes(self.path)

    @property
    def name(self) -> str:
        """What to call it: the repository, else the directory; a sub-folder adds its own name."""
        if self.repo is None:
            return self.path.resolve().name
        return f"{self.repo}/{self.subfolder}" if self.subfolder else self.repo


@dataclass(frozen=True)
class Weights:
    """How a drafter's weights are fetched: see :func:`resolve_drafter`."""

    accept: Callable[[Path], None] = lambda _: None
    later: Callable[[Arrivals], object] | None = None


@dataclass(frozen=True)
class Spec:
    """``owner/name[/sub/folder][@revision]`` taken apart."""

    repo: str
    subfolder: str
    revision: str | None

    def inside(self, name: str) -> str:
        """``name`` seen from the repository's root."""
        return f"{self.subfolder}/{name}" if self.subfolder else name


def parse_spec(text: str) -> Spec | None:
    """The parts of a repository id, or None when ``text`` cannot be one."""
    match = _SPEC.fullmatch(text)
    if match is None or ".." in text:
        return None
    return Spec(match["repo"], match["sub"].strip("/"), match["rev"])


def existing(path: Path) -> Path:
    """``path``; UsageError when nothing is there."""
    if not path.exists():
        raise UsageError(f"{path}: no such file or directory", tip=hub_names.local_tip(path))
    return path


def resolve_target(spec: str, *, progress: bool = False) -> Resolved:
    """The target's configuration and tokenizer files, or its GGUF: of one on the Hub the header, never the weights."""
    return _resolve(spec, "target", lambda names: matching(names, TARGET_FILES), progress)


def resolve_drafter(
    spec: str,
    *,
    progress: bool = False,
    accept: Callable[[Path], None] = lambda _: None,
    later: Callable[[Arrivals], object] | None = None,
) -> Resolved:
    """The drafter's configuration, README, index and safetensors weights.

    ``accept`` sees the directory once config.json is there and may raise, before any weight is fetched.  With ``later``
    only the headers of weights are fetched that the cache does not hold; it receives what fetches the files themselves.
    """
    return _resolve(spec, "drafter", lambda names: drafter_files(names), progress, Weights(accept, later))


def fetch_file(text: str, name: str) -> Path:
    """One file: ``text`` is the file itself, a directory that holds it, or a repository id (fetched into the cache)."""
    text = hub_names.read(text, "drafter").text
    path = Path(text).expanduser()
    if path.is_dir():
        path = path / name
    if path.is_file():
        return path
    spec = parse_spec(text)
    if spec is None or text.startswith((".", "~", "/")):
        kind = kind_of_place(path)
        what = f"{kind}, not a file" if kind else "no such file"
        raise UsageError(
            f"{path}: {what}",
            tip=tip_for(kind, f"Name a file, a directory with {name}, or a Hub repository."),
        )
    check_variables()
    from huggingface_hub import errors, hf_hub_download

    inside = spec.inside(name)
    try:
        with checked(spec.repo, spec.revision, [inside]):
            return Path(hf_hub_download(spec.repo, inside, revision=spec.revision))
    except DflashError:
        raise
    except errors.LocalEntryNotFoundError as error:
        raise HubError(
            f"{spec.repo}: the Hub cannot be reached, and the cache does not hold {inside}",
            tip="Run once with a connection, or give a local file instead.",
        ) from error
    except errors.EntryNotFoundError as error:
        raise HubError(f"{spec.repo} has no {inside}", tip="Name another repository or a local file.") from error
    except Exception as error:  # see _from_hub
        explain(error, spec.repo, spec.revision, inside)


def cached_file(text: str, name: str) -> Path | None:
    """A file of a repository that an earlier run has fetched; never touches the network."""
    spec = parse_spec(text)
    return cached(spec.repo, spec.revision, name) if spec is not None else None


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Names that match a pattern of the same depth (``*`` stays within one folder)."""
    wanted = [(pattern.count("/"), pattern) for pattern in patterns]
    return [n for n in names if any(n.count("/") == depth and fnmatchcase(n, pattern) for depth, pattern in wanted)]


def drafter_files(names: Sequence[str]) -> list[str]:
    """Files of one folder that make a drafter; ``consolidated`` weights only when there are no others."""
    chosen = matching(names, (*DRAFTER_FILES, "*.safetensors.index.json"))
    weights = matching(names, ("*.safetensors",))
    usual = [name for name in weights if not name.startswith("consolidated")]
    return chosen + (usual or weights)


def _resolve(text: str, role: str, choose: Choice, progress: bool, weights: Weights | None = None) -> Resolved:
    text, notes = hub_names.read(text, role)
    path = Path(text).expanduser()
    if path.exists() or (path.suffix == ".gguf" and (path.is_absolute() or len(path.parts) < 3)):
        return _with_notes(_local(existing(path), role), notes)
    spec = parse_spec(text)
    if spec is None or text.startswith((".", "~", "/")) or Path(text.partition("/")[0]).is_dir():
        raise UsageError(
            f"{role} {text!r}: no such directory, and not a Hub repository id either",
            tip="Name a directory that exists, or a repository as owner/name, optionally with @revision.",
        )
    return _with_notes(_from_hub(spec, role, choose, progress, weights or Weights()), notes)


def _with_notes(found: Resolved, notes: tuple[Note, ...]) -> Resolved:
    return replace(found, notes=(*notes, *found.notes))


def _local(path: Path, role: str) -> Resolved:
    if role == "target" and is_gguf(path):
        repo, revision, _ = cache_origin(path.parent)
        return Resolved(path, repo, revision)
    if not path.is_dir():
        kind = kind_of_place(path)
        what = f"{role} {path}: a directory was expected, this is {kind or 'a file'}"
        raise UsageError(what, tip=tip_for(kind, TAKEN[role]))
    path = _snapshot_in(path)
    repo, revision, subfolder = cache_origin(path)
    if role == "target":
        names = [entry.name for entry in path.iterdir()]
        chosen = target_gguf(names, names)
        if chosen is not None:
            return Resolved(path / chosen, repo, revision, notes=_which(chosen, names))
    return Resolved(path, repo, revision, subfolder)


def is_gguf(path: Path) -> bool:
    """By its name or its first bytes (a file in the Hub's store has no name of its own)."""
    if not path.is_file():
        return False
    if path.suffix == ".gguf":
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def target_gguf(names: Sequence[str], chosen: Sequence[str]) -> str | None:
    """The GGUF that stands for a target among ``names``, None when ``chosen`` holds a tokenizer or there is none."""
    models = models_of(names)
    if not models or set(matching(chosen, TARGET_FILES)) - set(SETTINGS):
        return None
    return min(models, key=lambda name: (name.count("/"), name))


def _which(chosen: str, names: Sequence[str]) -> tuple[Note, ...]:
    count = len(models_of(names))
    among = "the only GGUF there" if count == 1 else f"the first of {count} GGUFs there"
    return (Note("info", f"{chosen} stands for the target: {among}"),)


def _snapshot_in(path: Path) -> Path:
    """The snapshot to use when ``path`` is a repository's folder in the cache, else ``path`` itself."""
    if (path / "config.json").exists() or not (path / "snapshots").is_dir():
        return path
    main = path / "refs" / "main"
    if main.is_file():
        return path / "snapshots" / main.read_text("utf-8").strip()
    found = sorted(entry for entry in (path / "snapshots").iterdir() if entry.is_dir())
    return found[0] if len(found) == 1 else path


def cache_origin(path: Path) -> tuple[str | None, str | None, str | None]:
    """(repository, commit, sub-folder) from ``.../models--OWNER--NAME/snapshots/COMMIT[/SUB]``, else Nones."""
    parts = path.absolute().parts
    for at in range(len(parts) - 2, 0, -1):
        match = _SNAPSHOT.fullmatch(parts[at - 1])
        if parts[at] == "snapshots" and match:
            return match["repo"].replace("--", "/", 1), parts[at + 1], "/".join(parts[at + 2 :]) or None
    return None, None, None


def _from_hub(spec: Spec, role: str, choose: Choice, progress: bool, how: Weights) -> Resolved:
    check_variables()
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    if constants.HF_HUB_OFFLINE:
        return _from_cache(spec, role, "HF_HUB_OFFLINE is set")
    (enable_progress_bars if progress else disable_progress_bars)()
    try:
        info = HfApi().model_info(spec.repo, revision=spec.revision)
        listed = [entry.rfilename for entry in info.siblings or []]
        prefix = spec.inside("")
        inside = [name.removeprefix(prefix) for name in listed if name.startswith(prefix)]
        chosen = choose(inside)
        if role == "target":
            gguf = spec.subfolder if spec.subfolder.endswith(".gguf") else target_gguf(inside, chosen)
            if gguf is not None:
                return _remote_gguf(spec, str(info.sha), gguf, listed if gguf == spec.subfolder else inside)
        _check_folder(spec, role, chosen, listed)
        weights = [name for name in chosen if name.endswith(".safetensors")]
        commit = str(info.sha)  # of the listing: the revision may move before the last file has come
        folder = _fetch(spec, commit, sorted(set(chosen) - set(weights)))
        how.accept(folder)
        if weights and how.later is not None:
            how.later(coming(spec.repo, commit, {folder / name: spec.inside(name) for name in weights}))
        elif weights:
            _fetch(spec, commit, weights)
    except DflashError:
        raise
    except Exception as error:  # the library's errors come from several bases that changed between versions
        why = no_connection(error)
        if why is not None:
            return _from_cache(spec, role, *why, cause=error)
        explain(error, spec.repo, spec.revision)
    return Resolved(folder, spec.repo, commit, spec.subfolder or None, from_hub=True)


def _remote_gguf(spec: Spec, commit: str, name: str, names: Sequence[str]) -> Resolved:
    """``name`` is seen from the folder of ``spec``, or is what ``spec`` itself names."""
    if name not in names:
        raise HubError(f"{spec.repo} has no {name}", tip=f"Its GGUFs: {', '.join(models_of(names)[:5]) or 'none'}.")
    if name == spec.subfolder:
        return Resolved(Path(name), spec.repo, commit, header=remote_header(spec.repo, commit, name))
    header = remote_header(spec.repo, commit, spec.inside(name))
    return Resolved(Path(name), spec.repo, commit, notes=_which(name, names), header=header)


def _fetch(spec: Spec, commit: str, names: Sequence[str]) -> Path:
    """The folder in the cache with these files; the cache also remembers that the revision stands for ``commit``."""
    from huggingface_hub import constants, snapshot_download

    patterns = [glob.escape(spec.inside(name)) for name in names]
    with checked(spec.repo, commit, [spec.inside(name) for name in names]):
        snapshot = Path(snapshot_download(spec.repo, revision=commit, allow_patterns=patterns))
    remember(snapshot, spec.revision or constants.DEFAULT_REVISION, commit)
    return snapshot / spec.subfolder


def _check_folder(spec: Spec, role: str, chosen: Sequence[str], listed: Sequence[str]) -> None:
    """A folder without config.json is not a model; say which folders are."""
    if "config.json" in chosen or (role == "target" and chosen):
        return
    where = f"{spec.repo}/{spec.subfolder}" if spec.subfolder else spec.repo
    others = sorted(str(PurePosixPath(name).parent) for name in listed if name.endswith("/config.json"))
    raise HubError(
        f"{where}: no config.json there, so it is not a {role}",
        tip=f"Folders of this repository that have one: {', '.join(others[:5])}." if others else "Check the name.",
    )


def _from_cache(
    spec: Spec, role: str, reason: str, tip: str | None = None, cause: BaseException | None = None
) -> Resolved:
    """What an earlier run has fetched; HubError when that is not enough."""
    gguf = _cached_gguf(spec) if role == "target" else None
    if gguf is not None:
        return replace(_local(gguf, role), notes=(Note("warning", f"{spec.repo}: {reason}; the cache's copy is used"),))
    config = cached(spec.repo, spec.revision, spec.inside("config.json"))
    path = config.parent if config is not None else None
    missing = _missing(path, role)
    revision = spec.revision or "main"
    if path is None or missing:
        raise HubError(
            f"{spec.repo}: {reason}, and the cache does not hold {missing} (revision {revision})",
            tip=tip or "Run once with a connection, or give a local directory instead.",
        ) from cause
    _, commit, _ = cache_origin(path)
    note = Note("warning", f"{spec.repo}: {reason}; the copy in the cache is used (revision {commit})")
    return Resolved(path, spec.repo, commit, spec.subfolder or None, (note,), from_hub=True)


def _cached_gguf(spec: Spec) -> Path | None:
    """A GGUF of the repository that was downloaded whole."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(spec.repo, revision=spec.revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    if (folder / spec.subfolder).is_file():
        return folder / spec.subfolder
    folder /= spec.subfolder
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    chosen = target_gguf(names, names)
    return None if chosen is None else folder / chosen


def _missing(path: Path | None, role: str) -> str | None:
    if path is None:
        return "its files"
    if role == "target":
        names = [entry.name for entry in path.iterdir()]
        return None if len(matching(names, TARGET_FILES)) > 1 else "its tokenizer files"
    shards = listed_files(path)
    if shards is not None:
        return next((shard for shard in shards if not (path / shard).is_file()), None)
    return None if any(path.glob("*.safetensors")) else "its weights"
