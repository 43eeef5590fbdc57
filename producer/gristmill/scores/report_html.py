"""The same report as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from gristmill.scores.report import Report

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1c1c; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #ddd;
  vertical-align: top; white-space: pre-wrap; }
thead th { border-bottom: 2px solid #888; }
tbody th { font-weight: normal; }
img { max-width: 100%; }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #e4e4e4; }
  th, td { border-color: #444; } img { background: #fff; } }
"""


def html(report: Report, *, plot: bytes | None) -> str:
    """`plot` is the reliability plot, a PNG."""
    parts = [f"<h1>{escape(report.title)}</h1>"]
    for title, head, lines in report.tables():
        parts.append(f"<h2>{escape(title)}</h2>")
        parts.append(_table(head, lines))
        if title == "Figures" and report.num_resamples:
            parts.append(f"<p>{escape(report.note())}</p>")
        if title == "Calibration" and plot is not None:
            source = base64.b64encode(plot).decode()
            parts.append(
                '<p><img alt="Reliability: how often answers are right, by confidence" '
                f'src="data:image/png;base64,{source}"></p>'
            )
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    header = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    rows = "\n".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in lines
    )
    return f'<div class="wide"><table>{header}<tbody>\n{rows}\n</tbody></table></div>'
