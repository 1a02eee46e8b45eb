"""The model card: front matter for the Hub, and for a reader what the files are, for which target, how to run them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dflash_convert.head.provenance import OWN
from dflash_convert.llama import DRAFTERS
from dflash_convert.release.commands import PLACEHOLDER, TargetGguf, program_call
from dflash_convert.release.contests import Settings, row_advice, row_settings

TAGS = ("gguf", "llama.cpp", "speculative-decoding", "draft-model")


def card_text(document: Mapping[str, Any], target_gguf: TargetGguf | None, settings: Settings) -> str:
    """The card of a package from its manifest (without the card's own entry); its commands use ``settings``."""
    weights = [f for f in document["files"] if f["role"] == "weights"]
    parts = [
        _front_matter(document),
        f"# {document['name']}",
        _introduction(document),
        "## Files\n\n" + _file_table(weights),
        *_heads(weights),
        *_validation(document["validation"]),
        *_fidelity(document["verification"]),
        *_contests(document["contests"]),
        _usage(document, weights, target_gguf, settings),
        "## Where it comes from\n\n" + _provenance(document),
    ]
    return "\n\n".join(parts) + "\n"


def guessed(document: Mapping[str, Any]) -> bool:
    """Whether the draft length is one that nobody measured or asked for."""
    return bool(document["n_max"] and "n_max" not in document["options"] and not document["contests"])


def _front_matter(document: Mapping[str, Any]) -> str:
    """YAML; strings are written as JSON, which YAML reads alike whatever they hold."""
    bases = [o["repository"] for o in (document["drafter"], document["target"]) if o["repository"]]
    lines = ["---"]
    if bases:
        lines += ["base_model:", *(f"- {_quoted(name)}" for name in dict.fromkeys(bases))]
        lines.append("base_model_relation: quantized")
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
    rows = [(f"`{f['path']}`", f["type"], f"{f['size'] / 1e6:,.1f} MB", f"`{f['sha256']}`") for f in weights]
    return _table(("file", "type", "size", "SHA-256"), rows) + "\n\n`sha256sum -c SHA256SUMS` checks a download."


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
        text += f"`{_plain(head['matrix_sha256'] or 'unknown')}`)."
    if head["own_embeddings"]:
        text += " It has embeddings of its own too and borrows nothing."
    if head["ranking"]:
        text += f" Kept were the tokens most frequent in {_plain(head['ranking'])}"
        text += f" (SHA-256 `{_plain(head['ranking_sha256'] or 'unknown')}`)"
        if head["coverage"] is not None:
            kinds = ", ".join(f"{_plain(kind)} {_share(share)}" for kind, share in head["kinds"].items())
            text += f", which cover {_share(head['coverage'])} of a held-out part of it" + (kinds and f" ({kinds})")
        text += "."
    return text


def _share(share: float) -> str:
    return f"{100 * share:.2f} %"


def _validation(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    if not runs:
        return []
    head = ("file", "verdict", "drafts accepted", "mean length", "n-max", "greedy text", "target")
    same = {True: "identical", False: "differs", None: "not compared"}
    rows = []
    for run in runs:
        accepted = f"{run['accepted']} of {run['drafted']} ({100 * run['acceptance']:.1f} %)"
        target = f"`{_plain(run['target']['name'])}`"
        text = same[run["identical"]]
        rows.append(
            (f"`{run['file']}`", run["verdict"], accepted, f"{run['mean_length']:.2f}", run["n_max"], text, target)
        )
    engines = ", ".join(dict.fromkeys(run["engine"] for run in runs))
    text = (
        f"Greedy runs of {runs[0]['prompts']} prompts in {_plain(engines)}. *Mean length* is how many tokens\n"
        "one step of the target yields; 1 would mean that no draft was of use."
    )
    return [f"## Acceptance\n\n{_table(head, rows)}\n\n{text}"]


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
            cells.append(f"{100 * found[name]:.1f} %" if name in found else "-")
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


def _usage(
    document: Mapping[str, Any], weights: Sequence[Mapping[str, Any]], target: TargetGguf | None, settings: Settings
) -> str:
    # Q8_0 loses next to nothing, and a drafter is small: the one to show when there are several
    name = settings.file or next((f for f in weights if f["type"] == "Q8_0"), weights[0])["path"]
    where = "In the directory of the drafter"
    if target is None:
        where += f", with `{PLACEHOLDER}` standing for your GGUF of the target"
    elif not target.on_hub:
        where += f", with the target `{target.name}` beside it"
    calls = [program_call(p, target, name, settings) for p in ("llama-server", "llama-cli")]
    text = f"## Run it\n\n{where}:\n\n```sh\n{calls[0]}\n```\n\nor in a terminal:\n\n```sh\n{calls[1]}\n```"
    if guessed(document):
        text += f"\n\n{settings.n_max} drafts a step are a first guess: `dflash-convert tune` finds what pays."
    text += (
        "\n\nKeep the drafter's cache at f16 (the default): a quantized one has cost nearly all acceptance."
        f" For `--models-dir`, put `{name}` and the target into one sub-folder."
    )
    if target is not None:
        text += "\nThe local `preset.ini` of the package holds the same settings for `llama-server --models-preset`."
    return text


def _provenance(document: Mapping[str, Any]) -> str:
    drafter, target, tool = document["drafter"], document["target"], document["tool"]
    rows = [("drafter", _model(drafter)), ("target", _model(target))]
    if drafter["config_sha256"]:
        rows.append(("SHA-256 of the drafter's config.json", f"`{drafter['config_sha256']}`"))
    for name, digest in target["files"].items():
        rows.append((f"SHA-256 of the target's {_plain(name)}", f"`{_plain(digest)}`"))
    rows.append(("made with", f"{tool['name']} {tool['version']}"))
    lines = [f"- {what}: {value}" for what, value in rows]
    return "\n".join([*lines, "", "`manifest.json` has the same facts for programs."])
