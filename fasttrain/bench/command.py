"""``fasttrain bench data|step|ddp``: from the words of the command line to printed tables and the record.

Imports no torch before all words and settings have been checked.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path

from fasttrain.bench.arguments import read_data_flags, read_step_flags
from fasttrain.bench.figures import Outcome, document
from fasttrain.bench.stopping import Benchmark, measure_and_publish
from fasttrain.config.compose import ComposedRun
from fasttrain.errors import ConfigError, Problem
from fasttrain.report.console import configure_logging
from fasttrain.report.files import require_writable, write_json
from fasttrain.run.imports import spared_imports
from fasttrain.strategy.world import World

USAGE = """usage: fasttrain bench BENCH recipe=NAME [key=value ...] [flags]
       fasttrain bench ddp --model NAME [flags]
       fasttrain bench cluster [flags]

  data     images/s of each part of the data path, beside what the training step needs
  step     images/s, ms, roofline and memory of the training step
  ddp      eleven networks in stock DDP against accelerated DDP; under torchrun
  cluster  a training step on a cluster that is not here, simulated

fasttrain bench BENCH --help lists the flags.
"""

# What makes a benchmark, and how its clock goes.
Loaded = tuple[Callable[[], Benchmark], str]


def bench_command(arguments: Sequence[str]) -> int:
    """Run the benchmark that the first word names; returns the exit code.

    Raises:
        ConfigError: No such benchmark, or flags or settings that cannot be run.
    """
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in BENCHES:
        close = difflib.get_close_matches(name, BENCHES, n=1)
        hint = f"did you mean `fasttrain bench {close[0]}`?" if close else f"fasttrain bench {'|'.join(BENCHES)}"
        raise ConfigError(Problem(f"fasttrain bench {name}: there is no such benchmark", hint, "command line"))
    BENCHES[name](rest)
    return 0


def data_command(arguments: Sequence[str]) -> None:
    """``fasttrain bench data``."""
    flags = read_data_flags(arguments)
    from fasttrain.bench.data_runs import build_data_runs

    runs, world = build_data_runs(flags)

    def load() -> Loaded:
        from fasttrain.bench.data import CLOCK, DataBenchmark

        return (lambda: DataBenchmark(flags, runs, world)), CLOCK

    measure("data", load, runs[0].run, arguments, world, json=flags.json)


def step_command(arguments: Sequence[str]) -> None:
    """``fasttrain bench step``."""
    flags = read_step_flags(arguments)
    from fasttrain.bench.arms import build_arms, check_arms

    arms = build_arms(flags)
    world = check_arms(arms, bare=flags.bare)

    def load() -> Loaded:
        from fasttrain.bench.step import CLOCK, StepBenchmark

        return (lambda: StepBenchmark(flags, arms, world)), CLOCK

    measure("step", load, arms[0].run, arguments, world, json=flags.json)


def measure(
    bench: str,
    load: Callable[[], Loaded],
    run: ComposedRun,
    arguments: Sequence[str],
    world: World,
    *,
    json: Path | None,
) -> None:
    """Measure and publish, once the record's file is known to be writable.

    Args:
        bench: Its name.
        load: Imports the benchmark, torch with it; what takes its time there can be stopped too.
        run: Whose recipe and machine the record names.
        arguments: The words behind the benchmark's name.
        world: This process's ranks.
        json: The record's file.
    """
    configure_logging(None, world.rank)
    if json is not None and world.rank == 0:
        require_writable(json, "--json")

    def begin() -> Benchmark:
        with spared_imports():
            make, _ = load()
        return make()

    def publish_it(outcome: Outcome) -> None:
        _, clock = load()
        publish(bench, outcome, run, arguments, world, clock=clock, json=json)

    measure_and_publish(begin, publish_it, world)


def publish(
    bench: str,
    outcome: Outcome,
    run: ComposedRun,
    arguments: Sequence[str],
    world: World,
    *,
    clock: str,
    json: Path | None,
) -> None:
    """Print the outcome with the machine that gave it, and write the record; on rank 0 alone."""
    from fasttrain.report.machine import describe_machine
    from fasttrain.strategy.check import choose_accelerator

    device_type = "cuda" if choose_accelerator(run.config, world) == "gpu" else "cpu"
    machine = describe_machine(run.config, device_type=device_type, world_size=world.size)
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    print(f"{machine.hardware}; {versions}\nclock: {clock}; medians [min .. max]\n\n{outcome.text()}", flush=True)
    if json is not None:
        facts = {
            "command": machine.command,
            "commit": machine.commit,
            "hardware": machine.hardware,
            "versions": dict(machine.versions),
        }
        recipe, overrides = run.config.recipe, [word for word in arguments if not word.startswith("recipe=")]
        write_json(json, document(bench, outcome, recipe=recipe, overrides=overrides, machine=facts, clock=clock))
        print(f"record: {json}", flush=True)


def ddp_command(arguments: Sequence[str]) -> None:
    """``fasttrain bench ddp``."""
    from fasttrain.bench.ddp_command import run_ddp

    run_ddp(arguments)


def cluster_command(arguments: Sequence[str]) -> None:
    """``fasttrain bench cluster``."""
    from fasttrain.bench.cluster import run_cluster

    run_cluster(arguments)


BENCHES: dict[str, Callable[[Sequence[str]], None]] = {
    "data": data_command,
    "step": step_command,
    "ddp": ddp_command,
    "cluster": cluster_command,
}
