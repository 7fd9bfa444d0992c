"""Several networks as one: trained side by side on the same batches, answering together."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasttrain.model.head import heads


class Ensemble(nn.Module):
    """Networks of one kind with first weights of their own.

    In training each answers for itself, so that its weights move as if it were alone. In evaluation the answer is the
    mean of their probabilities: their mistakes differ, and the mean makes fewer than any one of them.

    Args:
        members: At least two, of equal numbers of classes.

    Source: arXiv:1612.01474 (deep ensembles: different first weights alone suffice).
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images_nchw: Tensor) -> Tensor:
        """Images [n, 3, h, w] to logits: [n, C, members] in training, else [n, C], logarithms of mean probabilities."""
        logits = torch.stack(self._answers(images_nchw), dim=2)
        if self.training:
            return logits
        return F.log_softmax(logits.float(), dim=1).logsumexp(dim=2) - math.log(len(self.members))

    def _answers(self, images: Tensor) -> list[Tensor]:
        """Each member's logits; on a GPU at once, since a network on a small batch leaves most of it idle."""
        if not images.is_cuda or torch.compiler.is_compiling():
            return [member(images) for member in self.members]
        current = torch.cuda.current_stream(images.device)
        streams, answers = _streams(images.device, len(self.members)), []
        for member, stream in zip(self.members, streams, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                answer = member(images)
            # Autograd runs a layer's backward pass on the stream of its forward pass and joins them at its end.
            images.record_stream(stream)
            answer.record_stream(current)
            answers.append(answer)
        for stream in streams:
            current.wait_stream(stream)
        return answers

    def get_classifier(self) -> list[nn.Module]:
        """The members' heads, as timm's networks give theirs."""
        return [head for member in self.members for head in heads(member)]

    def no_weight_decay(self) -> set[str]:
        """What the members name so, by the ensemble's names."""
        return set(self._said_by_members("no_weight_decay"))

    def trained_epochs(self) -> dict[str, float]:
        """Parameters that are trained in the first epochs only, by name."""
        return self._said_by_members("trained_epochs")

    def _said_by_members(self, method: str) -> dict[str, Any]:
        """What a method of the members says of their parameters, where they have it, by the ensemble's names."""
        said: dict[str, Any] = {}
        for number, member in enumerate(self.members):
            if (listed := getattr(member, method, None)) is not None:
                names = cast(Callable[[], Any], listed)()
                values = names if isinstance(names, dict) else dict.fromkeys(names)
                said |= {f"members.{number}.{name}": value for name, value in values.items()}
        return said


class EnsembleFromImages(Ensemble):
    """An ensemble whose members set first weights by looking at training images (``trainer/first_images.py``)."""

    @property
    def num_initial_images(self) -> int:
        """As many as a member wants."""
        return max(cast(int, member.num_initial_images) for member in self.members)

    @torch.no_grad()
    def initialize_from_images(self, images_nchw: Tensor) -> None:
        """Let each member look at them: normalised images [n, 3, h, w] on the network's device."""
        for member in self.members:
            cast(Callable[[Tensor], None], member.initialize_from_images)(images_nchw)


@functools.cache
def _streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    """Streams for so many members, the same each time: a capture remembers them."""
    return [torch.cuda.Stream(device) for _ in range(count)]


def ensemble_of(members: Sequence[nn.Module]) -> Ensemble:
    """The ensemble that suits its members."""
    looks = all(hasattr(member, "initialize_from_images") for member in members)
    return EnsembleFromImages(members) if looks else Ensemble(members)
