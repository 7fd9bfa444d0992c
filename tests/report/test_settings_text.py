"""What the plan says of a run's network, optimizer, training, images and target."""

from __future__ import annotations

from fasttrain.config.compose import compose_run
from fasttrain.report.settings_text import plan_settings


def said(*words: str) -> dict[str, str]:
    return plan_settings(compose_run(list(words)).config)


def test_what_a_recipe_trains() -> None:
    assert said("recipe=imagenette_128_20", "trainer.averaging.kind=ema", "trainer.averaging.half_life_images=500") == {
        "network": "whitened_convnet_photo, 3 of them side by side, random weights, first layer from training images",
        "optimizer": "muon_sgd: nesterov, linear_weights, newton_schulz_steps 3, newton_schulz_dtype auto, "
        "sgd_lr_scale 10.0, sgd_weight_decay 5e-05, no normalize_weights; weight decay 0.02, "
        "none on norm layers and biases",
        "training": "bf16; not compiled, trainer.capture=auto; label smoothing 0.1; "
        "mixup (alpha 0.2, cutmix_alpha 1.0); "
        "weight averaging (kind ema, half_life_images 500, every_steps 1, from_epoch 0.0)",
        "images": "random resized crops, flip alternating; data.cache=auto; validated at a centre crop of 0.875",
        "target": "91.57 % top1",
    }


def test_what_was_given_on_the_command_line() -> None:
    words = ["model.name=resnet26d", "model.args={drop_rate: 0.1}", "model.init_from=/weights.pth", "target.stop=true"]
    found = said("recipe=quickstart", *words, "trainer.test_time_augmentation=flip", "data.cache=off")
    assert found["network"] == "resnet26d, drop_rate 0.1, weights of /weights.pth"
    assert found["training"].endswith("; test-time augmentation: flip")
    assert "; decoded in each epoch; " in found["images"]
    assert found["target"] == "90 % top1, then stop"
    cifar10 = said("recipe=cifar10_basic", "data.cache=off")["images"]
    assert cifar10.startswith("crops padded by ")
    assert "; arrays in memory; " in cifar10
    assert said("recipe=resnet50_dawnbench")["images"].endswith("a centre crop of 0.875 (rectangular in some stages)")
    assert said("recipe=resnet50_dawnbench", "data.backend=synthetic")["images"] == "random pixels on the device"
    assert said("recipe=quickstart", "optimizer=torch")["optimizer"].startswith("torch: name ")
    assert "{}" not in said("recipe=quickstart", "optimizer=torch")["optimizer"]
    assert said("recipe=quickstart", "model.pretrained=true")["network"].endswith(", timm's pretrained weights")
