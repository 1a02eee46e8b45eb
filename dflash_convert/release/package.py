"""Build a release directory, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dflash_convert import __version__
from dflash_convert.container.reader import open_gguf
from dflash_convert.contest.budget import model_of
from dflash_convert.errors import ContainerError, DflashError, InputError, OutputError, UsageError, VerificationError
from dflash_convert.hashing import sha256_of
from dflash_convert.head.build import suffix
from dflash_convert.memory.plan import Serving, plan_memory
from dflash_convert.naming import FIRST_GUESS, check_target_name, default_name
from dflash_convert.notes import Note
from dflash_convert.output import check_directory, check_space, exists_error, whole_directory
from dflash_convert.pairing import check, refusal
from dflash_convert.pairing.drafters import drafter_gguf
from dflash_convert.pairing.targets import target_gguf
from dflash_convert.release.card import card_text, guessed
from dflash_convert.release.commands import TargetGguf, parse_target, preset_text
from dflash_convert.release.contests import BestSettings, contest_summary, settings_of
from dflash_convert.release.facts import DrafterFacts, Origin, found_by_llama_cpp, read_facts, same_release
from dflash_convert.release.manifest import (
    CARD,
    KIND,
    MANIFEST,
    PRESET,
    SCHEMA,
    SUMS,
    plain_name,
    read_manifest,
    sums_text,
    to_text,
    verify_manifest,
)
from dflash_convert.release.validations import match_reports, summary
from dflash_convert.release.verifications import match_verifications, verification_summary
from dflash_convert.report.extras import Extras, gather, type_rows
from dflash_convert.report.html import render
from dflash_convert.text import MIB, short
from dflash_convert.validation.result import BROKEN, ENGINE_FAILURE, ValidationResult

T = TypeVar("T")
SPARE = 1 << 18  # bytes for the card, the manifest, the sums and directory entries, and as much for each report
CONTEXT = 8192  # tokens, for which the card tells the memory


@dataclass(frozen=True)
class PackageOptions:
    """Choices of a package; None means what the files say. ``validation`` are ``validate --json`` documents,
    ``verification`` ``verify --json`` documents, ``contest`` ``compare --json`` or ``tune --json`` documents (the
    first load of the first decides the settings), ``target_gguf`` a file or ``owner/name[:TAG]``, ``repo`` where it
    will be published; ``force_pair`` packages what ``check`` refuses."""

    name: str | None = None
    license: str | None = None
    repo: str | None = None
    drafter_repo: str | None = None
    target_repo: str | None = None
    target_name: str | None = None
    target_gguf: str | None = None
    n_max: int | None = None
    validation: tuple[Path, ...] = ()
    verification: tuple[Path, ...] = ()
    contest: tuple[Path, ...] = ()
    force_pair: bool = False


@dataclass(frozen=True)
class Package:
    """A finished package: its directory and manifest, and what there is to say about it."""

    directory: Path
    manifest: dict[str, Any]
    notes: tuple[Note, ...]


def build_package(
    files: Sequence[Path],
    out: Path,
    options: PackageOptions | None = None,
    *,
    force: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Package:
    """Make ``out`` from drafter GGUFs. Raises before anything is written for files that do not belong together
    and for an existing ``out`` (unless ``force``, and then only if it is a package or empty); whatever happens,
    ``out`` is either as it was or complete."""
    options = options or PackageOptions()
    if not files:
        raise UsageError("no GGUF was given to package")
    check_target_name(options.target_name)
    facts = [read_facts(path) for path in files]
    first = same_release(facts)
    target_gguf = parse_target(options.target_gguf)
    notes: list[Note] = []
    if not options.force_pair:
        _check_pairs(files, options.target_gguf)
    names = _names(facts, options, notes)
    notes += _dropped(out, options)
    check_directory(out)
    check_space(out.parent, sum(f.size for f in facts) + _texts(options))
    with whole_directory(out, partial(_check_out, out, files, force)) as work:
        hashes = {}
        for path, name in names.items():
            hashes[path] = _copy(path, work / name)
            progress(path.stat().st_size)
        reports = match_reports(options.validation, facts, hashes)
        document = _document(facts, names, hashes, options, first)
        document["verification"] = [
            verification_summary(names[path], found)
            for path, found in _by_name(match_verifications(options.verification, facts), names)
        ]
        document["validation"] = [summary(names[path], found) for path, found in _by_name(reports, names)]
        by_hash = {hashes[path]: names[path] for path in names}
        document["contests"] = [contest_summary(path, by_hash, first.max_drafts) for path in options.contest]
        settings = settings_of(first.spec_type, first.n_max, document["contests"])
        settings = replace(settings, n_max=_n_max(options.n_max, first, settings.n_max))
        document["n_max"], document["p_min"] = settings.n_max, settings.p_min
        notes += _notes(document, reports, len(facts))
        pages = {names[path]: _page(work / names[path], found, options) for path, found in reports.items()}
        _write_texts(work, document, target_gguf, settings, pages)
        problems = verify_manifest(work)
        if problems:
            raise VerificationError(f"the package is damaged as soon as it is written: {problems[0]}")
    return Package(out, document, tuple(notes))


def _texts(options: PackageOptions) -> int:
    """Bytes to keep free for the texts: a report's page shows the texts of its result, with more marks around them."""
    results = [path.stat().st_size for path in options.validation if path.is_file()]
    return SPARE * (1 + len(results)) + 2 * sum(results)


