"""What people paste where a directory or a repository id belongs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dflash_convert.errors import UsageError
from dflash_convert.hub import existing, parse_spec, resolve_drafter, resolve_target
from dflash_convert.hub_names import read

PAGE = "https://huggingface.co/z-lab/Qwen3-8B-DFlash-b16"
ID = "z-lab/Qwen3-8B-DFlash-b16"
# pasted -> as a drafter, as a target; None: the same
READ: list[tuple[str, str, str | None]] = [
    (ID, ID, None),
    (f"{ID}@v2", f"{ID}@v2", None),
    (PAGE, ID, None),
    (f"{PAGE}/", ID, None),
    (f"{PAGE}/tree/main", ID, None),
    (f"{PAGE}/tree/main/", ID, None),
    (f"{PAGE}/tree/v2", f"{ID}@v2", None),
    (f"{PAGE}/tree/refs%2Fpr%2F3", f"{ID}@refs/pr/3", None),
    (f"{PAGE}/tree/main/dflash", f"{ID}/dflash", None),
    (f"{PAGE}/blob/main/config.json", ID, None),
    (f"{PAGE}/blob/main/dflash/model.safetensors", f"{ID}/dflash", None),
    (f"{PAGE}/resolve/0123456789abcdef/config.json?download=true", f"{ID}@0123456789abcdef", None),
    (f"{PAGE}/raw/main/README.md#usage", ID, None),
    (f"{PAGE}/commit/abc123", f"{ID}@abc123", None),
    (f"{PAGE}/discussions/4", ID, None),
    (f"{PAGE}?library=vllm", ID, None),
    (f"{PAGE}.git", ID, None),
    (f"http://www.huggingface.co/{ID}", ID, None),
    (f"huggingface.co/{ID}", ID, None),
    (f"hf.co/{ID}", ID, None),
    (f"hf://{ID}", ID, None),
    (f"hf://{ID}@v2", f"{ID}@v2", None),
    (f"hf://models/{ID}", ID, None),
    (f"hf:{ID}", ID, None),
    (f"git@hf.co:{ID}", ID, None),
    (f"ssh://git@hf.co/{ID}.git", ID, None),
    (f"{ID}/", ID, None),
    (f"  {ID}\n", ID, None),
    (f'"{ID}"', ID, None),
    (f"\u201c{ID}\u201d", ID, None),
    (f"{ID}/tree/main", ID, None),
    (f"{ID}/blob/v2/sub/config.json", f"{ID}/sub@v2", None),
    ("z-lab\\Qwen3-8B-DFlash-b16", ID, None),
    ("models--z-lab--Qwen3-8B-DFlash-b16", ID, None),
]
TARGETS = [
    ("owner/name-GGUF:Q8_0", "owner/name-GGUF"),
    ("https://huggingface.co/owner/name-GGUF/blob/main/name-Q8_0.gguf", "owner/name-GGUF/name-Q8_0.gguf"),
    ("https://huggingface.co/owner/name-GGUF/resolve/v1/sub/a.gguf", "owner/name-GGUF/sub/a.gguf@v1"),
]
ANSWERED: list[tuple[str, str, str]] = [
    ("owner/name:Q8_0", "Q8_0 is how llama.cpp picks a GGUF", "give owner/name, and the type as -t q8_0"),
    ("https://huggingface.co/owner/name/blob/main/x.gguf", "a GGUF; a drafter is converted from", "quantize"),
    ("https://huggingface.co/datasets/owner/name", "not the page of a model", "owner/name"),
    ("https://huggingface.co/spaces/owner/name", "not the page of a model", "owner/name"),
    ("https://huggingface.co/models?search=dflash", "not the page of a model", "owner/name"),
    ("https://huggingface.co/owner", "not the page of a model", "owner/name"),
    ("https://github.com/owner/name", "github.com is not the Hugging Face Hub", "HF_ENDPOINT"),
    ("https://modelscope.cn/models/owner/name", "modelscope.cn is not the Hugging Face Hub", "download it"),
    ("git@github.com:owner/name.git", "github.com is not the Hugging Face Hub", "download it"),
    ("s3://bucket/name", "s3:// is not read", "give a directory"),
    ("~nobody-of-this-name/x", "no such user's home", ""),
]


@pytest.fixture(autouse=True)
def _empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)


@pytest.mark.parametrize("role", ["drafter", "target"])
@pytest.mark.parametrize(("pasted", "meant", "as_target"), READ)
def test_what_is_plain_is_read(pasted: str, meant: str, as_target: str | None, role: str) -> None:
    found = read(pasted, role)
    assert found.text == (as_target or meant if role == "target" else meant)
    assert parse_spec(found.text) is not None
    told = [note.text for note in found.notes]
    assert told == ([] if pasted == found.text else [f"{pasted} is read as {found.text}"])


@pytest.mark.parametrize(("pasted", "meant"), TARGETS)
def test_a_targets_gguf_is_read(pasted: str, meant: str) -> None:
    assert read(pasted, "target").text == meant


@pytest.mark.parametrize(("pasted", "told", "tip"), ANSWERED)
def test_what_means_something_else_is_answered(pasted: str, told: str, tip: str) -> None:
    for resolve in (lambda text: read(text, "drafter"), resolve_drafter):
        with pytest.raises(UsageError) as caught:
            resolve(pasted)
        assert told in str(caught.value)
        assert pasted.strip() in str(caught.value)
        assert tip in str(caught.value.tip or "")


@pytest.mark.parametrize(
    ("given", "fetched"),
    [
        ("https://huggingface.co/owner/name", "owner/name"),
        ("https://huggingface.co/owner/name/blob/main/x.gguf", "owner/name"),
        ("hf.co/owner/name", "owner/name"),
        ("owner/name", "owner/name"),
        ("/owner/name", None),
        ("name", None),
        ("owner/name.gguf", None),
        ("here/name", None),
    ],
)
def test_where_only_a_path_is_taken(given: str, fetched: str | None, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with pytest.raises(UsageError, match="no such file or directory") as caught:
        existing(Path(given))
    assert (f"hf download {fetched}" in str(caught.value.tip)) if fetched else caught.value.tip is None


def test_a_mirror_is_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError):
        read("https://hf-mirror.com/owner/name/tree/main", "drafter")
    monkeypatch.setenv("HF_ENDPOINT", "https://hf-mirror.com")
    assert read("https://hf-mirror.com/owner/name/tree/main", "drafter").text == "owner/name"


def test_what_exists_is_a_path(tmp_path: Path) -> None:
    for name in ("owner/name:Q8_0", "hf.co/owner/name", "models--a--b"):
        (tmp_path / name).mkdir(parents=True)
        assert read(name, "drafter") == (name, ())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
def test_a_file_of_a_checkpoint_stands_for_its_directory(name: str, fixtures: Path, tmp_path: Path) -> None:
    shutil.copytree(fixtures / "tiny-js/drafter", tmp_path / "d")
    (tmp_path / "d" / name).touch()
    found = resolve_drafter(str(tmp_path / "d" / name))
    assert found.path == tmp_path / "d"
    assert f"is read as {tmp_path / 'd'}" in found.notes[0].text


def test_a_file_url(fixtures: Path, tmp_path: Path) -> None:
    shutil.copytree(fixtures / "tiny-js/drafter", tmp_path / "a drafter")
    assert resolve_drafter((tmp_path / "a drafter").as_uri()).path == tmp_path / "a drafter"


def test_every_place_inside_the_hubs_cache(fixtures: Path, tmp_path: Path) -> None:
    root = tmp_path / "models--owner--name"
    snapshot = root / "snapshots" / ("a" * 40)
    shutil.copytree(fixtures / "tiny-js/drafter", snapshot)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("a" * 40)
    (root / "blobs").mkdir()
    blob = root / "blobs" / ("b" * 64)
    blob.write_bytes(b"weights")
    for place in (root, snapshot, root / "snapshots", root / "blobs", root / "refs", snapshot / "config.json"):
        found = resolve_drafter(str(place))
        assert (found.path, found.repo) == (snapshot, "owner/name")
    for resolve in (resolve_drafter, resolve_target):
        with pytest.raises(UsageError, match="a file in the Hub's cache, where names are lost") as caught:
            resolve(str(blob))
        assert caught.value.tip == "give owner/name"
