"""The report's style sheet: light and dark by the reader's setting, one column on a phone, ink-saving on paper."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --bg: #ffffff; --ink: #1b1f24; --soft: #59636e; --line: #d5dae0; --panel: #f5f7f9;
  --shade: #8a95a199; --s0: #1f6feb; --s1: #9aa4b0; --s2: #d4530c; --s3: #0a8f68; --s4: #b8519a; --s5: #b58900;
  --s6: #6f4fc0; --s7: #2b8fb8; --good: #1a7f37; --warn: #9a6700; --bad: #c62828; }
@media (prefers-color-scheme: dark) { :root { --bg: #11151a; --ink: #e4e9ef; --soft: #9aa5b1; --line: #343c46;
  --panel: #1a2027; --shade: #8a95a1aa; --s0: #5aa2ff; --s1: #76818d; --s2: #ff8a4c; --s3: #3ccf9a; --s4: #e59ac4;
  --s5: #f0c040; --s6: #b79be8; --s7: #7cc8f5; --good: #4cc26b; --warn: #e0b341; --bad: #ff7b72; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1.25rem 3rem; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.25; margin: 0 0 .25rem; }
header h2 { border: 0; margin: 1rem 0 .3rem; padding: 0; font-size: 1rem; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .75rem; padding-top: 1rem; border-top: 1px solid var(--line); }
p { margin: .4rem 0; } ul { margin: .4rem 0; padding-left: 1.25rem; }
.soft, caption, figcaption { color: var(--soft); font-size: .87rem; }
.verdict { display: inline-block; padding: .1rem .7rem; border-radius: 1rem; border: 2px solid currentColor;
  font-weight: 650; margin: .3rem 0; }
.healthy, .faster { color: var(--good); } .weak, .no-gain, .disturbed { color: var(--warn); }
.broken, .engine-failure, .slower { color: var(--bad); } .plain, .not-measured { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1rem 0; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.5rem; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile span, .tile small { display: block; } .tile small { color: var(--soft); }
.good, .warn, .bad { border-left: .35rem solid; }
.good { border-left-color: var(--good); } .good b { color: var(--good); }
.warn { border-left-color: var(--warn); } .warn b { color: var(--warn); }
.bad { border-left-color: var(--bad); } .bad b { color: var(--bad); }
.banner { border: 1px solid var(--warn); border-left-width: .35rem; border-radius: .5rem; padding: .5rem .8rem;
  margin: 1rem 0; } .banner b { color: var(--warn); }
.command { font-size: .9rem; } code { font-family: ui-monospace, monospace; font-size: .92em; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem; color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1.25rem; }
figure { margin: .5rem 0; max-width: 30rem; } svg { width: 100%; height: auto; display: block; }
svg text { font: 10.5px system-ui, sans-serif; fill: var(--ink); } svg .label { fill: var(--soft); }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); }
.s4 { --c: var(--s4); } .s5 { --c: var(--s5); } .s6 { --c: var(--s6); } .s7 { --c: var(--s7); }
rect, circle { fill: var(--c); } polyline, .range { fill: none; stroke: var(--c); stroke-width: 2; }
polyline.guess { stroke-dasharray: 4 3; } .axis { stroke: var(--line); }
.average { stroke: var(--ink); stroke-dasharray: 4 3; }
.marked { background: var(--panel); } .marked th { font-weight: 650; } .lead { font-size: 1.1rem; }
.scroll { overflow-x: auto; margin: .75rem 0; background:
  linear-gradient(90deg, var(--bg) 30%, transparent) left / 2.5rem 100% no-repeat local,
  linear-gradient(270deg, var(--bg) 30%, transparent) right / 2.5rem 100% no-repeat local,
  linear-gradient(90deg, var(--shade), transparent) left / 1.2rem 100% no-repeat scroll,
  linear-gradient(270deg, var(--shade), transparent) right / 1.2rem 100% no-repeat scroll; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .3rem; }
th, td { text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; } tbody th { font-weight: 450; } .n { text-align: right; white-space: nowrap; }
table:not(.facts) :is(th, td) { overflow-wrap: normal; } table:not(.facts) tbody th { min-width: 7rem; }
.facts th { width: 11rem; color: var(--soft); }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: .4rem; padding: .7rem; font-size: .82rem;
  white-space: pre-wrap; }
details { margin: .5rem 0; } summary { cursor: pointer; }
@media (max-width: 46rem) { .wide::before { content: "scroll sideways for more \\2192"; color: var(--soft);
  font-size: .8rem; } }
@media (max-width: 30rem) { body { padding: 1rem .8rem 2rem; } .facts th { width: 7.5rem; } }
@media print { :root { --bg: #fff; --ink: #000; --soft: #444; --line: #bbb; --panel: #fff; --s0: #1f6feb; --s1: #9aa4b0;
  --s2: #d4530c; --s3: #0a8f68; --s4: #b8519a; --s5: #b58900; --s6: #6f4fc0; --s7: #2b8fb8;
  --good: #1a7f37; --warn: #9a6700; --bad: #c62828; }
  body { max-width: none; padding: 0; font-size: 10pt; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  h2 { break-after: avoid; } figure, tr, .tile { break-inside: avoid; } .scroll { overflow: visible; background: none; }
  .wide::before { content: none; } ::details-content { content-visibility: visible; } }
"""
