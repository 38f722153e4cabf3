"""The style sheet of reports: light or dark by the reader's system, and for print. Owns no content."""

from typing import Final

from quire_jobs.analytics.report.markup import Markup

_LIGHT = """
--ground:#fbfaf7;--card:#fff;--ink:#1c1d21;--soft:#5d606b;--rule:#e4e2dc;--grid:#ecebe6;
--good:#1a7f4b;--watch:#a86400;--act:#b3261e;--good-ground:#e9f5ee;--watch-ground:#fdf3e1;--act-ground:#fbeae8;
--c0:#2f6db5;--c1:#d9822b;--c2:#2a9d8f;--c3:#b5487a;--c4:#7a68c9;--c5:#8c8a3a;--c6:#4f9bd9;--c7:#8a8f99;
--h0:#f0efea;--h1:#dbe8f5;--h2:#bed6ee;--h3:#9cc1e4;--h4:#78a9d8;--h5:#5690c9;--h6:#3a76b4;--h7:#265d98;--h8:#15426f;
"""
_DARK = """
--ground:#15171b;--card:#1d2025;--ink:#eceae4;--soft:#a2a6b0;--rule:#30343c;--grid:#2a2e35;
--good:#5fcf95;--watch:#f0b357;--act:#ff8a80;--good-ground:#17291f;--watch-ground:#2e2515;--act-ground:#331b1a;
--c0:#6aa5e8;--c1:#f0a45d;--c2:#55c7b8;--c3:#e083ae;--c4:#aa9bf0;--c5:#c3c06b;--c6:#8fc5f2;--c7:#9aa0ab;
--h0:#23262c;--h1:#1c3046;--h2:#1f3f60;--h3:#23507c;--h4:#2c6398;--h5:#3b79b3;--h6:#5391cb;--h7:#79afe0;--h8:#a9cdf0;
"""
_PAGE = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--ink);
font:16px/1.55 "Inter","Segoe UI",system-ui,-apple-system,"Helvetica Neue",Arial,sans-serif;
font-variant-numeric:tabular-nums}
main{max-width:1000px;margin:0 auto;padding:48px 28px 72px}
header{border-bottom:1px solid var(--rule);padding-bottom:20px}
.brand{margin:0;color:var(--soft);letter-spacing:.14em;text-transform:uppercase;font-size:12px;font-weight:600}
h1{font-family:"Iowan Old Style","Palatino Linotype",Palatino,Georgia,serif;font-weight:600;
font-size:38px;line-height:1.15;margin:6px 0 8px;letter-spacing:-.01em}
h2{font-family:"Iowan Old Style","Palatino Linotype",Palatino,Georgia,serif;font-weight:600;
font-size:23px;line-height:1.25;margin:44px 0 6px}
.subject{margin:0;font-size:17px;overflow-wrap:anywhere}
.made,.words,.empty,.notes,.axis-title,.heat-key{color:var(--soft)}
.made{margin:4px 0 0;font-size:14px}
.words{margin:0 0 14px;max-width:70ch}
.empty{margin:10px 0;font-style:italic}
.axis-title{margin:4px 0 0;font-size:13px}
.advice{list-style:none;margin:12px 0 0;padding:0;display:grid;gap:10px}
.advice li{display:flex;gap:14px;border-radius:10px;padding:14px 18px;border-left:4px solid}
.advice p{margin:0;overflow-wrap:anywhere}
.advice .do{color:var(--soft);margin-top:2px}
.advice .mark{font-weight:700;width:1.1em;text-align:center;flex:none}
.good{background:var(--good-ground);border-color:var(--good)!important}.good .mark{color:var(--good)}
.watch{background:var(--watch-ground);border-color:var(--watch)!important}.watch .mark{color:var(--watch)}
.act{background:var(--act-ground);border-color:var(--act)!important}.act .mark{color:var(--act)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:14px;margin:32px 0 0}
.tiles div{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:14px 18px}
.tiles dt{color:var(--soft);font-size:13px}
.tiles dd{margin:2px 0 0;font-size:25px;font-weight:600;line-height:1.25;overflow-wrap:anywhere}
.tiles .below{font-size:13px;font-weight:400;color:var(--soft)}
figure{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:18px 18px 12px}
.chart{width:100%;height:auto;display:block}
.legend{list-style:none;margin:0 0 10px;padding:0;display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px}
.legend li{overflow-wrap:anywhere}
.swatch{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:7px}
.heat-key{margin:6px 0 2px;font-size:13px}.heat-key .swatch{margin:0 2px 0 0}
svg text{font-family:inherit;fill:var(--ink)}
svg .tick{font-size:12px;fill:var(--soft)}svg .name,svg .value{font-size:13px}svg .value{fill:var(--soft)}
svg .on-bar{font-size:12px;fill:var(--card);font-weight:600}
svg .end{text-anchor:end}svg .middle{text-anchor:middle}
svg .grid{stroke:var(--grid)}svg .axis{stroke:var(--rule)}
svg .area{stroke:none;opacity:.88}svg .line{fill:none;stroke-width:2.2;stroke-linejoin:round}
svg .dot{stroke:var(--card);stroke-width:1.5}
svg .hover{fill:transparent}svg .hover:hover{fill:var(--ink);fill-opacity:.07}
svg .bar:hover,svg .heat:hover{opacity:.78}
.scroll{overflow-x:auto;margin-top:14px}
table{border-collapse:collapse;width:100%;font-size:14px}
th{font-weight:600;color:var(--soft);text-align:left;border-bottom:1px solid var(--rule);padding:6px 12px 6px 0;
vertical-align:bottom}
td{border-bottom:1px solid var(--grid);padding:6px 12px 6px 0;vertical-align:top;overflow-wrap:anywhere}
td:not(.number){min-width:7em}
.number+td:not(.number),.number+th:not(.number){padding-left:14px}
.number{text-align:right;white-space:nowrap;padding-right:0;padding-left:12px}
th.number{white-space:normal}
details{margin-top:14px}summary{cursor:pointer;color:var(--soft)}
.notes{font-size:14px;padding-left:1.2em;max-width:75ch}
@media (max-width:640px){main{padding:28px 16px 48px}h1{font-size:30px}}
@media print{main{padding:0}figure,.tiles div,.advice li{break-inside:avoid}}
"""
_COLOURS = "".join(
    f".s{at}{{background:var(--c{at})}}svg .f{at}{{fill:var(--c{at})}}svg .l{at}{{stroke:var(--c{at})}}"
    for at in range(8)
)
_HEATS = "".join(f".swatch.h{at}{{background:var(--h{at})}}svg .h{at}{{fill:var(--h{at})}}" for at in range(9))

STYLE: Final = Markup(
    f":root{{color-scheme:light dark;{_LIGHT}}}@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    f"{_PAGE}{_COLOURS}{_HEATS}".replace("\n", "")
)
"""Contains no outside data."""