def _check_pairs(files: Sequence[Path], target: str | None) -> None:
    """The rules of ``check`` for each file, with the target where its GGUF is here; what lies about its own encoding
    must not be published under that name."""
    local = Path(target) if target is not None and Path(target).is_file() else None
    view = target_gguf(open_gguf(local)) if local is not None else None
    for path in files:
        findings = check(drafter_gguf(open_gguf(path)), view)
        refused = refusal(findings, str(path), str(local) if local is not None else None)
        if refused is not None:
            raise refused
        for finding in findings:
            if finding.name == "file-type":
                raise ContainerError(f"{path}: {finding.drafter}, but {finding.target}", tip=finding.cure)


def _copy(source: Path, target: Path) -> str:
    """Copy a file; its SHA-256."""
    try:
        with target.open("xb") as file:
            return sha256_of(source, file)
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror or error}") from None


def _by_name(reports: Mapping[Path, T], names: Mapping[Path, str]) -> list[tuple[Path, T]]:
    return sorted(reports.items(), key=lambda item: names[item[0]])


def _names(facts: Sequence[DrafterFacts], options: PackageOptions, notes: list[Note]) -> dict[Path, str]:
    """The name of each file in the package: its own, or the default name when llama.cpp would not find that."""
    names: dict[Path, str] = {}
    for each in facts:
        name = each.path.name
        reason = found_by_llama_cpp(name, each.variant.prefix)
        if reason:
            target = options.target_name or each.target.name
            if target is None:
                raise UsageError(
                    f"{each.path}: llama.cpp would not find it, {reason}, and the file does not name its target",
                    tip=f"give --target-name, or a name like {each.variant.prefix}TARGET-{each.file_type}.gguf",
                )
            ending = "" if each.head is None else suffix(each.head.said.rows)
            name = default_name(each.variant, target, each.file_type, ending)
            notes.append(Note("derived", f"{each.path.name} becomes {name}: llama.cpp would not find it, {reason}"))
            reason = found_by_llama_cpp(name, each.variant.prefix)
        if reason or not plain_name(name):
            raise UsageError(
                f"{name} is not a usable name for a packaged drafter: {reason or 'it is not a plain file name'}"
            )
        if name in names.values():
            raise UsageError(f"two files would be named {name}", tip="package each type once")
        names[each.path] = name
    return names


def _document(
    facts: Sequence[DrafterFacts],
    names: Mapping[Path, str],
    hashes: Mapping[Path, str],
    options: PackageOptions,
    first: DrafterFacts,
) -> dict[str, Any]:
    """The manifest without reports; its files are the weights alone, the texts add themselves."""
    target_name = options.target_name or first.target.name
    title = options.name or f"{target_name or first.drafter.name or 'drafter'}-{first.family}-GGUF"
    if not plain_name(title):
        raise UsageError(f"{title!r} is not a usable name for a package", tip="give a plain --name")
    files = [
        {
            "path": names[f.path],
            "role": "weights",
            "size": f.size,
            "sha256": hashes[f.path],
            "type": f.file_type,
            "tensor_types": f.tensor_types,
            "converted_by": f.tool_version,
            "head": f.head and _hashed(f.head.json()),
        }
        | _memory(f)
        for f in sorted(facts, key=lambda f: names[f.path])
    ]
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "tool": {"name": "dflash-convert", "version": __version__},
        "name": title,
        "family": first.family,
        "spec_type": first.spec_type,
        "block_size": first.block_size,
        "n_max": None,
        "p_min": None,
        "license": _license(options, first),
        "drafter": _origin(first.drafter, options.drafter_repo) | _hashed({"config_sha256": first.config_sha256}),
        "target": _origin(first.target, options.target_repo, target_name) | {"files": first.target_files},
        "options": _options_used(options),
        "files": files,
    }


def _hashed(values: dict[str, Any]) -> dict[str, Any]:
    """Without hashes that are not known."""
    return {name: value for name, value in values.items() if value is not None or not name.endswith("sha256")}


def _memory(facts: DrafterFacts) -> dict[str, Any]:
    """What the drafter takes beside its target, planned from its header; nothing where that cannot be told."""
    try:
        plan = plan_memory(model_of(facts.path), None, Serving(ctx_size=CONTEXT, n_max=facts.n_max or 1))
    except DflashError:
        return {}
    return {"memory": {"context": CONTEXT, "mib": round(plan.drafter.total / MIB)}}


def _n_max(wanted: int | None, facts: DrafterFacts, measured: int | None) -> int | None:
    most = facts.max_drafts
    if wanted is not None and most is not None and wanted > most:
        raise UsageError(f"n-max {wanted} is more than the {most} tokens a block of this drafter can draft")
    return wanted or measured


