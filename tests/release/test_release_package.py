"""Packages: names, card, sums, manifest, preset; made whole or not at all; every change is found."""

from __future__ import annotations

import configparser
import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from release_tools import tree

from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import KV, ValueType, string
from dflash_convert.container.writer import Entry, GgufOutput, layout
from dflash_convert.errors import ConfigError, ContainerError, FamilyError, InputError, OutputError, UsageError
from dflash_convert.hashing import sha256_of
from dflash_convert.output import LOCK
from dflash_convert.release.commands import TargetGguf, parse_target, preset_text, program_call
from dflash_convert.release.contests import BestSettings
from dflash_convert.release.facts import found_by_llama_cpp, read_facts
from dflash_convert.release.manifest import read_manifest, sums_text, verify_manifest
from dflash_convert.release.package import PackageOptions, build_package
from dflash_convert.release.publish import plan_upload


def rewrite(source: Path, path: Path, changes: dict[str, KV | None]) -> Path:
    """A copy of a GGUF with other keys; None removes one."""
    gguf = open_gguf(source)
    keys = [kv for name, kv in gguf.keys.items() if name not in changes]
    keys += [kv for kv in changes.values() if kv is not None]
    entries = [Entry(t.name, t.shape, t.type) for t in gguf.tensors.values()]
    with GgufOutput(path, entries, layout(keys, entries)) as out:
        for name in gguf.tensors:
            out.write_at(out.offset(name), gguf.data(name).tobytes())
        out.commit()
    return path


def front_matter(card: str) -> dict[str, Any]:
    return dict(yaml.safe_load(card.split("---\n")[1]))


# --- what a package holds


def test_files_and_sums(made: Path, ggufs: list[Path]) -> None:
    assert sorted(p.name for p in made.iterdir()) == sorted(
        [g.name for g in ggufs] + ["README.md", "SHA256SUMS", "llama-server", "manifest.json"]
    )
    for gguf in ggufs:
        assert (made / gguf.name).read_bytes() == gguf.read_bytes()
    done = subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=made, capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stdout.decode().count(": OK") == 5
    assert verify_manifest(made) == []


def test_manifest(made: Path, ggufs: list[Path], target_gguf: Path) -> None:
    document = read_manifest(made)
    assert {k: document[k] for k in ("schema", "kind", "family", "spec_type", "block_size", "n_max", "name")} == {
        "schema": 1,
        "kind": "dflash-release",
        "family": "DFlash",
        "spec_type": "draft-dflash",
        "block_size": 8,
        "n_max": 7,
        "name": "tiny-js-DFlash-GGUF",
    }
    assert document["options"] == {"license": "mit", "target_gguf": target_gguf.name}
    weights = [f for f in document["files"] if f["role"] == "weights"]
    assert [(f["path"], f["type"], f["tensor_types"]) for f in weights] == [
        ("dflash-tiny-js-Q4_0.gguf", "Q4_0", {"F32": 14, "Q4_0": 22}),
        ("dflash-tiny-js-Q8_0.gguf", "Q8_0", {"F32": 14, "Q8_0": 22}),
    ]
    for file in weights:
        assert file["sha256"] == hashlib.sha256((made / file["path"]).read_bytes()).hexdigest()
    assert str(made.parent) not in (made / "manifest.json").read_text()


def test_names_pass_llama_cpps_rule(made: Path) -> None:
    """formats.md §7 and b11434's find_best_sibling and load_from_models_dir, applied to every GGUF."""
    for path in made.glob("*.gguf"):
        assert "dflash-" in path.name
        assert path.name.startswith("dflash-")
        assert re.search(r"-(Q8_0|Q4_0)\.", path.name.upper())
        for other in ("mmproj", "imatrix", "mtp-", "eagle3-", "dspark-", "-of-"):
            assert other not in path.name


