"""RandAugment and AugMix: repeatable in any thread, and words for what timm would not understand."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment

from fasttrain.config.schema import RunConfig
from fasttrain.data.backend_choice import start_backend
from fasttrain.data.check import check
from fasttrain.data.path import build_data_path
from fasttrain.data.policy import Policy, build_transform
from fasttrain.data.scan import scan
from tests.data.samples import make_config, make_folder, make_plan, photo, write_cifar10

CPU = torch.device("cpu")
MEAN = (0.485, 0.456, 0.406)
POLICIES = ["rand-m9-mstd0.5", "rand-m9-n3-inc1-tweights", "augmix-m3-w3", "augmix-m5-w2-d2-b1"]


def policy(text: str, num: int, *, seed: int = 1, epoch: int = 0) -> Policy:
    return Policy.draw(build_transform(text, 32, MEAN), seed, epoch, np.arange(num))


@pytest.mark.parametrize("text", POLICIES)
def test_the_images_are_timms_for_the_same_generators(text: str) -> None:
    hparams: dict[str, Any] = {"img_mean": (124, 116, 104)}
    if text.startswith("rand"):
        theirs = auto_augment.rand_augment_transform(text, hparams | {"translate_const": 14})
    else:
        theirs = auto_augment.augment_and_mix_transform(text, hparams | {"translate_pct": 0.3})
    ours, image = policy(text, 20), photo(32, 32, 3)
    kept = random.getstate(), np.random.get_state()
    changed = 0
    try:
        for place, (seed,) in enumerate(ours.seeds.tolist()):
            random.seed(seed)
            np.random.seed(seed)
            expected = np.asarray(theirs(image))
            assert np.array_equal(np.asarray(ours.views(image, place)[0]), expected)
            changed += not np.array_equal(expected, np.asarray(image))
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
    assert changed > 10


@pytest.mark.parametrize("text", POLICIES)
def test_threads_do_not_change_each_others_images(text: str) -> None:
    ours, images = policy(text, 64), [photo(32, 32, seed) for seed in range(64)]
    alone = [np.asarray(ours.views(image, place)[0]) for place, image in enumerate(images)]
    before = random.getstate(), np.random.get_state()[1].tolist()
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda *args: ours.views(*args)[0], images, range(64)))
    assert all(np.array_equal(one, np.asarray(other)) for one, other in zip(alone, together, strict=True))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_seeds_are_a_function_of_seed_epoch_and_sample() -> None:
    one = policy(POLICIES[0], 10).seeds[:, 0]
    assert one.tolist() == policy(POLICIES[0], 10).seeds[:, 0].tolist()
    assert len(set(one.tolist())) == 10
    for other in (policy(POLICIES[0], 10, seed=2), policy(POLICIES[0], 10, epoch=1)):
        assert not set(one.tolist()) & set(other.seeds[:, 0].tolist())
    moved = Policy.draw(build_transform(POLICIES[0], 32, MEAN), 1, 0, np.array([7, 3]))
    assert moved.seeds[:, 0].tolist() == one[[7, 3]].tolist()
    assert all(0 <= seed < 2**32 for seed in one.tolist())


def batches(config: RunConfig, num_train: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Training images of the first epoch, and validation images."""
    found, plan = scan(config), make_plan(config, num_train)
    data = build_data_path(config, found, plan, device=CPU, rank=0, world_size=1)
    try:
        train = [batch.images_nhwc.clone() for step in data.train_epoch(plan.epochs[0]) for batch in step]
        return train, [batch.images_nhwc.clone() for batch in data.val_batches(32)]
    finally:
        data.close()


