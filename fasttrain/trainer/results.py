"""What one epoch gave, in plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

from fasttrain.config.schema import TargetConfig

# With fewer classes five answers say nothing.
MIN_CLASSES_FOR_TOP5 = 6


@dataclass(frozen=True)
class EpochResult:
    """One epoch of training and the validation after it, where there was one.

    Attributes:
        epoch: From 1.
        step: Optimizer steps completed since the start of the run.
        train_loss: Mean over the epoch's steps and all ranks.
        top1, top5: Percent of all validation images, with the run's test-time augmentation; None without a
            validation, top5 also with fewer than 6 classes.
        raw_top1, raw_top5: Of the weights as trained, where the averaged ones count in all else; None without.
        plain_top1: Without test-time augmentation, where the run has one.
        correct1, correct5, num_val: The integers behind them; 0 without a validation.
        lr, momentum: Of the epoch's last update.
        px, batch_size: Of training; the batch over all ranks.
        images: Trained in this epoch over all ranks.
        stage: Zero-based row of the stage table.
        skipped_steps: Updates of this epoch that the loss scaler refused (fp16).
        rate_images, rate_seconds: For images/s: what was trained and how long it took, without the first
            RATE_SKIP_STEPS steps of each stage; 0 where the epoch had no more than these.
        plain_top1: Percent without test-time augmentation; None where the run has none: ``top1`` is it.
    """

    epoch: int
    step: int
    train_loss: float
    top1: float | None
    top5: float | None
    correct1: int
    correct5: int
    num_val: int
    lr: float
    momentum: float
    px: int
    batch_size: int
    images: int
    stage: int
    skipped_steps: int
    rate_images: int
    rate_seconds: float
    raw_top1: float | None = None
    raw_top5: float | None = None
    plain_top1: float | None = None


def accuracy_of(result: EpochResult, target: TargetConfig) -> float | None:
    """The accuracy that the target speaks of, percent; None where the epoch was not validated.

    Raises:
        ValueError: A top-5 target with too few classes for one; the config's checks refuse it.
    """
    accuracy = result.top1 if target.metric == "top1" else result.top5
    if accuracy is None and result.top1 is not None:
        raise ValueError("a top-5 target needs 6 classes or more")
    return accuracy
