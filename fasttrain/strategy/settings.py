"""What a user may say about accelerated communication, checked. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fasttrain.config.schema import AcceleratedDDPConfig
from fasttrain.errors import ConfigError, Problem


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
        bounds = {field.name: field.metadata for field in fields(AcceleratedDDPConfig)}
        problems = []
        for name, value in asdict(self).items():
            known: Mapping[str, Any] = bounds.get(name, {})
            if "choices" in known and value not in known["choices"]:
                problems.append(Problem(f"{name}={value!r}: expected one of {', '.join(known['choices'])}"))
            if "ge" in known and value is not None and not known["ge"] <= value <= known["le"]:
                expected = f"expected {known['ge']:g} to {known['le']:g} ({known['unit']})"
                problems.append(Problem(f"{name}={value}: {expected}", f"{name}={known['example']}"))
        if self.tune_cache is not None and Path(self.tune_cache).is_dir():
            folder = f"tune_cache={self.tune_cache}"
            problems.append(Problem(f"{folder}: a folder, expected a file", f"{folder}/plans.json"))
        if problems:
            raise ConfigError(problems)


def settings_of(config: AcceleratedDDPConfig, *, deterministic: bool) -> CommSettings:
    """The settings of ``strategy=accelerated_ddp``.

    Raises:
        ConfigError: They cannot be run.
    """
    values = asdict(config)
    del values["kind"], values["timeout_s"]
    return CommSettings(**values, deterministic=deterministic)
