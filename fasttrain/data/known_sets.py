"""The data sets that ``fasttrain prepare`` knows by name. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from fasttrain.data.imagenet import IMAGENET

SHAPES_ROOT = "data/shapes"  # as in conf/data/shapes.yaml


@dataclass(frozen=True)
class DataSet:
    """A published data set.

    Attributes:
        kind: How it is read: an option of ``data``.
        num_train, num_val, num_classes: What a complete one has.
        recipe: One that trains on it.
        steps: Shell lines that get it and lay it out at ``{root}``; data/README.md explains them.
    """

    kind: str
    num_train: int
    num_val: int
    num_classes: int
    recipe: str
    steps: str


DATA_SETS = {
    "imagenet": DataSet(
        kind="imagefolder",
        num_train=IMAGENET.num_train,
        num_val=IMAGENET.num_val,
        num_classes=IMAGENET.num_classes,
        recipe="resnet50_dawnbench",
        steps="""\
ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz come from
https://image-net.org/download-images after signing in there. Put them into one folder, then:
    fasttrain prepare imagenet --root {root} --archives FOLDER""",
    ),
    "imagenette": DataSet(
        kind="imagefolder",
        num_train=9_469,  # github.com/fastai/imagenette, version 2
        num_val=3_925,
        num_classes=10,
        recipe="imagenette_128_5",
        steps="""\
imagenette2-320.tgz comes from https://github.com/fastai/imagenette ("320 px download"). Then:
    fasttrain prepare imagenette --root {root} --from imagenette2-320.tgz""",
    ),
    "cifar10": DataSet(
        kind="cifar10",
        num_train=50_000,  # www.cs.toronto.edu/~kriz/cifar.html
        num_val=10_000,
        num_classes=10,
        recipe="cifar10_basic",
        steps="""\
cifar-10-binary.tar.gz comes from https://www.cs.toronto.edu/~kriz/cifar.html ("binary version"). Then:
    fasttrain prepare cifar10 --root {root} --from cifar-10-binary.tar.gz""",
    ),
}
NAMES = ("shapes", *DATA_SETS)
