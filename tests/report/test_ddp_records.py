"""Records of the DDP benchmark as a table and the article's picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fasttrain.cli import main
from fasttrain.errors import DataError
from fasttrain.report.ddp_records import read_dots, report_ddp


def figure(name: str, median: float) -> dict[str, Any]:
    return {"name": name, "unit": "ratio", "n": 3, "median": median, "min": median - 0.1, "max": median + 0.1}


def write(path: Path, **changes: Any) -> Path:
    figures = [
        figure("resnet50 32: ddp_acc", 0.8),
        figure("resnet50 32: acc_ratio accelerated_ddp", 1.27),
        figure("vgg16 64: ddp_acc", 0.4),
        figure("vgg16 64: acc_ratio accelerated_ddp", 1.9),
        figure("vgg16 64: alone", 50.0),
    ]
    path.write_text(json.dumps({"bench": "ddp", "hardware": "2 x NVIDIA H200", "figures": figures, **changes}))
    return path


def test_a_row_and_a_dot_for_each_model(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    text = report_ddp([write(tmp_path / "ddp.json")], out=out)
    rows = [line.split() for line in text.splitlines()[1:3]]
    assert [row[-5:] for row in rows] == [
        ["0.800", "1.270", "1.170", "1.370", "3"],
        ["0.400", "1.900", "1.800", "2.000", "3"],
    ]
    html = out.read_text()
    assert "<svg" in html
    for words in ("resnet50 32", "vgg16 64", "acc_ratio", "ddp_acc", "accelerated_ddp, 2 x NVIDIA H200"):
        assert words in html


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(write(tmp_path / "ddp.json"))]) == 0
    assert "vgg16 64" in capsys.readouterr().out


@pytest.mark.parametrize("content", [{"bench": "step"}, {"figures": [{"name": 1}]}, {"figures": None}])
def test_other_files_are_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    path = write(tmp_path / "other.json", **content)
    with pytest.raises(DataError, match="no record of `fasttrain bench ddp`"):
        read_dots(path)
