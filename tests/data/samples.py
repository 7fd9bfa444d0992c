"""Small folders of images, configs and plans for the tests of the data path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fasttrain.config.schema import DataConfig, RunConfig, StageConfig
from fasttrain.stages import Plan, build_plan

CLASSES = ("ant", "bee", "cat")
DATA = {
    "kind": "imagefolder",
    "root": None,
    "backend": "torchvision",
    "workers": 2,
    "on_bad_file": "fail",
    "val_labels": None,
    "hw_decoder_load": "auto",
    "holdout_frac": 0.0,
    "num_train": None,
    "num_val": None,
    "num_classes": None,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "crop": "random_resized",
    "pad_px": 4,
    "flip": "random",
    "augment": "none",
    "val_crop_frac": 0.875,
    "num_shards": None,
    "cache": "off",
    "cache_px": None,
    "cache_dir": None,
}


def photo(height: int, width: int, seed: int) -> Image.Image:
    """Smooth coloured blobs with a little noise: compresses and resizes like a photograph."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (max(2, height // 24), max(2, width // 24), 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noisy = np.asarray(smooth) + rng.normal(0, 3, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def make_folder(root: Path, splits: Mapping[str, Mapping[str, int]]) -> Path:
    """Write ``{split: {class: images}}`` as JPEGs of many sizes and aspect ratios."""
    seed = 0
    for split, classes in splits.items():
        for name, count in classes.items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                height, width = 40 + seed * 7 % 60, 40 + seed * 13 % 90
                photo(height, width, seed).save(folder / f"{number:03}.JPEG", quality=92)
                seed += 1
    return root


def make_config(stages: list[dict[str, Any]] | None = None, **settings: Any) -> RunConfig:
    """A run of one stage unless told otherwise; settings of ``data`` by name, of the run with ``run_`` before.

    The rooms that the data path does not read are None; of the trainer's it reads ``jsd_alpha``.
    """
    run: dict[str, Any] = dict.fromkeys(("target", "optimizer", "schedule", "strategy", "report", "run_dir", "resume"))
    trainer = {"precision": "fp32", "devices": 1, "num_nodes": 1, "jsd_alpha": settings.pop("jsd_alpha", 0.0)}
    run |= {"trainer": type("Trainer", (), trainer)}
    run |= {"recipe": "x", "seed": 1, "dry_run": False, "deterministic": False, "debug": False}
    run |= {"resume_force": False, "model": type("Model", (), {"num_classes": settings.pop("model_classes", None)})}
    run |= {key[4:]: settings.pop(key) for key in list(settings) if key.startswith("run_")}
    row = {"epochs": 2, "px": 32, "min_area": 0.3, "batch_size": 8, "val_px": 32, "rectangular_val": False}
    rows = [StageConfig(**(row | stage)) for stage in (stages or [{}])]
    return RunConfig(stages=rows, data=DataConfig(**(DATA | settings)), **run)


def make_plan(config: RunConfig, num_train: int, *, world_size: int = 1, device_batch_size: int | None = None) -> Plan:
    """The plan of a config's stages."""
    return build_plan(
        config.stages,
        num_train=num_train,
        world_size=world_size,
        device_batch_size=device_batch_size,
        steps_per_stage=None,
    )


def write_cifar10(root: Path, num_per_file: int = 20, seed: int = 0) -> Path:
    """CIFAR-10's files with small photos."""
    root.mkdir(parents=True, exist_ok=True)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        records = np.empty((num_per_file, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(num_per_file) % 10
        for record in records:
            record[1:] = np.asarray(photo(32, 32, seed)).transpose(2, 0, 1).reshape(-1)
            seed += 1
        (root / name).write_bytes(records.tobytes())
    return root
