"""What ``compare`` and ``tune`` found as one HTML file: what to take and why, then all candidates side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dflash_convert.contest.candidates import Candidate
from dflash_convert.contest.hardware import hardware
from dflash_convert.contest.judge import Ruling, Standing
from dflash_convert.contest.prepare import Contest
from dflash_convert.contest.report import advice, verdict
from dflash_convert.contest.trees import MARK, Estimate
from dflash_convert.contest.tune import Tuned
from dflash_convert.measure.speed import FASTER
from dflash_convert.report.charts import SERIES, Bar, bars
from dflash_convert.report.html import document
from dflash_convert.report.markup import facts, number, percent, section, table, tag, text
from dflash_convert.report.plots import Curve, Point, curves, scatter
from dflash_convert.text import MIB, broken_command, size
from dflash_convert.text import percent as share
from dflash_convert.validation.net import Net

WITHOUT = 1  # the colour of no drafter
POSITIONS = 16  # shown of methods without a drafter, which draft up to 64 tokens


@dataclass(frozen=True)
class Shown:
    """A contest for the page. ``works`` are loads, the first of which decides; ``kinds`` the same work by kind of
    prompt; ``found`` a search's result, ``guessed`` what trees of drafts would keep, ``nets`` reduced heads beside
    whole ones."""

    made: Contest
    works: Sequence[Ruling]
    kinds: Sequence[Ruling] = ()
    found: Tuned | None = None
    guessed: Sequence[Estimate] = ()
    nets: Sequence[Net] = ()
    rows: Sequence[Standing] = field(init=False)

    def __post_init__(self) -> None:
        ranked = sorted(self.works[0].standings, key=lambda each: -each.tokens_per_second)
        object.__setattr__(self, "rows", ranked)

    @property
    def ruling(self) -> Ruling:
        return self.works[0]

    @property
    def ranks(self) -> dict[Candidate, int]:
        """By candidate, the fastest first, from 0."""
        return {each.candidate: i for i, each in enumerate(self.rows)}

    @property
    def colours(self) -> dict[Candidate, int]:
        """Grey for no drafter, the others by rank; as many as the style sheet has."""
        drafting = [each.candidate for each in self.rows if each.candidate.methods]
        free = [n for n in range(SERIES) if n != WITHOUT]
        alone = {each.candidate: WITHOUT for each in self.rows if not each.candidate.methods}
        return alone | dict(zip(drafting, free, strict=False))

    @property
    def series(self) -> list[str]:
        """Names in the order of the colours."""
        names = {colour: name for k, colour in self.colours.items() for name in [self.names[k]]}
        return [names.get(i, "") for i in range(max(names) + 1)]

    @property
    def names(self) -> dict[Candidate, str]:
        """``1 dflash-x-Q8_0, n-max 7``."""
        return {each.candidate: f"{i + 1} {_named(each.candidate)}" for i, each in enumerate(self.rows)}


def _named(candidate: Candidate) -> str:
    """With its settings, unless they are part of the name already."""
    known = not candidate.settings or candidate.name.endswith(candidate.settings)
    return candidate.name if known else f"{candidate.name}, {candidate.settings}"


def render(shown: Shown, command: str, preset: str) -> str:
    """The whole document; ``command`` and ``preset`` run the winner."""
    title = headline(shown)
    return document(
        title,
        [
            tag("header", _top(shown, title)),
            _run(command, preset),
            _side_by_side(shown),
            _by_kind(shown),
            _search(shown),
            _loads(shown),
            _trees(shown),
            _circumstances(shown),
        ],
    )


def headline(shown: Shown) -> str:
    if not shown.ruling.pays:
        return "Run this target without a drafter"
    winner = shown.ruling.winner.candidate
    return f"Take {winner.name}" + (f" with {winner.settings}" if winner.settings else "")


def _top(shown: Shown, title: str) -> str:
    ruling, winner = shown.ruling, shown.ruling.winner
    words = "faster here" if ruling.pays else "no gain here"
    badge = tag("span", text(words), class_="verdict " + ("faster" if ruling.pays else "no-gain"))
    sentence = verdict(shown.found).removeprefix(f"{ruling.label}: ") if shown.found else overall(shown)
    lead = tag("p", text(sentence), class_="lead")
    lead += "".join(tag("p", text(line.strip())) for each in shown.nets for line in each.lines)
    values: list[tuple[str, str | None]] = []
    if ruling.pays and winner.speed is not None:
        spread = f"{winner.speed.spread[0]:.2f} to {winner.speed.spread[1]:.2f}"
        values.append((f"against no drafter ({spread})", f"{winner.speed.measured:.2f} ×"))
    values.append(("tokens per second", number(winner.tokens_per_second, 1)))
    values.append(("mean accepted length", number(winner.length) if ruling.pays else None))
    values.append(("memory, planned", size(_planned(shown, winner))))
    tiles = [tag("div", tag("b", text(value)) + text(name), class_="tile") for name, value in values if value]
    return tag("h1", text(title)) + tag("p", badge) + lead + tag("div", "".join(tiles), class_="tiles")


def overall(shown: Shown) -> str:
    """One sentence: what to take, and for which kinds of prompt something else."""
    alone = advice(shown.ruling).removeprefix(f"{shown.ruling.label}: no drafter; ")
    sentence = why(shown) if shown.ruling.pays else alone
    others = [
        f"{each.label}: {'no drafter' if not each.pays else each.winner.candidate.name}"
        for each in shown.kinds
        if (each.pays, each.winner.candidate) != (shown.ruling.pays, shown.ruling.winner.candidate)
    ]
    return sentence if not others else f"{sentence.removesuffix('.')}; but for {'; for '.join(others)}."


def why(shown: Shown) -> str:
    """What speaks for the winner, and what the next would cost."""
    winner = shown.ruling.winner
    gain = f"{winner.speed.measured:.2f} × the speed without a drafter" if winner.speed else ""
    equals = [each for each in shown.rows if each.best and each is not winner]
    parts = [gain]
    if equals:
        names = " and ".join(_called(shown, each) for each in equals)
        larger = all(each.candidate.size > winner.candidate.size for each in equals)
        parts.append(f"{names} {'is' if len(equals) == 1 else 'are'} as fast within noise" + ", but larger" * larger)
    after = next((s for s in shown.rows if not s.best and s.tokens_per_second < winner.tokens_per_second), None)
    if after is not None:
        parts.append(f"the next, {_called(shown, after)}, is {_loss(winner, after)} slower")
    return "; ".join(parts) + "."


def _called(shown: Shown, each: Standing) -> str:
    return shown.names[each.candidate].split(" ", 1)[1]


def _loss(winner: Standing, each: Standing) -> str:
    return share(1 - each.tokens_per_second / max(winner.tokens_per_second, 1e-9), 0)


def _run(command: str, preset: str) -> str:
    more = tag("details", tag("summary", "The same as a preset.ini") + tag("pre", text(preset)))
    return section("Run it", tag("pre", text("\n".join(broken_command(command)))), more)


def _planned(shown: Shown, each: Standing) -> int:
    """Bytes by plan, which all candidates have; an engine tells only some."""
    return shown.made.needs[each.candidate.name].planned


def _side_by_side(shown: Shown) -> str:
    head = ("candidate", "verdict", "settings", "× no drafter", "spread", "tok/s", "length", "accepted", "first", "MiB")
    rows = [_row(shown, each) for each in shown.rows]
    taken = shown.ranks[shown.ruling.winner.candidate]
    listed = table(head, rows, f"All candidates, the fastest first ({shown.ruling.label})", 3, marked={taken})
    return section("Side by side", listed, tag("div", _speed_memory(shown) + _positions(shown), class_="charts"))


def _row(shown: Shown, each: Standing) -> tuple[str | None, ...]:
    speed = each.speed
    times = "1.00" if speed is None else f"{speed.measured:.2f}" if speed.claimed else None
    spread = f"{speed.spread[0]:.2f} to {speed.spread[1]:.2f}" if speed is not None and speed.claimed else None
    return (
        f"{shown.ranks[each.candidate] + 1} {each.candidate.name}",
        _standing(shown.ruling, each),
        each.candidate.settings,
        times,
        spread,
        number(each.tokens_per_second, 1),
        number(each.length),
        percent(each.accepted / each.drafted) if each.drafted else None,
        f"{each.first_ms:,.0f} ms",
        f"{_planned(shown, each) / MIB:,.0f}",
    )


def _standing(ruling: Ruling, each: Standing) -> str:
    if each is ruling.winner:
        return "take this"
    if each.speed is not None and not each.speed.claimed:
        return str(each.speed.gain)
    if each.best:
        return "as fast, within noise" if ruling.winner.candidate.size else "no faster, within noise"
    return f"{_loss(ruling.winner, each)} slower"


def _speed_memory(shown: Shown) -> str:
    base = next(each.tokens_per_second for each in shown.rows if each.speed is None)
    points = []
    for each in shown.rows:
        k = each.candidate
        if k not in shown.colours:
            continue
        rate, speed = each.tokens_per_second, each.speed
        low, high = (base * s for s in speed.spread) if speed is not None and speed.claimed else (rate, rate)
        said = f"{shown.names[k]}: {rate:.1f} tokens/s, {size(_planned(shown, each))}"
        points.append(
            Point(str(shown.ranks[k] + 1), _planned(shown, each) / MIB, rate, low, high, shown.colours[k], said)
        )
    title = "Speed against memory: up and to the left is better. Numbers as in the table"
    return scatter(title, points, "MiB, planned", "tokens per second")


def _positions(shown: Shown) -> str:
    last = max((s.candidate.n_max for s in shown.rows if s.candidate.drafter), default=POSITIONS)
    found = [
        Curve(shown.names[each.candidate], each.curve[:last], shown.colours[each.candidate])
        for each in shown.rows
        if each.curve and each.candidate in shown.colours
    ]
    return curves("Steps that kept the draft at each position", found, "position", "kept", percent=True)


def _by_kind(shown: Shown) -> str:
    if not shown.kinds:
        return ""
    items = []
    for ruling in shown.kinds:
        for each in sorted(ruling.standings, key=lambda s: shown.ranks[s.candidate]):
            k = each.candidate
            if each.speed is not None and each.speed.claimed and k in shown.colours:
                star = " ★" if each is ruling.winner and ruling.pays else ""
                items.append(
                    Bar(ruling.label, each.speed.measured, f"{each.speed.measured:.2f} ×{star}", shown.colours[k])
                )
    sentences = "".join(tag("li", text(advice(each))) for each in shown.kinds)
    names = [name if i != WITHOUT else "" for i, name in enumerate(shown.series)]
    chart = bars("Speed against no drafter (1.00 ×) by kind of prompt", items, series=names)
    return section("By kind of prompt", tag("ul", sentences), chart)


def _search(shown: Shown) -> str:
    """Of a tuning: predicted beside measured."""
    found = shown.found
    if found is None:
        return ""
    plain = [m for m in found.measured if not m.candidate.p_min and not m.candidate.tweaks]
    drawn = [
        Curve(
            name,
            [p.speedup for p in predictions],
            [n for n in range(SERIES) if n != WITHOUT][i],
            [(m.candidate.n_max, m.speedup) for m in plain if m.candidate.name == name],
            guess=True,
        )
        for i, (name, predictions) in enumerate(list(found.predictions.items())[: SERIES - 1])
    ]
    rows = []
    for m in found.measured:
        known: Mapping[int, float] = {p.n: p.speedup for p in found.predictions.get(m.candidate.name, ())}
        predicted = known.get(m.candidate.n_max) if m in plain else None
        rows.append(
            (
                m.candidate.name,
                m.candidate.settings,
                number(predicted),
                number(m.speedup),
                number(m.length),
                number(m.step_ms),
            )
        )
    head = ("drafter", "settings", "predicted ×", "measured ×", "length", "ms a step")
    title = "Speed against no drafter by draft length: predicted (line) and measured (dots, one pass each)"
    return section("The search", curves(title, drawn, "n-max", "× no drafter"), table(head, rows, "What was run", 2))


def _loads(shown: Shown) -> str:
    """Other loads: several requests at a time, long contexts."""
    if len(shown.works) < 2:
        return ""
    rows = []
    for ruling in shown.works:
        gain = f"{ruling.winner.speed.measured:.2f} ×" if ruling.pays and ruling.winner.speed else "no gain"
        best = ruling.winner.candidate.name if ruling.pays else "no drafter"
        faster = sum(s.speed is not None and s.speed.gain == FASTER for s in ruling.standings)
        drafting = len(ruling.standings) - 1
        rows.append((ruling.label, best, gain, f"{ruling.winner.tokens_per_second:,.1f}", f"{faster} of {drafting}"))
    head = ("load", "take", "× no drafter", "tok/s", "candidates that pay")
    return section("Other loads", table(head, rows, "The best of each load", 2))


def _trees(shown: Shown) -> str:
    """What no candidate can be: drafts in trees."""
    rows: list[tuple[str, str, str | None]] = []
    for each in shown.guessed:
        if each.found is None:
            rows.append((each.name, each.reason, None))
            continue
        rows.append((each.name, "the chain", number(each.found.chain)))
        rows += [(each.name, f"{nodes} nodes", number(mean)) for nodes, mean in each.found.trees.items()]
    listed = table(("drafter", "drafted", "tokens a step"), rows, f"Trees of drafts: {MARK}", 2) if rows else ""
    return section("What a tree would keep", listed)


def _circumstances(shown: Shown) -> str:
    made = shown.made
    kinds = dict.fromkeys(item.set for item in made.items)
    rows = [
        ("target", made.engines.launch.target.name),
        ("engine", made.engines.info.name),
        ("hardware", hardware(made.engines.info.devices)),
        ("context", f"{made.context:,} tokens"),
        ("prompts", f"{len(made.items)} ({', '.join(kinds)})"),
        ("extra arguments", " ".join(made.engines.launch.extra_args)),
    ]
    refused = [(name, reason) for name, reason in made.refused.items()]
    left_out = table(("candidate", "reason"), refused, "Not run") if refused else ""
    return section("Measured on", facts(rows, "Circumstances"), left_out)
