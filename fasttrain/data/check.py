"""What of the data's settings cannot go together. Imports neither torch nor numpy and looks at no files."""

from __future__ import annotations

from fasttrain.config.schema import DataConfig, RunConfig
from fasttrain.errors import Problem

# Training and validation images and classes of the published sets.
_IMAGENET = (1281167, 50000, 1000)
_CIFAR10 = (50000, 10000, 10)


def check(config: RunConfig) -> list[Problem]:
    """Rules between keys."""
    data = config.data
    problems = _check_source(config)
    if None not in (data.num_classes, config.model.num_classes) and data.num_classes != config.model.num_classes:
        problems.append(
            Problem(
                f"data.num_classes={data.num_classes}, but model.num_classes={config.model.num_classes}",
                f"model.num_classes={data.num_classes}, or null to take the data's",
            )
        )
    if data.hw_decoder_load != "auto" and not _is_share(data.hw_decoder_load):
        what = f"data.hw_decoder_load={data.hw_decoder_load}: expected auto or a share from 0 to 1"
        problems.append(Problem(what, "data.hw_decoder_load=auto"))
    if data.crop == "padded":
        problems += [
            Problem(
                f"data.pad_px={data.pad_px}: the border mirrors the image, so it must be narrower than "
                f"stages.{row}.px={stage.px}",
                f"data.pad_px={stage.px // 8}",
            )
            for row, stage in enumerate(config.stages)
            if data.pad_px >= stage.px
        ]
    return problems


def no_counts(data: DataConfig) -> list[Problem]:
    """The problem of a run without images whose config does not say how many there would be."""
    counts: dict[str, int | None] = {
        "data.num_train": data.num_train,
        "data.num_val": data.num_val if data.holdout_frac == 0 else 0,
        "data.num_classes": data.num_classes,
    }
    missing = [key for key, count in counts.items() if count is None]
    if not missing:
        return []
    why = "data.backend=synthetic" if data.backend == "synthetic" else f"data.root={data.root or 'null'}"
    known = _CIFAR10 if data.kind == "cifar10" else _IMAGENET
    examples = dict(zip(("data.num_train", "data.num_val", "data.num_classes"), known, strict=True))
    return [
        Problem(
            f"{why}: there are no images to count, so {', '.join(missing)} cannot be null",
            " ".join(f"{key}={examples[key]}" for key in missing),
        )
    ]


def no_root(data: DataConfig) -> Problem:
    """The problem of a run that needs images and names no folder of them."""
    if data.kind == "cifar10":
        folder = "/path/to/cifar10"
    else:
        folder = "/path/to/imagenet" if data.num_train == _IMAGENET[0] else "/path/to/images"
    return Problem("data.root=null: expected the folder of the images", f"data.root={folder}")


def _check_source(config: RunConfig) -> list[Problem]:
    """Images must be somewhere, or be counted in the config."""
    data = config.data
    if data.backend != "synthetic" and data.root is not None:
        return []
    if data.backend != "synthetic" and not config.dry_run:
        return [no_root(data)]
    return no_counts(data)


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False
