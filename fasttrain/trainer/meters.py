"""Counts kept on the device during an epoch and read once at its end."""

from __future__ import annotations

import time

import torch

from fasttrain.errors import Problem, TrainingError

# Steps at the start of each stage that no images/s figure counts: caches, clocks and queues settle.
RATE_SKIP_STEPS = 5

# Consecutive steps with a loss that is not finite after which a run is given up.
MAX_NON_FINITE = 20


class LossMeter:
    """Sum of an epoch's losses, and how many in a row were not finite, without a host sync at each step."""

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.non_finite_run = torch.zeros((), dtype=torch.int64, device=device)
        self.steps = 0

    def add(self, loss: torch.Tensor) -> None:
        """Count one step's loss (a scalar, detached)."""
        self.total += loss
        self.non_finite_run.add_(1).mul_(~torch.isfinite(loss))
        self.steps += 1

    def start_epoch(self) -> None:
        """Begin a new sum; the count of losses in a row that were not finite goes on."""
        self.total.zero_()
        self.steps = 0

    def check(self, *, step: int, lr: float, peak_lr: float, px: int, scale: float | None) -> None:
        """Read the counter (a host sync).

        Args:
            step: Optimizer steps completed.
            lr: The schedule's, of the last of them.
            peak_lr: ``optimizer.lr``, which the message halves: the schedule's may be 0 at that step.
            px: Of the images.
            scale: The loss scaler's; None without one.

        Raises:
            TrainingError: The last MAX_NON_FINITE losses were all not finite.
        """
        bad = int(self.non_finite_run)
        if bad >= MAX_NON_FINITE:
            scaling = f", loss scale {scale:g}" if scale is not None else ""
            raise TrainingError(
                Problem(
                    f"the loss was not finite for {bad} steps in a row, up to step {step} "
                    f"(lr {lr:.4g}, {px} px{scaling})",
                    f"a lower optimizer.lr (half: optimizer.lr={peak_lr / 2:.3g}), a longer schedule.warmup_epochs, "
                    "optimizer.clip_norm=1.0, or trainer.precision=bf16 instead of fp16",
                )
            )

    def numbers(self) -> torch.Tensor:
        """What it has counted, as float64 [3], which ``named`` turns into its state."""
        steps = torch.full_like(self.total, self.steps)
        return torch.stack([self.total, self.non_finite_run.double(), steps])

    @staticmethod
    def named(numbers: torch.Tensor) -> dict[str, float | int]:
        """The state that ``load_state_dict`` takes, of the ``numbers`` of this meter or of another rank's."""
        total, non_finite_run, steps = numbers.tolist()
        return {"total": total, "non_finite_run": int(non_finite_run), "steps": int(steps)}

    def state_dict(self) -> dict[str, float | int]:
        return self.named(self.numbers())

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        self.total.fill_(state["total"])
        self.non_finite_run.fill_(int(state["non_finite_run"]))
        self.steps = int(state["steps"])


class AccuracyMeter:
    """Integer counts of correct top-1 and top-5 answers and of images."""

    def __init__(self, device: torch.device) -> None:
        self.counts = torch.zeros(3, dtype=torch.int64, device=device)

    def add(self, logits: torch.Tensor, labels: torch.Tensor, num_valid: int) -> None:
        """Count the first ``num_valid`` rows of a batch: logits [N, C], labels [N]."""
        if num_valid == 0:
            return
        logits, labels = logits[:num_valid], labels[:num_valid]
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
        self.counts[0] += best[:, 0].sum()
        self.counts[1] += best.sum()
        self.counts[2] += num_valid


class RateMeter:
    """Images and seconds of an epoch, without the first steps of its stage."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.images = 0
        self.seconds = 0.0
        self._started: float | None = None

    def now(self) -> float:
        """Seconds on a steady clock, after all work on the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def start(self) -> None:
        """Begin to count; what was trained before does not."""
        self.images = 0
        self.seconds = 0.0
        self._started = self.now()

    def stop(self, images: int) -> None:
        """End the count: ``images`` were trained since ``start``."""
        if self._started is not None:
            self.images, self.seconds = images, self.now() - self._started
            self._started = None