def _license(options: PackageOptions, facts: DrafterFacts) -> dict[str, str | None]:
    if options.license:
        return {"license": options.license, "license_name": None, "license_link": None}
    return {"license": facts.license, "license_name": facts.license_name, "license_link": facts.license_link}


def _origin(origin: Origin, repository: str | None, name: str | None = None) -> dict[str, Any]:
    """``repository`` may carry a revision: ``owner/name@revision``."""
    if repository is None:
        return {"name": name or origin.name, "repository": origin.repository, "revision": origin.revision}
    given, _, revision = repository.partition("@")
    if given.count("/") != 1 or not given.replace("/", "", 1).strip("/"):
        raise UsageError(f"{repository!r} is not a Hub repository (owner/name)")
    return {"name": name or origin.name, "repository": given, "revision": revision or None}


def _dropped(out: Path, options: PackageOptions) -> Iterator[Note]:
    """What the package that is replaced was told and this call is not. It is said, not taken over: the same files and
    options give the same package, whatever was there before."""
    try:
        before = read_manifest(out).get("options")
    except (DflashError, OSError):
        return
    for name, given in _choices(options).items():
        value = before.get(name) if isinstance(before, dict) else None
        if value is not None and given is None:
            option = f"--{name.replace('_', '-')} {short(value)}"
            yield Note("warning", f"{out} was made with {option}, which this call does not give")


def _options_used(options: PackageOptions) -> dict[str, Any]:
    """The choices that shaped the package, without paths of this machine."""
    return {name: value for name, value in _choices(options).items() if value is not None}


def _choices(options: PackageOptions) -> dict[str, Any]:
    target = parse_target(options.target_gguf)
    return {
        "name": options.name,
        "license": options.license,
        "repo": options.repo,
        "drafter_repo": options.drafter_repo,
        "target_repo": options.target_repo,
        "target_name": options.target_name,
        "target_gguf": target and target.name,
        "n_max": options.n_max,
    }


def _notes(document: Mapping[str, Any], reports: Mapping[Path, ValidationResult], count: int) -> Iterator[Note]:
    for role in ("drafter", "target"):
        if not document[role]["repository"]:
            text = f"the {role}'s repository is unknown, so the card does not link it: give --{role}-repo"
            yield Note("warning", text)
    if not document["license"]["license"]:
        yield Note("warning", "the drafter's licence is unknown, so the card names none: give --license")
    for report in reports.values():
        if report.verdict in (BROKEN, ENGINE_FAILURE):
            name = Path(report.drafter.path).name
            yield Note("warning", f"{name} was validated as {report.verdict}: publish will refuse this package")
    if len(reports) < count:
        yield Note("info", f"{count - len(reports)} of {count} files have no validation report (--validation)")


def _page(file: Path, report: ValidationResult, options: PackageOptions) -> str:
    """The report on the packaged ``file``, with the memory of the pair where the target's GGUF is here."""
    shown = replace(report, drafter=replace(report.drafter, path=str(file)))
    local = Path(options.target_gguf) if options.target_gguf else None
    if local is None or not local.is_file() or local.stat().st_size != report.target.size:
        return render(shown, Extras(type_rows(file)))
    return render(shown, gather(replace(shown, target=replace(report.target, path=str(local)))))


def _write_texts(
    work: Path, document: dict[str, Any], target: TargetGguf | None, settings: BestSettings, pages: Mapping[str, str]
) -> None:
    """Card, reports and preset, then the manifest that lists them, then the sums that list the manifest."""
    reports = {name: f"report-{name.removesuffix('.gguf')}.html" for name in sorted(pages)}
    texts = {CARD: ("card", card_text(document, target, settings, reports))}
    texts |= {reports[name]: ("report", pages[name]) for name in reports}
    if target is not None:
        drafters = [f["path"] for f in document["files"]]
        comment = FIRST_GUESS if guessed(document) else ""
        texts[PRESET] = ("preset", preset_text(document["name"], target, drafters, settings, comment))
    for name, (role, text) in texts.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(text, encoding="utf-8", newline="\n")
        entry = {"path": name, "role": role, "size": len(text.encode()), "sha256": sha256_of(work / name)}
        document["files"].append(entry)
    (work / MANIFEST).write_text(to_text(document), encoding="utf-8", newline="\n")
    (work / SUMS).write_text(sums_text(document, sha256_of(work / MANIFEST)), encoding="utf-8", newline="\n")


def _check_out(out: Path, files: Sequence[Path], force: bool) -> None:
    if not os.path.lexists(out):
        return
    if not force:
        raise exists_error(out)
    if not out.is_dir() or out.is_symlink() or (any(out.iterdir()) and not (out / MANIFEST).is_file()):
        raise OutputError(f"{out} is not a package, so it is not replaced", tip="choose another --out")
    if any(path.resolve().parent == out.resolve() for path in files):
        raise InputError(f"the files to package lie in {out}, which they would replace", tip="choose another --out")
