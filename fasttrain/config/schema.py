"""The typed schema of a run: one dataclass a stage, no defaults (those live in ``conf/``).

A field's metadata (``fields.py``) holds what its type cannot say: bounds, choices, unit. ``validate.py`` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fasttrain.config.fields import choice, number, numbers, option, part, path, text


@dataclass(frozen=True)
class StageConfig:
    """One row of the stage table: epochs, training px, smallest crop, global batch, validation px."""

    epochs: int = number(ge=1, unit="epochs", example="5")
    px: int = number(ge=8, le=1024, unit="pixels", example="96")
    min_area: float = number(gt=0, le=1, unit="share of the image's area", example="0.25")
    batch_size: int = number(ge=1, unit="images over all ranks", example="256")
    val_px: int = number(ge=8, le=1024, unit="pixels", example="128")
    rectangular_val: bool = False


@dataclass(frozen=True)
class TargetConfig:
    metric: str = choice("top1", "top5")
    value: float = number(gt=0, le=100, unit="percent", example="93")
    stop: bool = text("false")


@dataclass(frozen=True)
class DataConfig:
    kind: str = option("imagefolder", "cifar10", "shapes")
    root: str | None = path("/path/to/images")
    backend: str = choice("auto", "dali", "torchvision", "synthetic")
    workers: int = number(ge=0, le=256, unit="threads of a rank", example="8")
    on_bad_file: str = choice("fail", "skip")
    val_labels: str | None = path("/path/to/ILSVRC2012_validation_ground_truth.txt")
    hw_decoder_load: str = text("0.4")
    holdout_frac: float = number(ge=0, lt=1, unit="share of the training images", example="0.1")
    num_train: int | None = number(ge=1, unit="images", example="1281167")
    num_val: int | None = number(ge=1, unit="images", example="50000")
    num_classes: int | None = number(ge=2, unit="classes", example="1000")
    mean: list[float] = numbers(length=3, ge=0, le=1, unit="of pixels in 0..1", example="[0.485,0.456,0.406]")
    std: list[float] = numbers(length=3, gt=0, le=1, unit="of pixels in 0..1", example="[0.229,0.224,0.225]")
    crop: str = choice("random_resized", "padded")
    pad_px: int = number(ge=0, le=64, unit="pixels", example="4")
    flip: str = choice("random", "alternating", "none")
    augment: str = text("rand-m9-mstd0.5")
    val_crop_frac: float = number(gt=0, le=1, unit="share of the resized short side", example="0.875")
    num_shards: int | None = number(ge=1, le=4096, unit="fixed parts of the training images", example="8")
    cache: str = choice("auto", "gpu", "host", "off")
    cache_px: int | None = number(ge=8, le=1024, unit="pixels", example="160")
    cache_dir: str | None = path("/path/to/cache")


@dataclass(frozen=True)
class BatchNormConfig:
    zero_init_last: bool | None = text("true")
    momentum: float | None = number(gt=0, le=1, unit="weight of the newest batch", example="0.1")
    eps: float | None = number(gt=0, lt=1, unit="added to the variance", example="1e-5")
    ghost_size: int | None = number(ge=2, unit="images", example="32")
    frozen_scale: float | None = number(gt=0, unit="scale", example="0.25")
    bias_lr_scale: float = number(gt=0, unit="learning rate of the biases over that of their group", example="1")
    sync: bool = text("false")
    recalibrate_images: int = number(ge=0, unit="training images over all ranks", example="8192")


@dataclass(frozen=True)
class KernelsConfig:
    stem: str = choice("auto", "true", "false")
    batchnorm: str = choice("auto", "true", "false")
    max_pool: str = choice("auto", "true", "false")
    norm_relu_pool: str = choice("auto", "true", "false")


@dataclass(frozen=True)
class ModelConfig:
    name: str = text("resnet50")
    num_classes: int | None = number(ge=2, unit="classes", example="1000")
    pretrained: bool = text("false")
    init_from: str | None = path("runs/NAME/checkpoints/best.ckpt")
    args: dict[str, Any] = text("{drop_path_rate: 0.05}")
    head_init_std: float | None = number(gt=0, unit="standard deviation", example="0.01")
    ensemble: int = number(ge=1, unit="networks", example="1")
    batchnorm: BatchNormConfig = part()
    kernels: KernelsConfig = part()


@dataclass(frozen=True)
class OptimizerConfig:
    """What every optimizer has; the options' own classes add to it."""

    kind: str = option("hybrid", "rectified_lars", "muon_sgd", "sgd", "torch", "timm")
    lr: float = number(gt=0, unit="peak learning rate", example="0.5")
    momentum: float = number(ge=0, lt=1, unit="share kept of the last update", example="0.9")
    weight_decay: float = number(ge=0, lt=1, unit="per step, times lr", example="5e-5")
    decay_norm_and_bias: bool = text("false")
    clip_norm: float | None = number(gt=0, unit="norm of all gradients", example="1.0")