@pytest.mark.parametrize(
    ("name", "prefix", "found"),
    [
        ("dflash-gemma-4-12B-it-Q8_0.gguf", "dflash-", True),
        ("dspark-DeepSeek-V4-Flash-0731-BF16.gguf", "dspark-", True),
        ("Qwen3-8B-DFlash-Q8_0.gguf", "dflash-", False),  # taken for an ordinary model
        ("DFlash-Qwen3-8B-Q8_0.gguf", "dflash-", False),
        ("my-dflash-Qwen3-8B-Q8_0.gguf", "dflash-", False),  # not found by --models-dir
        ("dflash-Qwen3-8B-Q8_0.gguf", "dspark-", False),  # a Markov head under the wrong prefix
        ("dflash-mtp-Qwen3-Q8_0.gguf", "dflash-", False),
        ("dflash-mmproj-Q8_0.gguf", "dflash-", False),
        ("dflash-Qwen3-8B-Q8_0.bin", "dflash-", False),
    ],
)
def test_naming_rule(name: str, prefix: str, found: bool) -> None:
    assert (found_by_llama_cpp(name, prefix) is None) is found


def test_a_name_llama_cpp_would_miss_is_replaced(ggufs: list[Path], tmp_path: Path) -> None:
    odd = tmp_path / "Tiny-DFlash.Q8_0.gguf"
    shutil.copy(ggufs[0], odd)
    made = build_package([odd], tmp_path / "out")
    assert (tmp_path / "out" / "dflash-tiny-js-Q8_0.gguf").is_file()
    assert any(n.level == "derived" and "Tiny-DFlash.Q8_0.gguf becomes" in n.text for n in made.notes)


def test_a_name_cannot_be_guessed_without_a_target(ggufs: list[Path], tmp_path: Path) -> None:
    odd = rewrite(ggufs[0], tmp_path / "x.gguf", {"dflash_convert.target.name": None})
    with pytest.raises(UsageError, match="does not name its target"):
        build_package([odd], tmp_path / "out")
    build_package([odd], tmp_path / "out", PackageOptions(target_name="T"))
    assert (tmp_path / "out" / "dflash-T-Q8_0.gguf").is_file()


# --- card and preset


def test_card(made: Path) -> None:
    card = (made / "README.md").read_text()
    assert front_matter(card) == {
        "pipeline_tag": "text-generation",
        "library_name": "gguf",
        "license": "mit",
        "tags": ["gguf", "llama.cpp", "speculative-decoding", "draft-model", "dflash"],
    }
    for path in made.glob("*.gguf"):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert digest not in card
        assert f"| `{path.name}` | {read_facts(path).file_type} | {path.stat().st_size / (1 << 20):,.1f} MiB | " in card
    assert "| memory at 8,192 tokens |" in card
    assert "**Take `dflash-tiny-js-Q8_0.gguf`**: nothing was measured" in card
    assert "hf download OWNER/NAME dflash-tiny-js-Q8_0.gguf --local-dir .\n" in card
    assert "**It is for `tiny-js` and no other model.**" in card
    assert "## Acceptance" not in card


def test_card_lineage(ggufs: list[Path], tmp_path: Path) -> None:
    keys = {
        "dflash_convert.drafter.repository": string("dflash_convert.drafter.repository", "z-lab/Tiny-DFlash"),
        "dflash_convert.drafter.revision": string("dflash_convert.drafter.revision", "abc123"),
        "general.license": string("general.license", "other"),
        "general.license.name": string("general.license.name", "gemma: terms"),
        "general.license.link": string("general.license.link", "https://example.org/terms"),
    }
    source = rewrite(ggufs[0], tmp_path / "dflash-tiny-js-Q8_0.gguf", keys)
    made = build_package([source], tmp_path / "out", PackageOptions(target_repo="org/Tiny@v1"))
    matter = front_matter((tmp_path / "out" / "README.md").read_text())
    assert matter["base_model"] == ["z-lab/Tiny-DFlash"], "with the target, the Hub lists these as its quantizations"
    assert matter["base_model_relation"] == "quantized"
    assert (matter["license"], matter["license_name"], matter["license_link"]) == (
        "other",
        "gemma: terms",
        "https://example.org/terms",
    )
    assert made.manifest["drafter"]["revision"] == "abc123"
    assert made.manifest["target"]["revision"] == "v1"
    assert not [n for n in made.notes if n.level == "warning"]


