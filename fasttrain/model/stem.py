"""The 7x7 stride-2 convolution that reads images, as a stride-1 convolution on many channels.

Three channels use a twentieth of a matrix unit's width. Folding neighbouring pixels into channels gives the same sums
with full width: output column j reads the 8 columns from 2j - 4 on (the first with weight zero), so each position of
the folded images holds these 8 columns of 2 rows, with 4 channels a pixel (the last zero): 64 channels, over which a
4x1 convolution runs. The parameter stays ``[out, 3, 7, 7]`` under its own name.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KERNEL_PX, STRIDE_PX, PADDING_PX = 7, 2, 3

# Side of the kernel with a zero row and column in front, which makes it a whole number of strides.
EVEN_KERNEL_PX = 8

# Rows and columns of pixels that are folded into channels; either 2 (each pixel once) or 8 (all that an output reads).
FOLD_ROWS, FOLD_COLUMNS = 2, 8


class FoldedStemConv2d(nn.Conv2d):
    """An ``nn.Conv2d`` of a network's stem that folds its input; parameters and their names are the plain layer's.

    Attributes:
        everywhere: Fold on any device and in any mode; otherwise only in compiled training on a GPU in channels_last
            memory, where the folding is fused with the normalisation.
    """

    everywhere: bool

    def forward(self, input: Tensor) -> Tensor:
        """[n, 3, h, w] to [n, out, ceil(h / 2), ceil(w / 2)]; images with an odd side take the plain path."""
        height, width = input.shape[-2:]
        if height % STRIDE_PX or width % STRIDE_PX or not (self.everywhere or self._pays(input)):
            return super().forward(input)
        return folded_conv(input, self.weight, self.bias)

    def _pays(self, images: Tensor) -> bool:
        channels_last = self.weight.is_contiguous(memory_format=torch.channels_last)
        return self.training and images.is_cuda and channels_last and torch.compiler.is_compiling()


def is_stem(module: nn.Module) -> bool:
    """Whether a module is the convolution that ``folded_conv`` computes."""
    return (
        type(module) is nn.Conv2d
        and module.in_channels == 3
        and module.groups == 1
        and module.kernel_size == (KERNEL_PX, KERNEL_PX)
        and module.stride == (STRIDE_PX, STRIDE_PX)
        and module.padding == (PADDING_PX, PADDING_PX)
        and module.dilation == (1, 1)
        and module.padding_mode == "zeros"
    )


def folded_conv(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    fold_rows: int = FOLD_ROWS,
    fold_columns: int = FOLD_COLUMNS,
) -> Tensor:
    """Convolution 7x7, stride 2, padding 3: ``F.conv2d`` but for the order of summation.

    Args:
        images: Floating point [n, 3, h, w], h and w even; channels_last memory saves a copy.
        weight: [out, 3, 7, 7].
        bias: [out].
        fold_rows, fold_columns: 2 or 8. With (2, 2) it is space-to-depth and a 4x4 convolution on 16 channels, with
            (8, 8) the patches of each output and a 1x1 convolution on 256.

    Returns:
        [n, out, h / 2, w / 2].
    """
    # One padding for the border and the fourth channel: all that follows are views and the copy that makes the
    # channels, so that a compiler writes the folded images in one pass from the pixels.
    pixels = F.pad(images.permute(0, 2, 3, 1), (0, 1, 4, 2, 4, 2))
    patches = pixels.unfold(1, fold_rows, STRIDE_PX).unfold(2, fold_columns, STRIDE_PX)
    folded = patches.permute(0, 1, 2, 4, 5, 3).flatten(3).permute(0, 3, 1, 2)
    return F.conv2d(folded, folded_weight(weight, fold_rows, fold_columns), bias)


def folded_weight(weight: Tensor, fold_rows: int, fold_columns: int) -> Tensor:
    """[out, 3, 7, 7] to [out, rows * columns * 4, 8 / rows, 8 / columns]."""
    # From contiguous memory the flattening copies; a view of channels_last memory would keep strides, of sides of one,
    # that convolutions take for another layout.
    even = F.pad(weight.contiguous(), (1, 0, 1, 0, 0, 1))
    split = even.unflatten(3, (-1, fold_columns)).unflatten(2, (-1, fold_rows))
    return split.permute(0, 3, 5, 1, 2, 4).flatten(1, 3)
