"""Configs of the optimizer tests: the parts of a run that an optimizer reads."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from fasttrain.config.schema import (
    HybridConfig,
    MuonSGDConfig,
    NamedOptimizerConfig,
    OptimizerConfig,
    RectifiedLARSConfig,
    SGDConfig,
    StageConfig,
)
from tests.model.defaults import MODEL

SHARED: dict[str, Any] = {
    "lr": 0.5,
    "momentum": 0.9,
    "weight_decay": 5e-5,
    "decay_norm_and_bias": False,
    "clip_norm": None,
}
OF_KIND: dict[str, tuple[type[OptimizerConfig], dict[str, Any]]] = {
    "sgd": (SGDConfig, {"nesterov": True}),
    "hybrid": (
        HybridConfig,
        {
            "nesterov": True,
            "transition_center_epochs": 1.0,
            "transition_period_epochs": 0.5,
            "rms_lr": 3e-4,
            "rms_decay": 0.99,
            "rms_eps": 1e-8,
        },
    ),
    "rectified_lars": (
        RectifiedLARSConfig,
        {
            "nesterov": True,
            "eta": 8e-4,
            "min_trust_ratio": 1e-5,
            "max_trust_ratio": 1.0,
            "norm_and_bias_lr_scale": 0.2,
        },
    ),
    "muon_sgd": (
        MuonSGDConfig,
        {
            "nesterov": True,
            "linear_weights": True,
            "newton_schulz_steps": 3,
            "newton_schulz_dtype": "auto",
            "sgd_lr_scale": 10.0,
            "sgd_weight_decay": 1e-4,
            "sgd_momentum": None,
            "norm_and_bias_lr_scale": None,
            "norm_and_bias_weight_decay": None,
            "normalize_weights": False,
        },
    ),
    "torch": (NamedOptimizerConfig, {"name": "AdamW", "args": {}}),
    "timm": (NamedOptimizerConfig, {"name": "lamb", "args": {}}),
}


def run_config(kind: str, *, epochs: int = 28, model: str = "resnet18d", **changes: Any) -> Any:
    """A run with the optimizer ``kind`` and one stage."""
    schema, own = OF_KIND[kind]
    network = replace(MODEL, name=model)
    return SimpleNamespace(
        optimizer=schema(kind=kind, **(SHARED | own | changes)),
        schedule=SimpleNamespace(momentum=None),
        trainer=SimpleNamespace(precision="fp32"),
        model=network,
        stages=[StageConfig(epochs=epochs, px=32, min_area=0.25, batch_size=8, val_px=32)],
    )
