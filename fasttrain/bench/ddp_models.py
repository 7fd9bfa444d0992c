"""The eleven networks of the DDP benchmark, built without downloads, with the article's batch sizes; one for links.

Source: pytorch/benchmark's models as Alibaba's ACSpeed article lists them; inputs and targets are random.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasttrain.errors import MachineError, Problem

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class BenchModel:
    """One network, what goes in, and its loss.

    Attributes:
        batch: The article's batch of one GPU.
        build: Makes the network, on the CPU.
        inputs: Of a batch on a device: what the network takes, then the target.
        loss: Of the network's output and the target.
    """

    batch: int
    build: Callable[[], nn.Module]
    inputs: Callable[[int, torch.device], Inputs]
    loss: Callable[[Any, Tensor], Tensor]


# --- pictures: cross entropy against random soft targets, as pytorch/benchmark does ---

CLASSES = 1000


def picture_inputs(batch: int, device: torch.device) -> Inputs:
    images = torch.randn(batch, 3, 224, 224, device=device)
    return images, torch.rand(batch, CLASSES, device=device).softmax(1)


def from_torchvision(name: str) -> nn.Module:
    import torchvision

    network: nn.Module = torchvision.models.get_model(name, weights=None)
    return network


def from_timm(name: str) -> nn.Module:
    import timm

    return timm.create_model(name, pretrained=False)


class UNet(nn.Module):
    """U-Net with bilinear upsampling and two classes: 17,267,458 parameters in 74 tensors.

    Source: milesial/Pytorch-UNet's widths, arXiv:1505.04597.
    """

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 128, 256, 512, 512)
        self.first = double_convolution(3, 64, 64)
        self.down = nn.ModuleList(double_convolution(a, b, b) for a, b in itertools.pairwise(widths))
        ups = ((1024, 256), (512, 128), (256, 64), (128, 64))
        self.up = nn.ModuleList(double_convolution(a, a // 2, b) for a, b in ups)
        self.last = nn.Conv2d(64, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        levels = [self.first(images)]
        for block in self.down:
            levels.append(block(F.max_pool2d(levels[-1], 2)))
        values = levels.pop()
        for block in self.up:
            skip = levels.pop()
            larger = F.interpolate(values, size=skip.shape[2:], mode="bilinear", align_corners=True)
            values = block(torch.cat([skip, larger], 1))
        logits: Tensor = self.last(values)
        return logits


def double_convolution(channels_in: int, middle: int, channels_out: int) -> nn.Sequential:
    """Two 3 x 3 convolutions, each with BatchNorm and ReLU."""
    layers: list[nn.Module] = []
    for a, b in ((channels_in, middle), (middle, channels_out)):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def unet_inputs(batch: int, device: torch.device) -> Inputs:
    images = torch.randn(batch, 3, 640, 959, device=device)
    return images, torch.randint(0, 2, (batch, 640, 959), device=device)


# --- text: 512 tokens, the library's own loss ---

TOKENS = 512


class WithLoss(nn.Module):
    """A network of transformers whose output is its own loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        loss: Tensor = self.network(input_ids=tokens, labels=tokens).loss
        return loss


def bart() -> nn.Module:
    """bart-base's widths: 139,420,416 parameters."""
    transformers = _transformers("hf_Bart")
    config = transformers.BartConfig(
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
    )
    return WithLoss(transformers.BartForConditionalGeneration(config))


def bert() -> nn.Module:
    """bert-base's widths: 109,514,298 parameters."""
    transformers = _transformers("hf_Bert")
    config = transformers.BertConfig()
    return WithLoss(transformers.BertForMaskedLM(config))


def text_inputs(batch: int, device: torch.device) -> Inputs:
    # 30,000: below the vocabularies of both.
    tokens = torch.randint(0, 30_000, (batch, TOKENS), device=device)
    return tokens, tokens.new_zeros(1)


