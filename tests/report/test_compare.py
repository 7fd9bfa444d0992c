"""``fasttrain report RUN_DIR ...`` as a command: what it prints, writes and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fasttrain.cli import main
from fasttrain.errors import ConfigError
from fasttrain.report.compare import load_runs, report_runs
from fasttrain.report.facts import RunFacts
from fasttrain.report.finished_run import NEEDED
from tests.report.conftest import TinyRun

MakeFacts = Callable[..., RunFacts]

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def make_run(make_facts: MakeFacts) -> Callable[..., Path]:
    """The folder of a finished run, its result.json changed by hand."""

    def make(name: str, *, seed: int = 1, lr: float = 0.5, **changes: object) -> Path:
        facts = make_facts(name, seed=seed, lr=lr)
        TinyRun(facts).whole()
        path = facts.run_dir / "report" / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        return facts.run_dir

    return make


def test_three_seeds_are_a_row_with_mean_and_spread(make_run: Callable[..., Path], tmp_path: Path) -> None:
    times = (100.0, 103.0, 109.0)
    runs = [make_run(f"s{seed}", seed=seed, seconds_to_target=times[seed]) for seed in range(3)]
    runs.append(make_run("other", lr=0.25))
    text = report_runs(runs, out=None, json_file=tmp_path / "figures.json")
    header, _, first, second = [line.split() for line in text.splitlines()[:4]]
    assert header[:4] == ["group", "recipe", "n", "seeds"]
    # Mean 104, squares 16 + 1 + 25 over 2 = 21.
    assert first[:4] == ["A", "tiny", "3", "0,1,2"]
    assert "0:01:44 ± 4.6 s" in text
    assert second[:4] == ["B", "tiny", "1", "1"]
    a, b = json.loads((tmp_path / "figures.json").read_text())["groups"]
    known = a["figures"]["seconds_to_target"]
    assert (known["n"], known["mean"], known["median"], known["min"], known["max"]) == (3, 104, 103, 100, 109)
    assert known["std"] == pytest.approx(21**0.5)
    assert known["standard_error"] == pytest.approx(7**0.5)
    assert b["figures"]["seconds_to_target"]["std"] is None
    assert (a["differs"], b["differs"]) == ({"optimizer.lr": 0.5}, {"optimizer.lr": 0.25})


def test_a_mean_is_not_rounded_up_to_a_target_that_was_missed(make_run: Callable[..., Path]) -> None:
    runs = [
        make_run("a", reached=False, best_top1=79.998, seconds_to_target=None),
        make_run("b", lr=0.1),
    ]
    row = report_runs(runs, out=None, json_file=None).splitlines()[2]
    assert "0 of 1" in row
    assert "79.99" in row
    assert "80.00 " not in row.replace("80.00% top1", "")


def test_settings_that_an_option_lacks_are_not_listed_for_it(make_run: Callable[..., Path]) -> None:
    one, other = make_run("a"), make_run("b")
    path = other / "config.yaml"
    path.write_text(path.read_text().replace("{lr: 0.5}", "{lr: 0.5, eta: 0.001}"))
    text = report_runs([one, other], out=None, json_file=None)
    assert "optimizer.eta=0.001" in text
    assert "null" not in text


@pytest.mark.parametrize("name", NEEDED)
def test_a_folder_that_lacks_a_file_is_named_with_what_is_missing(
    make_run: Callable[..., Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = make_run("whole"), make_run("broken")
    (broken / name).unlink()
    assert main(["report", str(whole), str(broken)]) == 3
    error = capsys.readouterr().err
    assert str(broken) in error
    assert name in error
    assert f"{whole}:" not in error


@pytest.mark.parametrize("name", NEEDED)
def test_a_file_that_is_no_text_is_a_data_error(
    make_run: Callable[..., Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = make_run("broken")
    (broken / name).write_bytes(b"\xff\xfe\x00\x01")
    assert main(["report", str(broken)]) == 3
    assert str(broken / name) in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_a_config_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "absent")]) == 2
    assert f"{tmp_path / 'absent'}: no such folder" in capsys.readouterr().err


def test_every_folder_that_is_wrong_is_named_at_once(make_run: Callable[..., Path], tmp_path: Path) -> None:
    broken = make_run("broken")
    (broken / "plan.json").unlink()
    with pytest.raises(ConfigError) as caught:
        load_runs([tmp_path / "absent", broken])
    assert [str(path) in str(caught.value) for path in (tmp_path / "absent", broken)] == [True, True]


def test_one_run_is_not_counted_twice(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = make_run("a")
    (tmp_path / "latest").symlink_to(run)
    with pytest.raises(ConfigError, match="latest: the same run is given twice"):
        load_runs([run, tmp_path / "latest"])


def test_a_report_that_cannot_be_written_is_an_environment_error(
    make_run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run("a")
    (tmp_path / "file").write_text("")
    assert main(["report", str(run), "--json", str(tmp_path / "file" / "figures.json")]) == 4
    assert f"{tmp_path / 'file' / 'figures.json'} cannot be written" in capsys.readouterr().err
