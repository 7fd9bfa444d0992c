"""Which sizes of images a network takes: asked of the network itself, on the meta device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fasttrain.config.schema import RunConfig
from fasttrain.errors import Problem, first_line

if TYPE_CHECKING:
    from torch import nn

# Sides that are tried, in steps of 32 pixels each way, to name some that a network takes.
NUM_TRIED = 4


def check_sizes(config: RunConfig, model: nn.Module) -> list[Problem]:
    """One problem for each size of the stage table that the network refuses."""
    wanted: dict[tuple[int, int], tuple[str, str]] = {}
    for index, stage in enumerate(config.stages):
        px, val_px = f"stages.{index}.px", f"stages.{index}.val_px"
        wanted.setdefault((stage.px, stage.px), (px, f"{px}={stage.px}"))
        key, given, width = val_px, f"{val_px}={stage.val_px}", stage.val_px
        if stage.rectangular_val:
            key, given = (
                f"stages.{index}.rectangular_val=false {val_px}",
                f"{given} stages.{index}.rectangular_val=true",
            )
            width = math.ceil(stage.val_px * 4 / 3 / 32) * 32
        wanted.setdefault((stage.val_px, width), (key, given))
    refused = {shape: reason for shape in wanted if (reason := refusal(model, *shape))}
    # A network that refuses its own size too cannot be asked this way: that says nothing about px.
    if not refused or refusal(model, *_own_shape(model)):
        return []
    problems = []
    for (height, width), reason in refused.items():
        key, given = wanted[(height, width)]
        nearest, working = _working_sizes(model, min(height, width))
        what = f"{given}: {config.model.name} does not take images of {height} x {width} pixels ({reason})"
        problems.append(Problem(what, f"{key}={nearest}, sizes that work: {', '.join(map(str, working))}"))
    return problems


def refusal(model: nn.Module, height: int, width: int) -> str:
    """Why a network on the meta device cannot take images of this size; empty where it can."""
    import torch

    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            model(torch.empty(2, 3, height, width, device="meta"))
    except Exception as error:  # a network's forward raises what it likes
        return first_line(error)
    finally:
        model.train(training)
    return ""


def _own_shape(model: nn.Module) -> tuple[int, int]:
    default = getattr(model, "default_cfg", None) or {}
    _, height, width = default.get("input_size", (3, 224, 224))
    return height, width


def _working_sizes(model: nn.Module, px: int) -> tuple[int, list[int]]:
    """Sides of square images that the network takes, pixels: the nearest to ``px``, and a few in order.

    Multiples of 32 around ``px`` are tried; the network's own size always works.
    """
    middle = px // 32 * 32
    candidates = {middle + 32 * k for k in range(-NUM_TRIED, NUM_TRIED + 1)}
    tried = [side for side in candidates if side > 0 and not refusal(model, side, side)]
    working = sorted({*tried, _own_shape(model)[0]}, key=lambda side: abs(side - px))
    return working[0], sorted(working[:4])
