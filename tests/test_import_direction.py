"""Rooms import only from their left, and the ones that answer at once never load torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fasttrain

PACKAGE = Path(fasttrain.__file__).parent
ROOMS = (
    "errors",
    "regular_file",
    "config",
    "stages",
    "data",
    "model",
    "optimizer",
    "schedule",
    "strategy",
    "trainer",
    "report",
    "inference",
    "run",
    "bench",
    "commands",
    "cli",
    "__main__",
)
# Rooms that see less than all that is to their left; "" is the package itself.
ONLY: dict[str, set[str]] = {"": set(), "accelerate": {"errors", "strategy"}}

HEAVY = (
    "torch",
    "torchvision",
    "pytorch_lightning",
    "lightning",
    "timm",
    "rich",
    "nvidia.dali",
    "matplotlib",
)
LIGHT = (
    "errors.py",
    "config/*.py",
    "stages.py",
    "schedule/*.py",
    "data/scan.py",
    "data/screening.py",
    "data/prepare.py",
    "data/order.py",
    "data/shapes.py",
    "report/plan.py",
    "cli.py",
    "*/check.py",
)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, module: str, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every import in ``source``, those inside functions and by name included."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            named = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
            yield from ((node.lineno, str(name)) for name in named)


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Imports of ``module`` that go to a room at its right, as ``module:line imports name``."""
    room = module.removeprefix("fasttrain").removeprefix(".").split(".")[0]
    seen = ONLY[room] if room in ONLY else set(ROOMS[: ROOMS.index(room)])
    found = []
    for line, name in imports(source, module, is_package=is_package):
        top, _, rest = name.partition(".")
        if top == "fasttrain" and rest and rest.split(".")[0] not in {*seen, room, "__version__"}:
            found.append(f"{module}:{line} imports {name}")
    return found


def test_every_module_belongs_to_a_known_room() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert rooms - {"__init__"} <= {*ROOMS, *ONLY}


def test_modules_import_only_from_their_left() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        is_package = path.name == "__init__.py"
        found += violations(path.read_text(encoding="utf-8"), module_name(path), is_package=is_package)
    assert found == []


def test_packages_hold_only_a_docstring() -> None:
    for path in PACKAGE.glob("*/__init__.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        if path.parent.name == "strategy":
            # The one that does something: its import makes the strategy known to Lightning.
            assert [ast.unparse(node) for node in body[1:]] == [
                "from fasttrain.strategy.registration import register",
                "register()",
            ]
            body = body[:1]
        (only,) = body
        assert isinstance(only, ast.Expr), path
        assert isinstance(only.value, ast.Constant), path


@pytest.mark.parametrize(
    ("source", "module", "wrong"),
    [
        ("from fasttrain.stages import Plan", "fasttrain.schedule.schedule", False),
        ("from fasttrain.schedule.curves import linear", "fasttrain.schedule.schedule", False),
        ("from . import curves", "fasttrain.schedule.schedule", False),
        ("import torch", "fasttrain.stages", False),
        ("import fasttrain.trainer.loop", "fasttrain.model.build", True),
        ("from fasttrain import report", "fasttrain.data.scan", True),
        ("from ..report import plan", "fasttrain.data.scan", True),
        ("def f():\n    from fasttrain.report.plan import Plan", "fasttrain.stages", True),
        ("importlib.import_module('fasttrain.cli')", "fasttrain.bench.step", True),
        ("from fasttrain.strategy.hook import Hook", "fasttrain.accelerate", False),
        ("from fasttrain.config.schema import RunConfig", "fasttrain.accelerate", True),
        ("from importlib.metadata import version", "fasttrain", False),
        ("from fasttrain.stages import Plan", "fasttrain", True),
    ],
)
def test_the_rule_itself(source: str, module: str, wrong: bool) -> None:
    assert bool(violations(source, module)) == wrong


def test_light_modules_leave_heavy_libraries_out() -> None:
    modules = [module_name(path) for pattern in LIGHT for path in sorted(PACKAGE.glob(pattern))]
    assert {"fasttrain.stages", "fasttrain.schedule.check", "fasttrain.report.plan"} <= set(modules)
    code = (
        "import importlib, sys\n"
        f"for module in {modules!r}:\n"
        "    importlib.import_module(module)\n"
        f"    for heavy in {HEAVY!r}:\n"
        "        if heavy in sys.modules: sys.exit(f'{module} imports {heavy}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
