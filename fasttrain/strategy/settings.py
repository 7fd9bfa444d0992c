"""What a user may say about accelerated communication, checked. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fasttrain.errors import ConfigError, Problem
from fasttrain.strategy.plan import WIRE_DTYPES

MAX_STREAMS = 8

# Steps of a whole tuning: five of warm-up, ten arms and then four of six steps each, a final of 32
# (fasttrain.strategy.autotuner; a test counts them there).
TUNING_STEPS = 121


@dataclass(frozen=True)
class CommSettings:
    """Of the accelerated strategy; ``conf/strategy/accelerated_ddp.yaml`` has the same names and values.

    Attributes:
        streams: Process groups at once; None lets the tuner choose.
        bucket_mb: Size of a bucket, MiB; None lets the tuner choose.
        split_mb: Largest part that one stream takes, MiB; None for equal parts.
        hierarchical: ``auto`` lets the tuner try it where there are several nodes of several ranks; or
            ``true``, ``false``.
        wire_dtype: ``none``, ``bf16`` or ``fp16``; the last two round gradients.
        sync_buffers: ``eval``: rank 0's buffers go to all ranks before evaluation; ``step``: at each step, as in
            stock DDP.
        autotune: Whether communication is tuned in the first training steps.
        tune_budget_steps: Most steps of the tuning.
        min_gain_frac: What a plan must save of stock DDP's step to be kept.
        drift_frac: How much slower a tuned step may become before it is set beside stock DDP's again.
        tune_cache: File in which tuned plans are kept; None for none.
        nccl_sockets: ``auto``: numbers of NCCL's sockets and threads are probed where it uses TCP; or ``off``.
        allow_concurrent_nccl: Whether several NCCL communicators may be at work at once.
        verify_every_steps: Steps between comparisons of all ranks' weights; 0 for none.
        deterministic: Stock buckets, one stream, no tuning.
    """

    streams: int | None = None
    bucket_mb: float | None = None
    split_mb: float | None = None
    hierarchical: str = "auto"
    wire_dtype: str = "none"
    sync_buffers: str = "eval"
    autotune: bool = True
    tune_budget_steps: int = 128
    min_gain_frac: float = 0.03
    drift_frac: float = 0.10
    tune_cache: str | None = None
    nccl_sockets: str = "auto"
    allow_concurrent_nccl: bool = False
    verify_every_steps: int = 0
    deterministic: bool = False

    def __post_init__(self) -> None:
        """See that the values can be run.

        Raises:
            ConfigError: With all that cannot.
        """
        problems = [
            Problem(f"{name}={getattr(self, name)!r}: expected one of {', '.join(known)}", f"{name}={known[0]!r}")
            for name, known in CHOICES.items()
            if getattr(self, name) not in known
        ]
        problems += [
            Problem(f"{name}={getattr(self, name)!r}: expected {low:g} to {high:g}", f"{name}={example}")
            for name, (low, high, example) in RANGES.items()
            if getattr(self, name) is not None and not low <= getattr(self, name) <= high
        ]
        if self.tune_cache is not None and Path(self.tune_cache).is_dir():
            problems.append(
                Problem(f"tune_cache={self.tune_cache}: a folder, expected a file", f"tune_cache={self.tune_cache}/plans.json")
            )
        if problems:
            raise ConfigError(problems)


CHOICES: dict[str, tuple[str, ...]] = {
    "hierarchical": ("auto", "true", "false"),
    "wire_dtype": WIRE_DTYPES,
    "sync_buffers": ("eval", "step"),
    "nccl_sockets": ("auto", "off"),
}

RANGES: dict[str, tuple[float, float, str]] = {
    "streams": (1, MAX_STREAMS, "4"),
    "bucket_mb": (0.0625, 4096, "4"),
    "split_mb": (0.0625, 4096, "1"),
    "tune_budget_steps": (TUNING_STEPS, 100_000, "128"),
    "min_gain_frac": (0, 0.5, "0.03"),
    "drift_frac": (0.01, 10, "0.1"),
    "verify_every_steps": (0, 1_000_000, "500"),
}
