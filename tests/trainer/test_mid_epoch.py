"""An epoch that was left in its middle goes on with every rank's own numbers."""

from __future__ import annotations

import csv
import signal
from pathlib import Path

import pytest
import torch

from fasttrain.trainer import mid_epoch
from fasttrain.trainer.meters import LossMeter
from fasttrain.trainer.mid_epoch import (
    MidEpochState,
    gather_state,
    mean_loss_state,
    read_state,
    restore_random_numbers,
)
from tests.trainer.test_two_ranks import run_ranks

CPU = torch.device("cpu")


def meter(*losses: float) -> LossMeter:
    counted = LossMeter(CPU)
    for loss in losses:
        counted.add(torch.tensor(loss))
    return counted


def state_of_two(monkeypatch: pytest.MonkeyPatch) -> MidEpochState:
    """Of rank 0 after seed 1 with losses 1 and 2, and rank 1 after seed 2 with 3 and one that is no number."""
    other = meter(3.0, float("nan")).numbers()
    torch.manual_seed(2)
    other_rng = torch.get_rng_state()
    torch.manual_seed(1)
    others = {torch.float64: other, torch.uint8: other_rng}
    monkeypatch.setattr(mid_epoch, "of_all_ranks", lambda mine, *_: [mine, others[mine.dtype]])
    return gather_state(meter(1.0, 2.0), 7, world_size=2, device=CPU)


def draw_after(state: MidEpochState, *, rank: int, world_size: int, step: int = 2) -> float:
    restore_random_numbers(state, rank=rank, world_size=world_size, device=CPU, seed=5, epoch=0, step=step)
    return float(torch.rand(()))


def first_of(seed: int) -> float:
    torch.manual_seed(seed)
    return float(torch.rand(()))


def test_each_rank_gets_its_own_random_numbers_and_losses_back(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    state = state_of_two(monkeypatch)
    assert [draw_after(state, rank=rank, world_size=2) for rank in (0, 1)] == [first_of(1), first_of(2)]
    assert state["ranks"][0]["loss"] == {"total": 3.0, "non_finite_run": 0, "steps": 2}
    assert (state["ranks"][1]["loss"]["non_finite_run"], state["skipped_steps"]) == (1, 7)
    assert said == []


def test_other_ranks_draw_what_no_other_rank_and_step_draws_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    state = state_of_two(monkeypatch)
    drawn = [draw_after(state, rank=rank, world_size=3) for rank in range(3)]
    assert len({*drawn, first_of(1), first_of(2)}) == 5
    (line,) = said
    assert "the checkpoint has those of 2 ranks, and this run has 3" in line
    assert drawn == [draw_after(state, rank=rank, world_size=3) for rank in range(3)]
    assert drawn[0] != draw_after(state, rank=0, world_size=3, step=3)


def test_other_ranks_go_on_with_the_mean_of_the_losses() -> None:
    ranks = [
        mid_epoch.RankState(loss=counted.state_dict(), rng=torch.get_rng_state(), rng_cuda=None)
        for counted in (meter(1.0, 2.0), meter(5.0, 6.0))
    ]
    assert mean_loss_state(ranks) == {"total": 7.0, "non_finite_run": 0, "steps": 2}


def test_an_older_checkpoint_has_one_rank() -> None:
    torch.manual_seed(1)
    older = {"loss": meter(2.0).state_dict(), "skipped_steps": 3, "rng": torch.get_rng_state(), "rng_cuda": None}
    state = read_state(older)
    assert (len(state["ranks"]), state["skipped_steps"]) == (1, 3)
    assert draw_after(state, rank=0, world_size=1) == first_of(1)
    assert read_state(dict(state)) == state


def stop_at(step: int) -> str:
    """A sitecustomize in which rank 1 sends itself SIGTERM once ``step`` updates are done."""
    return (
        "import os, signal\n"
        "if os.environ.get('RANK') == '1' and os.environ.get('STOP'):\n"
        "    import fasttrain.trainer.module as module\n"
        "    original = module.ClassifierModule.on_train_batch_end\n"
        "    def end(self, *args):\n"
        "        original(self, *args)\n"
        f"        if self.step == {step}:\n"
        f"            os.kill(os.getpid(), {int(signal.SIGTERM)})\n"
        "    module.ClassifierModule.on_train_batch_end = end\n"
    )


@pytest.mark.slow
def test_two_ranks_with_dropout_stopped_inside_an_epoch_equal_the_straight_run(
    tiny_overrides: list[str], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(stop_at(4))
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).resolve().parents[2]}"}
    # 16 steps an epoch: ranks agree on a stop at every tenth.
    stages = "stages=[{epochs: 2, px: 32, min_area: 0.35, batch_size: 4, val_px: 32}]"
    overrides = [*tiny_overrides, stages, "model.args={drop_rate: 0.5}"]
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    for run_dir, more, stop, code in (
        (straight, [], "", 0),
        (stopped, [], "1", 143),
        (stopped, ["resume=auto"], "", 0),
    ):
        done = run_ranks([*overrides, f"run_dir={run_dir}", *more], environment={**environment, "STOP": stop})
        assert done.returncode == code, done.stdout + done.stderr
        if stop:
            assert torch.load(run_dir / "checkpoints" / "last.ckpt")["fasttrain"]["step"] == 10
    runs = (straight, stopped)
    one, other = (torch.load(path / "checkpoints" / "last.ckpt")["state_dict"] for path in runs)
    assert [key for key in one if not torch.equal(one[key], other[key])] == []
    losses = [
        [row["train_loss"] for row in csv.DictReader((path / "metrics.csv").open())] for path in (straight, stopped)
    ]
    assert losses[0] == losses[1]
