"""Optimizers that cannot be run are refused in the user's words, with a line that mends them."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fasttrain.optimizer.check import check, check_libraries
from tests.optimizer.configs import run_config


def cheap(kind: str, **changes: Any) -> list[tuple[str, str]]:
    return [(problem.what, problem.fix) for problem in check(run_config(kind, **changes))]


def libraries(kind: str, **changes: Any) -> list[tuple[str, str]]:
    return [(problem.what, problem.fix) for problem in check_libraries(run_config(kind, **changes), 10)]


@pytest.mark.parametrize("kind", ["sgd", "hybrid", "rectified_lars", "muon_sgd", "torch", "timm"])
def test_the_defaults_have_no_problem(kind: str) -> None:
    assert cheap(kind) == []
    assert libraries(kind) == []


def test_the_cheap_check_imports_no_library() -> None:
    code = "import sys, fasttrain.optimizer.check; print({'torch', 'timm'} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "set()"


def test_a_transition_outside_the_run() -> None:
    ((what, fix),) = cheap("hybrid", epochs=5, transition_center_epochs=4.5, transition_period_epochs=2.0)
    assert "transition_center_epochs=4.5" in what
    assert "only after epoch 5.5, and the stages have 5 epochs in all" in what
    assert fix == "optimizer.transition_center_epochs=0.556 optimizer.transition_period_epochs=0.278"
    assert cheap("hybrid", epochs=5, transition_center_epochs=4.0, transition_period_epochs=2.0) == []
    # Without an adaptive part there is no transition.
    assert cheap("hybrid", epochs=5, transition_center_epochs=4.5, transition_period_epochs=2.0, rms_lr=0.0) == []


def test_a_clamp_with_min_above_max() -> None:
    ((what, fix),) = cheap("rectified_lars", min_trust_ratio=2.0, max_trust_ratio=1.0)
    assert what == "optimizer.min_trust_ratio=2: above optimizer.max_trust_ratio=1"
    assert fix == "optimizer.min_trust_ratio=1 optimizer.max_trust_ratio=2"
    assert cheap("rectified_lars", min_trust_ratio=1.0, max_trust_ratio=1.0) == []


def test_nesterov_without_momentum() -> None:
    ((_, fix),) = cheap("sgd", momentum=0.0)
    assert fix == "optimizer.nesterov=false"
    assert cheap("sgd", momentum=0.0, nesterov=False) == []
    config = run_config("sgd", momentum=0.0)
    config.schedule = SimpleNamespace(momentum=SimpleNamespace(high=0.98, low=0.9))
    assert check(config) == []


def test_arguments_with_a_key_of_their_own_all_at_once() -> None:
    problems = cheap("torch", args={"lr": 0.1, "weight_decay": 0.2, "betas": [0.8, 0.99]})
    assert [fix for _, fix in problems] == ["optimizer.lr=0.1", "optimizer.weight_decay=0.2", "optimizer.momentum=0.8"]
    ((what, _),) = cheap("torch", args={"betas": 0.9})
    assert "a list was expected" in what


@pytest.mark.parametrize(
    ("kind", "name", "suggestion"),
    [
        ("torch", "adamw", "optimizer.name=AdamW"),
        ("torch", "AdamX", "optimizer.name=Adam"),
        ("torch", "lamb", "optimizer=timm optimizer.name=lamb"),
        ("torch", "hybrid_sgd", "optimizer=hybrid"),
        ("timm", "lam", "optimizer.name=lamb"),
        ("timm", "AdamW", "optimizer.name=adamw"),
        ("timm", "muonsgd", "optimizer=muon_sgd"),
        ("torch", "qqqq", "one of ASGD, Adadelta"),
    ],
)
def test_an_unknown_name_is_answered_from_all_three_libraries(kind: str, name: str, suggestion: str) -> None:
    ((what, fix),) = libraries(kind, name=name)
    assert what == f"optimizer.name={name}: {kind}.optim has no such optimizer"
    assert suggestion in fix


def test_unknown_arguments() -> None:
    ((what, fix),) = libraries("torch", args={"epps": 1e-6})
    assert what == "optimizer.args has epps, which AdamW of torch does not take"
    assert fix == "did you mean eps?"
    assert "trust_clip" in libraries("timm", args={"qqqq": 1})[0][1]


def test_settings_that_a_class_would_ignore() -> None:
    assert libraries("torch", name="Adagrad")[0][1] == "optimizer.momentum=0"
    assert libraries("torch", name="Adagrad", momentum=0.0) == []
    # timm's Adafactor goes without betas unless they are given.
    assert libraries("timm", name="adafactor")[0][1] == "optimizer.momentum=0"
    assert libraries("timm", name="adafactor", momentum=0.0) == []
    assert libraries("timm", name="adafactor", args={"betas": [0.9, 0.999]}) == []


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("torch", {"name": "Adagrad", "momentum": 0.0}),
        ("timm", {"name": "adafactor", "momentum": 0.0}),
        # It is given betas, but does not keep them where the schedule could move them.
        ("timm", {"name": "adafactor", "args": {"betas": [0.9, 0.999]}}),
    ],
)
def test_a_momentum_cycle_without_a_momentum(kind: str, changes: dict[str, Any]) -> None:
    config = run_config(kind, **changes)
    config.schedule = SimpleNamespace(momentum=SimpleNamespace(high=0.98, low=0.9))
    (problem,) = check_libraries(config, 10)
    assert problem.what.startswith(f"schedule.momentum: {changes['name']} of {kind} has no momentum")
    assert problem.fix == "schedule.momentum=null"
    config.optimizer.__dict__.update(name="AdamW" if kind == "torch" else "adamw", momentum=0.98, args={})
    assert check_libraries(config, 10) == []


@pytest.mark.parametrize(
    ("name", "fix"),
    [("fusedlamb", "lamb"), ("bnbadam8bit", "adam"), ("lookahead_fusedadam", "adam"), ("bnbademamix", "adamw")],
)
def test_optimizers_of_libraries_that_are_not_here(name: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    ((what, said),) = libraries("timm", name=name)
    assert what.startswith(f"optimizer.name={name}: timm cannot load it here: CUDA required")
    assert said == f"optimizer.name={fix}"


def test_classes_that_do_not_fit_the_loop_or_the_network() -> None:
    assert "several times a step" in libraries("torch", name="LBFGS")[0][0]
    for name in ("adahessian", "lookahead_adahessian"):
        ((what, fix),) = libraries("timm", name=name)
        assert what.startswith(f"optimizer.name={name}: this optimizer needs second derivatives")
        assert fix == "optimizer.name=adamw"
    assert "takes sparse gradients only" in libraries("torch", name="SparseAdam")[0][0]
    assert "at its first step only" in libraries("torch", name="Rprop", momentum=0.0, weight_decay=0.0)[0][0]
    assert "refuses this network" in libraries("torch", name="Muon")[0][0]


def test_an_unknown_network_is_left_to_the_networks_own_check() -> None:
    assert libraries("torch", model="resnet05") == []
