"""``report.html``: one run on one page that opens without a network."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fasttrain.report.files import write_text
from fasttrain.report.finished_run import Run
from fasttrain.report.history import COLUMNS, Row
from fasttrain.report.pictures import Picture, draw_run
from fasttrain.report.result import accuracy, cost_usd, duration, time_line, wanted

log = logging.getLogger("fasttrain")

STYLE = """
:root { color-scheme: light; --ink: #0f172a; --soft: #475569; --line: #e2e8f0; --blue: #2563eb; }
* { box-sizing: border-box; }
body { margin: 0; background: #f8fafc; color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 28px 20px 60px; }
main.broad { max-width: 1360px; }
header p { margin: 0; color: var(--soft); }
h1 { font-size: 25px; line-height: 1.25; margin: 4px 0 18px; }
h1.reached { color: #166534; } h1.missed { color: #9a3412; }
h2 { font-size: 18px; margin: 34px 0 10px; }
section.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.card { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.card b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; }
.pictures { display: grid; grid-template-columns: 1fr 1fr; gap: 14px; }
figure { margin: 0; background: #fff; border: 1px solid var(--line); border-radius: 10px;
  padding: 10px 12px; }
figure.wide { grid-column: 1 / -1; }
figcaption { font-weight: 600; font-size: 14px; margin-bottom: 4px; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif !important; }
.scroll { overflow-x: auto; background: #fff; border: 1px solid var(--line); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 6px 10px; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
tr:last-child > * { border-bottom: 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.hit { background: #f0fdf4; }
th { color: var(--soft); font-weight: 600; }
table.facts th { width: 300px; }
code, pre { font: 13px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
td code { overflow-wrap: anywhere; }
pre { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px;
  overflow-x: auto; }
summary { cursor: pointer; font-weight: 600; }
footer { margin-top: 34px; color: var(--soft); font-size: 13px; }
@media (max-width: 760px) { .pictures { grid-template-columns: 1fr; } }
@media print { body { background: #fff; } }
"""

WIDE_PICTURES = ("accuracy", "time", "runs-top1", "runs-top5")

# Labels whose values are things to type.
TYPED = ("command", "commit", "overrides")


def write_page(run: Run, path: Path) -> None:
    """Put the page of ``run`` at ``path``."""
    write_text(path, run_page(run))


def run_page(run: Run) -> str:
    """The page of one run as HTML."""
    result = run.result
    planned = run.plan["total_epochs"]
    state = "reached" if result["reached"] else "missed"
    body = [
        f"<header><p>fasttrain, recipe {escape(result['recipe'])}, seed {result['seed']}</p>",
        f'<h1 class="{state}">{escape(time_line(result, run.rows, planned_epochs=planned))}</h1></header>',
        _cards(run),
        "<h2>Pictures</h2>",
        _pictures(run),
        "<h2>Key figures</h2>",
        facts_table(_figures(run)),
        "<h2>How to run it again</h2>",
        facts_table(_settings(run)),
        "<h2>Stages</h2>",
        _stages(run),
        "<h2>Epochs</h2>",
        _epochs(run.rows, result["epochs_to_target"]),
        "<h2>Settings</h2>",
        f"<details><summary>config.yaml</summary><pre>{escape(run.config_text)}</pre></details>",
        "<footer>Time to the target is the clock's reading after the first epoch whose accuracy is at least "
        "the target. Images per second are images over seconds, all ranks together, without the first steps "
        "of each stage.</footer>",
    ]
    return document(f"{result['recipe']}, seed {result['seed']}", body)


def document(title: str, body: Iterable[str], *, wide: bool = False) -> str:
    """A whole page around ``body``, parts that are HTML already; ``wide`` is for broad tables."""
    kind = ' class="broad"' if wide else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main{kind}>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def figures_of(pictures: Sequence[Picture]) -> str:
    """Pictures in a grid."""
    parts = []
    for picture in pictures:
        wide = ' class="wide"' if picture.name in WIDE_PICTURES else ""
        svg = picture.svg.replace("<svg ", f'<svg role="img" aria-label="{escape(picture.caption)}" ', 1)
        parts.append(
            f'<figure{wide} id="{escape(picture.name)}"><figcaption>{escape(picture.caption)}</figcaption>'
            f"{svg}</figure>"
        )
    return f'<div class="pictures">{"".join(parts)}</div>'


def facts_table(facts: Mapping[str, Any]) -> str:
    """Label and value, a row each."""
    rows = (
        f"<tr><th>{escape(label)}</th><td>{_value(value, code=label in TYPED)}</td></tr>"
        for label, value in facts.items()
    )
    return f'<div class="scroll"><table class="facts">{"".join(rows)}</table></div>'


def numbers_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    marked: int | None = None,
    text_columns: Sequence[str] = (),
) -> str:
    """A table whose cells are text to be escaped.

    Args:
        header: Names of the columns.
        rows: Cells.
        marked: Index of a row that stands out.
        text_columns: Columns that hold words, aligned left.
    """
    kinds = ["" if name in text_columns else ' class="number"' for name in header]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, header, strict=True))
    lines = []
    for index, row in enumerate(rows):
        mark = ' class="hit"' if index == marked else ""
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        lines.append(f"<tr{mark}>{cells}</tr>")
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _cards(run: Run) -> str:
    result = run.result
    metric = result["target"]["metric"]
    reached = result["reached"]
    cards = [
        (duration(result["seconds_to_target"]) if reached else "not reached", "time to target"),
        (
            duration(result["wall_seconds_to_target"]) if reached else duration(result["wall_seconds"]),
            "wall time to target" if reached else "wall time of the run",
        ),
        (f"{result['epochs_to_target'] or result['epochs']} of {run.plan['total_epochs']}", "epochs"),
        (_percent(result[f"best_{metric}"]), f"best {metric}"),
        (_percent(result["top1"]), "top1 after the last epoch"),
        (str(result["num_val"]), "validation images"),
    ]
    parts = (f'<div class="card"><b>{escape(value)}</b><span>{name}</span></div>' for value, name in cards)
    return f'<section class="cards">{"".join(parts)}</section>'


def _pictures(run: Run) -> str:
    try:
        return figures_of(draw_run(run))
    except Exception as error:
        # The tables say the same; they must not be lost with the pictures.
        text = f"the pictures could not be drawn: {type(error).__name__}: {error}"
        log.warning("%s", text)
        return f"<p>{escape(text)}</p>"


def _figures(run: Run) -> dict[str, Any]:
    result = run.result
    price = run.config.get("report", {}).get("cost_per_hour")
    clock = "without validation and checkpoint writing"
    return {
        "target": f"{wanted(result['target']['value'])} % {result['target']['metric']}",
        f"time to target, {clock}": _time(result["seconds_to_target"]),
        "time to target, wall time of the process": _time(result["wall_seconds_to_target"]),
        f"whole run, {clock}": _time(result["seconds"]),
        "whole run with the validation after its last epoch": _with_final_validation(result),
        "whole run, wall time of the process": _time(result["wall_seconds"]),
        "best top1, top5": f"{_percent(result['best_top1'])}, {_percent(result['best_top5'])}",
        "last top1, top5": f"{_percent(result['top1'])}, {_percent(result['top5'])}",
        **_with_views(result),
        "validation images (N)": result["num_val"],
        "weights whose accuracy counts": result["weights"],
        **_raw(result),
        "images per second by stage": {
            f"stage {stage}": "n/a" if figure is None else f"{figure:,.0f}"
            for stage, figure in result["images_per_second"].items()
        },
        "hardware": result["hardware"],
        "devices": result["num_devices"],
        f"cost of the run, {clock}": _money(result["cost_usd"]),
        f"cost to target, {clock}": _money(cost_usd(price, result["seconds_to_target"])),
        "files that could not be read": result["skipped_files"],
    }


def _with_final_validation(result: Mapping[str, Any]) -> str:
    seconds = result["seconds_with_final_validation"]
    return "n/a" if seconds is None else _time(seconds)


def _with_views(result: Mapping[str, Any]) -> dict[str, Any]:
    """What test-time augmentation does to the accuracy; nothing where there is none."""
    kind = result["test_time_augmentation"]
    if kind in (None, "none"):
        return {}
    return {"test-time augmentation": kind, "last top1 without it": _percent(result["plain_top1"])}


def _raw(result: Mapping[str, Any]) -> dict[str, Any]:
    """The accuracy of the weights as trained; nothing where they are those that count."""
    if result["raw_top1"] is None:
        return {}
    return {"last top1, top5 of the raw weights": f"{_percent(result['raw_top1'])}, {_percent(result['raw_top5'])}"}


def _settings(run: Run) -> dict[str, Any]:
    """What DAWNBench's ``misc`` holds; without it what the result says."""
    known = {
        "command": run.result["command"],
        "commit": run.result["commit"],
        "seeds": [run.result["seed"]],
        "versions": run.result["versions"],
        **run.misc,
    }
    words = {key: value for key, value in known.items() if key not in ("seconds_by_part", "wall_seconds")}
    if words["commit"] is None:
        words["commit"] = "not in a git checkout"
    return {key.replace("_", " "): value for key, value in words.items()}


def _stages(run: Run) -> str:
    header = ["stage", "epochs", "px", "smallest crop", "batch", "accumulate", "val px", "steps/epoch"]
    rows = []
    for index, stage in enumerate(run.plan["stages"]):
        figure = run.result["images_per_second"].get(str(index))
        cells = [index, stage["epochs"], stage["px"], stage["min_area"], stage["batch_size"]]
        cells += [stage["accumulate"], stage["val_px"], stage["steps_per_epoch"]]
        rows.append([*map(str, cells), "n/a" if figure is None else f"{figure:,.0f}"])
    return numbers_table([*header, "images/s"], rows)


def _epochs(rows: Sequence[Row], hit: int | None) -> str:
    cells = [
        [
            str(row.epoch),
            str(row.step),
            f"{row.seconds:,.1f}",
            f"{row.wall_seconds:,.1f}",
            f"{row.train_loss:.4f}",
            "n/a" if row.top1 is None else accuracy(row.top1),
            "n/a" if row.top5 is None else accuracy(row.top5),
            f"{row.lr:.4g}",
            f"{row.momentum:.4g}",
            str(row.px),
            str(row.batch_size),
            "n/a" if row.images_per_second is None else f"{row.images_per_second:,.0f}",
        ]
        for row in rows
    ]
    header = [column.replace("_", " ") for column in COLUMNS]
    return numbers_table(header, cells, marked=None if hit is None else hit - 1)


def _value(value: Any, *, code: bool = False) -> str:
    """A value of plain types as HTML."""
    if isinstance(value, Mapping):
        return "<br>".join(f"{escape(str(name))}: {escape(str(item))}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return "<br>".join(_value(item, code=code) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "n/a"
    return f"<code>{escape(str(value))}</code>" if code else escape(str(value))


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "not reached"
    return duration(seconds) if seconds < 10 else f"{duration(seconds)} ({seconds:,.2f} s)"


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{accuracy(value)} %"


def _money(usd: float | None) -> str:
    return "n/a" if usd is None else f"{usd:.2f} US dollars"
