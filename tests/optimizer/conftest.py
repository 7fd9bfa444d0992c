"""Fixtures of the optimizer tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.optimizer.random_problem import RandomProblem


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are fastest on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=[False, True], ids=["contiguous", "channels_last"])
def problem(request: pytest.FixtureRequest) -> RandomProblem:
    """Weights, gradients and moving numbers, the same for each optimizer that asks."""
    return RandomProblem(channels_last=request.param)
