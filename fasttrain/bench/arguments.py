"""What ``fasttrain bench data`` and ``fasttrain bench step`` take on their command lines. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fasttrain.bench.flags import FlagParser, FlagReader, parse
from fasttrain.errors import Problem

# Parts of the data path that can be measured alone, in the order in which an image passes them.
PARTS = ("read", "headers", "decode", "decode_region", "backend", "transfer", "normalize", "dali_ratio")
CACHES = ("off", "gpu", "host", "auto")
PRECISIONS = ("fp32", "bf16", "fp16")
SWITCH = ("on", "off")
SOURCES = ("random", "files")

# Steps of each measurement of ``bench step``: the trainer leaves the first five out.
MIN_STEPS = 6


@dataclass(frozen=True)
class DataFlags:
    """Of ``fasttrain bench data``.

    Attributes:
        overrides: ``key=value`` words, as train.py takes them.
        px: Output sides; None for those of the recipe.
        batch: Images at once.
        repeats: Measurements of each figure.
        seconds: Of each measurement, about.
        parts: What to measure alone.
        caches: Values of ``data.cache`` to compare; empty for the run's own settings alone.
        need: Images/s of the training step: ``measure``, ``none``, or a number for each px.
        stage_changes: Changes of px to go through; 0 for none.
        first_pass: Whether the first pass (decode, fill, train) is set beside decoding alone.
        json: Where the record goes.
    """

    overrides: tuple[str, ...]
    px: tuple[int, ...] | None
    batch: int
    repeats: int
    seconds: float
    parts: tuple[str, ...]
    caches: tuple[str, ...]
    need: str | tuple[float, ...]
    stage_changes: int
    first_pass: bool
    json: Path | None


@dataclass(frozen=True)
class StepFlags:
    """Of ``fasttrain bench step``; empty tuples leave the run's own setting.

    Attributes:
        overrides: ``key=value`` words, as train.py takes them.
        px: Training px; None for the recipe's stages.
        batch: Images of a step over all ranks; None for the recipe's.
        steps: Of each measurement; an epoch of the files may have fewer.
        repeats: Measurements of each shape.
        rounds: Trainings over which they are spread, taking turns with the other settings and the bare loop;
            None: 2 where there is something to take turns with, else 1.
        precision, compile, capture, optimizers, data: Values to compare.
        bare: Whether the same step in a bare loop is set beside Lightning's.
        launches: Whether kernel launches are counted.
        json: Where the record goes.
    """

    overrides: tuple[str, ...]
    px: tuple[int, ...] | None
    batch: int | None
    steps: int
    repeats: int
    rounds: int | None
    precision: tuple[str, ...]
    compile: tuple[str, ...]
    capture: tuple[str, ...]
    optimizers: tuple[str, ...]
    data: tuple[str, ...]
    bare: bool
    launches: bool
    json: Path | None


def read_data_flags(arguments: Sequence[str]) -> DataFlags:
    """The command line of ``fasttrain bench data``.

    Raises:
        ConfigError: With all flags that are wrong.
        MachineError: ``--json`` names a folder.
    """
    parser = _parser("data", "Images/s of each part of the data path, and of the whole, beside the step's need.")
    add = parser.add_argument
    add("--px", help="output sides, e.g. 96,128,160 (default: those of the recipe's stages)")
    add("--batch", default="1024", help="images at once (default: 1024)")
    add("--seconds", default="2", help="of each measurement, about (default: 2)")
    add("--parts", default=",".join(PARTS), help=f"parts to measure alone (default: all that apply: {','.join(PARTS)})")
    add("--caches", help=f"values of data.cache to compare, some of {','.join(CACHES)} (default: the run's own)")
    add("--need", default="measure", help="images/s of the training step: measure, none, or one number for each px")
    add("--stage-changes", default="0", help="changes of px to time and to watch the memory over (default: 0)")
    add("--first-pass", action="store_true", help="set the first pass with training beside decoding alone")
    given, read = parse(parser, arguments)
    flags = DataFlags(
        overrides=tuple(given.settings),
        px=_px(read, given.px),
        batch=read.count("--batch", given.batch, ge=1, le=1 << 20, example=1024),
        repeats=read.count("--repeats", given.repeats, ge=1, le=1000, example=5),
        seconds=read.positive("--seconds", given.seconds, le=600, example="2"),
        parts=read.choices("--parts", given.parts, PARTS),
        caches=read.choices("--caches", given.caches, CACHES),
        need=read.need("--need", given.need),
        stage_changes=read.count("--stage-changes", given.stage_changes, ge=0, le=1000, example=10),
        first_pass=given.first_pass,
        json=read.json(given.json),
    )
    if flags.stage_changes and flags.px is not None and len(flags.px) == 1:
        read.problems.append(
            Problem(f"--stage-changes {flags.stage_changes}: one px never changes", f"--px {flags.px[0]},128")
        )
    read.done()
    return flags


def read_step_flags(arguments: Sequence[str]) -> StepFlags:
    """The command line of ``fasttrain bench step``.

    Raises:
        ConfigError: With all flags that are wrong.
        MachineError: ``--json`` names a folder.
    """
    parser = _parser("step", "Images/s, ms, roofline and memory of the training step, in short trainings.")
    add = parser.add_argument
    add("--px", help="training px, e.g. 96,128 (default: a row for each stage of the recipe)")
    add("--batch", help="images of a step over all ranks (default: the recipe's)")
    add("--steps", default="30", help="of each measurement, on files too; the first 5 are not counted (default: 30)")
    add("--rounds", help="trainings that the repeats are spread over (default: 2 where anything is compared, else 1)")
    add("--precision", help="compare some of fp32,bf16,fp16")
    add("--compile", help="compare on,off")
    add("--capture", help="compare on,off")
    add("--optimizers", help="compare options of optimizer, e.g. sgd,hybrid")
    add(
        "--data",
        help="random (default: pixels on the device), files (the run's own; before they count, each training goes "
        "through a whole epoch once for all px that its cache serves, and once for each px that it decodes)",
    )
    add("--bare", action="store_true", help="set the same step in a bare loop beside Lightning's")
    add("--launches", action="store_true", help="count kernel launches a step (on a GPU)")
    given, read = parse(parser, arguments)
    flags = StepFlags(
        overrides=tuple(given.settings),
        px=_px(read, given.px),
        batch=_optional(given.batch, lambda text: read.count("--batch", text, ge=1, le=1 << 20, example=1024)),
        steps=read.count("--steps", given.steps, ge=MIN_STEPS, le=100_000, example=30),
        repeats=read.count("--repeats", given.repeats, ge=1, le=1000, example=5),
        rounds=_optional(given.rounds, lambda text: read.count("--rounds", text, ge=1, le=1000, example=2)),
        precision=read.choices("--precision", given.precision, PRECISIONS),
        compile=read.choices("--compile", given.compile, SWITCH),
        capture=read.choices("--capture", given.capture, SWITCH),
        optimizers=tuple(dict.fromkeys(given.optimizers.split(","))) if given.optimizers else (),
        data=read.choices("--data", given.data or "random", SOURCES),
        bare=given.bare,
        launches=given.launches,
        json=read.json(given.json),
    )
    if flags.rounds is not None and flags.rounds > flags.repeats:
        read.problems.append(
            Problem(f"--rounds {flags.rounds}: more than --repeats {flags.repeats}", f"--rounds {flags.repeats}")
        )
    read.done()
    return flags


def _parser(name: str, description: str) -> FlagParser:
    parser = FlagParser(
        prog=f"fasttrain bench {name}",
        usage=f"fasttrain bench {name} recipe=NAME [key=value ...] [flags]",
        description=description,
        allow_abbrev=False,
    )
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of the run, as train.py takes them")
    parser.add_argument("--repeats", default="5", help="measurements of each figure (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record to this file")
    return parser


def _px(read: FlagReader, text: str | None) -> tuple[int, ...] | None:
    return None if text is None else read.counts("--px", text, ge=8, le=1024, example="96,128,160")


def _optional(text: str | None, read: Callable[[str], int]) -> int | None:
    return None if text is None else read(text)