def test_training_images_are_changed_and_validation_images_are_not(tmp_path: Path) -> None:
    root = make_folder(tmp_path, {"train": {"ant": 8, "bee": 8}, "val": {"ant": 2, "bee": 2}})
    seen = {}
    for augment, workers in (("none", 2), ("rand-m9-mstd0.5", 2), ("rand-m9-mstd0.5", 0), ("augmix-m3-w3", 4)):
        config = make_config(root=str(root), augment=augment, workers=workers)
        seen[augment, workers] = batches(config, 16)
    plain, rand = seen["none", 2], seen["rand-m9-mstd0.5", 2]
    assert not all(torch.equal(a, b) for a, b in zip(plain[0], rand[0], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(rand[0], seen["rand-m9-mstd0.5", 0][0], strict=True))
    assert not torch.equal(rand[0][0], seen["augmix-m3-w3", 4][0][0])
    assert all(torch.equal(plain[1][0], other[1][0]) for other in seen.values())


@pytest.mark.parametrize("crop", ["random_resized", "padded"])
def test_three_views_are_the_plain_image_and_two_changed_ones(tmp_path: Path, crop: str) -> None:
    root = make_folder(tmp_path, {"train": {"ant": 8, "bee": 8}, "val": {"ant": 2, "bee": 2}})
    settings: dict[str, Any] = {"root": str(root), "crop": crop}
    (plain, _), (views, val) = (
        batches(make_config(**settings, augment=augment, jsd_alpha=alpha), 16)
        for augment, alpha in (("none", 0.0), ("augmix-m3-w3", 12.0))
    )
    assert [len(batch) for batch in views] == [24, 24]
    for one, three in zip(plain, views, strict=True):
        clean, first, second = three.split(8)
        assert torch.equal(clean, one)
        assert not torch.equal(first, one)
        assert not torch.equal(first, second)
    assert {len(batch) for batch in val} == {4}


def test_the_labels_of_views_are_those_of_their_images(tmp_path: Path) -> None:
    root = make_folder(tmp_path, {"train": {"ant": 8, "bee": 8}, "val": {"ant": 2, "bee": 2}})
    config = make_config(root=str(root), augment="augmix-m3-w3", jsd_alpha=12.0)
    plan = make_plan(config, 16)
    data = build_data_path(config, scan(config), plan, device=CPU, rank=0, world_size=1)
    for step in data.train_epoch(plan.epochs[0]):
        for batch in step:
            clean, *others = batch.labels.split(8)
            assert len(others) == 2
            assert all(torch.equal(clean, other) for other in others)
            assert batch.num_valid == 24
    data.close()


def test_images_in_memory_are_changed_too(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    settings: dict[str, Any] = {"kind": "cifar10", "root": str(tmp_path), "crop": "padded", "val_crop_frac": 1.0}
    plain, rand = (batches(make_config(**settings, augment=text), 100)[0] for text in ("none", "rand-m9-mstd0.5"))
    assert len(plain) == len(rand)
    assert not torch.equal(plain[0], rand[0])
    assert rand[0].shape == plain[0].shape


def test_auto_takes_torchvision_and_says_so(tmp_path: Path, said: list[str]) -> None:
    root = make_folder(tmp_path, {"train": {"ant": 8, "bee": 8}, "val": {"ant": 2, "bee": 2}})
    config = make_config(root=str(root), augment="augmix-m3-w3", backend="auto")
    backend = start_backend(config, scan(config), make_plan(config, 16), device=CPU, rank=0)
    backend.close()
    assert backend.name == "torchvision"
    assert said == ["data.backend=auto: torchvision, since data.augment=augmix-m3-w3 works on Pillow's images"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("none", ""),
        ("rand", ""),
        ("rand-m9-n2-mstd0.5-p0.8-mmax15-inc1-t3a", ""),
        ("augmix-m3-w3-d2-b1-a0.5-mstd1", ""),
        ("randaug-m9", "expected none, or a policy that begins with rand or augmix"),
        ("RandAugment", "expected none, or a policy that begins with rand or augmix"),
        ("rand-x9", "rand has no section 'x9'; it has m, mmax, mstd, n, p, inc, tweights, t3a, t3aw"),
        ("rand-m", "rand has no section 'm'"),
        ("rand-", "rand has no section ''"),
        ("rand-t5", "rand has no section 't5'"),
        ("rand-m9.5", "'m9.5': expected a whole number from 0 to 1000 after m"),
        ("rand-p1.5", "'p1.5': expected a number from 0 to 1 after p"),
        ("rand-n0", "'n0': expected a whole number from 1 to 10 after n"),
        ("augmix-n2", "augmix has no section 'n2'; it has m, mstd, w, d, a, b"),
        ("augmix-w0", "'w0': expected a whole number from 1 to 10 after w"),
    ],
)
def test_what_timm_would_not_understand_is_told(text: str, reason: str) -> None:
    problems = check(make_config(root="/images", augment=text))
    assert [problem.what.startswith(f"data.augment={text}: {reason}") for problem in problems] == [True] * bool(reason)
    if not reason and text != "none":
        image = photo(32, 32, 0)
        assert isinstance(build_transform(text, 32, MEAN)(image), Image.Image)


def test_dali_has_no_pillow_images() -> None:
    (problem,) = check(make_config(root="/images", augment="rand-m9", backend="dali"))
    assert problem.what == "data.augment=rand-m9 works on Pillow's images, which data.backend=dali does not have"
    assert problem.fix == "data.backend=torchvision, or data.augment=none"
    both = check(replace(make_config(root="/images", augment="rand-q", backend="dali")))
    assert len(both) == 2
