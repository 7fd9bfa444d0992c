"""What is taken from a rank that failed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fasttrain.strategy.launch import _last_words, leave_last_words


@pytest.mark.parametrize("exit_code", [5, -15], ids=["exited", "ended by the agent before it could exit"])
def test_a_rank_that_spoke_has_the_code_that_it_left_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_code: int
) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    leave_last_words("training error: the ranks are not in the same run", 5)
    failure: Any = SimpleNamespace(error_file=str(file), exitcode=exit_code)
    _, words, code = _last_words(1, failure)
    assert (words, code) == ("training error: the ranks are not in the same run", 5)


@pytest.mark.parametrize(("exit_code", "code"), [(3, 3), (-15, 143)])
def test_a_rank_without_words_comes_last(tmp_path: Path, exit_code: int, code: int) -> None:
    failure: Any = SimpleNamespace(error_file=str(tmp_path / "none.json"), exitcode=exit_code)
    when, words, found = _last_words(1, failure)
    assert found == code
    assert f"rank 1 ended with exit code {code}" in words
    assert when > 2**62
