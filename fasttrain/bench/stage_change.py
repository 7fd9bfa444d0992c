"""What a change of px costs: training time that is lost until its first batch, and memory."""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fasttrain.bench.arguments import DataFlags
from fasttrain.bench.figures import Figure, Outcome, table
from fasttrain.bench.measure import now
from fasttrain.data.path import DataPath
from fasttrain.stages import EpochPlan, Plan

MIB = 1 << 20

# Steps of each stage: the queues of the data path fill, and some intervals are left to compare with.
STEPS_PER_STAGE = 12
# Of these, the first ones that are no usual interval.
SKIP_STEPS = 4


@dataclass(frozen=True)
class Visit:
    """A stage that was gone through.

    Attributes:
        px: Of its images.
        first_s: From the last batch before it to its own first one, seconds.
        intervals_s: From each batch to the next, seconds, without the first SKIP_STEPS.
    """

    px: int
    first_s: float
    intervals_s: tuple[float, ...]


def lost_seconds(before: Visit, after: Visit) -> float:
    """Training time that the change between two stages cost: what the first batch took beyond the usual.

    The interval between two batches holds one step of training; the step before the change is the earlier stage's.
    """
    return after.first_s - statistics.median(before.intervals_s)


def measure(
    outcome: Outcome,
    path: DataPath,
    plan: Plan,
    flags: DataFlags,
    label: str,
    needs: Mapping[int, float],
    device: torch.device,
) -> None:
    """Go through ``flags.stage_changes`` changes of px and add what they cost.

    Args:
        outcome: Takes figures and table.
        path: The data path, with whatever caches it has filled or not.
        plan: A stage for each px.
        label: Of the run.
        needs: Images/s of the step by px, for which the consumer sleeps; without them it takes batch after batch.
        device: Of the path.
    """
    sides = list(dict.fromkeys(epoch.px for epoch in plan.epochs))
    left = {px: [epoch for epoch in plan.epochs if epoch.px == px] for px in sides}
    visits: list[Visit] = []
    memory: list[tuple[float, float]] = []
    last: float | None = None
    for visit in range(flags.stage_changes + 1):
        px = sides[visit % len(sides)]
        step_s = flags.batch / needs[px] if px in needs else 0.0
        times, used = _go_through(path, left[px], step_s, device)
        first_s = 0.0 if last is None else times[0] - last
        intervals = [later - earlier for earlier, later in itertools.pairwise(times)]
        visits.append(Visit(px, first_s, tuple(intervals[SKIP_STEPS:])))
        last = times[-1]
        memory.append(used)
    lost = tuple(1e3 * lost_seconds(a, b) for a, b in itertools.pairwise(visits))
    _report(outcome, lost, memory, label, flags.stage_changes, device)


def _go_through(
    path: DataPath, epochs: list[EpochPlan], step_s: float, device: torch.device
) -> tuple[list[float], tuple[float, float]]:
    """When each batch of a short stage was there, and the memory in use meanwhile.

    Uses up the epochs that it takes, the last one cut short. The stage ends as in training: the
    data path knows which batch is its last one and works on nothing behind it.
    """
    times: list[float] = []
    memory = (0.0, 0.0)
    while len(times) < STEPS_PER_STAGE:
        epoch = epochs.pop(0)
        for _ in path.train_epoch(replace(epoch, steps=min(epoch.steps, STEPS_PER_STAGE - len(times)))):
            times.append(now(device))
            if len(times) == SKIP_STEPS:
                # Between batches whose interval does not count.
                memory = used_mib(device)
            time.sleep(step_s)
    return times, memory


def _report(
    outcome: Outcome,
    lost_ms: Sequence[float],
    memory: Sequence[tuple[float, float]],
    label: str,
    changes: int,
    device: torch.device,
) -> None:
    suffix = f", {label}" if label else ""
    figures = [Figure(f"training time lost by a stage change{suffix}", "ms", tuple(lost_ms))]
    kinds = ["resident memory of the process"]
    if device.type == "cuda":
        kinds.insert(0, "device memory in use")
    for kind in kinds:
        column = 1 if kind.startswith("resident") else 0
        for count in dict.fromkeys((1, changes)):
            figures.append(Figure(f"{kind} after {_changes(count)}{suffix}", "MiB", (memory[count][column],)))
        growth = memory[changes][column] / memory[1][column] - 1
        figures.append(Figure(f"{kind}: growth from the first change to the last{suffix}", "fraction", (growth,)))
    outcome.figures += figures
    rows = [[figure.name, figure.unit, str(len(figure.values)), figure.text()] for figure in figures]
    outcome.tables.append(table(f"stage changes{suffix}", ["figure", "unit", "n", "median [min .. max]"], rows))


def _changes(count: int) -> str:
    return "1 change" if count == 1 else f"{count} changes"


def used_mib(device: torch.device) -> tuple[float, float]:
    """Memory in use on the device (all processes; 0 on a CPU), and resident of this process, MiB."""
    gc.collect()
    on_device = 0.0
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        on_device = (total - free) / MIB
    return on_device, resident_bytes() / MIB


def resident_bytes() -> int:
    """Of this process. Source: proc(5), statm; 0 where there is no such file."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0
