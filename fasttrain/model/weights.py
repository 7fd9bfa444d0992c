"""The first weights of a network, from a checkpoint of this project, of timm or of a wrapped network."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fasttrain.errors import ConfigError, Problem
from fasttrain.model.head import head_parameter_names
from fasttrain.regular_file import require_regular_file

# What DDP, torch.compile and Lightning modules put before a network's own names.
PREFIXES = ("module.", "_orig_mod.", "model.")

# What an ensemble puts before the names of each of its networks.
MEMBER = re.compile(r"members\.(\d+)\.")

# Differing names shown of each kind.
NUM_SHOWN = 3


def load_weights(model: nn.Module, path: str, *, name: str) -> None:
    """Load the weights and buffers in ``path`` into a network; all of them have to fit.

    Args:
        model: The network, any device.
        path: A file of ``torch.save``: a dict with ``state_dict``, or the state dict itself.
        name: The network's name, for the error.

    Raises:
        ConfigError: No such file, no weights in it, or weights of another network or number of classes.
    """
    own = model.state_dict()
    saved = without_prefixes(read_state_dict(path), own)
    problem = _mismatch(saved, own, head_parameter_names(model), path, name)
    if problem is not None:
        raise ConfigError(problem)
    model.load_state_dict(saved, strict=False)


def read_state_dict(path: str) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint by name, on the CPU: the averaged weights where it has them, as timm takes them.

    Raises:
        ConfigError: The file is missing, unreadable, or holds no weights.
    """
    try:
        require_regular_file(path)
        content = torch.load(path, map_location="cpu")
    except FileNotFoundError:
        raise ConfigError(
            Problem(f"model.init_from={path}: no such file", "model.init_from=PATH of a checkpoint")
        ) from None
    except Exception as error:  # what reads the bytes of any file raises what it likes
        what = f"model.init_from={path}: not a readable checkpoint: {_why_unreadable(path, error)}"
        raise ConfigError(Problem(what, "model.init_from=PATH of a checkpoint")) from error
    found: Any = None
    if isinstance(content, Mapping):
        found = content.get("state_dict_ema", content.get("state_dict", content))
    if not isinstance(found, Mapping):
        found = {}
    tensors = {str(key): value for key, value in found.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise ConfigError(
            Problem(
                f"model.init_from={path}: holds no weights",
                "a file with a dict 'state_dict' of tensors by the network's own names",
            )
        )
    return tensors


def _why_unreadable(path: str, error: Exception) -> str:
    """A plain reason: torch's own texts advise to load without its safety."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if Path(path).stat().st_size == 0:
        return "the file is empty"
    if not zipfile.is_zipfile(path):
        return "it is cut off, or no file of torch.save"
    if isinstance(error, pickle.UnpicklingError):
        return "it holds objects other than tensors, numbers, texts, lists and dicts"
    return "it is damaged, or an archive of something else"


def without_prefixes(saved: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``saved`` under the network's own names.

    A prefix of ``PREFIXES`` is taken off while all names share it and the network's own do not; what
    torch.compile puts in the middle of a name (a compiled part of a network) always is.
    """
    names = {key: key for key in saved}
    if not any("_orig_mod." in key for key in own):
        names = {key: new.replace("_orig_mod.", "") for key, new in names.items()}
    while True:
        shared = [
            prefix
            for prefix in PREFIXES
            if all(new.startswith(prefix) for new in names.values()) and not all(key.startswith(prefix) for key in own)
        ]
        if not shared:
            return {new: saved[key] for key, new in names.items()}
        names = {key: new.removeprefix(shared[0]) for key, new in names.items()}


def _mismatch(
    saved: Mapping[str, torch.Tensor],
    own: Mapping[str, torch.Tensor],
    head: set[str],
    path: str,
    name: str,
) -> Problem | None:
    # Networks saved by old versions of torch lack the counters, which no computation here reads.
    missing = [key for key in own if key not in saved and not key.endswith("num_batches_tracked")]
    unknown = [key for key in saved if key not in own]
    shapes = [key for key in own if key in saved and saved[key].shape != own[key].shape]
    if not missing and not unknown and not shapes:
        return None
    if not missing and not unknown and set(shapes) <= head:
        then, now = saved[shapes[0]].shape[0], own[shapes[0]].shape[0]
        return Problem(
            f"model.init_from={path}: its {name} was trained for {then} classes, this run has {now}",
            f"data with {then} classes, or weights of a {name} with {now} outputs",
        )
    fix = "model.name=NAME of the network that the file was saved from"
    then, now = num_members(saved), num_members(own)
    if then != now:
        fix_ensemble = f"model.ensemble={then}"
        if _of_one_member(saved) == _of_one_member(own):
            what = f"model.init_from={path}: holds {_networks(then)}, this run has model.ensemble={now}"
            return Problem(what, fix_ensemble)
        fix += f", and {fix_ensemble}"
    reshaped = [f"{key} {_shape(saved[key])} for {_shape(own[key])}" for key in shapes]
    differences = [
        f"{label}: {_first_few(keys)}"
        for label, keys in (
            ("not in the file", missing),
            ("not in the network", unknown),
            ("of another shape", reshaped),
        )
        if keys
    ]
    return Problem(
        f"model.init_from={path}: not the weights of model.name={name}; {'; '.join(differences)}",
        fix,
    )


def num_members(state: Iterable[str]) -> int:
    """Networks of an ensemble by the names of its weights; 1 of a single network."""
    return len({found[1] for key in state if (found := MEMBER.match(key))}) or 1


def _of_one_member(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    """Names and shapes of one network's weights, whether it is alone or in an ensemble, without its counters."""
    return {MEMBER.sub("", key): value.shape for key, value in state.items() if not key.endswith("num_batches_tracked")}


def _networks(number: int) -> str:
    return "one network" if number == 1 else f"an ensemble of {number} networks"


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _first_few(names: list[str]) -> str:
    more = len(names) - NUM_SHOWN
    return ", ".join(names[:NUM_SHOWN]) + (f" and {more} more" if more > 0 else "")