@dataclass(frozen=True)
class SGDConfig(OptimizerConfig):
    nesterov: bool = text("true")


@dataclass(frozen=True)
class HybridConfig(SGDConfig):
    transition_center_epochs: float = number(ge=0, unit="epochs", example="3.1")
    transition_period_epochs: float = number(gt=0, unit="epochs", example="1.55")
    rms_lr: float = number(ge=0, unit="learning rate of the adaptive part", example="3e-4")
    rms_decay: float = number(gt=0, lt=1, unit="share kept of the squared gradient", example="0.99")
    rms_eps: float = number(gt=0, unit="added to the root", example="1e-8")


@dataclass(frozen=True)
class RectifiedLARSConfig(SGDConfig):
    eta: float = number(gt=0, unit="trust coefficient", example="8e-4")
    min_trust_ratio: float = number(ge=0, unit="share of lr", example="1e-5")
    max_trust_ratio: float = number(gt=0, unit="share of lr", example="1.0")
    norm_and_bias_lr_scale: float = number(gt=0, unit="share of lr", example="0.2")


@dataclass(frozen=True)
class MuonSGDConfig(SGDConfig):
    linear_weights: bool = text("true")
    newton_schulz_steps: int = number(ge=1, le=10, unit="iterations", example="3")
    newton_schulz_dtype: str = choice("auto", "fp32", "bf16")
    sgd_lr_scale: float = number(gt=0, unit="lr of SGD's parameters over lr", example="10")
    sgd_weight_decay: float = number(ge=0, lt=1, unit="per step, times SGD's lr", example="5e-5")
    sgd_momentum: float | None = number(ge=0, lt=1, unit="share kept of SGD's last update", example="0.85")
    norm_and_bias_lr_scale: float | None = number(gt=0, unit="lr of norm scales and biases over lr", example="10")
    norm_and_bias_weight_decay: float | None = number(ge=0, lt=1, unit="per step, times their lr", example="5e-5")
    normalize_weights: bool = text("false")


@dataclass(frozen=True)
class NamedOptimizerConfig(OptimizerConfig):
    """An optimizer of torch or timm, reached by its name there."""

    name: str = text("AdamW")
    args: dict[str, Any] = text("{eps: 1e-6}")


@dataclass(frozen=True)
class MomentumCycleConfig:
    high: float = number(ge=0, lt=1, unit="momentum at the lowest lr", example="0.98")
    low: float = number(ge=0, lt=1, unit="momentum at the peak lr", example="0.90")


@dataclass(frozen=True)
class ScheduleConfig:
    """What every schedule has; the peak is ``optimizer.lr``."""

    kind: str = option("linear", "cosine", "step", "polynomial")
    warmup_epochs: float = number(ge=0, unit="epochs", example="5")
    end_lr: float = number(ge=0, unit="learning rate of the last update", example="0")
    scale_with_batch: bool = text("false")
    momentum: MomentumCycleConfig | None = part()


@dataclass(frozen=True)
class StepScheduleConfig(ScheduleConfig):
    drop_at_frac: list[float] = numbers(
        gt=0, lt=1, unit="share of the epochs after the warm-up", example="[0.33,0.67,0.89]"
    )
    factor: float = number(gt=0, lt=1, unit="lr after a drop over lr before it", example="0.1")


@dataclass(frozen=True)
class PolynomialScheduleConfig(ScheduleConfig):
    power: float = number(gt=0, unit="exponent", example="2")


@dataclass(frozen=True)
class StrategyConfig:
    """What every strategy has; the accelerated one's own class adds to it."""

    kind: str = option("auto", "single", "ddp", "accelerated_ddp")
    timeout_s: int = number(ge=10, unit="seconds that a collective may take", example="1800")


