"""What a run says, where, and on which rank."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fasttrain.report.console import configure_logging, log


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    yield
    configure_logging(None, 0)
    logging.captureWarnings(False)


def test_each_line_is_said_once_however_often_logging_is_set_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        configure_logging(tmp_path, 0)
    log.info("one line")
    assert capsys.readouterr().out == "one line\n"
    assert (tmp_path / "train.log").read_text().count("one line") == 1


def test_other_ranks_put_their_number_before_every_line_and_write_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(tmp_path, 3)
    log.info("progress")
    log.warning("something is wrong\nand this is how to mend it")
    assert capsys.readouterr().out == "[rank 3] something is wrong\n[rank 3] and this is how to mend it\n"
    assert list(tmp_path.iterdir()) == []


def test_warnings_of_libraries_go_to_the_file_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(tmp_path, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("a library's own", UserWarning, stacklevel=1)
    logging.getLogger("pytorch_lightning").warning("of Lightning")
    text = (tmp_path / "train.log").read_text()
    assert "a library's own" in text
    assert "of Lightning" in text
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_a_log_goes_on_where_it_was(tmp_path: Path) -> None:
    for line in ("first process", "second process"):
        configure_logging(tmp_path, 0)
        log.info(line)
    assert [line.rpartition("INFO ")[2] for line in (tmp_path / "train.log").read_text().splitlines()] == [
        "first process",
        "second process",
    ]


def test_a_run_whose_output_is_no_terminal_prints_plain_lines(
    train_tiny: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert train_tiny(f"run_dir={run_dir}", "trainer.steps_per_stage=1") == 0
    printed = capsys.readouterr()
    assert "\r" not in printed.out + printed.err
    assert "\x1b" not in printed.out + printed.err
    lines = printed.out.splitlines()
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert [line.split(" |")[0] for line in epochs] == ["epoch 1/2", "epoch 2/2"]
    assert all(word in line for line in epochs for word in (" px ", " lr ", "images/s"))
    assert lines[-1].startswith("target not reached: best ")
    kept = (run_dir / "train.log").read_text()
    assert "\r" not in kept
    assert all(line in kept for line in [*epochs, lines[-1]])
    for name in ("result.json", "dawnbench.json", "dawnbench.tsv", "mlperf.log", "report.html"):
        assert (run_dir / "report" / name).is_file(), name
