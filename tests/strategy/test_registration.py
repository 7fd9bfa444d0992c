"""Lightning knows the strategy by name after one import, in either order of imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHECK = (
    "from pytorch_lightning.strategies import StrategyRegistry\n"
    "from fasttrain.strategy.accelerated import AcceleratedDDPStrategy\n"
    "assert isinstance(StrategyRegistry.get('accelerated_ddp'), AcceleratedDDPStrategy)\n"
)


@pytest.mark.parametrize(
    "imports",
    [
        "import fasttrain.strategy, sys\nassert 'torch' not in sys.modules\nimport pytorch_lightning\n",
        pytest.param("import pytorch_lightning\nimport fasttrain.strategy\n", marks=pytest.mark.slow),
    ],
)
def test_the_name_is_known(imports: str) -> None:
    done = subprocess.run([sys.executable, "-c", imports + CHECK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
