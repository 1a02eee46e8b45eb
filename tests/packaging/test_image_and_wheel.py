"""The image's text fits the tree, the wheel holds what it should, the manual page what --help says."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from dflash_convert import __version__
from dflash_convert.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def stages() -> dict[str, list[str]]:
    """Instructions of each stage, continued lines joined."""
    found: dict[str, list[str]] = {}
    for line in re.sub(r"\\\n\s*", " ", DOCKERFILE).splitlines():
        if start := re.match(r"FROM \S+ AS (\w+)", line):
            found[start[1]] = []
        elif found and line and not line.startswith("#"):
            found[list(found)[-1]].append(line)
    return found


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    sources = [
        word
        for lines in stages().values()
        for line in lines
        if line.startswith("COPY ")
        for word in line.split()[1:-1]
        if not word.startswith("--")
    ]
    assert len(sources) >= 5
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, name) for name in kept), f"{source} is ignored"


@pytest.mark.parametrize("stage", ["cpu", "cuda"])
def test_the_image_runs_the_tool_without_rights(stage: str) -> None:
    lines = stages()[stage]
    users = [line for line in lines if line.startswith("USER ")]
    assert users[-1] == "USER dflash"
    after = lines[lines.index("USER dflash") :]
    assert not [line for line in after if line.startswith("RUN ")]
    assert 'ENTRYPOINT ["dflash-convert"]' in after
    assert ("[engine]" in "".join(lines)) is (stage == "cpu")


def test_make_and_kubernetes_name_the_same_image() -> None:
    text = (ROOT / "docs" / "automate.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    pod = yaml.safe_load(block)["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"dflash-convert:{__version__}"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert f"--uid {pod['securityContext']['runAsUser']} " in DOCKERFILE
    if shutil.which("make"):
        for target, wanted in (("image", f"--target cpu --tag dflash-convert:{__version__} "), ("image-cuda", "")):
            call = ["make", "-n", target, "LLAMA_IMAGE=x"]
            done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True)
            assert wanted in done.stdout
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_wheel(tmp_path: Path) -> None:
    """Two packages with their data and the licence, and nothing else at the top."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, tree)
    for name in ("dflash_convert", "quant", "tests/packaging"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    call = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*call, "--wheel-dir", str(tmp_path), str(tree)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names} == {
        "dflash_convert",
        "quant",
        wheel.name.rsplit("-", 3)[0] + ".dist-info",
    }
    own = {p.relative_to(ROOT).as_posix() for part in ("dflash_convert", "quant") for p in (ROOT / part).rglob("*")}
    data = {name for name in own if (ROOT / name).is_file() and "__pycache__" not in name}
    assert data <= names, sorted(data - names)


def test_the_manual_page() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_man.py")], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith(".TH DFLASH-CONVERT 1")
    for name in COMMANDS:
        assert f'.SH "DFLASH-CONVERT {name.upper()}"' in lines
    requests = {line.split()[0] for line in lines if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".nf", ".fi", ".TP"}
    assert "\\-\\-fidelity" in done.stdout
