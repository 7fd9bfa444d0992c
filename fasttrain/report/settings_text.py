"""What a run trains, and how, in a few words: lines of the printed plan, and ``settings`` in plan.json."""

from __future__ import annotations

from fasttrain.config.schema import ModelConfig, RunConfig, TrainerConfig
from fasttrain.report.facts import optimizer_text, regularisation, weight_decay_text


def plan_settings(config: RunConfig) -> dict[str, str]:
    """Label to text, in the order of the plan: network, optimizer, training, images, target."""
    return {
        "network": network_text(config.model),
        "optimizer": f"{optimizer_text(config.optimizer)}; weight decay {weight_decay_text(config.optimizer)}",
        "training": training_text(config),
        "images": images_text(config),
        "target": f"{config.target.value:g} % {config.target.metric}" + (", then stop" if config.target.stop else ""),
    }


def network_text(model: ModelConfig) -> str:
    """A network, how many of it, and its first weights, e.g. ``resnet50, random weights``."""
    words = [model.name]
    if model.args:
        words.append(", ".join(f"{key} {' '.join(str(value).split())}" for key, value in model.args.items()))
    if model.ensemble > 1:
        words.append(f"{model.ensemble} of them side by side")
    if model.init_from is not None:
        words.append(f"weights of {model.init_from}")
    else:
        words.append("timm's pretrained weights" if model.pretrained else "random weights")
        if model.name.startswith("whitened_convnet"):
            words.append("first layer from training images")
    return ", ".join(words)


def training_text(config: RunConfig) -> str:
    """Precision, how steps are run, and what else is done to targets, statistics and weights."""
    trainer = config.trainer
    words = [trainer.precision, _steps(trainer)]
    if trainer.label_smoothing:
        words.append(f"label smoothing {trainer.label_smoothing:g}")
    for name, value in regularisation(config).items():
        settings = ", ".join(f"{key} {setting}" for key, setting in value.items()) if isinstance(value, dict) else value
        words.append(f"{name.replace('_', ' ')} ({settings})")
    if trainer.test_time_augmentation != "none":
        words.append(f"test-time augmentation: {trainer.test_time_augmentation}")
    return "; ".join(words)


def images_text(config: RunConfig) -> str:
    """How training images are cut and turned, whether they are kept, and what is validated."""
    data = config.data
    crop = "random resized crops" if data.crop == "random_resized" else f"crops padded by {data.pad_px} px"
    if data.backend == "synthetic":
        return "random pixels on the device"
    kept = f"data.cache={data.cache}"
    if data.cache == "off":
        kept = "arrays in memory" if data.kind == "cifar10" else "decoded in each epoch"
    rectangular = " (rectangular in some stages)" if any(stage.rectangular_val for stage in config.stages) else ""
    return f"{crop}, flip {data.flip}; {kept}; validated at a centre crop of {data.val_crop_frac:g}{rectangular}"


def _steps(trainer: TrainerConfig) -> str:
    compiled = "compiled" if trainer.compile else "not compiled"
    return f"{compiled}, trainer.capture={trainer.capture}"