def _transformers(model: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MachineError(
            Problem(f"--model {model} needs the library transformers", "pip install 'fasttrain[bench]'")
        ) from error
    return transformers


# --- speech ---

FRAMES, WORDS, VOCABULARY = 200, 24, 4233


class SpeechTransformer(nn.Module):
    """Six layers each way at width 512 over stacks of 320 filter values: 46,472,192 parameters.

    Source: kaituoxu/Speech-Transformer's widths, with torch's own blocks; its AISHELL vocabulary; the lengths are
    chosen here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(320, 512)
        self.embedding = nn.Embedding(VOCABULARY, 512)
        self.blocks = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)

    def forward(self, frames: Tensor, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], device=words.device)
        out = self.blocks(self.into(frames), self.embedding(words), tgt_mask=mask, tgt_is_causal=True)
        return F.linear(out, self.embedding.weight)


def speech_inputs(batch: int, device: torch.device) -> Inputs:
    words = torch.randint(0, VOCABULARY, (batch, WORDS + 1), device=device)
    return torch.randn(batch, FRAMES, 320, device=device), words[:, :-1].contiguous(), words[:, 1:].contiguous()


class SpeakerEncoder(nn.Module):
    """Three LSTMs of 768 cells, each with a projection to 256: 9,381,888 parameters in 15 tensors.

    Source: the speaker encoder of Mozilla's TTS, arXiv:1710.10467.
    """

    def __init__(self) -> None:
        super().__init__()
        widths = (40, 256, 256)
        self.cells = nn.ModuleList(nn.LSTM(width, 768, batch_first=True) for width in widths)
        self.projections = nn.ModuleList(nn.Linear(768, 256, bias=False) for _ in widths)

    def forward(self, frames: Tensor) -> Tensor:
        values = frames
        for cell, projection in zip(self.cells, self.projections, strict=True):
            values = projection(cell(values)[0])
        return F.normalize(values[:, -1], dim=1)


def speaker_inputs(batch: int, device: torch.device) -> Inputs:
    # Two utterances of each speaker, one after the other.
    return torch.randn(batch, 50, 40, device=device), torch.arange(batch // 2, device=device)


# --- gradients for a slow network ---


def layers_of_26_mib() -> nn.Module:
    """Thirteen layers of 724 x 724 weights: 26 MiB of gradients, and little to compute."""
    layers: list[nn.Module] = []
    for _ in range(13):
        layers += [nn.Linear(724, 724, bias=False), nn.ReLU()]
    return nn.Sequential(*layers)


def layer_inputs(batch: int, device: torch.device) -> Inputs:
    return torch.randn(batch, 724, device=device), torch.randn(batch, 724, device=device)


# --- losses ---


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


def cross_entropy_of_words(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def own_loss(loss: Tensor, target: Tensor) -> Tensor:
    return loss


def angular_prototype(voices: Tensor, speakers: Tensor) -> Tensor:
    """Each speaker's first utterance must lie nearest to the same speaker's second one (arXiv:2003.11982)."""
    return F.cross_entropy(10.0 * voices[::2] @ voices[1::2].T - 5.0, speakers)


def _picture(batch: int, build: Callable[[], nn.Module]) -> BenchModel:
    return BenchModel(batch, build, picture_inputs, cross_entropy)


MODELS: dict[str, BenchModel] = {
    "alexnet": _picture(128, lambda: from_torchvision("alexnet")),
    "resnet18": _picture(16, lambda: from_torchvision("resnet18")),
    "resnet50": _picture(32, lambda: from_torchvision("resnet50")),
    "vgg16": _picture(64, lambda: from_torchvision("vgg16")),
    "timm_vovnet": _picture(32, lambda: from_timm("vovnet39a")),
    "timm_vision_transformer": _picture(8, lambda: from_timm("vit_small_patch16_224")),
    "pytorch_unet": BenchModel(1, UNet, unet_inputs, cross_entropy),
    "hf_Bart": BenchModel(4, bart, text_inputs, own_loss),
    "hf_Bert": BenchModel(4, bert, text_inputs, own_loss),
    "speech_transformer": BenchModel(32, SpeechTransformer, speech_inputs, cross_entropy_of_words),
    "tts_angular": BenchModel(64, SpeakerEncoder, speaker_inputs, angular_prototype),
    "layers_26mib": BenchModel(8, layers_of_26_mib, layer_inputs, F.mse_loss),
}
