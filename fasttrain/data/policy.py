"""RandAugment and AugMix of timm on cropped Pillow images, as functions of (seed, epoch, sample).

timm draws from the global generators of ``random`` and numpy, which decoding threads would share: what a sample
got would depend on what the others did in between. A copy of timm's module, kept for this project, draws from
generators of the calling thread instead, seeded anew for each image.
"""

from __future__ import annotations

import functools
import importlib.util
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fasttrain.config.schema import RunConfig
from fasttrain.data.augment import uniforms

# Apart from the streams of crops, flips and shifts.
POLICY_STREAM = 100

# timm, data/transforms_factory.py: the farthest shift as a share of the side, absolute and relative.
RAND_TRANSLATE, AUGMIX_TRANSLATE = 0.45, 0.3

# The image itself and two changed ones: arXiv:1912.02781, section 3.
JSD_VIEWS = 3

Transform = Callable[[Image.Image], Image.Image]


class ThreadGenerators(threading.local):
    """One thread's generators, of the two kinds that timm's policies draw from."""

    def __init__(self) -> None:
        self.python = random.Random()
        # The old kind of generator, whose numbers numpy promises to keep.
        self.numpy = np.random.RandomState()

    def seed(self, seed: int) -> None:
        """Begin both anew; 0 <= seed < 2**32."""
        self.python.seed(seed)
        self.numpy.seed(seed)


GENERATORS = ThreadGenerators()


class PythonRandom:
    """Stands for the module ``random``: its functions, from the calling thread's generator."""

    def __getattr__(self, name: str) -> Any:
        return getattr(GENERATORS.python, name)


class Numpy:
    """Stands for the module ``numpy``: its ``random`` is the calling thread's generator."""

    def __getattr__(self, name: str) -> Any:
        return GENERATORS.numpy if name == "random" else getattr(np, name)


@dataclass(frozen=True, eq=False)
class Policy:
    """What is done to the images of one batch after crop, resize and flip.

    Attributes:
        transform: From ``build_transform``.
        seeds: Of each image and each of its changed views, int64 [n, views], 0 <= seed < 2**32.
        with_plain: Whether the first view is the image as it is.
    """

    transform: Transform
    seeds: NDArray[np.int64]
    with_plain: bool = False

    @property
    def num_views(self) -> int:
        """What becomes of one image."""
        return self.seeds.shape[1] + self.with_plain

    @classmethod
    def draw(
        cls, transform: Transform, seed: int, epoch: int, samples: NDArray[np.int64], *, num_views: int = 1
    ) -> Policy:
        """For a batch of the training split's ``samples``, int64 [n]; of several views the first is the plain one."""
        num_changed = max(1, num_views - 1)
        draws = uniforms(seed, epoch, samples, num_changed, stream=POLICY_STREAM)
        return cls(transform, np.floor(draws * 2**32).astype(np.int64), with_plain=num_views > 1)

    def views(self, image: Image.Image, place: int) -> list[Image.Image]:
        """What becomes of the RGB image at ``place`` in the batch, all of its size."""
        views = [image] if self.with_plain else []
        for seed in self.seeds[place].tolist():
            GENERATORS.seed(seed)
            views.append(self.transform(image))
        return views


def num_views(config: RunConfig) -> int:
    """Images that a training step sees of each sample."""
    return JSD_VIEWS if config.trainer.jsd_alpha > 0 else 1


@functools.cache
def build_transform(text: str, px: int, mean: tuple[float, ...]) -> Transform:
    """The transform of timm for a text such as ``rand-m9-mstd0.5`` or ``augmix-m3-w3``, which ``check`` has passed.

    Args:
        text: ``data.augment``.
        px: Side of the images.
        mean: Of each channel, of pixels in 0..1; what a shift uncovers is filled with it.
    """
    module = _timm_policies()
    settings: dict[str, Any] = {"img_mean": tuple(min(255, round(255 * value)) for value in mean)}
    if text.startswith("augmix"):
        settings["translate_pct"] = AUGMIX_TRANSLATE
        made = module.augment_and_mix_transform(text, settings)
    else:
        settings["translate_const"] = int(px * RAND_TRANSLATE)
        made = module.rand_augment_transform(text, settings)
    transform: Transform = made
    return transform


@functools.cache
def _timm_policies() -> Any:
    """The module of timm, loaded a second time under the same name, with generators of each thread in it."""
    spec = importlib.util.find_spec("timm.data.auto_augment")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update(random=PythonRandom(), np=Numpy())
    return module
