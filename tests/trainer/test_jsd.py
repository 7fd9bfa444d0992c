"""Three views of each image and the divergence between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fasttrain.trainer.objective import Objective

Train = Callable[..., int]


def test_a_run_with_views_repeats_in_any_number_of_threads(
    train_tiny: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = set()
    original = Objective.forward

    def loss(self: Objective, images_nhwc: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        sizes.add((len(images_nhwc), len(labels)))
        return original(self, images_nhwc, labels)

    monkeypatch.setattr(Objective, "forward", loss)
    common = ["trainer.jsd_alpha=12", "data.augment=augmix-m3-w3", "trainer.steps_per_stage=2"]
    states = []
    for workers in (0, 3):
        run_dir = tmp_path / str(workers)
        assert train_tiny(f"run_dir={run_dir}", f"data.workers={workers}", *common) == 0
        states.append(torch.load(run_dir / "checkpoints" / "last.ckpt")["state_dict"])
    assert [key for key, value in states[0].items() if not torch.equal(value, states[1][key])] == []
    # Batches of 16 and 32 samples, the warm-up's too.
    assert sizes == {(48, 48), (96, 96)}


def test_the_loss_is_cross_entropy_of_the_plain_views_and_the_divergence_of_all(
    train_tiny: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Any] = []
    original = Objective.forward

    def loss(self: Objective, images_nhwc: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        made = original(self, images_nhwc, labels)
        if not checked:
            logits = self.network(self.normalize(images_nhwc)).double()
            plain, *others = logits.chunk(3)
            shares = [views.softmax(1) for views in (plain, *others)]
            mean = sum(shares) / 3
            divergence = sum((p * (p / mean).log()).sum(1).mean() for p in shares) / 3
            expected = F.cross_entropy(plain, labels[: len(plain)], label_smoothing=0.1) + 12 * divergence
            checked.append((float(made.detach()), float(expected.detach())))
        return made

    monkeypatch.setattr(Objective, "forward", loss)
    options = ["trainer.jsd_alpha=12", "data.augment=augmix-m3-w3", "trainer.label_smoothing=0.1"]
    assert train_tiny(f"run_dir={tmp_path / 'run'}", *options, "trainer.steps_per_stage=1") == 0
    ((made, expected),) = checked
    assert made == pytest.approx(expected, rel=1e-4)


def test_views_need_something_that_makes_them(
    train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(f"run_dir={tmp_path / 'run'}", "trainer.jsd_alpha=12", "data.augment=rand-q1") == 2
    assert "data.augment=rand-q1: rand has no section 'q1'" in capsys.readouterr().err
    assert train_tiny(f"run_dir={tmp_path / 'run'}", "trainer.jsd_alpha=12", "trainer.mixup.alpha=0.2") == 2
    error = capsys.readouterr().err
    assert "trainer.jsd_alpha=12: data.augment=none makes no other views of an image" in error
    assert "trainer.jsd_alpha=12 compares views of one image, and trainer.mixup blends several" in error
