"""``fasttrain eval``: the accuracy of a checkpoint on its validation set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from fasttrain.config.compose import load_run
from fasttrain.data.path import build_data_path
from fasttrain.data.preprocess import Normalize
from fasttrain.data.scan import scan
from fasttrain.model.build import build_model
from fasttrain.report.files import write_json
from fasttrain.stages import build_plan
from fasttrain.strategy.check import choose_accelerator
from fasttrain.strategy.world import World
from fasttrain.trainer.evaluate import evaluate
from fasttrain.trainer.results import MIN_CLASSES_FOR_TOP5
from fasttrain.trainer.resume import read_checkpoint

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def evaluate_checkpoint(checkpoint: Path, *, root: Path | None, px: int | None, json_file: Path | None) -> str:
    """Validate a checkpoint's network as its run did after the last stage.

    Args:
        checkpoint: A file of a run's ``checkpoints`` folder.
        root: Data set; None for the one it was trained on.
        px: Short side of the validation images; None for the last stage's.
        json_file: Where the figures are written too.

    Returns:
        A line with top-1, top-5 and the number of images.

    Raises:
        ConfigError: The file is no checkpoint of a run.
        DataError: The data set is missing or has other classes.
    """
    content = read_checkpoint(checkpoint)
    config = load_run(content["fasttrain"]["config"]).config
    data = replace(config.data, root=str(root.resolve())) if root else config.data
    config = replace(config, data=data, model=replace(config.model, pretrained=False, init_from=None))
    world = World(rank=0, local_rank=0, size=1, local_size=1, launcher="self")
    images = scan(config)
    plan = build_plan(
        config.stages,
        num_train=images.num_train,
        world_size=1,
        device_batch_size=config.trainer.device_batch_size,
        steps_per_stage=None,
    )
    accelerator = choose_accelerator(config, world)
    device = torch.device("cuda", 0) if accelerator == "gpu" else torch.device("cpu")
    network = build_model(config.model, images.num_classes)
    network.load_state_dict(content["state_dict"])
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    normalize = Normalize(tuple(config.data.mean), tuple(config.data.std)).to(device)
    path = build_data_path(config, images, plan, device=device, rank=0, world_size=1)
    last = config.stages[-1]
    try:
        correct1, correct5, count = evaluate(
            network,
            normalize,
            path,
            px=px or last.val_px,
            rectangular=last.rectangular_val,
            device=device,
            dtype=DTYPES[config.trainer.precision],
        )
    finally:
        path.close()
    top5 = 100 * correct5 / count if images.num_classes >= MIN_CLASSES_FOR_TOP5 else None
    figures = {"checkpoint": str(checkpoint), "weights": "raw", "px": px or last.val_px, "num_val": count}
    figures |= {"top1": 100 * correct1 / count, "top5": top5}
    if json_file:
        write_json(json_file, figures)
    words = f" top5 {top5:.2f}%" if top5 is not None else ""
    return f"{checkpoint}: top1 {100 * correct1 / count:.2f}%{words} at {px or last.val_px} px; N={count}; raw weights"
