"""``fasttrain report``: one run's page, or several runs compared."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from fasttrain.errors import ConfigError, DataError, FasttrainError, Problem
from fasttrain.report.files import require_writable, write_json, write_text
from fasttrain.report.finished_run import Run, load_run
from fasttrain.report.groups import HEADER, TEXT_COLUMNS, Group, comparison, group_runs, notes, table
from fasttrain.report.page import document, figures_of, numbers_table, write_page
from fasttrain.report.pictures import accuracy_of_runs
from fasttrain.report.result import time_line

# Columns of an output that is no terminal: the table must not be cut.
PLAIN_COLUMNS = 220


def report_runs(run_dirs: Sequence[Path], *, out: Path | None, json_file: Path | None) -> str:
    """Write one run's page anew, or compare several.

    Args:
        run_dirs: Folders of finished runs.
        out: The page; None puts one run's in its folder and writes none for several.
        json_file: Where the comparison goes as JSON too.

    Returns:
        What to print: the run's one line, or the table.

    Raises:
        ConfigError, DataError: A folder that is none of a finished run; names all of them.
        MachineError: A file that cannot be written.
    """
    for flag, path in (("--out", out), ("--json", json_file)):
        if path is not None:
            require_writable(path, flag)
    runs = load_runs(run_dirs)
    groups = group_runs(runs)
    if len(runs) == 1:
        (run,) = runs
        out = out or run.path / "report" / "report.html"
        write_page(run, out)
        text = time_line(run.result, run.rows, planned_epochs=run.plan["total_epochs"])
    else:
        if out is not None:
            write_text(out, comparison_page(groups))
        text = comparison_text(groups)
    if json_file is not None:
        write_json(json_file, comparison(groups))
    return text if out is None else f"{text}\npage: {out}"


def load_runs(run_dirs: Sequence[Path]) -> list[Run]:
    """Read several folders.

    Raises:
        ConfigError, DataError: With the problems of every folder that cannot be read, or is given twice.
    """
    runs: list[Run] = []
    errors: list[FasttrainError] = []
    seen: set[Path] = set()
    for path in run_dirs:
        try:
            if path.resolve() in seen:
                # One run counted twice would halve the spread.
                raise ConfigError(Problem(f"{path}: the same run is given twice", "give each run's folder once"))
            seen.add(path.resolve())
            runs.append(load_run(path))
        except (ConfigError, DataError) as error:
            errors.append(error)
    if errors:
        raise type(errors[0])([problem for error in errors for problem in error.problems])
    return runs


def comparison_text(groups: Sequence[Group]) -> str:
    """The comparison as text, as wide as the terminal, and in full where there is none."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in HEADER:
        shown.add_column(name, justify="left" if name in TEXT_COLUMNS else "right", overflow="fold")
    for row in table(groups):
        shown.add_row(*(Text(cell) for cell in row))
    width = None if sys.stdout.isatty() else PLAIN_COLUMNS
    console = Console(file=io.StringIO(), width=width or Console().width, highlight=False)
    with console.capture() as capture:
        console.print(shown)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join([*(line for line in lines if line), "", *notes(groups)])


def comparison_page(groups: Sequence[Group]) -> str:
    """The comparison as a page that opens without a network."""
    curves = [(f"{group.name}: {group.runs[0].result['recipe']}", group.runs) for group in groups]
    metrics = dict.fromkeys(group.target[0] for group in groups)
    num_runs = sum(len(group.runs) for group in groups)
    body = [
        f"<header><p>fasttrain</p><h1>{num_runs} runs compared</h1></header>",
        numbers_table(HEADER, table(groups), text_columns=TEXT_COLUMNS),
        "<p>Times are h:mm:ss without validation and checkpoint writing, the wall time is the process's; "
        "a spread is one standard deviation, the interval is that of the mean of the target's accuracy after the last "
        "epoch (Student's t).</p>",
        f"<pre>{escape(chr(10).join(notes(groups)))}</pre>",
        figures_of([accuracy_of_runs(curves, metric) for metric in metrics]),
    ]
    return document(f"{num_runs} runs compared", body, wide=True)
