"""What of the data's settings cannot go together. Imports neither torch nor numpy and looks at no files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fasttrain.config.describe import COMMAND_LINE
from fasttrain.config.schema import DataConfig, RunConfig
from fasttrain.data.cache_plan import USUAL_SHARDS, cache_px, num_shards, serves
from fasttrain.errors import Problem

# Training and validation images and classes of the published sets.
_IMAGENET = (1281167, 50000, 1000)
_CIFAR10 = (50000, 10000, 10)

# The sections of timm's policies, which are parted by dashes: a name and a number each, with its bounds.
_WHOLE, _ANY = r"\d+", r"\d+(?:\.\d+)?"
_POLICIES: dict[str, dict[str, tuple[str, float, float]]] = {
    "rand": {
        "m": (_WHOLE, 0, 1000),
        "mmax": (_WHOLE, 1, 1000),
        "mstd": (_ANY, 0, 1000),
        "n": (_WHOLE, 1, 10),
        "p": (_ANY, 0, 1),
        "inc": (_WHOLE, 0, 1),
    },
    "augmix": {
        "m": (_WHOLE, 0, 1000),
        "mstd": (_ANY, 0, 1000),
        "w": (_WHOLE, 1, 10),
        "d": (_WHOLE, 1, 10),
        "a": (_ANY, 0.01, 100),
        "b": (_WHOLE, 0, 1),
    },
}
# Sets of operations that RandAugment draws from.
_RAND_SETS = ("tweights", "t3a", "t3aw")


def check(config: RunConfig) -> list[Problem]:
    """Rules between keys."""
    data = config.data
    problems = [*_check_source(config), *_check_cache(config), *_check_augment(data)]
    problems += check_shards(config, config.trainer.devices * config.trainer.num_nodes)
    if None not in (data.num_classes, config.model.num_classes) and data.num_classes != config.model.num_classes:
        problems.append(
            Problem(
                f"data.num_classes={data.num_classes}, but model.num_classes={config.model.num_classes}",
                f"model.num_classes={data.num_classes}, or null to take the data's",
            )
        )
    problems += _unread_settings(data)
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


def check_shards(config: RunConfig, world_size: int) -> list[Problem]:
    """What is wrong with the shards of the samples on so many ranks."""
    shards = num_shards(config)
    given = f"data.num_shards={config.data.num_shards}" if config.data.num_shards else "data.num_shards=null"
    batches = [stage.batch_size for stage in config.stages]
    problems = []
    for row, batch in enumerate(batches):
        if batch % shards:
            fitting = max(count for count in range(1, shards + 1) if all(size % count == 0 for size in batches))
            problems.append(
                Problem(
                    f"{given}: stages.{row}.batch_size={batch} does not divide over {shards} shards",
                    f"data.num_shards={fitting}, or null for the most of {USUAL_SHARDS} that divide all batches",
                )
            )
    if config.data.cache != "off" and shards % world_size:
        problems.append(
            Problem(
                f"{given} gives {shards} shards, but with data.cache={config.data.cache} each of {world_size} ranks "
                "keeps the images of its own: expected a multiple of the ranks",
                f"data.num_shards={world_size} (every batch must divide by it), or data.cache=off",
            )
        )
    return problems


def check_given(config: RunConfig, provenance: Mapping[str, str]) -> list[Problem]:
    """What is on the command line and would be read by nothing; from a recipe, it is a default.

    Args:
        config: The run.
        provenance: Where each value came from, by dotted key; see ``ComposedRun``.
    """
    data = config.data
    if data.cache_px is None or provenance.get("data.cache_px") != COMMAND_LINE:
        return []
    unread = _unread_cache(data)
    if unread is None:
        return []
    fix = unread[1].replace("data.cache_dir=null", "data.cache_px=null")
    return [Problem(f"data.cache_px={data.cache_px}, but {unread[0]}", fix, COMMAND_LINE)]


def _check_cache(config: RunConfig) -> list[Problem]:
    """A cache that is asked for must be able to serve something."""
    data = config.data
    if unread := _unread_cache(data):
        problems = []
        if data.backend == "synthetic" and data.cache in ("gpu", "host"):
            problems.append(Problem(f"data.cache={data.cache}: {unread[0]}", "data.cache=off"))
        if data.cache_dir is not None:
            problems.append(Problem(f"data.cache_dir={data.cache_dir}, but {unread[0]}", unread[1]))
        return problems
    if data.kind == "cifar10":
        return [
            Problem(f"{key}={value}: CIFAR-10's records lie in memory and are cached as they are", f"{key}=null")
            for key, value in (("data.cache_px", data.cache_px), ("data.cache_dir", data.cache_dir))
            if value is not None
        ]
    lowest = min((stage.px for stage in config.stages), default=None)
    if lowest is not None and not serves(cache_px(config), lowest):
        return [
            Problem(
                f"data.cache_px={data.cache_px}: every stage has a higher px, and would be decoded from the files",
                f"data.cache_px={lowest}",
            )
        ]
    return []


def _unread_cache(data: DataConfig) -> tuple[str, str] | None:
    """Why no image is kept, so that nothing reads the cache's settings, and what to do about ``data.cache_dir``."""
    if data.cache == "off":
        return "data.cache=off keeps no images", "data.cache=auto, or data.cache_dir=null"
    if data.backend == "synthetic":
        return "data.backend=synthetic has no images to keep", "data.cache_dir=null"
    if data.augment != "none" and data.cache == "auto":
        reason = f"data.cache=auto keeps nothing with data.augment={data.augment}, which works on Pillow's images"
        return reason, "data.augment=none, or data.cache_dir=null"
    return None


