"""What people paste where a directory or ``owner/name`` belongs: read where it is plain, else answered by name."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from dflash_convert.errors import UsageError
from dflash_convert.notes import Note

HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
NO_MODELS = ("datasets", "spaces", "collections", "papers", "docs", "organizations", "blog", "models", "buckets")
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*)://(?P<rest>.+)")
_GIT = re.compile(r"(?:ssh://)?git@(?P<host>[\w.-]+)[:/](?P<rest>.+)")
_TAG = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+):(?P<tag>[\w.-]+)")
_CACHE = re.compile(r"(?:models--)(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)")
_WINDOWS = re.compile(r"[\w.-]+\\[\w.-]+")
_SHARE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)/(?P<rest>(?:tree|blob|resolve|raw)/.+)")
_WEIGHTS = re.compile(r".+\.safetensors(?:\.index\.json)?|config\.json")
QUOTES = "\"'`\u201c\u201d\u2018\u2019"


class Read(NamedTuple):
    """``text`` is a local path or ``owner/name[/folder][@revision]``; ``notes`` tell what was made of the words."""

    text: str
    notes: tuple[Note, ...] = ()


def read(text: str, role: str) -> Read:
    """``text`` as it was meant; UsageError, with the right words, for what means something else.

    ``role`` is drafter or target: of a repository's GGUFs a target's header is read, a drafter is no GGUF.
    """
    try:
        there = Path(text).expanduser().exists()
    except RuntimeError:
        raise UsageError(f"{role} {text}: no such user's home") from None
    if there:
        return _told(text, _local(text, role))
    bare = text.strip().strip(QUOTES).strip()
    if bare != text and Path(bare).expanduser().exists():
        return _told(text, _local(bare, role))
    return _told(text, _remote(bare, role))


def local_tip(path: Path) -> str | None:
    """Where only a local path is taken: how something of the Hub that was given instead gets here; else None."""
    text = str(path)  # a path keeps one slash of two
    page = re.match(r"(?:https?:/|hf:/)?(?:www\.)?(?:huggingface\.co|hf\.co)?/?([\w.-]+/[\w.-]+)(/|$)", text)
    there = path.is_absolute() or text.startswith(("..", "~")) or (path.parts[0:1] and Path(path.parts[0]).is_dir())
    if page is None or there or (path.suffix == ".gguf" and "huggingface" not in text):
        return None
    return f"a local path is needed here; what is on the Hub is fetched with: hf download {page[1]}"


def _told(text: str, meant: str) -> Read:
    return Read(meant, () if meant == text else (Note("info", f"{text} is read as {meant}"),))


def _local(text: str, role: str) -> str:
    """A file of a checkpoint stands for its directory, a folder inside the Hub's cache for its repository's."""
    path = Path(text).expanduser()
    inside = path.absolute().parent
    cached = _CACHE.fullmatch(inside.name)
    if cached and path.is_dir() and path.name in ("snapshots", "blobs", "refs"):
        return str(inside)
    if path.is_file() and _WEIGHTS.fullmatch(path.name) and (inside / "config.json").is_file():
        return _plainly(path.parent)
    if path.is_file() and inside.name == "blobs" and not (role == "target" and _is_gguf(path)):
        repository = _CACHE.fullmatch(inside.parent.name)
        named = f"{repository['owner']}/{repository['name']}" if repository else "the repository as owner/name"
        raise UsageError(f"{role} {text}: a file in the Hub's cache, where names are lost", tip=f"give {named}")
    return text


def _plainly(directory: Path) -> str:
    """Without the ``..`` and ``.`` of what was typed, where that names the same directory: a link may change it."""
    short = Path(os.path.normpath(directory))
    return str(short if short.is_dir() and short.samefile(directory) else directory)


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _remote(text: str, role: str) -> str:
    git, tag, cached = _GIT.fullmatch(text), _TAG.fullmatch(text), _CACHE.fullmatch(text.rstrip("/"))
    if git:
        return _of_page(git["host"], git["rest"], text, role)
    if text.startswith("hf:") and not text.startswith("hf://"):
        return _plain(text.removeprefix("hf:"))
    scheme = _SCHEME.fullmatch(text)
    if scheme:
        return _of_url(scheme["scheme"].lower(), scheme["rest"], text, role)
    host, _, rest = text.partition("/")
    if host.lower() in HOSTS:
        return _of_page(host, rest, text, role)
    if cached:
        return f"{cached['owner']}/{cached['name']}"
    if tag and role == "target":
        return tag["repo"]
    if tag:
        raise UsageError(
            f"{role} {text}: {tag['tag']} is how llama.cpp picks a GGUF; a drafter is converted from its safetensors",
            tip=f"give {tag['repo']}, and the type as -t {tag['tag'].lower()}",
        )
    if _WINDOWS.fullmatch(text):
        return text.replace("\\", "/")
    share = _SHARE.fullmatch(text)
    return _of_parts(share["repo"].split("/"), share["rest"].split("/"), text, role) if share else _plain(text)


def _plain(text: str) -> str:
    """``owner/name/`` as tab completion leaves it."""
    return text.rstrip("/") if re.fullmatch(r"[\w.-]+/[\w./-]+/+", text) else text


def _of_url(scheme: str, rest: str, text: str, role: str) -> str:
    if scheme == "file":
        return unquote("/" + rest.lstrip("/"))
    if scheme == "hf":
        return _plain(rest.removeprefix("models/") if rest.count("/") > 1 else rest)
    if scheme not in ("http", "https"):
        raise UsageError(
            f"{role} {text}: {scheme}:// is not read", tip="give a directory, or a repository as owner/name"
        )
    host, _, path = rest.partition("/")
    return _of_page(host, path, text, role)


def _of_page(host: str, path: str, text: str, role: str) -> str:
    """A page of the Hub, or of the mirror that HF_ENDPOINT names."""
    mirror = urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc
    if host.lower() not in (*HOSTS, mirror.lower()):
        raise UsageError(
            f"{role} {text}: {host} is not the Hugging Face Hub",
            tip="download it and give the directory, or give the repository as owner/name; HF_ENDPOINT names a mirror",
        )
    clean = re.split(r"[?#]", path)[0]
    parts = [unquote(part) for part in clean.split("/") if part]
    if len(parts) < 2 or parts[0] in NO_MODELS:
        raise UsageError(f"{role} {text}: not the page of a model", tip="a model's page ends in owner/name")
    return _of_parts([parts[0], parts[1].removesuffix(".git")], parts[2:], text, role)


def _of_parts(repository: Sequence[str], rest: Sequence[str], text: str, role: str) -> str:
    """owner/name[/folder][@revision] of a page ``/owner/name/tree/revision/folder`` or ``…/blob/revision/file``."""
    name = "/".join(repository)
    if len(rest) < 2 or rest[0] not in ("tree", "blob", "resolve", "raw", "commit"):
        return name
    folder = list(rest[2:]) if rest[0] != "commit" else []
    if rest[0] != "tree" and folder:
        if folder[-1].endswith(".gguf") and role != "target":
            raise UsageError(
                f"{role} {text}: a GGUF; a drafter is converted from its safetensors",
                tip=f"give {name} if it has them; a GGUF that is downloaded is quantized with: dflash-convert quantize",
            )
        if not folder[-1].endswith(".gguf"):
            folder.pop()
    where = "/".join([name, *folder])
    return where if rest[1] == "main" else f"{where}@{rest[1]}"