@dataclass(frozen=True)
class AcceleratedDDPConfig(StrategyConfig):
    streams: int | None = number(ge=1, le=8, unit="process groups at once", example="4")
    bucket_mb: float | None = number(ge=0.0625, le=4096, unit="MiB", example="4")
    split_mb: float | None = number(ge=0.0625, le=4096, unit="MiB", example="1")
    hierarchical: str = choice("auto", "true", "false")
    wire_dtype: str = choice("none", "bf16", "fp16")
    sync_buffers: str = choice("eval", "step")
    autotune: bool = text("true")
    # A whole tuning: 5 steps of warm-up, ten arms and then four of six steps each, a final of 32.
    tune_budget_steps: int = number(ge=121, le=100_000, unit="steps", example="128")
    min_gain_frac: float = number(ge=0, le=0.5, unit="share of stock DDP's step", example="0.03")
    drift_frac: float = number(ge=0.01, le=10, unit="share of the tuned step", example="0.1")
    tune_cache: str | None = path("plans.json")
    nccl_sockets: str = choice("auto", "off")
    allow_concurrent_nccl: bool = text("false")
    verify_every_steps: int = number(ge=0, le=1_000_000, unit="steps; 0: never", example="500")


@dataclass(frozen=True)
class MixupConfig:
    alpha: float = number(ge=0, unit="both parameters of a beta distribution", example="0.2")
    cutmix_alpha: float = number(ge=0, unit="both parameters of a beta distribution", example="1.0")
    off_epoch: int | None = number(ge=1, unit="epochs that are mixed", example="16")


@dataclass(frozen=True)
class AveragingConfig:
    kind: str = choice("none", "ema", "swa")
    half_life_images: int | None = number(ge=1, unit="images over all ranks", example="204800")
    every_steps: int = number(ge=1, unit="steps", example="1")
    from_epoch: float = number(ge=0, unit="epochs", example="0")


@dataclass(frozen=True)
class TrainerConfig:
    accelerator: str = choice("auto", "cpu", "gpu")
    devices: int = number(ge=1, le=1024, unit="devices of each node", example="1")
    num_nodes: int = number(ge=1, unit="machines", example="1")
    device_batch_size: int | None = number(ge=1, unit="images on one device at once", example="256")
    precision: str = choice("fp32", "bf16", "fp16")
    channels_last: bool = text("true")
    compile: bool = text("true")
    capture: str = choice("auto", "true", "false")
    label_smoothing: float = number(ge=0, lt=1, unit="share of the target spread over all classes", example="0.1")
    jsd_alpha: float = number(ge=0, unit="weight of the divergence in the loss", example="12")
    mixup: MixupConfig = part()
    averaging: AveragingConfig = part()
    validate_every_epochs: int | None = number(ge=1, unit="epochs", example="1")
    test_time_augmentation: str = choice("none", "flip", "flip_shift")
    steps_per_stage: int | None = number(ge=1, unit="steps", example="30")
    log_every_steps: int = number(ge=1, unit="steps", example="50")


@dataclass(frozen=True)
class ReportConfig:
    author: str = text("Your Team")
    author_email: str = text("team@example.org")
    hardware: str | None = text("1 x NVIDIA H200")
    cost_per_hour: float | None = number(ge=0, unit="US dollars", example="3.5")


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run. ``recipe`` is the name chosen on the command line."""

    recipe: str = text("quickstart")
    stages: list[StageConfig] = part()
    target: TargetConfig = part()
    data: DataConfig = part()
    model: ModelConfig = part()
    optimizer: OptimizerConfig = part()
    schedule: ScheduleConfig = part()
    strategy: StrategyConfig = part()
    trainer: TrainerConfig = part()
    report: ReportConfig = part()
    seed: int = number(ge=0, lt=2**32, example="1")
    deterministic: bool = text("false")
    dry_run: bool = text("false")
    debug: bool = text("false")
    run_dir: str | None = path("runs/my_run")
    resume: str | None = path("auto")
    resume_force: bool = text("false")


# The class that describes each option of the stages whose options differ.
OPTIONS: dict[str, dict[str, type]] = {
    "optimizer": {
        "hybrid": HybridConfig,
        "rectified_lars": RectifiedLARSConfig,
        "muon_sgd": MuonSGDConfig,
        "sgd": SGDConfig,
        "torch": NamedOptimizerConfig,
        "timm": NamedOptimizerConfig,
    },
    "schedule": {
        "linear": ScheduleConfig,
        "cosine": ScheduleConfig,
        "step": StepScheduleConfig,
        "polynomial": PolynomialScheduleConfig,
    },
    "strategy": {
        "auto": StrategyConfig,
        "single": StrategyConfig,
        "ddp": StrategyConfig,
        "accelerated_ddp": AcceleratedDDPConfig,
    },
}
