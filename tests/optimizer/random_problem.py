"""Random problems on which optimizers are compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fasttrain.optimizer.build import set_hyperparameters
from tests.optimizer.float64_reference import Moving, Reference

SHAPES = [(16, 3, 3, 3), (8, 16, 1, 1), (8, 16, 1, 1), (32, 8, 3, 3), (10, 32), (24, 6), (16,), (10,)]
NUM_STEPS = 50


@dataclass
class RandomProblem:
    """Weights of several shapes and, for each step, gradients whose size varies, and moving numbers."""

    seed: int = 0
    channels_last: bool = False
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.start = [self._lay_out(torch.randn(shape) * 0.3) for shape in SHAPES]
        self.grads = [
            [self._lay_out(torch.randn(shape) * 10 ** (1.5 * math.sin(step / 5))) for shape in SHAPES]
            for step in range(NUM_STEPS)
        ]
        self.moving = [
            Moving(
                lr=0.02 * (step + 1) / 10 if step < 10 else 0.02 * (1 - (step - 10) / NUM_STEPS),
                momentum=0.95 - 0.1 * step / NUM_STEPS,
                share=min(1.0, 0.1 + step / 30),
            )
            for step in range(NUM_STEPS)
        ]

    def _lay_out(self, tensor: Tensor) -> Tensor:
        tensor = tensor.to(self.dtype)
        if self.channels_last and tensor.ndim == 4:
            return tensor.to(memory_format=torch.channels_last)
        return tensor

    def params(self) -> list[nn.Parameter]:
        return [nn.Parameter(tensor.clone()) for tensor in self.start]

    def run(
        self, optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: range = range(NUM_STEPS)
    ) -> None:
        """The steps' gradients, each with that step's moving numbers."""
        for step in steps:
            now = self.moving[step]
            # A group with a share gets it through the transition: half at the center, rising by 1 an epoch.
            set_hyperparameters(optimizer, lr=now.lr, momentum=now.momentum, epochs_done=epochs_of_share(now.share))
            for param, grad in zip(params, self.grads[step], strict=True):
                param.grad = grad.clone()
            optimizer.step()

    def distance(
        self,
        params: list[nn.Parameter],
        weight_decays: list[float],
        step_one: Callable[[int, Reference, Any, Moving], None],
    ) -> float:
        """Norm of the difference to the float64 loop after all steps over norm of the loop's weights.

        ``step_one(index, reference, gradient, moving)`` makes one step of one tensor.
        """
        squared, norm = 0.0, 0.0
        for index, tensor in enumerate(self.start):
            reference = Reference(tensor.double().numpy().copy(), weight_decays[index])
            for step, now in enumerate(self.moving):
                step_one(index, reference, self.grads[step][index].double().numpy(), now)
            difference = params[index].detach().double().numpy() - reference.w
            squared += float((difference**2).sum())
            norm += float((reference.w**2).sum())
        return math.sqrt(squared / norm)


def epochs_of_share(share: float, center: float = 2.0, period: float = 1.0) -> float:
    """Inverse of ``sgd_share``."""
    if share >= 0.5:
        return center + (share - 0.5) * period
    return center + math.log(2 * share) * period / 2


def torch_sgd(params: list[nn.Parameter], weight_decays: list[float], *, nesterov: bool = True) -> torch.optim.SGD:
    """Torch's own SGD, the yardstick of the bit-for-bit tests."""
    groups = [
        {"params": [param], "weight_decay": weight_decay}
        for param, weight_decay in zip(params, weight_decays, strict=True)
    ]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=nesterov, foreach=True)