def _unread_settings(data: DataConfig) -> list[Problem]:
    """Settings about files that this kind of data does not read."""
    problems = []
    no_files = "data.backend=synthetic" if data.backend == "synthetic" else "data=cifar10"
    without_files = data.backend == "synthetic" or data.kind == "cifar10"
    if data.on_bad_file == "skip" and without_files:
        problems.append(
            Problem(f"data.on_bad_file=skip, but {no_files} decodes no image files", "data.on_bad_file=fail")
        )
    if data.val_labels is None:
        return problems
    if without_files or data.kind != "imagefolder":
        reason = f"{no_files if without_files else f'data={data.kind}'} has the classes in it"
    elif data.holdout_frac:
        reason = f"data.holdout_frac={data.holdout_frac:g} validates on a part of train/ and reads no val/"
    else:
        return problems
    return [*problems, Problem(f"data.val_labels={data.val_labels}, but {reason}", "data.val_labels=null")]


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


def _check_augment(data: DataConfig) -> list[Problem]:
    """A policy that timm has, on a back end that has Pillow images."""
    if data.augment == "none":
        return []
    problems = []
    if wrong := _wrong_section(data.augment):
        what = f"data.augment={data.augment}: {wrong}"
        problems.append(Problem(what, "data.augment=rand-m9-mstd0.5, data.augment=augmix-m3-w3, or data.augment=none"))
    if data.backend == "dali":
        what = f"data.augment={data.augment} works on Pillow's images, which data.backend=dali does not have"
        problems.append(Problem(what, "data.backend=torchvision, or data.augment=none"))
    if data.cache in ("gpu", "host"):
        what = f"data.augment={data.augment} works on Pillow's images, which data.cache={data.cache} does not give"
        problems.append(Problem(what, "data.cache=off, or data.augment=none"))
    return problems


def _wrong_section(policy: str) -> str:
    """What of a policy's text timm would not understand, or read otherwise than it is meant; empty where nothing."""
    name, *sections = policy.split("-")
    if name not in _POLICIES:
        return f"expected none, or a policy that begins with {' or '.join(_POLICIES)}"
    known = _POLICIES[name]
    for section in sections:
        if name == "rand" and section in _RAND_SETS:
            continue
        found = re.fullmatch(r"([a-z]+)(\d.*)", section)
        if found is None or found[1] not in known:
            names = [*known, *(_RAND_SETS if name == "rand" else ())]
            return f"{name} has no section {section!r}; it has {', '.join(names)}, each name with a number"
        number, low, high = known[found[1]]
        if not re.fullmatch(number, found[2]) or not low <= float(found[2]) <= high:
            kind = "whole number" if number == _WHOLE else "number"
            return f"{section!r}: expected a {kind} from {low:g} to {high:g} after {found[1]}"
    return ""
