"""Hydra's part: merges conf/config.yaml, the options and the recipe of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fasttrain.config.describe import quoted
from fasttrain.config.files import NO_RECIPE, RECIPE, OptionFiles
from fasttrain.config.selection import Selection
from fasttrain.errors import ConfigError, Problem

# What Hydra made of the same files with the same choices: the jobs of a sweep mostly differ in settings only.
_MERGED: dict[object, dict[str, Any]] = {}


def merge_files(files: OptionFiles, selection: Selection) -> dict[str, Any]:
    """All settings of the chosen files as plain nested values, references (``${...}``) as they stand.

    Raises:
        ConfigError: The files cannot be merged.
    """
    stamps = tuple((layer.file.path, layer.file.stamp) for layer in selection.layers)
    key = (files.conf, tuple(selection.choices.items()), stamps)
    if key not in _MERGED:
        _MERGED[key] = _merge(files, selection)
    return deepcopy(_MERGED[key])


def _merge(files: OptionFiles, selection: Selection) -> dict[str, Any]:
    # Every choice is settled already: handed over as overrides, Hydra cannot settle them differently.
    choices = [quoted(group, name) for group, name in selection.choices.items()]
    try:
        with _registered(selection), initialize_config_dir(str(files.conf), version_base="1.3"):
            merged = compose("config", overrides=choices)
    except (HydraException, OmegaConfBaseException) as error:
        what = f"the files of this run do not merge: {str(error).splitlines()[0]}"
        where = ", ".join(layer.file.shown for layer in selection.layers if not layer.file.shipped)
        raise ConfigError(Problem(what, "", where)) from error
    values: Any = OmegaConf.to_container(merged, resolve=False)
    return dict(values)


@contextmanager
def _registered(selection: Selection) -> Iterator[None]:
    """Hydra's store holds the recipe and a user's own options for the time of one composition."""
    store = ConfigStore.instance()
    own = [layer for layer in selection.layers if not layer.file.shipped]
    groups = {RECIPE, *(layer.file.group for layer in own)}
    # Not the whole store: Hydra's plugins enter themselves when it first composes.
    before = {group: store.repo.pop(group) for group in groups & store.repo.keys()}
    try:
        store.store(group=RECIPE, name=NO_RECIPE, node={}, package="_global_", provider="fasttrain")
        for layer in own:
            package = "_global_" if layer.file.group == RECIPE else None
            path = str(layer.file.path)
            store.store(layer.file.name, layer.node, layer.file.group, package, provider=path)
        yield
    finally:
        for group in groups:
            store.repo.pop(group, None)
        store.repo.update(before)
