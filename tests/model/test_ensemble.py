"""Several networks as one: each learns as if it were alone, together they answer with their mean probability."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fasttrain.cli import main
from fasttrain.config.schema import MixupConfig
from fasttrain.data.preprocess import Normalize
from fasttrain.model.build import build_model
from fasttrain.model.check import check
from fasttrain.model.ensemble import Ensemble
from fasttrain.optimizer.groups import matrix_parameter_groups
from fasttrain.trainer.first_images import InitializedFromImages
from fasttrain.trainer.mixing import Mix, Mixing
from fasttrain.trainer.objective import Objective
from tests.model.defaults import MODEL

Train = Callable[..., int]
MIXUP = MixupConfig(alpha=0.2, cutmix_alpha=0, off_epoch=None)


def ensemble(members: int = 2, name: str = "resnet18d", **settings: Any) -> Ensemble:
    torch.manual_seed(0)
    network = build_model(replace(MODEL, name=name, ensemble=members, **settings), 10)
    assert isinstance(network, Ensemble)
    return network


def gradients(
    network: nn.Module, mixing: Mixing | None = None, device: str = "cpu"
) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of one batch, and its gradients by the parameters' names."""
    random = torch.Generator().manual_seed(1)
    images = torch.rand(8, 64, 64, 3, generator=random).to(device)
    labels = torch.randint(10, (8,), generator=random).to(device)
    normalize = Normalize([0.5, 0.5, 0.5], [0.25, 0.25, 0.25]).to(device)
    loss = Objective(network.train(), normalize, label_smoothing=0.1, mixing=mixing)(images, labels)
    loss.backward()
    return loss.item(), {
        name: parameter.grad for name, parameter in network.named_parameters() if parameter.grad is not None
    }


@pytest.mark.parametrize("mixed", [False, True])
def test_each_member_learns_as_if_it_were_alone(mixed: bool) -> None:
    mixing = None
    if mixed:
        mixing = Mixing(MIXUP)
        mixing.set(Mix(0.75, 0, 0, 0, 0, 0.75))
    network = ensemble()
    alone = [gradients(copy.deepcopy(member), mixing) for member in network.members]
    loss, together = gradients(network, mixing)
    expected = {
        f"members.{number}.{name}": value for number, (_, own) in enumerate(alone) for name, value in own.items()
    }
    assert together.keys() == expected.keys()
    for name, value in together.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5, msg=name)
    assert loss == pytest.approx(sum(own for own, _ in alone), rel=1e-5)


@pytest.mark.gpu
def test_members_at_once_on_a_gpu_learn_as_one_after_the_other() -> None:
    network = ensemble(3).cuda()
    alone = [gradients(copy.deepcopy(member), device="cuda") for member in network.members]
    for _ in range(3):
        network.zero_grad()
        loss, together = gradients(network, device="cuda")
        for number, (_, own) in enumerate(alone):
            for name, value in own.items():
                torch.testing.assert_close(together[f"members.{number}.{name}"], value, rtol=1e-2, atol=1e-4, msg=name)
        assert loss == pytest.approx(sum(own for own, _ in alone), rel=1e-3)


def test_the_answer_is_the_mean_of_the_probabilities() -> None:
    network = ensemble(3).eval()
    images = torch.rand(5, 3, 32, 32)
    with torch.no_grad():
        answer = network(images)
        each = torch.stack([F.softmax(member(images), dim=1) for member in network.members])
    assert answer.shape == (5, 10)
    torch.testing.assert_close(answer.exp(), each.mean(dim=0))
    assert not torch.equal(each[0], each[1])


def test_every_members_classifier_is_one() -> None:
    settings = {"weight_decay": 0.1, "linear_weights": True, "sgd_lr_scale": 10.0, "sgd_weight_decay": 0.1}
    one, two = (
        matrix_parameter_groups(network, **settings, decay_norm_and_bias=False)  # type: ignore[arg-type]
        for network in (build_model(MODEL, 10), ensemble())
    )
    assert [(group["name"], 2 * len(group["params"])) for group in one] == [
        (group["name"], len(group["params"])) for group in two
    ]


def test_members_that_look_at_images_each_look_at_them() -> None:
    network = ensemble(name="whitened_convnet")
    assert isinstance(network, InitializedFromImages)
    network.initialize_from_images(torch.randn(20, 3, 32, 32))
    first, second = (member.get_parameter("whitening.weight") for member in network.members)
    assert torch.equal(first, second)
    assert network.trained_epochs() == {"members.0.whitening.bias": 3.0, "members.1.whitening.bias": 3.0}
    groups = matrix_parameter_groups(
        network, weight_decay=0, linear_weights=True, sgd_lr_scale=1, sgd_weight_decay=0, decay_norm_and_bias=False
    )
    assert sum(len(group["params"]) for group in groups if "trained_epochs" in group) == 2
    assert not isinstance(ensemble(), InitializedFromImages)


@pytest.mark.parametrize(
    ("model", "jsd_alpha", "told"),
    [({"pretrained": True}, 0.0, "would start alike"), ({}, 12.0, "are compared for one network"), ({}, 0.0, None)],
)
def test_what_does_not_go_together(model: dict[str, Any], jsd_alpha: float, told: str | None) -> None:
    trainer = SimpleNamespace(jsd_alpha=jsd_alpha, channels_last=True, compile=False)
    config: Any = SimpleNamespace(model=replace(MODEL, ensemble=2, **model), trainer=trainer, stages=[])
    problems = check(config)
    assert [told in problem.what for problem in problems] == [True] if told else problems == []


def test_gradients_are_clipped_and_the_loss_is_shown_for_each_network(train_tiny: Train, tmp_path: Path) -> None:
    states, losses = [], []
    for members in (1, 2):
        run = tmp_path / str(members)
        assert train_tiny(f"run_dir={run}", f"model.ensemble={members}", "optimizer.clip_norm=0.5") == 0
        states.append(torch.load(run / "checkpoints" / "last.ckpt")["state_dict"])
        header, first, *_ = (run / "metrics.csv").read_text().splitlines()
        losses.append(float(dict(zip(header.split(","), first.split(","), strict=True))["train_loss"]))
    alone, together = states
    own = {key: value for key, value in together.items() if key.startswith("members.0.")}
    assert len(own) == len(alone)
    for key, value in own.items():
        torch.testing.assert_close(value, alone[key.removeprefix("members.0.")], rtol=1e-3, atol=1e-4, msg=key)
    assert losses[1] == pytest.approx(losses[0], rel=0.2)


def test_a_run_is_validated_saved_and_evaluated_as_one_network(train_tiny: Train, tmp_path: Path) -> None:
    run_dir, out = tmp_path / "run", tmp_path / "eval.json"
    assert train_tiny(f"run_dir={run_dir}", "model.ensemble=2") == 0
    result = json.loads((run_dir / "report" / "result.json").read_text())
    assert main(["eval", str(run_dir / "checkpoints" / "last.ckpt"), "--json", str(out)]) == 0
    assert json.loads(out.read_text())["top1"] == pytest.approx(result["top1"], abs=0.01)
