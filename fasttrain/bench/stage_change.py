"""What a change of px costs: training time that is lost until its first batch, and memory."""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
        device_mib: Memory in use on the device meanwhile, by all processes; 0 on a CPU.
        resident_mib: Memory of this process.
    """

    px: int
    first_s: float
    intervals_s: tuple[float, ...]
    device_mib: float = 0.0
    resident_mib: float = 0.0


@dataclass
class StageChanges:
    """What one run's changes of px cost, as far as they have been gone through.

    Attributes:
        label: Of the run.
        on_gpu: Whether there is a device with memory of its own.
        visits: Stages in order; each but the first begins with a change.
    """

    label: str
    on_gpu: bool
    visits: list[Visit] = field(default_factory=list)

    @property
    def lost_ms(self) -> tuple[float, ...]:
        """Of each change."""
        return tuple(1e3 * lost_seconds(before, after) for before, after in itertools.pairwise(self.visits))


def lost_seconds(before: Visit, after: Visit) -> float:
    """Training time that the change between two stages cost: what the first batch took beyond the usual.

    The interval between two batches holds one step of training; the step before the change is the earlier stage's.
    """
    return after.first_s - statistics.median(before.intervals_s)


def measure(
    changes: StageChanges,
    path: DataPath,
    plan: Plan,
    flags: DataFlags,
    needs: Mapping[int, float],
    device: torch.device,
) -> None:
    """Go through ``flags.stage_changes`` changes of px.

    Args:
        changes: Takes each stage once it is gone through.
        path: The data path, with whatever caches it has filled or not.
        plan: A stage for each px.
        flags: Of the command line.
        needs: Images/s of the step by px, for which the consumer sleeps; without them it takes batch after batch.
        device: Of the path.
    """
    sides = list(dict.fromkeys(epoch.px for epoch in plan.epochs))
    left = {px: [epoch for epoch in plan.epochs if epoch.px == px] for px in sides}
    last: float | None = None
    for visit in range(flags.stage_changes + 1):
        px = sides[visit % len(sides)]
        step_s = flags.batch / needs[px] if px in needs else 0.0
        times, (device_mib, resident_mib) = _go_through(path, left[px], step_s, device)
        first_s = 0.0 if last is None else times[0] - last
        intervals = [later - earlier for earlier, later in itertools.pairwise(times)]
        changes.visits.append(Visit(px, first_s, tuple(intervals[SKIP_STEPS:]), device_mib, resident_mib))
        last = times[-1]


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


def report(outcome: Outcome, changes: StageChanges) -> None:
    """Add the figures and the table of a run's changes, where it has gone through any."""
    lost_ms, suffix = changes.lost_ms, f", {changes.label}" if changes.label else ""
    if not lost_ms:
        return
    figures = [Figure(f"training time lost by a stage change{suffix}", "ms", lost_ms)]
    memory = {"resident memory of the process": [visit.resident_mib for visit in changes.visits]}
    if changes.on_gpu:
        memory = {"device memory in use": [visit.device_mib for visit in changes.visits], **memory}
    for kind, used in memory.items():
        for count in dict.fromkeys((1, len(lost_ms))):
            figures.append(Figure(f"{kind} after {_changes(count)}{suffix}", "MiB", (used[count],)))
        growth = used[len(lost_ms)] / used[1] - 1
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
