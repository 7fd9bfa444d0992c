"""What ``fasttrain bench ddp`` takes on its command line. Imports no torch."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fasttrain.bench.flags import COMMAND_LINE, FlagParser, parse
from fasttrain.errors import ConfigError, Problem
from fasttrain.strategy.settings import CommSettings

# The eleven of the article; their networks are in fasttrain.bench.ddp_models.
MODEL_NAMES = (
    "alexnet",
    "resnet18",
    "resnet50",
    "vgg16",
    "timm_vovnet",
    "timm_vision_transformer",
    "pytorch_unet",
    "hf_Bart",
    "hf_Bert",
    "speech_transformer",
    "tts_angular",
)
# Not the article's: 26 MiB of gradients and little to compute, for slow networks (fasttrain.bench.network).
OTHER_NAMES = ("layers_26mib",)
PRECISIONS = ("amp", "bf16", "fp32")
STRATEGIES = ("ddp", "accelerated_ddp")
# What may be put behind a strategy: ddp+compile.
EXTRAS = ("compile", "capture")


@dataclass(frozen=True)
class Arm:
    """One way of running a training step.

    Attributes:
        strategy: One of STRATEGIES.
        compile: Whether the network is compiled.
        capture: Whether the step is replayed as a CUDA graph.
    """

    strategy: str
    compile: bool
    capture: bool

    def __str__(self) -> str:
        return "+".join([self.strategy, *(name for name in EXTRAS if getattr(self, name))])


@dataclass(frozen=True)
class DDPFlags:
    """Of ``fasttrain bench ddp``.

    Attributes:
        models: Of MODEL_NAMES.
        precision: ``amp`` (fp16 autocast with a loss scaler), ``bf16`` or ``fp32``.
        batch_size: Of one rank; None for the article's.
        arms: The first one is the baseline.
        steps: Timed, of each repeat.
        repeats: Measurements of each arm, which take turns.
        settings: Of accelerated_ddp.
        json: Where the record goes.
    """

    models: tuple[str, ...]
    precision: str
    batch_size: int | None
    arms: tuple[Arm, ...]
    steps: int
    repeats: int
    settings: dict[str, Any]
    json: Path | None


def read_ddp_flags(arguments: Sequence[str]) -> DDPFlags:
    """The command line of ``fasttrain bench ddp``.

    Raises:
        ConfigError: With all flags that are wrong.
        MachineError: ``--json`` names a folder.
    """
    given, read = parse(_parser(), arguments)
    names = MODEL_NAMES if given.model == "all" else tuple(dict.fromkeys(given.model.split(",")))
    for name in names:
        if name not in (*MODEL_NAMES, *OTHER_NAMES):
            close = difflib.get_close_matches(name, (*MODEL_NAMES, *OTHER_NAMES), n=1)
            fix = f"--model {close[0]}" if close else f"all, or some of {','.join(MODEL_NAMES)}"
            read.problems.append(Problem(f"--model {name}: there is no such model", fix, COMMAND_LINE))
    batch_size = given.batch_size
    flags = DDPFlags(
        models=names,
        precision=given.precision,
        batch_size=None if batch_size is None else read.count("--batch-size", batch_size, ge=1, le=1 << 20, example=32),
        arms=tuple(dict.fromkeys(_arm(word, read.problems) for word in given.strategy.split(","))),
        steps=read.count("--steps", given.steps, ge=4, le=1_000_000, example=50),
        repeats=read.count("--repeats", given.repeats, ge=1, le=1000, example=3),
        settings=_settings(given.settings, read.problems),
        json=read.json(given.json, example="ddp.json"),
    )
    read.done()
    return flags


def _parser() -> FlagParser:
    parser = FlagParser(
        prog="fasttrain bench ddp",
        usage="python -m torch.distributed.run --nproc-per-node N -m fasttrain bench ddp --model NAME [flags]",
        description="Step times of the eleven networks of Alibaba's ACSpeed benchmark (and of layers_26mib, for slow "
        "networks), stock DDP against accelerated DDP. Tuning takes about 121 steps of each accelerated arm before "
        "its repeats.",
        allow_abbrev=False,
    )
    names = [field.name for field in fields(CommSettings)]
    add = parser.add_argument
    add("settings", nargs="*", metavar="key=value", help=f"settings of accelerated_ddp: {', '.join(names)}")
    add("--model", required=True, help=f"all, or some of {','.join((*MODEL_NAMES, *OTHER_NAMES))}")
    add("--precision", choices=PRECISIONS, default="amp", help="amp: fp16 autocast with a loss scaler (default: amp)")
    add("--batch-size", help="of one rank (default: that benchmark's)")
    add(
        "--strategy",
        default="ddp,accelerated_ddp",
        help="ways to compare, the first is the baseline; +compile, +capture behind any (default: ddp,accelerated_ddp)",
    )
    add("--steps", default="50", help="timed steps of a repeat (default: 50)")
    add("--repeats", default="3", help="measurements of each way, which take turns (default: 3)")
    add("--json", type=Path, metavar="FILE", help="write the record to this file")
    return parser


def _arm(word: str, problems: list[Problem]) -> Arm:
    strategy, *extras = word.split("+")
    if strategy not in STRATEGIES or not set(extras) <= set(EXTRAS):
        expected = f"expected {' or '.join(STRATEGIES)}, with +{' or +'.join(EXTRAS)} behind it or not"
        problems.append(Problem(f"--strategy {word}: {expected}", "--strategy ddp,accelerated_ddp", COMMAND_LINE))
    return Arm(strategy, "compile" in extras, "capture" in extras)


def _settings(words: Sequence[str], problems: list[Problem]) -> dict[str, Any]:
    known = {field.name: str(field.type) for field in fields(CommSettings)}
    settings: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            fix = f"{close[0]}=VALUE" if close else ", ".join(known)
            problems.append(Problem(f"{word}: there is no such setting of accelerated_ddp", fix, COMMAND_LINE))
            continue
        try:
            settings[name] = _value(text, known[name])
        except ValueError:
            problems.append(Problem(f"{word}: expected a value of type {known[name]}", "", COMMAND_LINE))
    try:
        CommSettings(**settings)
    except ConfigError as error:
        problems += [problem for problem in error.problems if isinstance(problem, Problem)]
    return settings


def _value(text: str, kind: str) -> Any:
    if text == "null" and "None" in kind:
        return None
    if kind.startswith("bool"):
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    return int(text) if kind.startswith("int") else float(text) if kind.startswith("float") else text
