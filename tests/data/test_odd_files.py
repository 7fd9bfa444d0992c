"""Formats and sides of real data sets: three channels of the right colour, the same from DALI and from the fallback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fasttrain.data.decode import image_sizes
from fasttrain.data.path import build_data_path
from fasttrain.data.preprocess import preprocessing_description
from fasttrain.data.scan import scan
from tests.data.odd_files import LIGHT, extreme_sides, photographs
from tests.data.samples import make_config, make_folder, make_plan, photo
from tests.data.test_backends import BACKENDS, MAX_BOUND, MEAN_BOUND, needs_dali

CPU = torch.device("cpu")
# Of 255 levels. At the border of an image DALI's filter repeats the outermost pixel and Pillow's ends there: an eighth
# of the filter's weight, the more visible the more the image is shrunk.
BORDER_BOUND = 16
# Reduced to 200 or fewer colours.
PALETTES = ("palette.JPEG", "palette_clear.png", "gif.JPEG", "moving.gif")


def decoded(root: Path, backend: str, px: int, *, crop_frac: float = 1.0) -> dict[str, NDArray[np.int64]]:
    """Validation images by file name, [px, px, 3]."""
    config = make_config([{"batch_size": 1, "val_px": px}], root=str(root), backend=backend, val_crop_frac=crop_frac)
    found = scan(config)
    path = build_data_path(config, found, make_plan(config, found.num_train), device=CPU, rank=0, world_size=1)
    try:
        images = [image for batch in path.val_batches(px) for image in batch.images_nhwc[: batch.num_valid].numpy()]
    finally:
        path.close()
    return {Path(name).name: image.astype(np.int64) for name, image in zip(found.val.paths, images, strict=True)}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    root = tmp_path_factory.mktemp("photos")
    shown = photographs(root / "val" / "a")
    make_folder(root, {"train": {"a": 1, "b": 1}, "val": {"b": 1}})
    return root, shown


@pytest.fixture(scope="module")
def extremes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("extremes")
    extreme_sides(root / "val" / "a")
    make_folder(root, {"train": {"a": 1, "b": 1}, "val": {"b": 1}})
    return root


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_format_shows_its_photo(photos: tuple[Path, dict[str, str]], backend: str) -> None:
    root, shown = photos
    images = decoded(root, backend, 60)
    colour = np.asarray(photo(60, 80, seed=5))[:, 10:70].astype(np.int64)
    gray = np.asarray(photo(60, 80, seed=5).convert("L").convert("RGB"))[:, 10:70].astype(np.int64)
    assert len(shown) == 31
    for name, kind in shown.items():
        expected = gray if kind == "gray" else colour
        if name == "ycck.JPEG":
            expected = expected * LIGHT // 255
        limit = 6 if name in PALETTES else 4  # of JPEG's quality
        assert np.abs(images[name] - expected).mean() < limit, name


@needs_dali
def test_every_format_is_the_same_from_both_back_ends(photos: tuple[Path, dict[str, str]]) -> None:
    ours, reference = (decoded(photos[0], backend, 60, crop_frac=0.875) for backend in ("dali", "torchvision"))
    for name, image in reference.items():
        difference = np.abs(ours[name] - image)
        assert difference.max() <= MAX_BOUND, name
        assert difference.mean() < (0.6 if name == "ycck.JPEG" else MEAN_BOUND), name  # colours rounded twice


@pytest.mark.parametrize("backend", BACKENDS)
def test_orientation_changes_neither_pixels_nor_sides(photos: tuple[Path, dict[str, str]], backend: str) -> None:
    root, _ = photos
    images = decoded(root, backend, 60)
    assert all((images[f"turned_{number}.jpg"] == images["turned_1.jpg"]).all() for number in range(2, 9))
    split = scan(make_config(root=str(root))).val
    sizes = dict(zip((Path(path).name for path in split.paths), image_sizes(split).tolist(), strict=True))
    assert sizes["turned_6.jpg"] == sizes["turned_1.jpg"] == [60, 80]
    assert preprocessing_description(make_config())["exif_orientation"] == "ignored"


@needs_dali
def test_extreme_sides_are_the_same_from_both_back_ends(extremes: Path) -> None:
    ours, reference = (decoded(extremes, backend, 24) for backend in ("dali", "torchvision"))
    assert len(reference) == 17
    for name, image in reference.items():
        difference = np.abs(ours[name] - image)
        assert difference[1:-1, 1:-1].max() <= MAX_BOUND, name
        assert difference.max() <= BORDER_BOUND, name


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_sides_train_and_are_counted_in_rectangles(extremes: Path, tmp_path: Path, backend: str) -> None:
    (tmp_path / "val").symlink_to(extremes / "val")
    (tmp_path / "train").symlink_to(extremes / "val")
    config = make_config([{"batch_size": 17, "px": 24, "val_px": 24}], root=str(tmp_path), backend=backend)
    found = scan(config)
    plan = make_plan(config, found.num_train)
    path = build_data_path(config, found, plan, device=CPU, rank=0, world_size=1)
    try:
        ((batch,),) = path.train_epoch(plan.epochs[0])
        assert batch.images_nhwc.shape == (17, 24, 24, 3)
        counted = list(path.val_batches(24, rectangular=True))
        assert sum(batch.num_valid for batch in counted) == 17
        assert all(max(b.images_nhwc.shape[1:3]) <= 48 for b in counted)
    finally:
        path.close()


def test_an_image_larger_than_pillow_takes_by_itself(tmp_path: Path) -> None:
    """Pillow alone refuses more than 179 million pixels as an attack."""
    from PIL import Image

    from fasttrain.data.image_file import image_size, why_bad

    path = tmp_path / "huge.png"
    Image.new("1", (20_000, 10_000)).save(path)
    assert image_size(str(path)) == (10_000, 20_000)
    assert why_bad(str(path)) is None
