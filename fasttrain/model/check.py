"""What makes a network impossible to run: its name, its arguments, its options, the images it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fasttrain.config.schema import RunConfig
from fasttrain.errors import ConfigError, Problem
from fasttrain.model.image_sizes import check_sizes
from fasttrain.regular_file import what_instead
from fasttrain.stages import accumulation

if TYPE_CHECKING:
    from torch import nn

# Arguments of timm.create_model that have a key of their own.
OWN_KEYS = {
    "num_classes": "model.num_classes",
    "pretrained": "model.pretrained",
    "checkpoint_path": "model.init_from",
    "zero_init_last": "model.batchnorm.zero_init_last",
}


def check(config: RunConfig) -> list[Problem]:
    """Rules between keys that need no library."""
    model = config.model
    problems = [
        Problem(f"model.args has {name}, which has a key of its own", f"{key}={model.args[name]}")
        for name, key in OWN_KEYS.items()
        if name in model.args
    ]
    if model.init_from is not None and model.pretrained:
        problems.append(
            Problem(
                "model.init_from and model.pretrained=true both name the first weights",
                "model.pretrained=false",
            )
        )
    if model.ensemble > 1 and model.pretrained:
        problems.append(
            Problem(
                f"model.ensemble={model.ensemble} and model.pretrained=true: the networks would start alike",
                "model.ensemble=1, or model.pretrained=false",
            )
        )
    if model.ensemble > 1 and config.trainer.jsd_alpha > 0:
        problems.append(
            Problem(
                f"trainer.jsd_alpha={config.trainer.jsd_alpha:g}: the views of an image are compared for one network, "
                f"model.ensemble={model.ensemble} has several",
                "trainer.jsd_alpha=0, or model.ensemble=1",
            )
        )
    loaded = "model.pretrained=true" if model.pretrained else "model.init_from"
    if model.pretrained or model.init_from is not None:
        if model.batchnorm.zero_init_last:
            problems.append(
                Problem(
                    f"model.batchnorm.zero_init_last=true would undo the scales that {loaded} loads",
                    "model.batchnorm.zero_init_last=null",
                )
            )
        if model.head_init_std is not None:
            problems.append(
                Problem(
                    f"model.head_init_std={model.head_init_std:g} and {loaded} both set the classifier",
                    "model.head_init_std=null",
                )
            )
        if model.batchnorm.frozen_scale is not None:
            problems.append(
                Problem(
                    f"model.batchnorm.frozen_scale={model.batchnorm.frozen_scale:g} would undo the scales that "
                    f"{loaded} loads",
                    "model.batchnorm.frozen_scale=null",
                )
            )
    problems += [
        Problem(f"model.kernels.{key}=true needs trainer.channels_last=true", f"model.kernels.{key}=auto")
        for key in asked_gpu_kernels(config)
        if not config.trainer.channels_last
    ]
    if model.kernels.batchnorm == "true" and not config.trainer.compile:
        problems.append(
            Problem("model.kernels.batchnorm=true needs trainer.compile=true", "model.kernels.batchnorm=auto")
        )
    if model.batchnorm.sync:
        problems += [
            Problem(
                f"model.kernels.{key}=true has the statistics of one rank, model.batchnorm.sync=true those of all",
                f"model.kernels.{key}=auto",
            )
            for key in ("batchnorm", "norm_relu_pool")
            if getattr(model.kernels, key) == "true"
        ]
    return [*problems, *_check_batchnorm(config)]


def check_first_weights(config: RunConfig) -> list[Problem]:
    """What a run needs that does not go on from a checkpoint: the file of its first weights."""
    path = config.model.init_from
    if path is None or not (wrong := what_instead(path)):
        return []
    return [Problem(f"model.init_from={path}: {wrong}", "model.init_from=PATH of a checkpoint")]


def _check_batchnorm(config: RunConfig) -> list[Problem]:
    """Options of BatchNorm that exclude each other, and groups that do not divide what a device takes at once."""
    options = config.model.batchnorm
    problems = []
    if options.frozen_scale is not None and options.zero_init_last:
        problems.append(
            Problem(
                f"model.batchnorm.frozen_scale={options.frozen_scale:g} keeps the scales that "
                "model.batchnorm.zero_init_last=true would start at 0",
                "model.batchnorm.zero_init_last=null",
            )
        )
    ghost_size = options.ghost_size
    if ghost_size is None:
        return problems
    if options.sync:
        problems.append(
            Problem(
                f"model.batchnorm.ghost_size={ghost_size} and model.batchnorm.sync=true: statistics are "
                "either those of a group or those of all ranks",
                "model.batchnorm.sync=false",
            )
        )
    ranks = config.trainer.devices * config.trainer.num_nodes
    sizes = {
        row: stage.batch_size // ranks // accumulation(stage.batch_size // ranks, config.trainer.device_batch_size)
        for row, stage in enumerate(config.stages)
        if stage.batch_size % ranks == 0
    }
    undivided = {row: size for row, size in sizes.items() if size % ghost_size}
    if undivided:
        rows = ", ".join(f"{size} in stages[{row}]" for row, size in undivided.items())
        common = math.gcd(*sizes.values())
        divisors = [size for size in range(2, common + 1) if common % size == 0]
        nearest = min(divisors, key=lambda size: abs(size - ghost_size), default="null")
        problems.append(
            Problem(
                f"model.batchnorm.ghost_size={ghost_size}: does not divide the images that a device takes "
                f"at once: {rows}",
                f"model.batchnorm.ghost_size={nearest}",
            )
        )
    return problems


def asked_gpu_kernels(config: RunConfig) -> list[str]:
    """Kernels that the run insists on and that only a GPU has."""
    kernels = config.model.kernels
    return [key for key in ("batchnorm", "max_pool", "norm_relu_pool") if getattr(kernels, key) == "true"]


def check_libraries(config: RunConfig, num_classes: int) -> list[Problem]:
    """Problems that only torch and timm can tell; imports both.

    The network runs once, without storage, at each size of the stage table; a stage with ``rectangular_val``
    is tried with images a third wider than high.

    Args:
        config: The run.
        num_classes: Outputs of the network.
    """
    from fasttrain.model.build import meta_model

    try:
        model = meta_model(config.model, num_classes)
    except ConfigError as error:
        return error.problems
    return [*_check_options(config, model), *_check_micro_batches(config, model), *check_sizes(config, model)]


def _check_options(config: RunConfig, model: nn.Module) -> list[Problem]:
    import timm

    from fasttrain.model import batchnorm
    from fasttrain.model.build import takes_argument
    from fasttrain.model.ghost import use_groups
    from fasttrain.model.head import init_head
    from fasttrain.model.kernels import nothing_to_speed_up

    problems = []
    name, options = config.model.name, config.model.batchnorm
    if config.model.pretrained and not timm.is_model_pretrained(name):
        problems.append(Problem(f"model.pretrained=true: timm has no weights of {name}", "model.pretrained=false"))
    if options.zero_init_last and not takes_argument(model, "zero_init_last") and not batchnorm.last_batchnorms(model):
        problems.append(batchnorm.nothing_to_zero(name))
    if not batchnorm.batchnorms(model):
        problems += batchnorm.nothing_to_set(name, options)
    elif options.ghost_size is not None:
        try:
            use_groups(batchnorm.batchnorms(model), options.ghost_size)
        except ConfigError as error:
            problems += error.problems
    problems += nothing_to_speed_up(model, config.model.kernels)
    problems += _check_gpu_kernels(config)
    if config.model.head_init_std is not None:
        try:
            init_head(model, config.model.head_init_std)
        except ConfigError as error:
            problems += error.problems
    return problems


def _check_gpu_kernels(config: RunConfig) -> list[Problem]:
    import torch

    from fasttrain.model.pooling import HAS_TRITON

    asked = asked_gpu_kernels(config)
    if not asked:
        return []
    if config.trainer.accelerator == "cpu" or not torch.cuda.is_available():
        lacking = "a CUDA device, and this run has none"
    elif not HAS_TRITON:
        lacking = "the package triton, which is not installed"
    else:
        return []
    return [Problem(f"model.kernels.{key}=true needs {lacking}", f"model.kernels.{key}=auto") for key in asked]


def _check_micro_batches(config: RunConfig, model: nn.Module) -> list[Problem]:
    """BatchNorm takes its statistics over a micro-batch: of one image there are none."""
    from fasttrain.model.batchnorm import batchnorms

    if not batchnorms(model):
        return []
    bound = config.trainer.device_batch_size
    ranks = config.trainer.devices * config.trainer.num_nodes
    problems = []
    divided: dict[int, int] = {}
    for row, stage in enumerate(config.stages):
        images, rest = divmod(stage.batch_size, ranks)
        # A batch that does not divide over the ranks is the stage table's own problem.
        if rest or images // accumulation(images, bound) > 1:
            continue
        if images > 1:
            divided[row] = images
            continue
        key = f"stages.{row}.batch_size"
        what = f"{key}={stage.batch_size}: one image on each of {ranks} devices, {config.model.name} has BatchNorm"
        problems.append(Problem(f"{what}, which needs at least 2", f"{key}={2 * ranks}"))
    if divided:
        problems.append(_one_image_at_once(config, divided, ranks))
    return problems


def _one_image_at_once(config: RunConfig, divided: Mapping[int, int], ranks: int) -> Problem:
    """The problem of rows whose images on a device, ``divided`` by row, fall to micro-batches of one."""
    bound = config.trainer.device_batch_size
    assert bound is not None
    row, images = next(iter(divided.items()))
    fix = f"trainer.device_batch_size={max(map(_smallest_factor, divided.values()))}"
    if bound > 1:  # an even number of images halves at least, whatever the bound
        fix += " or " + " ".join(f"stages.{row}.batch_size={(n - 1) * ranks}" for row, n in divided.items())
    what = (
        f"trainer.device_batch_size={bound}: the {images} images of a device in a step of stages[{row}] are taken "
        f"one at a time, and {config.model.name} has BatchNorm, which needs at least 2"
    )
    return Problem(what, fix)


def _smallest_factor(number: int) -> int:
    return next(factor for factor in range(2, number + 1) if number % factor == 0)
