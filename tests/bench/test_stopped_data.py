"""``fasttrain bench data`` that is stopped half way, from its words to its record."""

from __future__ import annotations

from pathlib import Path

from tests.bench.test_stopped_step import terminated_after


def test_sigterm_in_bench_data_where_nothing_trains(tiny_images: Path, tmp_path: Path) -> None:
    settings = ["recipe=quickstart", "data=imagefolder", f"data.root={tiny_images}", "data.backend=torchvision"]
    words = ["data", *settings, "data.workers=1", "trainer.accelerator=cpu", "--batch", "8", "--seconds", "0.01"]
    words += ["--repeats", "2", "--px", "24,32", "--parts", "read", "--need", "none", "--stage-changes", "1000"]
    out, content = terminated_after("data path | 32 px", words, tmp_path / "data.json")
    assert "data path, 24 px, batch 8, torchvision" in out
    assert "24 px: " in out
    names = {row["name"] for row in content["figures"]}
    assert {f"{part}, {px} px" for part in ("read", "train_epoch") for px in (24, 32)} <= names
    (missing,) = content["cut_short"]["missing"]
    assert missing.startswith("stage changes (")
    assert missing.endswith(" of 1000)")
