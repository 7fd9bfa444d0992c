"""Which plan to run next and for how many steps, from the step times so far. Pure: no torch, no clock, no ranks.

The whole order of a tuning is ``_tuning`` below. All ranks feed it the same figures (the slowest rank's) and so
come to the same answers without asking each other anything else.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from fasttrain.strategy.plan import STOCK, CommPlan

# Steps of stock DDP before anything is measured: DDP lays its buckets anew after the first.
WARMUP_STEPS = 5

# Steps of one arm; the first two are not counted: buckets are laid anew in them.
ARM_STEPS, DISCARDED_STEPS = 6, 2

# The share of the arms that each round leaves.
KEEP_FRAC = 1 / 3

# Steps of each of the final's four turns, stock and winner in turn.
FINAL_STEPS = 8

# Steps between two looks at a tuned plan's step time, of which the last 20 are timed.
WATCH_STEPS, WATCHED_STEPS = 500, 20

# Most arms beside stock DDP.
MAX_ARMS = 9


@dataclass(frozen=True)
class Segment:
    """Steps to run in one way.

    Attributes:
        plan: How.
        steps: How many.
        discard: Of them at the start that are not timed.
    """

    plan: CommPlan
    steps: int
    discard: int


@dataclass(frozen=True)
class Verdict:
    """How a tuning, or a later comparison, ended.

    Attributes:
        plan: What is run from here on.
        gain_frac: Saved of stock DDP's step by the best plan in the final; None where none took place.
        reason: In words.
    """

    plan: CommPlan
    gain_frac: float | None
    reason: str


Script = Generator[Segment, "float | None", None]


class Autotuner:
    """Hands out segments and takes their step times, until one plan is left; then watches over it.

    Args:
        arms: Plans to try beside stock DDP, at most MAX_ARMS.
        budget_steps: Most steps of the tuning; stock DDP is kept where they do not do.
        min_gain_frac: What the winner must save of stock DDP's step.
        drift_frac: How much slower a tuned step may become before a new final.
        known: A plan that won before under the same conditions: only the final is run.

    Attributes:
        segment: To be run now; None when nothing is left to measure.
        verdicts: Of the tuning and of later finals, oldest first.
        used_steps: Steps of the tuning so far.
    """

    def __init__(
        self,
        arms: Sequence[CommPlan],
        *,
        budget_steps: int,
        min_gain_frac: float,
        drift_frac: float,
        known: CommPlan | None = None,
    ) -> None:
        self.verdicts: list[Verdict] = []
        self.used_steps = 0
        self._arms = [plan for plan in dict.fromkeys(arms) if plan != STOCK][:MAX_ARMS]
        self._budget, self._min_gain, self._drift, self._known = budget_steps, min_gain_frac, drift_frac, known
        self._script: Script = self._tuning()
        self.segment: Segment | None = next(self._script, None)

    @property
    def plan(self) -> CommPlan:
        """How the next step is to be run."""
        if self.segment is not None:
            return self.segment.plan
        return self.verdicts[-1].plan if self.verdicts else STOCK

    def record(self, seconds: float) -> None:
        """Take the step time of the segment, the slowest rank's median, and go on to the next one."""
        self._go_on(seconds)

    def spoil(self) -> None:
        """The steps have become other ones (another image size): older times compare with none that come."""
        self._go_on(None)

    def _go_on(self, answer: float | None) -> None:
        if self.segment is None:
            return
        try:
            self.segment = self._script.send(answer)
        except StopIteration:
            self.segment = None

    # --- the script ---

    def _tuning(self) -> Script:
        yield Segment(STOCK, WARMUP_STEPS, WARMUP_STEPS - 1)
        self.used_steps += WARMUP_STEPS
        best = self._known
        if best == STOCK:
            self._decide(STOCK, None, "nothing won before under the same conditions")
            return
        if best is None:
            best = yield from self._rounds()
        if best is None:
            return
        yield from self._final(best)
        if self.verdicts[-1].plan != STOCK:
            yield from self._watch(self.verdicts[-1].plan)

    def _rounds(self) -> Generator[Segment, float | None, CommPlan | None]:
        """The best of the arms; None where the budget ends or there are none."""
        arms = self._arms
        if not arms:
            self._decide(STOCK, None, "there is nothing to tune")
            return None
        while True:
            times = yield from self._measure([STOCK, *arms], ARM_STEPS)
            if times is None:
                return None
            arms = sorted(arms, key=lambda plan: times[arms.index(plan) + 1])
            keep = int(len(arms) * KEEP_FRAC)
            if keep <= 1:
                return arms[0]
            arms = arms[:keep]

    def _final(self, plan: CommPlan) -> Generator[Segment, float | None, None]:
        """Stock, plan, stock, plan: the plan is kept where it wins both times and by enough."""
        times = yield from self._measure([STOCK, plan, STOCK, plan], FINAL_STEPS)
        if times is None:
            return
        gain = 1 - (times[1] + times[3]) / (times[0] + times[2])
        wins = times[1] < times[0] and times[3] < times[2]
        if wins and gain >= self._min_gain:
            self._decide(plan, gain, "it won both halves of the final")
        elif wins:
            self._decide(STOCK, gain, f"{plan} saved less than {self._min_gain:.0%}")
        else:
            self._decide(STOCK, gain, f"{plan} did not win both halves of the final")

    def _measure(self, plans: list[CommPlan], steps: int) -> Generator[Segment, float | None, list[float] | None]:
        """Step seconds of each plan, all under the same conditions; None where the budget ends."""
        times: list[float] = []
        while len(times) < len(plans):
            if self.used_steps + steps > self._budget:
                self._decide(STOCK, None, f"the budget of {self._budget} steps ended before the tuning")
                return None
            seconds = yield Segment(plans[len(times)], steps, DISCARDED_STEPS)
            self.used_steps += steps
            times = [] if seconds is None else [*times, seconds]
        return times

    def _watch(self, plan: CommPlan) -> Script:
        """Look at a tuned plan's step time now and then; a final against stock DDP where it has changed."""
        usual: float | None = None
        while True:
            seconds = yield Segment(plan, WATCH_STEPS, WATCH_STEPS - WATCHED_STEPS)
            if seconds is not None and (usual is None or seconds <= usual * (1 + self._drift)):
                usual = seconds if usual is None else usual
                continue
            usual = None
            self.used_steps = 0
            yield from self._final(plan)
            if self.verdicts[-1].plan == STOCK:
                return

    def _decide(self, plan: CommPlan, gain: float | None, reason: str) -> None:
        self.verdicts.append(Verdict(plan, gain, reason))
