"""Convolutional networks whose first layer whitens patches of the training images, for 32 px and for photos.

Source of those for 32 px: airbench94_muon.py and airbench96_faster.py (github.com/KellerJordan/cifar10-airbench,
arXiv:2404.00498): sizes, first weights, BatchNorm settings and the scale of the logits. The one for photos has their
parts; its sizes are the project's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import BlurPool2d
from timm.models import register_model
from torch import Tensor, nn

CHANNELS = 3
# Values of training images that are looked at (5,000 of 32 px), and what is added to the variances of their patches.
INITIAL_IMAGES, INITIAL_PX = 5000, 32
WHITENING_EPS = 5e-4
# Weight of the newest batch in the running statistics (1 - 0.6) and what is added to the variance.
BATCHNORM_MOMENTUM, BATCHNORM_EPS = 0.4, 1e-12

# The moments of patches of so many px a side are matrices of 768 by 768; the images looked at are as many as pixels are
# left of them.
MAX_PATCH_PX = 16

ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "silu": nn.SiLU}
POOLINGS = ("max", "mean")

# Channels that the first layer's outputs are filled up to a multiple of: tensor cores read eight 16-bit numbers at
# once. On one H200 the convolution behind it, forward and backward, 64 images of 128 px, took 281 us with 54 channels
# and 180 with 56 (bf16, medians of 5).
ALIGNED_CHANNELS = 8

# The network for photos: four groups behind a first layer that halves the image.
PHOTO: dict[str, Any] = {
    "widths": (128, 256, 512, 512),
    "depth": 3,
    "activation": "silu",
    "patch_px": 3,
    "stride": 2,
    "pooling": "mean",
    "whitening_bias_epochs": 0.0,
    "batchnorm_momentum": 0.1,
    "batchnorm_eps": 1e-5,
}


class WhitenedConvNet(nn.Module):
    """Whitening convolution, groups of convolutions that each halve the image, global pooling, a linear head.

    Owns the rule by which its first layer is set: ``initialize_from_images``, called once before training. Until then
    that layer has random weights. It is never trained; its bias is, in the first ``whitening_bias_epochs``. Its outputs
    are filled up to a multiple of ``ALIGNED_CHANNELS`` with zeros.

    Args:
        num_classes: Outputs.
        widths: Channels of each group.
        depth: Convolutions of a group, 2 or 3; the third has a skip connection around it and the second.
        activation: ``gelu`` or ``silu``.
        patch_px: Side of the patches that are whitened, pixels.
        stride: Pixels from one patch to the next.
        pooling: Over what is left of the image: ``max``, with a head of the small networks' first weights and scale,
            or ``mean``, with a usual head.
        antialias: Take the maximum at every pixel and blur before every second one is left out (arXiv:1904.11486).
        whitening_bias_epochs: Epochs in which the first layer's bias is trained; 0: it stays zero.
        batchnorm_momentum, batchnorm_eps: Weight of the newest batch in the running statistics, and what is added to
            the variance.

    Raises:
        ValueError: Sizes that make no network.
    """

    default_cfg: dict[str, Any]

    def __init__(
        self,
        *,
        num_classes: int = 10,
        widths: Sequence[int] = (64, 256, 256),
        depth: int = 2,
        activation: str = "gelu",
        patch_px: int = 2,
        stride: int = 1,
        pooling: str = "max",
        antialias: bool = False,
        whitening_bias_epochs: float = 3.0,
        batchnorm_momentum: float = BATCHNORM_MOMENTUM,
        batchnorm_eps: float = BATCHNORM_EPS,
    ) -> None:
        super().__init__()
        if not widths or depth not in (2, 3) or activation not in ACTIVATIONS or pooling not in POOLINGS:
            raise ValueError("expected widths, depth 2 or 3, activation gelu or silu, pooling max or mean")
        if min(widths) < 1 or whitening_bias_epochs < 0:
            raise ValueError("expected widths >= 1, whitening_bias_epochs >= 0")
        if not 1 <= patch_px <= MAX_PATCH_PX or not 1 <= stride <= MAX_PATCH_PX:
            raise ValueError(f"expected patch_px and stride between 1 and {MAX_PATCH_PX}")
        # So large that something is left of it behind the last group.
        px = max(INITIAL_PX * stride**2, 2 * stride * 2 ** len(widths))
        self.default_cfg = {"input_size": (CHANNELS, px, px), "num_classes": num_classes}
        self.num_classes = num_classes
        self.num_initial_images = INITIAL_IMAGES // stride**2
        self.whitening_bias_epochs = whitening_bias_epochs
        # Each direction once with either sign: the activation after it would lose half of what they say.
        num_filters = 2 * CHANNELS * patch_px**2
        num_channels = -(-num_filters // ALIGNED_CHANNELS) * ALIGNED_CHANNELS
        self.whitening = nn.Conv2d(CHANNELS, num_channels, patch_px, stride=stride, padding=(patch_px - 1) // 2)
        self.whitening.weight.requires_grad_(False)
        assert self.whitening.bias is not None
        if whitening_bias_epochs == 0:
            nn.init.zeros_(self.whitening.bias)
            self.whitening.bias.requires_grad_(False)
        self.activation = ACTIVATIONS[activation]()
        inputs = (num_channels, *widths[:-1])
        # What fills up is not handed on: constant channels would be scaled up by each BatchNorm's 1 / sqrt(eps) on the
        # way back, layer by layer, beyond all numbers.
        copied = (num_filters, *widths[:-1])
        group = functools.partial(
            ConvGroup,
            norm=functools.partial(frozen_scale_norm, momentum=batchnorm_momentum, eps=batchnorm_eps),
            depth=depth,
            activation=activation,
            antialias=antialias,
        )
        self.groups = nn.Sequential(*map(group, inputs, widths, copied))
        self.takes_max = pooling == "max"
        self.head = nn.Linear(widths[-1], num_classes, bias=not self.takes_max)
        if self.takes_max:
            init_unit_std(self.head)

    def forward(self, images_nchw: Tensor) -> Tensor:
        """Normalised images [n, 3, h, w] to logits [n, num_classes]."""
        x = self.groups(self.activation(self.whitening(images_nchw)))
        if not self.takes_max:
            return self.head(x.mean(dim=(2, 3)))
        x = F.max_pool2d(x, x.shape[-2:]).flatten(1)
        # The head's weights have a standard deviation of one: with their sum over the channels, divided by the
        # number of channels, the first logits are near zero whatever the width.
        return self.head(x) / x.shape[1]

    @torch.no_grad()
    def initialize_from_images(self, images_nchw: Tensor) -> None:
        """Set the first layer to whiten patches of these images, in place.

        Args:
            images_nchw: Normalised training images [n, 3, h, w], on the network's device.
        """
        filters = whitening_filters(images_nchw, patch_px=self.whitening.kernel_size[0], eps=WHITENING_EPS)
        self.whitening.weight.zero_()
        self.whitening.weight[: 2 * len(filters)] = torch.cat([filters, -filters])

    def get_classifier(self) -> nn.Module:
        """The head, as timm's networks give theirs."""
        return self.head

    def trained_epochs(self) -> dict[str, float]:
        """Parameters that are trained in the first epochs only, by name."""
        return {"whitening.bias": self.whitening_bias_epochs} if self.whitening_bias_epochs > 0 else {}


