"""The own optimizers again, in float64, one tensor at a time, straight from their formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass
class Moving:
    """What the schedule sets for one step."""

    lr: float
    momentum: float
    share: float = 1.0


@dataclass
class Reference:
    """One tensor's state; ``step`` changes ``w`` in place."""

    w: Array
    weight_decay: float
    nesterov: bool = True
    b: Array | float = 0.0
    state: dict[str, Any] = field(default_factory=dict)

    def descend(self, u: Array, now: Moving) -> None:
        self.b = now.momentum * self.b + u
        self.w -= now.lr * (u + now.momentum * self.b if self.nesterov else self.b)

    def sgd(self, g: Array, now: Moving) -> None:
        self.descend(g + self.weight_decay * self.w, now)

    def hybrid(self, g: Array, now: Moving, *, rms_lr: float, beta: float, eps: float) -> None:
        t = self.state["t"] = self.state.get("t", 0) + 1
        v = self.state["v"] = beta * self.state.get("v", 0.0) + (1 - beta) * g * g
        r = g / (np.sqrt(v / (1 - beta**t)) + eps)
        u = now.share * (g + self.weight_decay * self.w) + (1 - now.share) * rms_lr / now.lr * r
        self.descend(u, now)

    def lars(self, g: Array, now: Moving, *, eta: float, low: float, high: float) -> None:
        norm_w, norm_g = math.sqrt((self.w**2).sum()), math.sqrt((g**2).sum())
        ratio = eta * norm_w / (norm_g + self.weight_decay * norm_w)
        self.descend(min(max(ratio, low), high) * (g + self.weight_decay * self.w), now)

    def muon(self, g: Array, now: Moving, *, steps: int) -> None:
        self.b = now.momentum * self.b + g
        m = g + now.momentum * self.b if self.nesterov else self.b
        rows = m.shape[0]
        x = m.reshape(rows, -1)
        columns = x.shape[1]
        x = x / np.linalg.norm(x)
        for _ in range(steps):
            cubed = x @ x.T @ x
            x = 3.4445 * x - 4.775 * cubed + 2.0315 * (x @ x.T @ cubed)
        update = x.reshape(m.shape) * math.sqrt(max(1.0, rows / columns))
        self.w *= 1 - now.lr * self.weight_decay
        self.w -= now.lr * update
