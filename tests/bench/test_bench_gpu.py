"""The benchmarks on a GPU: by hand, where there is one (``pytest -m gpu``)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fasttrain.bench.roofline import CHIPS
from fasttrain.cli import main
from tests.bench.test_bench_step import figures_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_the_step_on_a_gpu(tmp_path: Path) -> None:
    record = tmp_path / "step.json"
    words = ["recipe=quickstart", "trainer.precision=bf16", "--px", "32", "--batch", "16", "--steps", "8"]
    words += ["--repeats", "2", "--compile", "off,on", "--bare", "--launches", "--json", str(record)]
    assert main(["bench", "step", *words]) == 0
    found = figures_of(record)
    for label in ("compile off", "compile on"):
        name = f"32 px, batch 16, {label}"
        assert found[f"step, {name}", "images/s"]["n"] == 2
        assert found[f"peak memory of tensors, {name}", "MiB"]["min"] > 0
        assert found[f"launches a step, {name}", "launches"]["min"] >= 1
        assert (f"Lightning's loop over the bare loop, {name}", "ratio of medians") in found
        if torch.cuda.get_device_name() in CHIPS:
            assert 0 < found[f"roofline, {name}", "fraction"]["max"] < 1
        else:
            assert "unknown chip" in " ".join(json.loads(record.read_text())["notes"])


def test_a_captured_steps_memory_counts(tmp_path: Path) -> None:
    record = tmp_path / "step.json"
    words = ["recipe=quickstart", "trainer.precision=bf16", "--px", "64", "--batch", "256", "--steps", "8"]
    assert main(["bench", "step", *words, "--capture", "off,on", "--repeats", "1", "--json", str(record)]) == 0
    found = figures_of(record)
    off, on = (found[f"peak memory of tensors, 64 px, batch 256, capture {word}", "MiB"] for word in ("off", "on"))
    # Gradients lie beside the activations in a graph's memory, and the cache of freed blocks is not shared.
    assert 0.8 < on["max"] / off["max"] < 2


def test_the_data_path_on_a_gpu(tiny_images: Path, tmp_path: Path) -> None:
    record = tmp_path / "data.json"
    words = ["recipe=quickstart", "data=imagefolder", f"data.root={tiny_images}", "data.backend=dali"]
    words += ["--px", "24,32", "--batch", "8", "--repeats", "2", "--seconds", "0.05", "--need", "1000,1000"]
    assert main(["bench", "data", *words, "--stage-changes", "10", "--json", str(record)]) == 0
    found = figures_of(record)
    for part in ("read", "headers", "decode", "decode_region", "backend", "transfer", "normalize", "train_epoch"):
        assert found[f"{part}, 32 px", "images/s"]["n"] == 2
    assert found["DALI path of fasttrain over bare DALI, 24 px", "ratio"]["n"] == 2
    assert found["device memory in use after 10 changes", "MiB"]["median"] > 0


def test_the_hardware_decoders_share_is_measured(tiny_images: Path) -> None:
    from fasttrain.data.dali_backend import DaliBackend
    from fasttrain.data.dali_tuning import CANDIDATES
    from tests.data.test_dali_tuning import requests

    device = torch.device("cuda", 0)
    _, wanted = requests(tiny_images)
    backend = DaliBackend(device=device, workers=2, max_batch=8, encoded=True, hw_decoder_load=None)
    assert sum(len(images) for _, images in backend.images(wanted)) == 15
    assert backend.decoder_options["hw_decoder_load"] in CANDIDATES
    backend.close()
