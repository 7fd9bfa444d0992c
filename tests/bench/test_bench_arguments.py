"""The command lines of the benchmarks: what they take, and the words for what they do not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fasttrain.bench.arguments import PARTS, read_data_flags, read_step_flags
from fasttrain.cli import main
from fasttrain.errors import ConfigError


def test_flags_and_settings_may_stand_in_any_order() -> None:
    flags = read_step_flags(["--px", "96,128,96", "recipe=x", "--precision=bf16,fp32", "optimizer.lr=1", "--bare"])
    assert flags.overrides == ("recipe=x", "optimizer.lr=1")
    assert (flags.px, flags.precision, flags.bare, flags.data) == ((96, 128), ("bf16", "fp32"), True, ("random",))
    assert (flags.batch, flags.rounds, flags.compile, flags.json) == (None, None, (), None)


def test_defaults_of_bench_data() -> None:
    flags = read_data_flags(["recipe=x", "--need", "1000,2.5e3"])
    assert (flags.batch, flags.repeats, flags.seconds, flags.parts) == (1024, 5, 2.0, PARTS)
    assert (flags.caches, flags.need, flags.stage_changes, flags.first_pass) == ((), (1000.0, 2500.0), 0, False)


@pytest.mark.parametrize(
    ("bench", "words", "fragments"),
    [
        ("data", ["--pxx", "96"], ["--pxx: there is no such flag", "did you mean --px?"]),
        ("data", ["--px", "96,a"], ["--px 96,a: expected whole numbers", "--px 96,128,160"]),
        ("data", ["--px", "4"], ["--px 4", "8 to 1024"]),
        ("data", ["--px", "²"], ["--px ²: expected whole numbers"]),
        ("data", ["--batch", "³"], ["--batch ³: expected a whole number"]),
        ("data", ["--px"], ["--px: expected one argument", "--help"]),
        ("data", ["--batch", "0"], ["--batch 0", "--batch 1024"]),
        ("data", ["--seconds", "0"], ["--seconds 0: expected a number above 0"]),
        ("data", ["--seconds", "nan"], ["--seconds nan"]),
        ("data", ["--parts", "read,decod"], ["--parts read,decod", "--parts decode"]),
        ("data", ["--caches", "disk"], ["--caches disk", "off,gpu,host,auto"]),
        ("data", ["--need", "fast"], ["--need fast", "--need measure"]),
        ("data", ["--need", "-5"], ["--need -5", "--need measure"]),
        ("data", ["--px", "96", "--stage-changes", "3"], ["--stage-changes 3: one px never changes", "--px 96,128"]),
        ("step", ["--precision", "fp8"], ["--precision fp8", "fp32,bf16,fp16"]),
        ("step", ["--compile", "true"], ["--compile true", "on,off"]),
        ("step", ["--steps", "5"], ["--steps 5", "6 to", "--steps 30"]),
        ("step", ["--rounds", "3", "--repeats", "2"], ["--rounds 3: more than --repeats 2", "--rounds 2"]),
        ("step", ["--data", "cache"], ["--data cache", "random,files"]),
        ("step", ["--batch", "1,2"], ["--batch 1,2", "a whole number"]),
    ],
)
def test_wrong_flags(bench: str, words: list[str], fragments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", bench, "recipe=quickstart", *words]) == 2
    error = capsys.readouterr().err
    assert all(fragment in error for fragment in fragments), error
    assert "Traceback" not in error


def test_all_wrong_flags_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        read_data_flags(["--px", "1", "--batch", "x", "--repeats", "0"])
    assert len(raised.value.problems) == 3


@pytest.mark.parametrize(
    ("words", "code", "fragments"),
    [
        (["bench", "stpe"], 2, ["fasttrain bench stpe", "did you mean `fasttrain bench step`?"]),
        (["bench", "step"], 2, ["recipe", "quickstart"]),
        (["bench", "step", "recipe=quikstart"], 2, ["quikstart", "quickstart"]),
        (["bench", "step", "recipe=quickstart", "optimizer.lrr=1"], 2, ["optimizer.lrr", "optimizer.lr"]),
        (["bench", "step", "recipe=quickstart", "--optimizers", "adamw"], 2, ["optimizer=adamw"]),
        (["bench", "step", "recipe=quickstart", "trainer.devices=2"], 2, ["torch.distributed.run --nproc-per-node 2"]),
        (["bench", "step", "recipe=quickstart", "data.backend=synthetic", "--data", "files"], 2, ["--data files"]),
        (["bench", "step", "recipe=quickstart", "--bare", "--precision", "fp16"], 2, ["loss scaling"]),
        (["bench", "data", "recipe=quickstart", "data.backend=synthetic"], 2, ["there is nothing to read"]),
        (["bench", "data", "recipe=resnet50_dawnbench"], 2, ["data.root=null", "data.root=/path/to/imagenet"]),
        (["bench", "data", "recipe=quickstart", "--px", "32,48", "--need", "5"], 2, ["1 rates for 2 px"]),
        (["bench", "data", "recipe=quickstart", "--json", "."], 4, ["--json .: a folder", "bench.json"]),
    ],
)
def test_words_that_cannot_be_measured(
    words: list[str], code: int, fragments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    error = capsys.readouterr().err
    assert all(fragment in error for fragment in fragments), error
    assert "Traceback" not in error


@pytest.mark.parametrize("words", [[], ["--help"], ["help"]])
def test_help_lists_the_benchmarks(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 0
    out = capsys.readouterr().out
    assert "data" in out
    assert "step" in out


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "step", "--help"],
        ["bench", "data", "recipe=quickstart", "--px", "1"],
        ["bench", "data", "recipe=resnet50_dawnbench"],
        ["bench", "step", "recipe=quickstart", "trainer.devices=2"],
    ],
)
def test_no_heavy_library_before_the_words_are_checked(words: list[str]) -> None:
    code = (
        "import sys\n"
        "from fasttrain.cli import main\n"
        "try:\n"
        f"    main({words!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        "sys.exit(','.join({'torch', 'pytorch_lightning', 'timm', 'nvidia.dali'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
