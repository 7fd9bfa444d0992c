"""What of the trainer's settings cannot go together. Imports no library."""

from __future__ import annotations

from bisect import bisect_right

from fasttrain.config.schema import AveragingConfig, RunConfig
from fasttrain.errors import Problem
from fasttrain.stages import Plan, accumulation


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
    if averaging.kind == "none":
        for name, value, default in (
            ("every_steps", averaging.every_steps, 1),
            ("from_epoch", averaging.from_epoch, 0),
        ):
            if value != default:
                what = f"{key}.{name}={value:g}: only with an average, and {key}.kind is none"
                problems.append(Problem(what, f"{key}.{name}={default}, or {key}.kind=swa"))
    total = sum(stage.epochs for stage in config.stages)
    # Without stages there is nothing to compare with; the stage table's own check says so.
    if averaging.kind != "none" and 0 < total <= averaging.from_epoch:
        what = f"{key}.from_epoch={averaging.from_epoch:g}: the average would begin after the run's {total} epochs"
        problems.append(Problem(what, f"{key}.from_epoch={total * 3 // 4}"))
    return problems


def check_averaging_steps(config: RunConfig, plan: Plan) -> list[Problem]:
    """An average of one state of the weights is a copy of it, which would be reported as an average."""
    averaging = config.trainer.averaging
    # A run that is cut short for measuring is not asked for its accuracy.
    if averaging.kind == "none" or config.trainer.steps_per_stage is not None:
        return []
    start = first_averaged_step(averaging, plan)
    every, left = averaging.every_steps, plan.total_steps - start
    if len(range(start, plan.total_steps, every)) >= 2:
        return []
    key = "trainer.averaging"
    what = f"{key}.every_steps={every}: the average would hold the weights of fewer than two steps, since it begins at"
    what += f" step {start} of {plan.total_steps} ({key}.from_epoch={averaging.from_epoch:g})"
    fix = f"{key}.every_steps={max(1, left // 10)}" if left >= 2 else f"{key}.from_epoch=0 {key}.every_steps=1"
    return [Problem(what, fix)]


def first_averaged_step(averaging: AveragingConfig, plan: Plan) -> int:
    """Global step of the first update that the average takes; ``plan.total_steps`` if there is none."""
    return bisect_right(range(plan.total_steps), averaging.from_epoch, key=plan.epochs_done)


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
    """Mixing ends before the run does; an image that is alone on its device has none to be mixed with."""
    mixup, trainer = config.trainer.mixup, config.trainer
    given = [
        f"trainer.mixup.{name}={value:g}"
        for name, value in (("alpha", mixup.alpha), ("cutmix_alpha", mixup.cutmix_alpha))
        if value > 0
    ]
    last = sum(stage.epochs for stage in config.stages) - 1
    off = f"trainer.mixup.off_epoch={mixup.off_epoch}"
    if not given:
        fix = "trainer.mixup.alpha=0.2, or trainer.mixup.off_epoch=null"
        return [] if mixup.off_epoch is None else [Problem(f"{off}: trainer.mixup is off", fix)]
    if mixup.off_epoch is not None and mixup.off_epoch > last:
        fix = f"trainer.mixup.off_epoch={last}, or null" if last > 0 else "trainer.mixup.off_epoch=null"
        return [Problem(f"{off}: the run has {last + 1} epochs", fix)]
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
