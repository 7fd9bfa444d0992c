"""The accelerated strategy for Lightning: stock DDP whose communication is tuned between real training steps."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from pytorch_lightning.strategies import DDPStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fasttrain.strategy.driver import prepare_nccl
from fasttrain.strategy.plan import STOCK, CommPlan
from fasttrain.strategy.registration import NAME
from fasttrain.strategy.session import CommSession, share_buffers
from fasttrain.strategy.settings import CommSettings
from fasttrain.strategy.topology import detect_topology
from fasttrain.strategy.wrapping import no_buffer_sync, wrap

log = logging.getLogger("fasttrain")

# The strategy's key in a checkpoint.
CHECKPOINT_KEY = "fasttrain_accelerated_ddp"


class AcceleratedDDPStrategy(DDPStrategy):
    """DDP with tuned buckets, several streams and the rest of ``CommPlan``, and stock DDP where nothing wins.

    The first steps run stock DDP and other plans in turn; each is an ordinary training step, so that nothing is
    repeated or lost. Weights differ from stock DDP's by the order of sums only; with two ranks not at all.

    Args:
        settings: None for the defaults.
        timeout: Of collectives.
        **kwargs: As for Lightning's DDPStrategy; what is DDP's own goes to DDP.
    """

    strategy_name = NAME

    def __init__(
        self, settings: CommSettings | None = None, *, timeout: timedelta = timedelta(minutes=30), **kwargs: Any
    ) -> None:
        self.settings = settings or CommSettings()
        if self.settings.sync_buffers == "eval" and not {"broadcast_buffers", "forward_sync_buffers"} & set(kwargs):
            kwargs |= no_buffer_sync()
        kwargs.setdefault("gradient_as_bucket_view", True)
        super().__init__(timeout=timeout, **kwargs)
        self._session: CommSession | None = None
        self._saved: dict[str, Any] | None = None
        self._last_step = -1
        self._last_epoch = -1
        self._evaluated = False
        self._synced_once = False

    @property
    def session(self) -> CommSession | None:
        """The life of the wrapped module's communication; None before it is wrapped."""
        return self._session

    # --- Lightning's order: process group, wrapped module, hooks, steps ---

    def setup_distributed(self) -> None:
        if self.root_device.type == "cuda":
            prepare_nccl(self.settings)
        super().setup_distributed()

    def _setup_model(self, model: nn.Module) -> DistributedDataParallel:
        device_ids = self.determine_ddp_device_ids()
        arguments = {"device_ids": device_ids, **self._ddp_kwargs}
        # https://docs.pytorch.org/docs/stable/notes/cuda.html asks for a side stream where a step is captured later.
        side = torch.cuda.Stream() if device_ids is not None else None
        with contextlib.nullcontext() if side is None else torch.cuda.stream(side):
            wrapped = wrap(model, STOCK, arguments, None)
        self._session = CommSession(
            wrapped,
            arguments,
            self.settings,
            detect_topology(),
            timeout=self._timeout or timedelta(minutes=30),
        )
        self._session.ddp.build_stream = side
        self._session.remember(self._saved)
        return wrapped

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        module = self.lightning_module
        assert module is not None
        assert self._session is not None
        trainer = module.trainer
        # Several batches may be accumulated into one step: nothing is exchanged in its middle.
        if trainer.global_step == self._last_step:
            return
        if self._last_step < 0:
            # Now, not when the module was wrapped: a resume has set the position meanwhile.
            self._session.steps_left = self._steps_left()
        interrupted = self._evaluated or trainer.current_epoch != self._last_epoch
        self._last_step, self._last_epoch, self._evaluated = trainer.global_step, trainer.current_epoch, False
        self._session.before_step(trainer.global_step, shape_of(module, batch), interrupted=interrupted)

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        # A static graph is recorded by the first backward pass, which must be one that is reduced (torch crashes
        # otherwise). Reducing one micro-batch more changes nothing: what is averaged already stays as it is.
        if getattr(self.model, "static_graph", False) and not self._synced_once:
            self._synced_once = True
            yield
            return
        with super().block_backward_sync():
            yield

    # --- buffers: before evaluation only ---

    def on_validation_start(self) -> None:
        self._before_evaluation()

    def on_test_start(self) -> None:
        self._before_evaluation()

    def on_predict_start(self) -> None:
        self._before_evaluation()

    def _before_evaluation(self) -> None:
        self._evaluated = True
        if self.lightning_module is not None and self.settings.sync_buffers == "eval":
            share_buffers(self.lightning_module)

    # --- a captured step: chosen before training ---

    def choose_captured(self, measure: Callable[[CommPlan], float]) -> CommPlan:
        """Capture a step under each of a few plans and keep the fastest; stock DDP where none saves enough.

        Args:
            measure: Captures and times a step under the plan in force, seconds, the same on all ranks.

        Returns:
            The plan, which is in force.
        """
        session = self._session
        assert session is not None
        plans = session.plans_to_capture()
        if len(plans) == 1:
            return session.ddp.plan
        seconds: dict[CommPlan, float] = {}
        for plan in plans:
            session.ddp.apply(plan)
            seconds[plan] = measure(plan)
            if math.isinf(seconds[STOCK]):
                # Steps cannot be captured at all; they will be tuned as they run.
                return session.ddp.plan
        best = min(seconds, key=lambda plan: seconds[plan])
        gain = 1 - seconds[best] / seconds[STOCK]
        if gain < self.settings.min_gain_frac:
            best = STOCK
        session.ddp.apply(best)
        session.keep_captured(gain)
        return best

    # --- checkpoints ---

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        kept = self._session.to_checkpoint() if self._session is not None else None
        if kept is not None:
            checkpoint[CHECKPOINT_KEY] = kept
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        self.use_plan_of(checkpoint)
        return checkpoint

    def use_plan_of(self, checkpoint: dict[str, Any]) -> None:
        """Begin with the plan that a checkpoint holds, where it was tuned under the same conditions."""
        self._saved = checkpoint.get(CHECKPOINT_KEY)
        if self._session is not None:
            self._session.remember(self._saved)

    def teardown(self) -> None:
        if self._session is not None:
            self._session.ddp.close()
        super().teardown()

    def _steps_left(self) -> int | None:
        """Steps of the run; None where Lightning has no number."""
        module = self.lightning_module
        assert module is not None
        planned = getattr(module, "steps_left", None)
        if isinstance(planned, int):
            return planned
        limit = module.trainer.max_steps
        return limit - module.trainer.global_step if limit >= 0 else None


def shape_of(module: Any, batch: Any) -> Any:
    """What decides how long a step takes: the module's own word, else the shapes of the batch's tensors."""
    own = getattr(module, "step_shape", None)
    if isinstance(own, int):
        return own
    flat, _ = torch.utils._pytree.tree_flatten(batch)
    return tuple(tuple(leaf.shape) for leaf in flat if isinstance(leaf, torch.Tensor))
