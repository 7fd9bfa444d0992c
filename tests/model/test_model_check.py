"""Networks that cannot be run are refused before anything is built."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fasttrain.config.schema import StageConfig
from fasttrain.model.build import meta_model
from fasttrain.model.check import check, check_first_weights, check_libraries
from fasttrain.model.image_sizes import refusal
from tests.model.defaults import MODEL, OWN


def stage(px: int, val_px: int, *, rectangular: bool = False) -> StageConfig:
    return StageConfig(epochs=1, px=px, min_area=0.25, batch_size=8, val_px=val_px, rectangular_val=rectangular)


def run(*stages: StageConfig, **changes: Any) -> Any:
    trainer = SimpleNamespace(
        device_batch_size=None, devices=1, num_nodes=1, channels_last=True, compile=True, accelerator="auto"
    )
    return SimpleNamespace(model=replace(MODEL, **changes), stages=list(stages) or [stage(96, 128)], trainer=trainer)


def told(problems: list[Any]) -> str:
    return "\n".join(map(str, problems))


def test_a_plain_network_has_no_problem() -> None:
    assert check(run()) == []
    assert check_libraries(run(stage(96, 128), stage(224, 288, rectangular=True)), 10) == []


def test_the_cheap_check_imports_no_library() -> None:
    code = "import sys, fasttrain.model.check; print({'torch', 'timm'} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "set()"


def test_rules_between_keys(tmp_path: Any) -> None:
    weights = tmp_path / "a.ckpt"
    weights.touch()
    assert "no such file" in told(check_first_weights(run(init_from=str(tmp_path / "none.ckpt"))))
    assert check_first_weights(run(init_from=str(weights))) == check_first_weights(run()) == []
    assert "both name the first weights" in told(check(run(init_from=str(weights), pretrained=True)))
    assert "would undo" in told(check(run(pretrained=True, batchnorm=replace(OWN, zero_init_last=True))))
    assert "both set the classifier" in told(check(run(init_from=str(weights), head_init_std=0.01)))
    assert "fix: model.batchnorm.zero_init_last=True" in told(check(run(args={"zero_init_last": True})))
    assert check(run(init_from=str(weights), batchnorm=replace(OWN, zero_init_last=False))) == []


@pytest.mark.parametrize(
    ("batch_sizes", "bound", "devices", "fixes"),
    [
        ([8, 16], 1, 1, ["trainer.device_batch_size=2"]),
        ([9, 8], 1, 1, ["trainer.device_batch_size=3"]),
        ([14, 8], 4, 2, ["trainer.device_batch_size=7 or stages.0.batch_size=12"]),
        ([2, 1], None, 1, ["stages.1.batch_size=2"]),
        ([8, 4], 1, 4, ["stages.1.batch_size=8", "trainer.device_batch_size=2"]),
        ([7, 8], None, 1, []),
        ([8, 8], 2, 1, []),
        ([9], 1, 2, []),
    ],
)
def test_batchnorm_of_one_image(batch_sizes: list[int], bound: int | None, devices: int, fixes: list[str]) -> None:
    config = run(*(replace(stage(96, 128), batch_size=size) for size in batch_sizes))
    config.trainer = SimpleNamespace(device_batch_size=bound, devices=devices, num_nodes=1)
    problems = check_libraries(config, 10)
    assert [problem.fix for problem in problems] == fixes
    assert all("has BatchNorm, which needs at least 2" in problem.what for problem in problems)
    config.model = replace(MODEL, name="test_vit")
    config.stages = [replace(row, px=160, val_px=160) for row in config.stages]
    assert check_libraries(config, 10) == []


def test_unknown_weights_of_a_known_network() -> None:
    (problem,) = check_libraries(run(name="resnet18.nope"), 10)
    assert problem.what.startswith("model.name=resnet18.nope: timm ")
    assert "a1_in1k" in problem.what
    assert problem.fix.startswith("model.name=resnet18 or model.name=resnet18.")


def test_an_unknown_name_and_unknown_arguments() -> None:
    assert "model.name=resnet05" in told(check_libraries(run(name="resnet05"), 10))
    assert "qqqq" in told(check_libraries(run(args={"qqqq": 1}), 10))


def test_options_that_find_nothing_to_act_on_all_at_once() -> None:
    options = replace(OWN, zero_init_last=True, momentum=0.2, eps=1e-3)
    config = run(stage(224, 224), name="vit_tiny_patch16_224", batchnorm=options)
    problems = check_libraries(config, 10)
    assert [problem.fix for problem in problems] == [
        "model.batchnorm.zero_init_last=false",
        "model.batchnorm.momentum=null",
        "model.batchnorm.eps=null",
    ]


def test_pretrained_without_published_weights() -> None:
    assert check_libraries(run(name="resnet50d", pretrained=True), 10) == []
    (problem,) = check_libraries(run(name="resnetblur18", pretrained=True), 10)
    assert problem.what == "model.pretrained=true: timm has no weights of resnetblur18"


def test_px_that_the_network_cannot_take() -> None:
    config = run(stage(96, 128), stage(224, 224), stage(224, 256), name="vit_tiny_patch16_224")
    problems = check_libraries(config, 10)
    assert [problem.what.split(":")[0] for problem in problems] == [
        "stages.0.px=96",
        "stages.0.val_px=128",
        "stages.2.val_px=256",
    ]
    assert "does not take images of 96 x 96 pixels" in problems[0].what
    assert [problem.fix for problem in problems] == [
        "stages.0.px=224, sizes that work: 224",
        "stages.0.val_px=224, sizes that work: 224",
        "stages.2.val_px=224, sizes that work: 224",
    ]


def test_px_too_small_for_the_network_is_answered_with_sizes_that_work() -> None:
    (problem,) = check_libraries(run(stage(8, 96), name="vgg11"), 10)
    assert problem.what.startswith("stages.0.px=8: vgg11 does not take images of 8 x 8 pixels")
    assert problem.fix == "stages.0.px=32, sizes that work: 32, 64, 96, 128"


def test_rectangular_validation() -> None:
    square_only = run(stage(224, 224, rectangular=True), name="vit_tiny_patch16_224")
    (problem,) = check_libraries(square_only, 10)
    assert problem.what.startswith("stages.0.val_px=224 stages.0.rectangular_val=true")
    assert "224 x 320 pixels" in problem.what
    assert problem.fix.startswith("stages.0.rectangular_val=false")


def test_asking_leaves_the_network_as_it_was() -> None:
    model = meta_model(replace(MODEL, name="resnet18d"), 10)
    before = torch.random.get_rng_state()
    assert refusal(model, 64, 96) == ""
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["resnet50", "resnet50d", "resnetblur50", "resnet26d", "efficientnet_b0"])
def test_the_variants_take_every_size_of_the_stage_table(name: str) -> None:
    sizes = [stage(96, 128), stage(128, 160), stage(288, 288, rectangular=True)]
    assert check_libraries(run(*sizes, name=name), 1000) == []
