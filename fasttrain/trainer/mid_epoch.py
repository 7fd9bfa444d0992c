"""What an epoch that was left in its middle needs to go on: each rank's loss so far and random numbers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypedDict

import torch

from fasttrain.trainer.epoch_steps import seed_step
from fasttrain.trainer.meters import LossMeter
from fasttrain.trainer.ranks import of_all_ranks

log = logging.getLogger("fasttrain")


class RankState(TypedDict):
    """One rank's part: its losses, and its generators' states (uint8; ``rng_cuda`` None without a GPU)."""

    loss: dict[str, float | int]
    rng: torch.Tensor
    rng_cuda: torch.Tensor | None


class MidEpochState(TypedDict):
    """Of all ranks, in their order; the loss scaler refuses an update on all of them or on none."""

    ranks: list[RankState]
    skipped_steps: int


def gather_state(meter: LossMeter, skipped_steps: int, *, world_size: int, device: torch.device) -> MidEpochState:
    """The states of all ranks, the same on each; all must ask.

    Args:
        meter: This rank's, of the running epoch.
        skipped_steps: Updates of this epoch that the loss scaler refused.
        world_size: Ranks.
        device: Of this rank's training.
    """
    losses = of_all_ranks(meter.numbers(), world_size, device)
    states = of_all_ranks(torch.get_rng_state(), world_size, device)
    cuda: list[torch.Tensor | None] = [None] * world_size
    if device.type == "cuda":
        cuda = [*of_all_ranks(torch.cuda.get_rng_state(device), world_size, device)]
    ranks = [
        RankState(loss=LossMeter.named(loss), rng=state, rng_cuda=on_gpu)
        for loss, state, on_gpu in zip(losses, states, cuda, strict=True)
    ]
    return MidEpochState(ranks=ranks, skipped_steps=skipped_steps)


def read_state(saved: Mapping[str, Any]) -> MidEpochState:
    """The state in a checkpoint; an older one has rank 0's alone."""
    if "ranks" in saved:
        return MidEpochState(ranks=list(saved["ranks"]), skipped_steps=saved["skipped_steps"])
    first = RankState(loss=saved["loss"], rng=saved["rng"], rng_cuda=saved["rng_cuda"])
    return MidEpochState(ranks=[first], skipped_steps=saved["skipped_steps"])


def mean_loss_state(ranks: list[RankState]) -> dict[str, float | int]:
    """A loss meter's state that stands for those of other ranks: their mean, and the longest row of bad losses."""
    losses = [rank["loss"] for rank in ranks]
    return {
        "total": sum(loss["total"] for loss in losses) / len(losses),
        "non_finite_run": max(loss["non_finite_run"] for loss in losses),
        "steps": losses[0]["steps"],
    }


def restore_random_numbers(
    state: MidEpochState, *, rank: int, world_size: int, device: torch.device, seed: int, epoch: int, step: int
) -> None:
    """Let this rank's random numbers go on where they stopped.

    Where the checkpoint lacks the states of these ranks and devices, they begin anew as a function of (seed, epoch,
    step, rank), none of which is drawn from twice, and rank 0 says so.

    Args:
        state: Of the checkpoint.
        rank, world_size: Of this process.
        device: Of its training.
        seed: Of the run.
        epoch, step: The recipe's epoch, and the steps of the run that are done.
    """
    ranks = state["ranks"]
    lacking = ""
    if len(ranks) != world_size:
        lacking = f"those of {len(ranks)} rank{'s' if len(ranks) > 1 else ''}, and this run has {world_size}"
    elif device.type == "cuda" and any(other["rng_cuda"] is None for other in ranks):
        lacking = "none of a GPU"
    if lacking:
        seed_step(seed, epoch, step, rank)
        if rank == 0:
            log.info("resume: random numbers (dropout, drop path) begin anew: the checkpoint has %s", lacking)
        return
    torch.set_rng_state(ranks[rank]["rng"])
    on_gpu = ranks[rank]["rng_cuda"]
    if device.type == "cuda" and on_gpu is not None:
        torch.cuda.set_rng_state(on_gpu, device)
