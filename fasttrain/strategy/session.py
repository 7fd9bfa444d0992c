"""The life of one accelerated DDP object: streams made, tuned between real steps, watched, described."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fasttrain.errors import ConfigError, Problem, TrainingError
from fasttrain.strategy import tune_cache
from fasttrain.strategy.autotuner import Autotuner
from fasttrain.strategy.candidates import candidates, fixed_plan
from fasttrain.strategy.plan import STOCK, CommPlan
from fasttrain.strategy.planned import PlannedDDP
from fasttrain.strategy.settings import CommSettings
from fasttrain.strategy.stopwatch import Stopwatch, ranks_differ, slowest_rank_s
from fasttrain.strategy.topology import Topology
from fasttrain.strategy.wrapping import has_foreign_hook, optimizer_in_backward, why_not_rewrapped

log = logging.getLogger("fasttrain")

# Plans that are captured beside stock DDP; each takes seconds.
MAX_CAPTURED = 4

# Steps of one other shape in a row after which steps have become other ones; an epoch's last batch is one alone.
OTHER_SHAPE_STEPS = 3


class CommSession:
    """Owns how one DDP object's gradients travel.

    ``before_step`` is called before each optimizer step, at the same steps on all ranks; all else follows from it.

    Args:
        wrapped: Built as stock DDP with ``arguments``.
        arguments: With which it was built.
        settings: The user's.
        topology: Of the ranks.
        timeout: Of collectives.

    Raises:
        ConfigError: Several streams over NCCL, without ``allow_concurrent_nccl``.

    Attributes:
        ddp: The object under its plan.
        note: Why the plan is what it is.
        steps_left: Steps of the run, as far as its owner knows before the first one; too few are not tuned.
    """

    def __init__(
        self,
        wrapped: DistributedDataParallel,
        arguments: Mapping[str, Any],
        settings: CommSettings,
        topology: Topology,
        *,
        timeout: timedelta,
    ) -> None:
        self.ddp = PlannedDDP(wrapped, arguments, topology, timeout)
        self.note = "not tuned yet"
        self.steps_left: int | None = None
        self._settings, self._topology = settings, topology
        self._group: dist.ProcessGroup = wrapped.process_group
        self._device = self.ddp.device
        self._backend = str(dist.get_backend(self._group))
        if settings.streams is not None and settings.streams > 1 and not self._several_streams():
            what = f"streams={settings.streams} over NCCL are several communicators at work at once, which is opt-in"
            raise ConfigError(Problem(what, "allow_concurrent_nccl=true (strategy.allow_concurrent_nccl=true)"))
        self._saved: dict[str, Any] | None = None
        self._tuner: Autotuner | None = None
        self._watch = Stopwatch(self._device)
        self._shape: Hashable = None
        self._other_shape: tuple[Hashable, int] = (None, 0)
        self._steps_of_segment = self._verdicts_told = self._verified = 0
        self._started = False
        parameters = [p for p in wrapped.module.parameters() if p.requires_grad]
        self._mark = tune_cache.fingerprint(
            parameters, topology, backend=self._backend, device=self._device, wire=settings.wire_dtype
        )

    # --- what the owner calls ---

    def before_step(self, step: int, shape: Hashable, *, interrupted: bool = False) -> None:
        """An optimizer step is about to begin; may build DDP anew.

        Args:
            step: Optimizer steps completed.
            shape: Of the step's inputs; times of steps of other shapes are not compared.
            interrupted: Something else than a step has happened since the last one (an evaluation).

        Raises:
            TrainingError: The ranks' weights have become different.
        """
        if not self._started:
            self._verified = step
            self._started, self._shape = True, shape
            self._start()
            return
        self._verify(step)
        tuner = self._tuner
        if tuner is None or tuner.segment is None:
            return
        if self._has_changed(shape):
            tuner.spoil()
            self._begin()
            return
        self._steps_of_segment += 1
        if self._steps_of_segment >= tuner.segment.discard:
            self._watch.mark(counts=not interrupted)
        if self._steps_of_segment >= tuner.segment.steps:
            seconds = self._watch.median_s()
            # Evaluations fall on the same steps everywhere: where one rank has no step that counts, none has.
            if seconds is not None:
                tuner.record(slowest_rank_s(seconds, self._device, self._group))
                self._begin()

    @property
    def tuning(self) -> bool:
        """Whether plans are still being compared."""
        return not self._started or (self._tuner is not None and not self._tuner.verdicts)

    def freeze(self, stream: Any) -> str | None:
        """Build DDP once more, for a capture on a CUDA stream, and never again.

        Returns:
            What stands against it; None where it is done.
        """
        self._tuner, self._started = None, True
        return self.ddp.rebuild_on(stream)

    def remember(self, saved: dict[str, Any] | None) -> None:
        """Begin with what a checkpoint kept of an earlier session, where the conditions are the same."""
        self._saved = saved

    def to_checkpoint(self) -> dict[str, Any] | None:
        """The plan, for a checkpoint; None while it is being tuned."""
        if self.tuning:
            return None
        # A later final may be running stock DDP for some steps.
        plan = self.ddp.plan if self._tuner is None else self._tuner.verdicts[-1].plan
        return tune_cache.to_checkpoint(plan, self._mark)

    def describe(self) -> str:
        """What is in force, in one line."""
        return f"{self.ddp.plan} ({self.note}; {self._topology})"

    def plans_to_capture(self) -> list[CommPlan]:
        """Plans worth a capture each, stock DDP first; makes the streams."""
        if self._why_stock() is not None or self._settings.deterministic or not self._settings.autotune:
            return [STOCK]
        plans = self._candidates()
        self.ddp.make_streams(plans)
        return [STOCK, *[plan for plan in plans if self.ddp.can_run(plan)][:MAX_CAPTURED]]

    def keep_captured(self, gain_frac: float) -> None:
        """Keep to the plan in force, which a comparison of captured steps chose; nothing is tuned between steps."""
        self._started = True
        self._settle(self.ddp.plan, f"captured steps, its steps take {1 - gain_frac:.0%} of stock DDP's")

    # --- the inside ---

    def _start(self) -> None:
        """Before the first step: refuse, take what is known, or begin to tune."""
        refusal = self._why_stock()
        if refusal is not None:
            self._settle(STOCK, refusal)
            return
        known, why_not = self._known_plan(), self._why_untuned()
        if why_not is not None:
            self._run_untuned(known, why_not)
            return
        plans = self._candidates()
        self.ddp.make_streams([*plans, *([known] if known else [])])
        self._tuner = Autotuner(
            [plan for plan in plans if self.ddp.can_run(plan)],
            budget_steps=self._settings.tune_budget_steps,
            min_gain_frac=self._settings.min_gain_frac,
            drift_frac=self._settings.drift_frac,
            known=known if known is not None and self.ddp.can_run(known) else None,
        )
        self.note = "tuning in the first steps"
        self._say(self.describe())
        self._begin()

    def _run_untuned(self, known: CommPlan | None, why_not: str) -> None:
        """Take what is known, else what the user has set."""
        nodes = self._topology.has_levels
        plan = fixed_plan(self._settings, several_streams=self._several_streams(), several_nodes=nodes)
        if known is not None and not self._settings.deterministic:
            plan = known
        if why_not_rewrapped(self.ddp.wrapped) is not None:
            plan = plan.without_rebuild()
        self.ddp.make_streams([plan])
        plan = plan if self.ddp.can_run(plan) else STOCK
        self.ddp.apply(plan)
        self._settle(plan, why_not)

    def _has_changed(self, shape: Hashable) -> bool:
        """Whether steps have another shape for good from here on."""
        if shape == self._shape:
            self._other_shape = (None, 0)
            return False
        other, count = self._other_shape
        self._other_shape = (shape, count + 1 if shape == other else 1)
        if self._other_shape[1] < OTHER_SHAPE_STEPS:
            return False
        self._shape, self._other_shape = shape, (None, 0)
        return True

    def _why_stock(self) -> str | None:
        if self._topology.world_size == 1:
            return "one rank"
        if dist.get_world_size(self._group) != self._topology.world_size:
            return "DDP over a part of the ranks"
        if has_foreign_hook(self.ddp.wrapped):
            return "another communication hook is registered"
        if optimizer_in_backward(self.ddp.wrapped.module):
            return "the optimizer runs inside the backward pass"
        return None

    def _why_untuned(self) -> str | None:
        """Why nothing is tuned between steps; None where it is."""
        if self._settings.deterministic:
            return "deterministic"
        if not self._settings.autotune:
            return "autotune is off"
        reason = why_not_rewrapped(self.ddp.wrapped)
        if reason is not None:
            return f"not tuned: {reason}"
        if self.steps_left is not None and self.steps_left < 2 * self._settings.tune_budget_steps:
            return f"not tuned: {self.steps_left} steps are too few"
        return None

    def _several_streams(self) -> bool:
        return self._backend == "gloo" or self._settings.allow_concurrent_nccl

    def _candidates(self) -> list[CommPlan]:
        return candidates(
            self._settings, several_streams=self._several_streams(), several_nodes=self._topology.has_levels
        )

    def _known_plan(self) -> CommPlan | None:
        """What an earlier run under the same conditions found: in the checkpoint, else in rank 0's file."""
        plan = tune_cache.from_checkpoint(self._saved, self._mark) if self._saved else None
        path = self._settings.tune_cache
        found: list[Any] = [None]
        if self._topology.rank == 0:
            if plan is None and path is not None:
                plan = tune_cache.read_plan(Path(path), self._mark)
            found = [plan.to_dict() if plan else None]
        dist.broadcast_object_list(found, src=0)
        return CommPlan.from_dict(found[0]) if found[0] else None

    def _begin(self) -> None:
        """Go on to the tuner's next segment from its first step, or settle on the outcome."""
        tuner = self._tuner
        assert tuner is not None
        self.ddp.apply(tuner.plan)
        for verdict in tuner.verdicts[self._verdicts_told :]:
            steps = "" if verdict.gain_frac is None else f", its steps take {1 - verdict.gain_frac:.0%} of stock DDP's"
            self._settle(verdict.plan, f"{verdict.reason}{steps}", tuned=True)
        self._verdicts_told = len(tuner.verdicts)
        self._steps_of_segment = 0
        self._watch.reset()

    def _settle(self, plan: CommPlan, note: str, *, tuned: bool = False) -> None:
        self.note = note
        self._say(f"{plan} ({note}; {self._topology})")
        path = self._settings.tune_cache
        if path is not None and self._topology.rank == 0 and tuned:
            tune_cache.keep_plan(Path(path), self._mark, plan)

    def _verify(self, step: int) -> None:
        every = self._settings.verify_every_steps
        if every and step - self._verified >= every:
            self._verified = step
            parameters: list[torch.Tensor] = list(self.ddp.wrapped.module.parameters())
            if ranks_differ(parameters, self._device, self._group):
                raise TrainingError(
                    Problem(
                        f"the ranks' weights differ after step {step}",
                        "look for parameters that some ranks do not use, and for random numbers that steer the network",
                    )
                )

    def _say(self, text: str) -> None:
        if self._topology.rank == 0:
            log.info("accelerated DDP: %s", text)


def share_buffers(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Copy rank 0's buffers (BatchNorm's running statistics) to all ranks; all must call it."""
    if dist.is_initialized() and dist.get_world_size(group) > 1:
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0, group=group)