def test_lineage_of_a_foreign_file(ggufs: list[Path], tmp_path: Path) -> None:
    """A file of another converter names its target through its base model."""
    gone = {name: None for name in open_gguf(ggufs[0]).keys if name.startswith("dflash_convert.")}
    keys = gone | {
        "general.base_model.0.name": string("general.base_model.0.name", "Qwen3 8B"),
        "general.base_model.0.repo_url": string(
            "general.base_model.0.repo_url", "https://huggingface.co/Qwen/Qwen3-8B"
        ),
    }
    facts = read_facts(rewrite(ggufs[0], tmp_path / "x.gguf", keys))
    assert (facts.target.name, facts.target.repository) == ("Qwen3 8B", "Qwen/Qwen3-8B")
    assert facts.family == "DFlash"


def test_hostile_strings_stay_text(ggufs: list[Path], tmp_path: Path) -> None:
    """A drafter's name from a stranger's file can neither leave its code span nor add front matter."""
    evil = "x`</code><script> | [a](javascript:b)"
    two_lines = "mit\ntags: [owned]"
    keys = {
        "general.name": string("general.name", evil),
        "general.license": string("general.license", two_lines),
    }
    source = rewrite(ggufs[0], tmp_path / "dflash-tiny-js-Q8_0.gguf", keys)
    build_package([source], tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "<script>" not in card
    assert "](javascript" not in card
    assert "license" not in front_matter(card)


def test_preset(made: Path) -> None:
    parser = configparser.ConfigParser()
    text = (made / "llama-server/preset.ini").read_text()
    parser.read_string(text.replace("version = 1\n", ""))
    assert parser.sections() == ["*", "tiny-js-DFlash-GGUF-Q4_0", "tiny-js-DFlash-GGUF-Q8_0"]
    assert dict(parser["tiny-js-DFlash-GGUF-Q8_0"]) == {
        "model": "target-bf16.gguf",
        "spec-draft-model": "dflash-tiny-js-Q8_0.gguf",
        "spec-type": "draft-dflash",
        "spec-draft-n-max": "7",
    }


def test_target_on_the_hub(ggufs: list[Path], tmp_path: Path) -> None:
    build_package(ggufs[:1], tmp_path / "out", PackageOptions(target_gguf="org/Tiny-GGUF:Q4_K_M", n_max=4))
    assert (
        "llama-server -hf org/Tiny-GGUF:Q4_K_M -md dflash-tiny-js-Q8_0.gguf \\\n  --spec-type"
        in (tmp_path / "out" / "README.md").read_text()
    )
    preset = (tmp_path / "out" / "llama-server/preset.ini").read_text()
    assert "hf-repo = org/Tiny-GGUF:Q4_K_M\n" in preset
    assert "spec-draft-n-max = 4\n" in preset


def test_no_target_no_preset(ggufs: list[Path], tmp_path: Path) -> None:
    build_package(ggufs[:1], tmp_path / "out")
    assert not (tmp_path / "out" / "llama-server").exists()
    assert "`TARGET.gguf` standing for your GGUF" in (tmp_path / "out" / "README.md").read_text()


def test_commands_are_quoted() -> None:
    call = program_call("llama-server", TargetGguf("a b.gguf"), "dflash-x's.gguf", BestSettings("draft-dflash", 7))
    assert "-m 'a b.gguf'" in call
    assert """-md 'dflash-x'"'"'s.gguf'""" in call
    with pytest.raises(UsageError, match="cannot stand in a preset"):
        preset_text("n", TargetGguf("a;b.gguf"), ["dflash-x-Q8_0.gguf"], BestSettings("draft-dflash", 7))


@pytest.mark.parametrize("text", ["nowhere.gguf", "a/b/c", "not here"])
def test_target_gguf_must_exist(text: str) -> None:
    with pytest.raises(UsageError, match="neither a file nor a Hub repository"):
        parse_target(text)


# --- refusals: nothing is written


def refused(tmp_path: Path) -> None:
    """Neither a package nor a hidden leftover."""
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out.*"))


def test_refuses_other_files(ggufs: list[Path], target_gguf: Path, tmp_path: Path) -> None:
    half = tmp_path / "dflash-half-Q8_0.gguf"
    half.write_bytes(ggufs[0].read_bytes()[:-1000])
    block = KV("dflash.block_size", ValueType.UINT32, 16)
    count = KV("split.count", ValueType.UINT16, 2)
    kind_code = KV("general.file_type", ValueType.UINT32, 999)
    other = rewrite(ggufs[0], tmp_path / "dflash-b-Q8_0.gguf", {block.name: block})
    split = rewrite(ggufs[0], tmp_path / "s.gguf", {count.name: count})
    strange = rewrite(ggufs[0], tmp_path / "t.gguf", {kind_code.name: kind_code})
    cases: list[tuple[list[Path], type[Exception], str]] = [
        ([], UsageError, "no GGUF"),
        ([tmp_path / "none.gguf"], ContainerError, "no such file"),
        ([half], ContainerError, "half"),
        ([target_gguf], FamilyError, "not a drafter"),
        ([ggufs[0], ggufs[0]], UsageError, "two files would be named"),
        ([ggufs[0], other], UsageError, "differ in block size"),
        ([split], InputError, "split"),
        ([strange], ContainerError, "general.file_type is 999"),
    ]
    for files, kind, text in cases:
        with pytest.raises(kind, match=text):
            build_package(files, tmp_path / "out")
        refused(tmp_path)


def test_refuses_options(ggufs: list[Path], tmp_path: Path) -> None:
    for options, text in (
        (PackageOptions(n_max=8), "n-max 8 is more than the 7"),
        (PackageOptions(name="../up"), "not a usable name for a package"),
        (PackageOptions(drafter_repo="nonsense"), "not a Hub repository"),
        (PackageOptions(target_gguf="gone.gguf"), "neither a file"),
    ):
        with pytest.raises(UsageError, match=text):
            build_package(ggufs, tmp_path / "out", options)
        refused(tmp_path)


def test_existing_directories(ggufs: list[Path], package: Path, tmp_path: Path) -> None:
    before = tree(package)
    with pytest.raises(OutputError, match="exists"):
        build_package(ggufs, package)
    assert tree(package) == before
    build_package(ggufs[:1], package, force=True)
    assert sorted(p.name for p in package.glob("*.gguf")) == [ggufs[0].name]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years")
    with pytest.raises(OutputError, match="is not a package"):
        build_package(ggufs, mine, force=True)
    assert tree(mine) == {"thesis.txt": b"years"}
    with pytest.raises(InputError, match="which they would replace"):
        build_package([package / ggufs[0].name], package, force=True)
    assert (package / ggufs[0].name).is_file()


def test_what_a_replaced_package_was_told_is_not_lost_silently(ggufs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = PackageOptions(license="mit", target_repo="a/b@c", n_max=3)
    build_package(ggufs[:1], out, told)
    whole = tree(out)
    made = build_package(ggufs[:1], out, PackageOptions(license="apache-2.0"), force=True)
    words = [note.text for note in made.notes if "was made with" in note.text]
    assert words == [
        f"{out} was made with --target-repo 'a/b@c', which this call does not give",
        f"{out} was made with --n-max 3, which this call does not give",
    ]
    assert made.manifest["license"]["license"] == "apache-2.0"
    again = build_package(ggufs[:1], out, told, force=True)
    assert not [note for note in again.notes if "was made with" in note.text]
    assert tree(out) == whole, "whatever was there before"
    document = json.loads((out / "manifest.json").read_text())
    for options in ([], {"license": {"a": "\x1b[2J" * 99}, "other": 1}):
        (out / "manifest.json").write_text(json.dumps(document | {"options": options}))
        made = build_package(ggufs[:1], out, force=True)
        assert sum("was made with" in note.text for note in made.notes) == len(options) // 2
        assert all("\x1b" not in note.text and len(note.text) < len(str(out)) + 150 for note in made.notes)


def test_nothing_half_written(ggufs: list[Path], package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error at the last moment leaves the old package and no leftover."""
    before = tree(package)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dflash_convert.release.package._write_texts", full)
    with pytest.raises(OutputError, match="No space left on device"):
        build_package(ggufs, package, force=True)
    assert tree(package) == before
    assert [p.name for p in package.parent.iterdir()] == [package.name]


def test_failed_rename_brings_the_old_package_back(
    ggufs: list[Path], package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(package)
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name == package.name and target == package:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr("dflash_convert.system.renameat2", lambda *_: False)
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OutputError, match="Input/output error"):
        build_package(ggufs, package, force=True)
    assert tree(package) == before


def test_leftovers_of_a_killed_run_go(ggufs: list[Path], tmp_path: Path) -> None:
    dead = tmp_path / ".out.0badf00d.partial"
    (dead / "out").mkdir(parents=True)
    (dead / LOCK).touch()
    (dead / "out" / "dflash-x.gguf").write_bytes(b"half")
    build_package(ggufs, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_unwritable_place(unprivileged: Callable[[], None], ggufs: list[Path], tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    command = [sys.executable, "-m", "dflash_convert", "package", *map(str, ggufs), "--out", str(closed / "out")]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=unprivileged, check=False)
    assert (done.returncode, list(closed.iterdir())) == (9, [])
    assert "cannot be written: Permission denied" in done.stderr


def test_reproducible(ggufs: list[Path], target_gguf: Path, tmp_path: Path) -> None:
    """The same files in another place, order and time give the same bytes."""
    options = PackageOptions(target_gguf=str(target_gguf))
    build_package(ggufs, tmp_path / "one", options)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    copies = [Path(shutil.copy(g, elsewhere)) for g in reversed(ggufs)]
    build_package(copies, tmp_path / "two", options)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


# --- check


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda d: (d / "dflash-tiny-js-Q8_0.gguf").unlink(), "dflash-tiny-js-Q8_0.gguf: is missing"),
        (lambda d: flip(d / "dflash-tiny-js-Q8_0.gguf"), "dflash-tiny-js-Q8_0.gguf: has SHA-256"),
        (lambda d: append(d / "README.md"), "README.md: has "),
        (lambda d: append(d / "SHA256SUMS"), "SHA256SUMS: does not agree"),
        (lambda d: (d / "SHA256SUMS").unlink(), "SHA256SUMS: is missing"),
        (lambda d: append(d / "llama-server/preset.ini"), "llama-server/preset.ini: has "),
        (lambda d: (d / "llama-server/preset.ini").unlink(), "llama-server/preset.ini: is missing"),
        (lambda d: (d / "llama-server/x").touch(), "llama-server/x: is not in the manifest"),
        (lambda d: (d / "report-x.html").write_text("x"), "report-x.html: is not in the manifest"),
        (lambda d: (d / "extra.gguf").write_bytes(b"GGUF"), "extra.gguf: is not in the manifest"),
        (lambda d: append(d / "manifest.json"), "SHA256SUMS: does not agree"),
    ],
)
def test_check_finds_every_change(package: Path, damage: Any, problem: str) -> None:
    damage(package)
    found = [str(p) for p in verify_manifest(package)]
    assert len(found) == 1
    assert found[0].startswith(problem)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def test_check_reads_the_gguf_not_only_its_hash(package: Path) -> None:
    """A manifest that was forged along with its file is still found out: the file is no such drafter."""
    path = package / "dflash-tiny-js-Q8_0.gguf"
    shutil.copy(package / "dflash-tiny-js-Q4_0.gguf", path)
    document = json.loads((package / "manifest.json").read_text())
    for entry in document["files"]:
        if entry["path"] == path.name:
            entry |= {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    (package / "manifest.json").write_text(json.dumps(document))
    texts = [p.text for p in verify_manifest(package) if p.file == path.name]
    assert texts[0] == "its type is Q4_0, the manifest says Q8_0"


def test_check_after_download_and_use(package: Path, target_gguf: Path) -> None:
    """What the Hub, Git and the card itself put into the directory is no problem."""
    (package / ".gitattributes").write_text("*.gguf filter=lfs\n")
    (package / ".cache").mkdir()
    (package / target_gguf.name).symlink_to(target_gguf)
    assert verify_manifest(package) == []


def test_a_package_of_an_earlier_version(package: Path) -> None:
    """Its preset lay at the top, was in no sums and was not uploaded; a download lacks it."""
    document = json.loads((package / "manifest.json").read_text())
    (entry,) = [e for e in document["files"] if e["role"] == "preset"]
    (package / entry["path"]).rename(package / "preset.ini")
    (package / "llama-server").rmdir()
    entry["path"] = "preset.ini"
    (package / "manifest.json").write_text(json.dumps(document))
    (package / "SHA256SUMS").write_text(sums_text(document, sha256_of(package / "manifest.json")))
    assert verify_manifest(package) == []
    files, notes = plan_upload(package)
    assert "preset.ini" not in [file.name for file in files]
    assert [note.text for note in notes if "stays local" in note.text]
    (package / "preset.ini").unlink()
    assert verify_manifest(package) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": "other"}, "kind is not"),
        ({"schema": 2}, "schema is 2, this version reads 1"),
        ({"files": {}}, "must be lists"),
        ({"files": []}, "lists no weights"),
        (
            {"files": [{"path": "../../etc/passwd", "role": "weights", "size": 1, "sha256": "0" * 64}]},
            "not a file name",
        ),
        ({"files": [{"path": "a.gguf", "role": "weights", "size": "1", "sha256": "0" * 64}]}, "no size or no SHA-256"),
        ({"files": [{"path": "a.gguf", "role": "boss", "size": 1, "sha256": "0" * 64}]}, "unknown role"),
        ({"validation": [3]}, "no verdict"),
    ],
)
def test_a_bad_manifest_is_an_error(package: Path, change: dict[str, Any], text: str) -> None:
    document = json.loads((package / "manifest.json").read_text())
    (package / "manifest.json").write_text(json.dumps(document | change))
    with pytest.raises(ConfigError, match=text):
        verify_manifest(package)


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_a_damaged_manifest_is_an_error(package: Path, content: str) -> None:
    (package / "manifest.json").write_text(content)
    with pytest.raises(ConfigError):
        verify_manifest(package)


def test_not_a_package(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a package"):
        verify_manifest(tmp_path)


# --- command line


def test_cli(program: Any, ggufs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "pkg"
    done = program("package", *ggufs, "--out", out, "--json")
    assert done.code == 0
    assert json.loads(done.out)["manifest"]["name"] == "tiny-js-DFlash-GGUF"
    assert "licence is unknown" in done.err
    assert program("package", *ggufs, "--out", out).code == 9
    assert program("package", "--check", out).code == 0
    append(out / "README.md")
    done = program("package", "--check", out, "--json")
    assert done.code == 5
    assert json.loads(done.out)["ok"] is False
    assert json.loads(done.out)["problems"][0]["file"] == "README.md"
    assert "ERROR" in done.err
    assert program("package", "--check", tmp_path).code == 3
    assert program("package", *ggufs).code == 2
    assert program("package", "--check", out, "--out", out).code == 2


def test_facts_are_frozen(ggufs: list[Path]) -> None:
    facts = read_facts(ggufs[0])
    with pytest.raises(dataclasses.FrozenInstanceError):
        facts.size = 1  # type: ignore[misc]


def test_an_unmeasured_draft_length_is_called_a_guess(ggufs: list[Path], target_gguf: Path, tmp_path: Path) -> None:
    for name, n_max, guess in (("guess", None, True), ("given", 4, False)):
        out = tmp_path / name
        build_package(ggufs[:1], out, PackageOptions(target_gguf=str(target_gguf), n_max=n_max))
        assert ("a first guess" in (out / "README.md").read_text()) is guess
        assert ("; n-max is a first guess" in (out / "llama-server/preset.ini").read_text()) is guess


def test_a_small_package_asks_for_little_more_than_its_files(
    ggufs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("dflash_convert.release.package.check_space", lambda _, need: asked.append(need))
    build_package(ggufs[:1], tmp_path / "out")
    written = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert written < asked[0] < written + 500_000
