"""``fasttrain bench ddp``: its command line, its lines and ratios, its networks, and a run of two ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fasttrain.bench.ddp_arguments import MODEL_NAMES, OTHER_NAMES, Arm, read_ddp_flags
from fasttrain.bench.ddp_figures import Measured, article_line, lines_of, outcome_of, percentile
from fasttrain.bench.ddp_models import MODELS
from fasttrain.errors import ConfigError, MachineError

ROOT = Path(__file__).resolve().parents[2]

# Parameters and their tensors: pytorch/benchmark's networks, counted from their sources.
COUNTS = {
    "alexnet": (128, 61_100_840, 16),
    "resnet18": (16, 11_689_512, 62),
    "resnet50": (32, 25_557_032, 161),
    "vgg16": (64, 138_357_544, 32),
    "timm_vovnet": (32, 22_600_296, 119),
    "timm_vision_transformer": (8, 22_050_664, 152),
    "pytorch_unet": (1, 17_267_458, 74),
    "hf_Bart": (4, 139_420_416, 259),
    "hf_Bert": (4, 109_514_298, 202),
    # Six encoder and six decoder layers, two norms, what takes the frames in, the embedding that the output shares.
    "speech_transformer": (32, 6 * (3_152_384 + 4_204_032) + 2 * 1024 + 321 * 512 + 512 * 4233, 187),
    "tts_angular": (64, 9_381_888, 15),
}


def test_the_eleven_networks_are_the_articles() -> None:
    assert tuple(COUNTS) == MODEL_NAMES
    assert {*MODEL_NAMES, *OTHER_NAMES} == MODELS.keys()
    for name, (batch, parameters, tensors) in COUNTS.items():
        if name.startswith("hf_") and importlib.util.find_spec("transformers") is None:
            with pytest.raises(MachineError, match=r"pip install 'fasttrain\[bench\]'"):
                MODELS[name].build()
            continue
        with torch.device("meta"):
            network = MODELS[name].build()
        found = [parameter.numel() for parameter in network.parameters()]
        assert (MODELS[name].batch, sum(found), len(found)) == (batch, parameters, tensors), name


@pytest.mark.parametrize("name", ["resnet18", "pytorch_unet", "speech_transformer", "tts_angular", "layers_26mib"])
def test_a_loss_reaches_every_weight(name: str) -> None:
    model = MODELS[name]
    network = model.build()
    inputs = model.inputs(1 if name == "pytorch_unet" else 4, torch.device("cpu"))
    if name == "pytorch_unet":
        inputs = (inputs[0][..., :64, :72], inputs[1][..., :64, :72])
    *given, target = inputs
    model.loss(network(*given), target).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_flags() -> None:
    flags = read_ddp_flags(
        [
            "--model",
            "resnet50,vgg16",
            "wire_dtype=bf16",
            "streams=4",
            "--strategy",
            "ddp,accelerated_ddp+compile+capture",
        ]
    )
    assert flags.models == ("resnet50", "vgg16")
    assert (flags.precision, flags.batch_size, flags.steps, flags.repeats) == ("amp", None, 50, 3)
    assert flags.arms == (Arm("ddp", False, False), Arm("accelerated_ddp", True, True))
    assert [str(arm) for arm in flags.arms] == ["ddp", "accelerated_ddp+compile+capture"]
    assert flags.settings == {"wire_dtype": "bf16", "streams": 4}
    assert read_ddp_flags(["--model", "all"]).models == MODEL_NAMES
    assert read_ddp_flags(["--model", "all", "autotune=false", "bucket_mb=null"]).settings == {
        "autotune": False,
        "bucket_mb": None,
    }


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["--model", "resnet5"], ["--model resnet5: there is no such model", "--model resnet50"]),
        (["--model", "vgg16", "--strategy", "ddp,horovod"], ["--strategy horovod", "ddp or accelerated_ddp"]),
        (["--model", "vgg16", "--strategy", "ddp+graph"], ["--strategy ddp+graph", "+compile or +capture"]),
        (["--model", "vgg16", "--steps", "0", "--batch-size", "x"], ["--steps 0", "--batch-size x"]),
        (["--model", "vgg16", "--repeat", "2"], ["--repeat: there is no such flag", "did you mean --repeats?"]),
        (["--model", "vgg16", "stream=4"], ["stream=4: there is no such setting", "streams=VALUE"]),
        (["--model", "vgg16", "streams=four"], ["streams=four: expected a value of type int"]),
        (["--model", "vgg16", "streams=99"], ["streams=99: expected 1 to 8"]),
        (["--model", "vgg16", "--precision", "fp8"], ["--precision"]),
        ([], ["--model"]),
    ],
)
def test_what_is_wrong_is_named(words: list[str], fragments: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_ddp_flags(words)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_a_folder_for_the_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="a folder"):
        read_ddp_flags(["--model", "vgg16", "--json", str(tmp_path)])


def test_percentiles_are_numpys() -> None:
    assert [percentile([4.0, 1.0, 3.0, 2.0], p) for p in (0, 50, 75, 100)] == [1.0, 2.5, 3.25, 4.0]
    assert percentile([7.0], 95) == 7.0


def test_the_articles_line() -> None:
    line = article_line([0.0536] * 3, batch=32, num_nodes=1, local_size=8, device="GPU")
    assert line.startswith("   8 GPUs --    1M/8G:  p50:  0.054s     597/s  p75:  0.054s     597/s  p90:")
    assert article_line([0.5], batch=4, num_nodes=2, local_size=1, device="CPU").startswith("   2 CPUs --    2M/1G:")


def measured(model: str, stock_ms: float, ours_ms: float) -> Measured:
    def samples(ms: float) -> list[list[float]]:
        return [[ms / 1000] * 4, [2 * ms / 1000] * 4, [ms / 1000] * 4]

    return Measured(model, 32, samples(40.0), {"ddp": samples(stock_ms), "accelerated_ddp": samples(ours_ms)}, {})


def test_ratios_are_speeds_over_the_baselines() -> None:
    one = measured("resnet50", 50.0, 40.0)
    lines = lines_of(one, num_nodes=1, local_size=2, device="GPU")
    assert lines[-1] == "accelerated_ddp: acc_ratio=1.250 ddp_acc=0.800"
    outcome = outcome_of([one, measured("vgg16", 90.0, 40.0)])
    rows = {row["name"]: row for row in (figure.row() for figure in outcome.figures)}
    assert rows["resnet50 32: acc_ratio accelerated_ddp"]["median"] == 1.25
    assert rows["resnet50 32: ddp"]["n"] == 3
    # sqrt(1.25 x 2.25)
    assert outcome.verdicts["geometric mean of acc_ratio, accelerated_ddp"].startswith(
        "1.677 over 2 models; the least 1.250"
    )


def test_without_a_launcher_it_says_how_to_start() -> None:
    variables = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(
        [sys.executable, "-m", "fasttrain", "bench", "ddp", "--model", "layers_26mib"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=variables,
    )
    assert done.returncode == 4, done.stderr
    assert "python -m torch.distributed.run --nproc-per-node 2" in done.stderr


@pytest.mark.slow
def test_two_ranks_under_torchrun(tmp_path: Path) -> None:
    record = tmp_path / "ddp.json"
    words = ["--model", "layers_26mib", "--precision", "fp32", "--batch-size", "2", "--steps", "4", "--repeats", "2"]
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "fasttrain",
        "bench",
        "ddp",
    ]
    done = subprocess.run(
        [*launcher, *words, "--strategy", "ddp,accelerated_ddp", "autotune=false", "streams=2", "--json", str(record)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("   2 CPUs --    1M/2G:  p50:") == 2
    assert "acc_ratio=" in done.stdout
    assert "DDP's own buckets, 2 streams (autotune is off; 2 ranks on 1 node)" in done.stdout
    content = json.loads(record.read_text())
    assert content["bench"] == "ddp"
    assert [row["name"] for row in content["figures"]] == [
        "layers_26mib 2: alone",
        "layers_26mib 2: ddp",
        "layers_26mib 2: accelerated_ddp",
        "layers_26mib 2: ddp_acc",
        "layers_26mib 2: acc_ratio accelerated_ddp",
    ]
    assert all(row["n"] == 2 for row in content["figures"])
