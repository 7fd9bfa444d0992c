"""The generated set: same bytes for the same seed, whole or absent, and hard for what is no network."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fasttrain.data import shapes
from fasttrain.data.shape_drawing import CLASSES, OUTLINES, TEXTURES, draw_shape
from fasttrain.data.shapes import check_shapes, ensure_shapes, make_shapes
from fasttrain.errors import ConfigError, DataError

SMALL = {"num_train": 32, "num_val": 16, "px": 40}


def _read(root: Path) -> dict[str, bytes]:
    return {str(f.relative_to(root)): f.read_bytes() for f in sorted(root.rglob("*")) if f.is_file()}


def _leftovers(root: Path) -> list[Path]:
    return [path for path in root.parent.iterdir() if path.suffix == ".part"]


def test_classes_are_outlines_times_textures_in_the_order_of_their_folders() -> None:
    assert len(CLASSES) == len(OUTLINES) * len(TEXTURES) == 16
    assert list(CLASSES) == sorted(CLASSES)


def test_layout_counts_and_images(tmp_path: Path) -> None:
    make_shapes(tmp_path / "set", num_train=33, num_val=16, px=40, workers=1)
    files = _read(tmp_path / "set")
    assert len(files) == 33 + 16 + 1
    assert sorted(p.name for p in (tmp_path / "set/train").iterdir()) == list(CLASSES)
    assert sorted(p.name for p in (tmp_path / "set/train" / CLASSES[0]).iterdir()) == [
        "0000.jpg",
        "0001.jpg",
        "0002.jpg",  # image 32 is the third of class 0
    ]
    assert [p.name for p in (tmp_path / "set/val" / CLASSES[15]).iterdir()] == ["0000.jpg"]
    with Image.open(tmp_path / "set/train" / CLASSES[3] / "0001.jpg") as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (40, 40))
    assert json.loads(files["shapes.json"]) == {
        "num_train": 33,
        "num_val": 16,
        "px": 40,
        "seed": 0,
        "generator": shapes.GENERATOR,
        "classes": list(CLASSES),
    }


def test_defaults_are_3200_and_800_images_of_160_px(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[shapes.Spec] = []
    monkeypatch.setattr(shapes, "_write_set", lambda part, spec, workers: made.append(spec))
    make_shapes(tmp_path / "a")
    ensure_shapes(tmp_path / "b")
    assert made == [shapes.Spec(num_train=3200, num_val=800, px=160, seed=0)] * 2


def test_same_seed_gives_the_same_bytes_with_any_number_of_workers(tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2), ("five", 5)):
        make_shapes(tmp_path / name, **SMALL, workers=workers)
    assert _read(tmp_path / "one") == _read(tmp_path / "two") == _read(tmp_path / "five")


def test_every_image_is_a_function_of_seed_split_and_number(tmp_path: Path) -> None:
    make_shapes(tmp_path / "few", **SMALL, workers=1)
    make_shapes(tmp_path / "more", num_train=48, num_val=16, px=40, workers=1)
    make_shapes(tmp_path / "other", **SMALL, seed=1, workers=1)
    few, more, other = (_read(tmp_path / name) for name in ("few", "more", "other"))
    images = [name for name in few if name.endswith(".jpg")]
    assert all(few[name] == more[name] for name in images)
    assert all(few[name] != other[name] for name in images)
    assert len({few[name] for name in images}) == 32 + 16  # training and validation images differ too


@pytest.mark.parametrize("label", range(16))
def test_draws_any_side_and_uses_the_generator_alone(label: int) -> None:
    small, again = (draw_shape(label, np.random.default_rng(7), 33) for _ in range(2))
    assert small.shape == (33, 33, 3)
    assert small.dtype == np.uint8
    assert np.array_equal(small, again)
    assert not np.array_equal(small, draw_shape((label + 1) % 16, np.random.default_rng(7), 33))


def test_an_error_midway_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn = 0

    def draw(label: int, rng: np.random.Generator, px: int) -> np.ndarray:
        nonlocal drawn
        drawn += 1
        if drawn == 10:
            raise KeyboardInterrupt
        return draw_shape(label, rng, px)

    monkeypatch.setattr(shapes, "draw_shape", draw)
    with pytest.raises(KeyboardInterrupt):
        make_shapes(tmp_path / "set", **SMALL, workers=1)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_data_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def draw(label: int, rng: np.random.Generator, px: int) -> np.ndarray:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shapes, "draw_shape", draw)
    with pytest.raises(DataError, match=r"data\.root=.*set: .* cannot be written there: No space left"):
        make_shapes(tmp_path / "set", **SMALL, workers=2)
    assert list(tmp_path.iterdir()) == []


def test_a_kill_leaves_no_root_and_the_next_start_makes_it(tmp_path: Path) -> None:
    root = tmp_path / "set"
    code = f"from fasttrain.data.shapes import make_shapes; make_shapes({str(root)!r}, workers=2)"
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("*.jpg")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not root.exists()
    (part,) = _leftovers(root)
    written = -1
    while written < (written := len(list(part.rglob("*.jpg")))):
        time.sleep(0.5)
    assert written < 4000  # its helper has ended too
    assert ensure_shapes(root, **SMALL, workers=1)
    assert len(_read(root)) == 32 + 16 + 1


def test_only_old_leftovers_are_removed(tmp_path: Path) -> None:
    for name, age in ((".set-old.part", shapes.STALE_SECONDS + 60), (".set-new.part", 0)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    make_shapes(tmp_path / "set", **SMALL, workers=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".set-new.part", "set"]


def test_two_processes_at_once_both_end_well(tmp_path: Path) -> None:
    root = tmp_path / "set"
    code = (
        "from fasttrain.data.shapes import make_shapes;"
        f"make_shapes({str(root)!r}, num_train=160, num_val=16, px=40, workers=1)"
    )
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    check_shapes(root, num_train=160, num_val=16)
    assert _leftovers(root) == []


def test_the_second_to_finish_keeps_the_first_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root, write_set = tmp_path / "set", shapes._write_set

    def write_slowly(part: Path, spec: shapes.Spec, workers: int) -> None:
        write_set(part, spec, workers)
        monkeypatch.setattr(shapes, "_write_set", write_set)
        make_shapes(root, **SMALL, workers=1)
        (root / "first").touch()

    monkeypatch.setattr(shapes, "_write_set", write_slowly)
    make_shapes(root, **SMALL, workers=1)
    assert (root / "first").exists()
    assert _leftovers(root) == []


@pytest.mark.parametrize("guard", ["if __name__ == '__main__':", "if True:"])
def test_works_where_processes_are_spawned(tmp_path: Path, guard: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\n"
        "from fasttrain.data.shapes import make_shapes\n"
        f"{guard}\n"
        "    multiprocessing.set_start_method('spawn', force=True)\n"
        f"    make_shapes({str(tmp_path / 'spawned')!r}, num_train=32, num_val=16, px=40, workers=2)\n"
    )
    subprocess.run([sys.executable, str(script)], check=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
    make_shapes(tmp_path / "here", **SMALL, workers=1)
    assert _read(tmp_path / "spawned") == _read(tmp_path / "here")


def test_works_where_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def start(process: multiprocessing.Process) -> None:
        raise OSError("no processes here")

    monkeypatch.setattr(multiprocessing.Process, "start", start)
    make_shapes(tmp_path / "set", **SMALL, workers=4)
    assert check_shapes(tmp_path / "set").num_train == 32


def test_ensure_makes_once(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()  # an empty folder counts as missing
    assert ensure_shapes(tmp_path / "set", **SMALL, workers=1) is True
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "set").rglob("*.jpg")}
    assert ensure_shapes(tmp_path / "set") is False
    make_shapes(tmp_path / "set", **SMALL)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "set").rglob("*.jpg")}


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("x")
    for make in (ensure_shapes, make_shapes):
        with pytest.raises(DataError, match=r"data\.root=.*mine: not a set of shapes") as caught:
            make(tmp_path / "mine")
        assert "data.root=data/shapes" in caught.value.problems[0].fix
    assert _read(tmp_path / "mine") == {"thesis.txt": b"x"}


def test_an_incomplete_set_is_named_with_its_fix(tmp_path: Path) -> None:
    root = tmp_path / "set"
    make_shapes(root, **SMALL, workers=1)
    (root / "train/star_plain/0001.jpg").unlink()
    with pytest.raises(DataError, match="train/star_plain has 1 images, expected 2") as caught:
        ensure_shapes(root)
    assert caught.value.problems[0].fix.startswith(f"rm -r {root} ")
    for path in (root / "val").rglob("*.jpg"):
        path.unlink()
    with pytest.raises(DataError, match="and 14 more folders"):
        ensure_shapes(root)


def test_another_kind_of_set_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path / "set"
    make_shapes(root, **SMALL, workers=1)
    with pytest.raises(DataError, match="seed 0, expected 1"):
        ensure_shapes(root, seed=1)
    with pytest.raises(DataError, match="num_train 32, expected 3200, num_val 16, expected 800"):
        make_shapes(root, px=40)
    monkeypatch.setattr(shapes, "GENERATOR", 99)
    with pytest.raises(DataError, match=r"generator \d+, expected 99"):
        ensure_shapes(root)


def test_a_file_in_the_way_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="not a set of shapes"):
        ensure_shapes(tmp_path / "file")
    with pytest.raises(DataError, match="cannot be written there"):
        ensure_shapes(tmp_path / "file/set")


def test_fewer_images_than_classes_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.num_train=15 .*16 classes") as caught:
        make_shapes(tmp_path / "set", num_train=15, num_val=16)
    assert caught.value.problems[0].fix == "data.num_train=16 data.num_val=16"


def test_no_torch_is_imported() -> None:
    code = "import sys, fasttrain.data.shapes; sys.exit('torch' in sys.modules or 'PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
