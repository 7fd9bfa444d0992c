"""The commands of ``fasttrain``: what each takes on its command line, and which room does it."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fasttrain.config.compose import ComposedRun, compose_run, load_run
from fasttrain.errors import ConfigError, Problem
from fasttrain.report.console import reader_has_gone, silence_stdout
from fasttrain.run.imports import spared_imports
from fasttrain.strategy.launch import end_with_parent, handed_over

Train = Callable[[ComposedRun], int]

# As a shell reports a process that SIGPIPE ended.
READER_GONE = 141

USAGE = """usage: fasttrain COMMAND ...

  train recipe=NAME key=value ...    train by a recipe (fasttrain train --help lists all settings)
  prepare NAME --root PATH           make, unpack or check a data set
  eval CKPT --root PATH              accuracy of a checkpoint
  report RUN_DIR [RUN_DIR ...]       one run's page, or several runs compared
  bench data|step recipe=NAME ...    images/s of the data path's parts, or of the training step
  bench ddp --model NAME ...         stock DDP against accelerated DDP, under torchrun
  bench cluster ...                  a step on a larger cluster, simulated
"""


def dispatch(arguments: list[str], train: Train) -> int:
    """Run the command that the first word names; returns the exit code.

    A reader of the output that leaves early (``| head``) is no error: what it did not want is dropped.

    Raises:
        ConfigError: No such command, or settings that cannot be run.
    """
    try:
        code = _run_command(arguments, train)
        sys.stdout.flush()
    except BaseException as error:
        if not reader_has_gone():
            raise
        silence_stdout()
        if isinstance(error, BrokenPipeError):
            return READER_GONE
        raise
    return code


def _run_command(arguments: list[str], train: Train) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name == "train":
        return train_command(rest, train)
    left = handed_over()
    if name == "rank" and left is not None:
        end_with_parent()
        return train(load_run(left.config))
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, ["train", *COMMANDS], n=1)
        hint = f"did you mean `fasttrain {close[0]}`?" if close else "fasttrain --help lists the commands"
        raise ConfigError(Problem(f"fasttrain {name}: there is no such command", hint))
    return COMMANDS[name](rest)


def train_command(arguments: list[str], train: Train) -> int:
    """Compose one run, or the jobs of a sweep (``-m``), and train them."""
    from fasttrain.config.show import config_text, help_text

    flags, overrides = _train_flags().parse_known_args(arguments)
    config_dir = Path(flags.config_dir).resolve() if flags.config_dir else None
    if flags.help:
        print(help_text(config_dir=config_dir))
        return 0
    if flags.multirun:
        from fasttrain.run.sweeping import print_sweep, run_sweep

        if flags.cfg:
            print_sweep(overrides, config_dir)
            return 0
        return run_sweep(overrides, config_dir, train)
    run = compose_run(overrides, config_dir=config_dir)
    if flags.cfg:
        print(config_text(run))
        return 0
    return train(run)


def _train_flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="train.py", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--cfg", choices=["job"])
    parser.add_argument("--config-dir")
    return parser


def _path(text: str) -> Path:
    """A path of the command line; an empty one, of a variable that is not set, would be the folder of the moment."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, not ''")
    return Path(text)


def prepare_command(arguments: Sequence[str]) -> int:
    """``fasttrain prepare NAME --root PATH [--check | --archives DIR [--verify] | --from FILE_OR_URL]``."""
    from fasttrain.data.prepare import Sources, prepare

    parser = argparse.ArgumentParser(prog="fasttrain prepare", description="Make, unpack or check a data set.")
    parser.add_argument("name", help="shapes, imagenet, imagenette or cifar10")
    parser.add_argument("--root", type=_path, help="its folder (shapes: data/shapes)")
    parser.add_argument("--check", action="store_true", help="only look at what is there")
    parser.add_argument("--archives", type=_path, help="imagenet: folder with its three archives (default: --root)")
    parser.add_argument("--verify", action="store_true", help="imagenet: compare the archives' md5 sums first")
    parser.add_argument("--from", dest="source", metavar="FILE_OR_URL", help="imagenette, cifar10: its archive")
    flags = parser.parse_args(arguments)
    sources = Sources(archives=flags.archives, source=flags.source, verify=flags.verify)
    print(prepare(flags.name, flags.root, check=flags.check, sources=sources))
    return 0


