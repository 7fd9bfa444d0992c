"""The average of the weights that training goes through."""

from __future__ import annotations

import copy
from typing import cast

import numpy as np
import torch
from torch import nn

from fasttrain.config.schema import AveragingConfig
from fasttrain.stages import Plan
from fasttrain.trainer.check import first_averaged_step


class WeightAverage(nn.Module):
    """Owns a second network, whose weights and statistics follow those of the one that is trained.

    With average a and weights w after an update that counts::

        a = (1 - share) a + share w

    ``ema``: the share of older weights halves every ``half_life_images`` images, whatever the batch. ``swa``:
    share 1/n at the n-th update, the plain mean. The first update that counts copies. BatchNorm's statistics are
    averaged like weights, counters are copied.

    The share is a function of the step alone, so a resume needs nothing but the averaged weights. An update is a
    few kernels over fixed tensors and reads nothing back: it may stand between replays of a captured step, and
    inside one too, with ``follow`` before each replay. torch's AveragedModel asks the device at each update
    whether it is the first, and timm's ModelEmaV3 walks both state dicts; hence neither.

    Args:
        network: The one that is trained.
        config: Kind, half-life, steps between updates, start.
        plan: Says at which step the average begins, and how many images a step has.

    Attributes:
        network: Holds the average; ready to be validated, never trained.
        first_step: Global step of the first update that counts.

    Source: arXiv:1803.05407 (swa).
    """

    decay: torch.Tensor
    share: torch.Tensor

    def __init__(self, network: nn.Module, config: AveragingConfig, plan: Plan) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.first_step = first_averaged_step(config, plan)
        self._config, self._plan = config, plan
        # In a list, so that it is not registered as a part of this module.
        self._trained = [network]
        self._tensors: tuple[list[torch.Tensor], ...] | None = None
        self.register_buffer("decay", torch.zeros(()), persistent=False)
        self.register_buffer("share", torch.ones(()), persistent=False)

    def begun(self, steps_done: int) -> bool:
        """Whether an update counted before; until then the trained network stands for the average."""
        return steps_done > self.first_step

    def share_at(self, step: int) -> float | None:
        """Share of the weights after the update of ``step``; None where that update does not count."""
        number, rest = divmod(step - self.first_step, self._config.every_steps)
        if number < 0 or rest:
            return None
        if number == 0:
            return 1.0
        if self._config.kind == "swa":
            return 1 / (number + 1)
        images = self._plan.images_done(step) - self._plan.images_done(step - self._config.every_steps)
        return 1 - 0.5 ** (images / cast(int, self._config.half_life_images))

    def follow(self, step: int) -> bool:
        """Set the share for the update of ``step``, without a host sync; whether ``update`` is due after it."""
        share = self.share_at(step)
        if share is None:
            return False
        # Rounded first, so that both add up to one in float32.
        decay = float(np.float32(1 - share))
        self.decay.fill_(decay)
        self.share.fill_(1 - decay)
        return True

    @torch.no_grad()
    def update(self) -> None:
        """Move the average by the share that ``follow`` set."""
        averaged, trained, counters, trained_counters = self._pairs()
        torch._foreach_mul_(averaged, self.decay)
        torch._foreach_add_(averaged, torch._foreach_mul(trained, self.share))
        if counters:
            torch._foreach_copy_(counters, trained_counters)

    def _pairs(self) -> tuple[list[torch.Tensor], ...]:
        """Averaged and trained tensors, and the integers among the buffers; found when all are on their device."""
        if self._tensors is None:
            own, trained = self.network.state_dict(), self._trained[0].state_dict()
            moving = [key for key, value in own.items() if value.is_floating_point()]
            counted = [key for key in own if key not in moving]
            self._tensors = tuple(
                [state[key] for key in keys] for keys in (moving, counted) for state in (own, trained)
            )
        return self._tensors
