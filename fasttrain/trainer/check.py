"""What of the trainer's settings cannot go together. Imports no library."""

from __future__ import annotations

from fasttrain.config.schema import RunConfig
from fasttrain.errors import Problem
from fasttrain.stages import accumulation


def check(config: RunConfig) -> list[Problem]:
    """Rules between keys; types and bounds of single keys are checked before."""
    return [*_check_averaging(config), *_check_views(config), *_check_mixup(config)]


def _check_averaging(config: RunConfig) -> list[Problem]:
    averaging = config.trainer.averaging
    key = "trainer.averaging"
    problems = []
    if averaging.kind == "ema" and averaging.half_life_images is None:
        # A hundred steps.
        example = 100 * max((stage.batch_size for stage in config.stages), default=2048)
        problems.append(
            Problem(f"{key}.kind=ema: {key}.half_life_images is not given", f"{key}.half_life_images={example}")
        )
    if averaging.kind != "ema" and averaging.half_life_images is not None:
        what = (
            f"{key}.half_life_images={averaging.half_life_images}: only for {key}.kind=ema, which is {averaging.kind}"
        )
        problems.append(Problem(what, f"{key}.half_life_images=null, or {key}.kind=ema"))
    total = sum(stage.epochs for stage in config.stages)
    # Without stages there is nothing to compare with; the stage table's own check says so.
    if averaging.kind != "none" and 0 < total <= averaging.from_epoch:
        what = f"{key}.from_epoch={averaging.from_epoch:g}: the average would begin after the run's {total} epochs"
        problems.append(Problem(what, f"{key}.from_epoch={total * 3 // 4}"))
    return problems


def _check_views(config: RunConfig) -> list[Problem]:
    """Several views of an image need something that makes them, and targets of their own."""
    trainer = config.trainer
    if trainer.jsd_alpha == 0:
        return []
    problems = []
    if config.data.augment == "none":
        what = f"trainer.jsd_alpha={trainer.jsd_alpha:g}: data.augment=none makes no other views of an image"
        problems.append(Problem(what, "data.augment=augmix-m3-w3, or trainer.jsd_alpha=0"))
    if max(trainer.mixup.alpha, trainer.mixup.cutmix_alpha) > 0:
        what = f"trainer.jsd_alpha={trainer.jsd_alpha:g} compares views of one image, and trainer.mixup blends several"
        problems.append(Problem(what, "trainer.mixup.alpha=0 trainer.mixup.cutmix_alpha=0, or trainer.jsd_alpha=0"))
    return problems


def _check_mixup(config: RunConfig) -> list[Problem]:
    """An image that is alone on its device has none to be mixed with."""
    mixup, trainer = config.trainer.mixup, config.trainer
    given = [
        f"trainer.mixup.{name}={value:g}"
        for name, value in (("alpha", mixup.alpha), ("cutmix_alpha", mixup.cutmix_alpha))
        if value > 0
    ]
    if not given:
        return []
    ranks = trainer.devices * trainer.num_nodes
    problems = []
    for row, stage in enumerate(config.stages):
        images, rest = divmod(stage.batch_size, ranks)
        # A batch that does not divide over the ranks is the stage table's own problem.
        if rest or images // accumulation(images, trainer.device_batch_size) > 1:
            continue
        what = f"{given[0]}: images are mixed within what a device takes at once, which in stages[{row}] is one image"
        fix = f"stages.{row}.batch_size={2 * ranks}" if images == 1 else f"trainer.device_batch_size={images}"
        problems.append(Problem(what, fix))
    return problems
