"""The model card: front matter for the Hub, and for a reader what the files are, for which target, how to run them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dflash_convert.engine.settings import DRAFT_CACHE
from dflash_convert.glossary import BY_ANCHOR, plain
from dflash_convert.head.provenance import OWN
from dflash_convert.llama import DRAFTERS
from dflash_convert.release.commands import PLACEHOLDER, TargetGguf, program_call
from dflash_convert.release.contests import BestSettings, row_advice, row_settings
from dflash_convert.release.manifest import PRESET
from dflash_convert.text import MIB, percent, size
from dflash_convert.validation.result import HEALTHY

NEAR = 0.02  # of a mean length: less is no reason for a larger file
TAGS = ("gguf", "llama.cpp", "speculative-decoding", "draft-model")


def card_text(
    document: Mapping[str, Any], target_gguf: TargetGguf | None, settings: BestSettings, reports: Mapping[str, str]
) -> str:
    """The card of a package from its manifest (without the texts' own entries); its commands use ``settings``;
    ``reports`` are the pages on its files."""
    weights = [f for f in document["files"] if f["role"] == "weights"]
    parts = [
        _front_matter(document),
        f"# {document['name']}",
        _introduction(document),
        "## Files\n\n" + _file_table(weights),
        _which(document, weights, settings),
        _download(document, settings),
        _usage(document, target_gguf, settings),
        *_heads(weights),
        *_validation(document["validation"], reports),
        *_fidelity(document["verification"]),
        *_contests(document["contests"]),
        _words(),
        "## Where it comes from\n\n" + _provenance(document),
    ]
    return "\n\n".join(parts) + "\n"


def guessed(document: Mapping[str, Any]) -> bool:
    """Whether the draft length is one that nobody measured or asked for."""
    return bool(document["n_max"] and "n_max" not in document["options"] and not document["contests"])


def _front_matter(document: Mapping[str, Any]) -> str:
    """YAML; strings are written as JSON, which YAML reads alike whatever they hold."""
    # the drafter alone: with the target in it, the Hub would list these files among the target's quantizations
    base = document["drafter"]["repository"]
    lines = ["---"]
    if base:
        lines += ["base_model:", f"- {_quoted(base)}", "base_model_relation: quantized"]
    lines += ["pipeline_tag: text-generation", "library_name: gguf"]
    for key, value in document["license"].items():
        if value:
            lines.append(f"{key}: {_quoted(value)}")
    kinds = [row.name for row in DRAFTERS if any(v.spec_type == document["spec_type"] for v in row.variants)]
    tags = dict.fromkeys((*TAGS, *kinds, document["family"].lower()))
    lines += ["tags:", *(f"- {_quoted(tag)}" for tag in tags), "---"]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _introduction(document: Mapping[str, Any]) -> str:
    target = _model(document["target"])
    block = document["block_size"]
    drafts = f" that drafts blocks of {block} tokens" if block else ""
    return (
        f"A {document['family']} drafter for llama.cpp{drafts}, made from {_model(document['drafter'])}.\n\n"
        f"**It is for {target} and no other model.** It drafts for that target and cannot answer by itself. With "
        "another target, even a fine-tune of the same one, the text stays right and no draft is of use, and "
        "nothing in the text tells.\n\n"
        "llama.cpp's `llama-server` and `llama-cli` run the pair, if their `--help` lists "
        f"`{document['spec_type']}` under `--spec-type`. Programs that list every GGUF as a chat model should skip "
        "these files."
    )


def _model(origin: Mapping[str, Any]) -> str:
    if not origin["repository"]:
        return f"`{_plain(origin['name'] or 'a local checkpoint')}`"
    name = origin["repository"]
    revision = f" at revision `{_plain(origin['revision'])}`" if origin["revision"] else ""
    return f"[{_plain(name)}](https://huggingface.co/{_plain(name)}){revision}"


def _plain(text: str) -> str:
    """Text that cannot leave its code span, link or table cell."""
    return "".join("_" if c in "`|<>[]()" else c for c in text)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _file_table(weights: Sequence[Mapping[str, Any]]) -> str:
    planned = [f["memory"] for f in weights if "memory" in f]
    head = ("file", "type", "size", *((f"memory at {planned[0]['context']:,} tokens",) if planned else ()))
    rows = []
    for f in weights:
        memory = (size(f["memory"]["mib"] * MIB) if "memory" in f else "",) if planned else ()
        rows.append((f"`{f['path']}`", f["type"], size(f["size"]), *memory))
    note = (
        " *Memory* is the drafter's own, beside the target's: weights, cache and buffers, planned." if planned else ""
    )
    return _table(head, rows) + f"\n\n`sha256sum -c SHA256SUMS` checks a download.{note}"


def _heads(weights: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was pruned, on what text and where from."""
    parts = [_head(f["path"], f["head"]) for f in weights if f["head"]]
    if not parts:
        return []
    if any(f["head"] and f["head"]["ranking"] for f in weights):
        parts.append(
            "A token without a row is never drafted. The target still verifies every token, so the text does not "
            "change; on text unlike that of the ranking fewer drafts are of use."
        )
    return ["## Its own output head\n\n" + "\n\n".join(parts)]


def _head(name: str, head: Mapping[str, Any]) -> str:
    rows, every = head["rows"], head["vocabulary"]
    count = f"{rows:,} of {every:,} tokens" if rows < every else f"all {every:,} tokens"
    text = f"`{name}` has an output head of its own with rows for {count}"
    if head["source"] == OWN:
        text += ", those of the drafter's checkpoint."
    else:
        text += f", those of the target `{_plain(head['source'])}` (SHA-256 of its matrix "
        text += f"`{_plain(head.get('matrix_sha256', 'unknown'))}`)."
    if head["own_embeddings"]:
        text += " It has embeddings of its own too and borrows nothing."
    if head["ranking"]:
        text += f" Kept were the tokens most frequent in {_plain(head['ranking'])}"
        text += f" (SHA-256 `{_plain(head.get('ranking_sha256', 'unknown'))}`)"
        if head["coverage"] is not None:
            kinds = ", ".join(f"{_plain(kind)} {_share(share)}" for kind, share in head["kinds"].items())
            text += f", which cover {_share(head['coverage'])} of a held-out part of it" + (kinds and f" ({kinds})")
        text += "."
    return text


def _share(share: float) -> str:
    return percent(share, 2)


def picked(document: Mapping[str, Any], settings: BestSettings) -> str:
    """The file to take: what ``compare`` or ``tune`` found best; else of the validated ones the smallest that keeps
    the best mean length but for NEAR of it; else Q8_0, which loses next to nothing, as a drafter is small."""
    weights = [f for f in document["files"] if f["role"] == "weights"]
    if settings.file:
        return settings.file
    lengths = {run["file"]: run["mean_length"] for run in document["validation"] if run["verdict"] == HEALTHY}
    if lengths:
        near = [f for f in weights if lengths.get(f["path"], 0.0) >= (1 - NEAR) * max(lengths.values())]
        return str(min(near, key=lambda f: f["size"])["path"])
    return str(next((f for f in weights if f["type"] == "Q8_0"), weights[0])["path"])


def _which(document: Mapping[str, Any], weights: Sequence[Mapping[str, Any]], settings: BestSettings) -> str:
    name = picked(document, settings)
    run = next((r for r in document["validation"] if r["file"] == name and r["verdict"] == HEALTHY), None)
    if settings.file:
        why = "it was the fastest where they were compared (below)"
    elif run is not None:
        of = sum(r["verdict"] == HEALTHY for r in document["validation"])
        smallest = f"the smallest of {of} that keeps" if of > 1 else "it yields"
        most = " within 2 % of the best" if of > 1 else ""
        why = f"{smallest} a mean length of {run['mean_length']:.2f} tokens a step{most}, measured"
    elif len(weights) == 1:
        why = "there is no other; how well it drafts was not measured"
    else:
        why = "nothing was measured; a drafter is small, and this encoding loses least for its size"
    return f"**Take `{name}`**: {why}."


def _download(document: Mapping[str, Any], settings: BestSettings) -> str:
    repository = document["options"].get("repo")
    call = shlex.join(["hf", "download", repository or "OWNER/NAME", picked(document, settings), "--local-dir", "."])
    where = "" if repository else " `OWNER/NAME` stands for this repository."
    return f"## Download\n\n```sh\n{call}\n```\n\n`hf` is `pip install huggingface_hub`.{where}"


def _validation(runs: Sequence[Mapping[str, Any]], reports: Mapping[str, str]) -> list[str]:
    if not runs:
        return []
    timed = any("speedup" in run for run in runs)
    head = ["file", "verdict", "drafts accepted", "mean length", *["speed-up"] * timed]
    head += ["n-max", "greedy text", "target"]
    same = {True: "identical", False: "differs", None: "not compared"}
    rows = []
    for run in runs:
        accepted = f"{run['accepted']:,} of {run['drafted']:,} ({percent(run['acceptance'])})"
        target = f"`{_plain(run['target']['name'])}`"
        cells = [_linked(run["file"], reports), run["verdict"], accepted, f"{run['mean_length']:.2f}"]
        cells += [_speedup(run)] * timed
        rows.append([*cells, run["n_max"], same[run["identical"]], target])
    engines = ", ".join(dict.fromkeys(run["engine"] for run in runs))
    machines = ", ".join(dict.fromkeys(run["hardware"] for run in runs if "speedup" in run))
    where = f" Speed-ups are against no drafter, on {_plain(machines)}; other hardware gains more or less." * timed
    text = f"Greedy runs of {runs[0]['prompts']} prompts in {_plain(engines)}.{where}"
    if reports:
        text += " Each file links its whole report, a page to download and open."
    return [f"## Acceptance and speed\n\n{_table(head, rows)}\n\n{text}"]


def _linked(file: str, reports: Mapping[str, str]) -> str:
    return f"[`{file}`]({quote(reports[file])})" if file in reports else f"`{file}`"


def _speedup(run: Mapping[str, Any]) -> str:
    if "speedup" not in run:
        return str(run["gain"])
    return f"{run['speedup']:.2f} × ({run['low']:.2f} to {run['high']:.2f})"


def _words() -> str:
    terms = [BY_ANCHOR[name] for name in ("drafter", "acceptance", "mean-accepted-length", "n-max")]
    return "## Words\n\n" + "\n".join(f"- *{term.title}*: {plain(term)}" for term in terms)


def _fidelity(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    if not reports:
        return []
    forward = [report["fidelity"] or {} for report in reports]
    hidden, drafts = (any(name in found for found in forward) for name in ("cosine", "agreement"))
    head = ["file", "tensors compared", "worst SNR", "worst cosine"]
    head += ["hidden states"] * hidden + ["same drafts", "expected loss"] * drafts
    rows = []
    for report, found in zip(reports, forward, strict=True):
        snr = "exact" if report["worst_snr_db"] is None else f"{report['worst_snr_db']} dB"
        cosine = "exact" if report["worst_cosine"] is None else report["worst_cosine"]
        cells = [f"`{report['file']}`", report["tensors"], snr, cosine]
        cells += [f"{found['cosine']:.3f}" if "cosine" in found else "-"] * hidden
        for name in ("agreement", "expected_loss") if drafts else ():
            cells.append(percent(found[name]) if name in found else "-")
        rows.append(cells)
    text = "Every tensor and key was compared with the checkpoint; what is not quantized is bit-identical."
    if hidden:
        text += " *Hidden states* (cosine) come from running checkpoint and file side by side"
        text += ", *drafts* too, on the target's own text." if drafts else " on random context."
    return [f"## Fidelity\n\n{_table(head, rows)}\n\n{text}"]


def _contests(contests: Sequence[Mapping[str, Any]]) -> list[str]:
    if not contests:
        return []
    head = ("prompts", "file", "settings", "× no drafter", "spread", "mean length", "")
    parts = ["## Which settings"]
    for each in contests:
        rows = []
        for row in each["rows"]:
            known = row["speedup"] is not None
            times = f"{row['speedup']:.2f}" if known else "not measured"
            spread = f"{row['low']:.2f} to {row['high']:.2f}" if known and row["low"] and row["high"] else ""
            length = "" if row["mean_length"] is None else f"{row['mean_length']:.2f}"
            cells = (_plain(row["label"]), f"`{row['file']}`", row_settings(row), times, spread, length)
            rows.append((*cells, _plain(row_advice(row))))
        what = "compared" if each["kind"] == "comparison" else "tuned"
        parts.append(f"As {what} on {_plain(each['hardware'])}, in {_plain(each['engine'])}:\n\n{_table(head, rows)}")
    parts.append("Other hardware has other best settings: `dflash-convert tune` finds them.")
    return ["\n\n".join(parts)]


def _usage(document: Mapping[str, Any], target: TargetGguf | None, settings: BestSettings) -> str:
    name = picked(document, settings)
    where = "In the directory of the drafter"
    if target is None:
        where += f", with `{PLACEHOLDER}` standing for your GGUF of the target"
    elif not target.on_hub:
        where += f", with the target `{target.name}` beside it"
    calls = [program_call(p, target, name, settings) for p in ("llama-server", "llama-cli")]
    text = f"## Run it\n\n{where}:\n\n```sh\n{calls[0]}\n```\n\nor in a terminal:\n\n```sh\n{calls[1]}\n```"
    if guessed(document):
        text += f"\n\n{settings.n_max} drafts a step are a first guess: `dflash-convert tune` finds what pays."
    if not set(DRAFT_CACHE) & {name for name, _ in settings.extra}:  # else it was measured
        text += "\n\nKeep the drafter's cache at f16 (the default): a quantized one has cost nearly all acceptance."
    text += f"\n\nFor `--models-dir`, put `{name}` and the target into one sub-folder."
    if target is not None:
        text += f"\n`{PRESET}` holds the same settings for `llama-server --models-preset`."
    return text


def _provenance(document: Mapping[str, Any]) -> str:
    drafter, target, tool = document["drafter"], document["target"], document["tool"]
    rows = [("drafter", _model(drafter)), ("target", _model(target))]
    if drafter.get("config_sha256"):
        rows.append(("SHA-256 of the drafter's config.json", f"`{drafter['config_sha256']}`"))
    for name, digest in target["files"].items():
        rows.append((f"SHA-256 of the target's {_plain(name)}", f"`{_plain(digest)}`"))
    rows.append(("made with", f"{tool['name']} {tool['version']}"))
    lines = [f"- {what}: {value}" for what, value in rows]
    return "\n".join([*lines, "", "`manifest.json` has the same facts for programs."])