class ConvGroup(nn.Module):
    """Two or three 3x3 convolutions with BatchNorm and activation; the image is halved after the first one.

    Args:
        in_channels, out_channels: Of the group.
        copied_channels: So many inputs the first convolution hands on at first.
        norm: Makes a BatchNorm for so many channels.
        depth: 2 or 3 convolutions.
        activation: ``gelu`` or ``silu``.
        antialias: Blur where the image is halved.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        copied_channels: int,
        *,
        norm: Callable[[int], nn.BatchNorm2d],
        depth: int,
        activation: str,
        antialias: bool,
    ) -> None:
        super().__init__()
        self.conv1, self.norm1 = convolution(in_channels, out_channels, copied_channels), norm(out_channels)
        self.conv2, self.norm2 = convolution(out_channels, out_channels, out_channels), norm(out_channels)
        self.skips = depth == 3
        if self.skips:
            self.conv3, self.norm3 = convolution(out_channels, out_channels, out_channels), norm(out_channels)
        self.pool: nn.Module = nn.MaxPool2d(2)
        if antialias:
            self.pool = nn.Sequential(nn.MaxPool2d(2, stride=1), BlurPool2d(out_channels, stride=2))
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        """[n, in_channels, h, w] to [n, out_channels, h // 2, w // 2]."""
        first = self.activation(self.norm1(self.pool(self.conv1(x))))
        x = self.activation(self.norm2(self.conv2(first)))
        return self.activation(first + self.norm3(self.conv3(x))) if self.skips else x


def convolution(in_channels: int, out_channels: int, copied_channels: int) -> nn.Conv2d:
    """A 3x3 convolution that keeps the image's size; its leading outputs start as copies of so many inputs."""
    layer = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    with torch.no_grad():
        nn.init.dirac_(layer.weight[:copied_channels])
    return layer


def frozen_scale_norm(channels: int, *, momentum: float, eps: float) -> nn.BatchNorm2d:
    """A BatchNorm whose scale stays one; its bias is trained."""
    norm = nn.BatchNorm2d(channels, eps=eps, momentum=momentum)
    norm.weight.requires_grad_(False)
    return norm


@torch.no_grad()
def init_unit_std(layer: nn.Linear) -> None:
    """Scale a linear layer's first weights to a standard deviation of one."""
    layer.weight /= layer.weight.std()


def whitening_filters(images_nchw: Tensor, *, patch_px: int, eps: float) -> Tensor:
    """Filters whose answers on the images' patches are uncorrelated and of unit mean square.

    They are the eigenvectors of the patches' second moments, each over the root of its eigenvalue plus ``eps``. The
    mean is not taken off: normalised images have next to none.

    Args:
        images_nchw: [n, c, h, w], floating point.
        patch_px: Side of the patches, pixels; all that overlap count.
        eps: Keeps directions without variance small.

    Returns:
        float32 [c * patch_px**2, c, patch_px, patch_px], on the images' device, smallest eigenvalue first.
    """
    channels = images_nchw.shape[1]
    patches = F.unfold(images_nchw.float(), patch_px)
    # Image by image: one product over all patches would be a single long sum, which a GPU does slowly.
    moments = (patches @ patches.mT).double().mean(dim=0) / patches.shape[2]
    # A dozen by a dozen numbers: on the host that needs no start of a device library.
    eigenvalues, eigenvectors = torch.linalg.eigh(moments.cpu())
    filters = eigenvectors.mT / (eigenvalues[:, None] + eps).sqrt()
    return filters.reshape(-1, channels, patch_px, patch_px).to(images_nchw.device, torch.float32)


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    """What of ``timm.create_model``'s arguments is the network's own: there are no published weights."""
    not_used = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
    return {key: value for key, value in given.items() if key not in not_used}


@register_model
def whitened_convnet(pretrained: bool = False, **arguments: Any) -> WhitenedConvNet:
    """The network of 2 M weights that reaches 94 % on CIFAR-10 in 8 epochs."""
    return WhitenedConvNet(**_arguments(arguments))


@register_model
def whitened_convnet_large(pretrained: bool = False, **arguments: Any) -> WhitenedConvNet:
    """The wider and deeper one of 10 M weights that its source trains to 96 % on CIFAR-10."""
    return WhitenedConvNet(**{"widths": (128, 384, 512), "depth": 3, **_arguments(arguments)})


@register_model
def whitened_convnet_photo(pretrained: bool = False, **arguments: Any) -> WhitenedConvNet:
    """One of 15 M weights for photos of 96 px and more, of the small ones' parts."""
    return WhitenedConvNet(**{**PHOTO, **_arguments(arguments)})
