"""A run as a DAWNBench entry: ``dawnbench.tsv`` and ``dawnbench.json``.

Source: stanford-futuredata/dawn-bench-entries, README and tests/test_submissions.py (commit fb27b82).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from fasttrain.report.facts import IMAGENET_VAL, RunFacts
from fasttrain.report.history import Row, percent

VERSION = "v1.0"


def tsv(rows: Sequence[Row], *, top5: bool) -> str:
    """Accuracy in percent over hours without validation and checkpoint writing, a row each validated epoch.

    Args:
        rows: The epochs so far.
        top5: ImageNet's columns; without it CIFAR10's, which have top-1 only.
    """
    lines = ["epoch\thours\ttop1Accuracy" + ("\ttop5Accuracy" if top5 else "")]
    for row in rows:
        if row.top1 is None:
            continue
        cells = [str(row.epoch), f"{row.seconds / 3600:.8f}", percent(row.top1)]
        if top5:
            cells.append(percent(row.top5 or 0.0))
        lines.append("\t".join(cells))
    return "\n".join(lines) + "\n"


def wants_top5(facts: RunFacts) -> bool:
    """Whether the TSV has ImageNet's columns: every data set but CIFAR10 for which top-5 means something."""
    return facts.has_top5 and not facts.is_cifar10


def entry(facts: RunFacts, misc: Mapping[str, Any], *, today: date) -> dict[str, Any]:
    """The content of ``dawnbench.json``.

    Args:
        facts: The run.
        misc: How to run it again.
        today: Date of the entry.
    """
    config, versions = facts.config, facts.machine.versions
    document: dict[str, Any] = {
        "version": VERSION,
        "author": config.report.author,
        "authorEmail": config.report.author_email,
        "framework": f"fasttrain {versions.get('fasttrain', '')} (PyTorch {versions['torch']})".replace("  ", " "),
        "model": config.model.name,
        "hardware": facts.machine.hardware,
    }
    if config.report.cost_per_hour is not None:
        document["costPerHour"] = config.report.cost_per_hour
    document["timestamp"] = today.isoformat()
    if facts.is_imagenet:
        # True says that the disputed images were validated on: all 50,000 (dawn-bench-entries, issue 36).
        document["usedBlacklist"] = facts.num_val == IMAGENET_VAL
    document["misc"] = dict(misc)
    return document