def eval_command(arguments: Sequence[str]) -> int:
    """``fasttrain eval CKPT --root PATH [--px N] [--on-bad-file fail|skip] [--json FILE]``."""
    parser = argparse.ArgumentParser(prog="fasttrain eval", description="Accuracy of a checkpoint.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--root", type=Path, help="data set (default: the one it was trained on)")
    parser.add_argument("--px", type=int, help="validation px (default: those of the checkpoint's stage)")
    parser.add_argument(
        "--on-bad-file",
        choices=("fail", "skip"),
        help="skip: leave out, count and list the files that cannot be decoded (default: as its run did)",
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    flags = parser.parse_args(arguments)
    with spared_imports():
        from fasttrain.run.evaluation import evaluate_checkpoint

    text = evaluate_checkpoint(
        flags.checkpoint, root=flags.root, px=flags.px, json_file=flags.json, on_bad_file=flags.on_bad_file
    )
    print(text)
    return 0


def report_command(arguments: Sequence[str]) -> int:
    """``fasttrain report RUN_DIR [RUN_DIR ...]``, or ``--project recipe=NAME --rates FILE``."""
    parser = argparse.ArgumentParser(
        prog="fasttrain report",
        description="One run's page, several compared, or the projected time of a recipe that was not run; or "
        "records of bench ddp (JSON files).",
    )
    parser.add_argument("run_dirs", type=Path, nargs="*", metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, help="write the comparison as a page")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument(
        "--project", nargs="+", action="extend", metavar="KEY=VALUE", help="recipe=NAME, and settings over it"
    )
    rates = "with --project: figures of fasttrain bench step on one GPU, in one file or several"
    parser.add_argument("--rates", type=Path, nargs="+", action="extend", metavar="FILE", help=rates)
    flags = parser.parse_args(arguments)
    if flags.project:
        if flags.run_dirs or flags.out or flags.json or not flags.rates:
            parser.error("--project takes --rates FILE [FILE ...], and neither folders nor --out nor --json")
        if settings := [str(path) for path in flags.rates if "=" in path.name and not path.exists()]:
            parser.error(f"{' '.join(settings)}: no such file; settings come after --project")
        print(_projected(flags.project, flags.rates))
        return 0
    if not flags.run_dirs or flags.rates:
        parser.error("RUN_DIR [RUN_DIR ...] or --project recipe=NAME --rates FILE was expected")
    if all(path.suffix == ".json" for path in flags.run_dirs):
        if flags.json:
            parser.error("records of bench ddp are JSON already: they take --out, not --json")
        from fasttrain.report.ddp_records import report_ddp

        print(report_ddp(flags.run_dirs, out=flags.out))
        return 0
    from fasttrain.report.compare import report_runs

    print(report_runs(flags.run_dirs, out=flags.out, json_file=flags.json))
    return 0


def _projected(overrides: Sequence[str], rates: Sequence[Path]) -> str:
    """The time of a recipe that can be run, as a table; its images need not be there."""
    from fasttrain.report.projection import project_recipe
    from fasttrain.run.planning import check_rooms

    run = compose_run(overrides)
    check_rooms(replace(run.config, dry_run=True), run.provenance)
    return project_recipe(run.config, rates)


def bench_command(arguments: Sequence[str]) -> int:
    """``fasttrain bench data|step recipe=NAME key=value ... [flags]``, ``bench ddp ...``, ``bench cluster ...``."""
    from fasttrain.bench import command

    return command.bench_command(arguments)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "prepare": prepare_command,
    "eval": eval_command,
    "report": report_command,
    "bench": bench_command,
}
