"""Mixup and CutMix: the draws, the pixels, the targets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from timm.data.mixup import mixup_target
from timm.loss import SoftTargetCrossEntropy

from fasttrain.config.schema import MixupConfig
from fasttrain.data.order import epoch_order
from fasttrain.trainer.mixing import Mix, Mixing, draw_mix

Train = Callable[..., int]
MIXUP = MixupConfig(alpha=0.2, cutmix_alpha=0, off_epoch=None)
CUTMIX = MixupConfig(alpha=0, cutmix_alpha=1.0, off_epoch=None)
BOTH = MixupConfig(alpha=0.2, cutmix_alpha=1.0, off_epoch=None)


def draws(config: MixupConfig, count: int = 2000, *, seed: int = 1, epoch: int = 0) -> list[Mix]:
    return [draw_mix(config, seed=seed, epoch=epoch, step=step, px=32) for step in range(count)]


def test_draws_are_a_function_of_seed_epoch_and_step() -> None:
    assert draws(BOTH, 20) == draws(BOTH, 20)
    seen = {
        mix.label_share for args in ((1, 0), (2, 0), (1, 1)) for mix in draws(BOTH, 20, seed=args[0], epoch=args[1])
    }
    assert len(seen) > 40
    # The largest seed, epoch and step, and no number of the order of an epoch's images.
    draw_mix(BOTH, seed=2**32 - 1, epoch=2**20, step=2**31, px=1024)
    assert len(epoch_order(5, 1, 0)) == 5


def test_mixup_shares_are_those_of_the_beta_distribution() -> None:
    shares = np.array([mix.inside for mix in draws(MIXUP)])
    # Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)).
    assert shares.mean() == pytest.approx(0.5, abs=0.03)
    assert shares.var() == pytest.approx(1 / (4 * 1.4), abs=0.01)
    assert all(mix.label_share == mix.inside for mix in draws(MIXUP, 50))
    assert {(m.top, m.bottom, m.left, m.right) for m in draws(MIXUP, 50)} == {(0, 32, 0, 32)}


def test_cutmix_boxes_lie_in_the_image_and_their_area_is_the_others_share() -> None:
    for mix in draws(CUTMIX, 300):
        assert 0 <= mix.top <= mix.bottom <= 32
        assert 0 <= mix.left <= mix.right <= 32
        area = (mix.bottom - mix.top) * (mix.right - mix.left)
        assert mix.label_share == pytest.approx(1 - area / 1024)
        assert mix.inside == 0
    # At most as large as drawn: mean of the drawn area is 1/2.
    assert 0.5 < np.mean([mix.label_share for mix in draws(CUTMIX)]) < 0.85


def test_both_take_turns_by_a_fair_coin() -> None:
    cut = [mix for mix in draws(BOTH) if mix.inside == 0 and (mix.top, mix.bottom) != (0, 32)]
    assert 0.4 < len(cut) / 2000 < 0.6


@pytest.mark.parametrize("num", [1, 2, 5], ids=["one", "even", "odd"])
def test_images_are_blended_with_their_neighbour_inside_the_box(num: int) -> None:
    mixing = Mixing(BOTH)
    mixing.set(Mix(inside=0.25, top=1, bottom=3, left=0, right=2, label_share=0.7))
    images = torch.randn(num, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    mixed = mixing.images(images)
    expected = images.clone()
    for own in range(num):
        other = images[own - 1]
        expected[own, :, 1:3, 0:2] = 0.25 * images[own, :, 1:3, 0:2] + 0.75 * other[:, 1:3, 0:2]
    assert torch.allclose(mixed, expected, atol=1e-6)
    assert mixed.is_contiguous(memory_format=torch.channels_last)


def test_the_loss_is_that_of_timms_soft_targets() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 4, 0])
    mixing = Mixing(BOTH)
    mixing.set(Mix(0.3, 0, 4, 0, 4, 0.3))
    ours = mixing.loss(logits, labels, label_smoothing=0.1)
    # timm's neighbour is the image at the mirrored place: its targets, for labels of which that is the one before.
    smooth = {"smoothing": 0.1}
    own = mixup_target(labels, 5, lam=1.0, **smooth)
    other = mixup_target(labels.roll(1), 5, lam=1.0, **smooth)
    theirs = SoftTargetCrossEntropy()(logits, 0.3 * own + 0.7 * other)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-5)


def test_nothing_is_mixed_where_the_share_is_one() -> None:
    mixing = Mixing(MIXUP)
    mixing.set(Mix(1.0, 0, 8, 0, 8, 1.0))
    images = torch.randn(3, 3, 8, 8)
    assert torch.equal(mixing.images(images), images)


def test_from_the_off_epoch_on_no_image_is_mixed() -> None:
    config = MixupConfig(alpha=0.2, cutmix_alpha=1.0, off_epoch=3)
    assert draws(config, 20, epoch=2) == draws(BOTH, 20, epoch=2)
    for epoch in (3, 4):
        assert set(draws(config, 20, epoch=epoch)) == {Mix(1.0, 0, 32, 0, 32, 1.0)}


def test_a_run_whose_last_epoch_is_not_mixed_differs_from_there_on(train_tiny: Train, tmp_path: Path) -> None:
    mixed, rows = ["trainer.mixup.alpha=1"], "stages=[{epochs: 2, px: 32, min_area: 0.35, batch_size: 16, val_px: 32}]"
    losses = {}
    for name, more in (("off", ["trainer.mixup.off_epoch=1"]), ("on", [])):
        assert train_tiny(f"run_dir={tmp_path / name}", rows, *mixed, *more) == 0
        lines = (tmp_path / name / "metrics.csv").read_text().splitlines()
        column = lines[0].split(",").index("train_loss")
        losses[name] = [line.split(",")[column] for line in lines[1:]]
    assert losses["off"][0] == losses["on"][0]
    assert losses["off"][1] != losses["on"][1]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["trainer.mixup.alpha=0.2", "trainer.mixup.off_epoch=3"], "trainer.mixup.off_epoch=2, or null"),
        (["trainer.mixup.off_epoch=1"], "trainer.mixup.alpha=0.2, or trainer.mixup.off_epoch=null"),
    ],
)
def test_an_off_epoch_that_changes_nothing_is_refused(
    words: list[str], fix: str, train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(f"run_dir={tmp_path / 'run'}", *words) == 2
    assert f"fix: {fix}" in capsys.readouterr().err


def test_a_run_with_mixup_and_odd_batches_repeats(train_tiny: Train, tmp_path: Path) -> None:
    overrides = ["trainer.mixup.alpha=0.4", "trainer.mixup.cutmix_alpha=1"]
    overrides += ["stages=[{epochs: 2, px: 32, min_area: 0.35, batch_size: 9, val_px: 32}]"]
    states = []
    for name in ("one", "two"):
        assert train_tiny(f"run_dir={tmp_path / name}", *overrides) == 0
        states.append(torch.load(tmp_path / name / "checkpoints" / "last.ckpt")["state_dict"])
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    assert train_tiny(f"run_dir={tmp_path / 'plain'}", overrides[2]) == 0
    plain = torch.load(tmp_path / "plain" / "checkpoints" / "last.ckpt")["state_dict"]
    assert any(not torch.equal(value, plain[key]) for key, value in states[0].items())
    assert json.loads((tmp_path / "one" / "report" / "result.json").read_text())["num_val"] == 32


@pytest.mark.gpu
def test_a_captured_step_follows_the_draw_without_a_sync() -> None:
    mixing = Mixing(MIXUP).cuda()
    images = torch.randn(4, 3, 8, 8, device="cuda")
    mixing.set(Mix(1.0, 0, 8, 0, 8, 1.0))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        mixing.images(images)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mixed = mixing.images(images)
    for share in (1.0, 0.25):
        torch.cuda.set_sync_debug_mode("error")
        mixing.set(Mix(share, 0, 8, 0, 8, share))
        graph.replay()
        torch.cuda.set_sync_debug_mode("default")
        expected = share * images + (1 - share) * images.roll(1, 0)
        assert torch.allclose(mixed, expected, atol=1e-6)
