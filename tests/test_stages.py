"""The stage table: hand-written tables, and invariants over any table."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain.config.schema import StageConfig
from fasttrain.errors import ConfigError
from fasttrain.stages import Plan, accumulation, build_plan, check, steps_per_epoch

IMAGENET = 1_281_167


def stage(epochs: int, px: int, batch_size: int, val_px: int = 128) -> StageConfig:
    return StageConfig(epochs=epochs, px=px, min_area=0.25, batch_size=batch_size, val_px=val_px)


def plan(
    *stages: StageConfig,
    num_train: int = IMAGENET,
    world_size: int = 1,
    device_batch_size: int | None = None,
    steps_per_stage: int | None = None,
) -> Plan:
    return build_plan(
        stages,
        num_train=num_train,
        world_size=world_size,
        device_batch_size=device_batch_size,
        steps_per_stage=steps_per_stage,
    )


# The DAWNBench entry of Alibaba (16 x 8 V100) and the same stages at a batch for few devices.
BATCH_32K = (stage(13, 96, 32768), stage(11, 128, 32768), stage(3, 224, 32768), stage(1, 288, 16384))
BATCH_2K = (stage(13, 96, 2048), stage(11, 128, 2048), stage(3, 224, 2048), stage(1, 288, 1024))


@pytest.mark.parametrize(
    ("num_train", "batch_size", "steps"),
    [
        (IMAGENET, 32_768, 40),
        (IMAGENET, 16_384, 79),
        (IMAGENET, 2_048, 626),
        (IMAGENET, 1_024, 1_252),
        (IMAGENET, 256, 5_005),
        (50_000, 1_000, 50),
        (3_200, 64, 50),
        (65, 64, 2),
        (64, 64, 1),
    ],
)
def test_steps_of_an_epoch(num_train: int, batch_size: int, steps: int) -> None:
    assert steps_per_epoch(num_train, batch_size) == steps


def test_the_32k_recipe_has_1159_steps() -> None:
    run = plan(*BATCH_32K, world_size=128, device_batch_size=256)
    assert run.total_steps == 1_159
    assert (len(run.epochs), run.recipe_epochs) == (28, 28)
    starts = {e.stage: (e.epoch, e.first_step, e.steps, e.accumulate) for e in reversed(run.epochs)}
    assert starts == {0: (0, 0, 40, 1), 1: (13, 520, 40, 1), 2: (24, 960, 40, 1), 3: (27, 1_080, 79, 1)}
    # 27 epochs of 40 x 32,768 images and one of 79 x 16,384.
    assert run.images_done(1_158) == 35_389_440 + 1_294_336
    assert run.images_done(0) == 32_768
    assert run.images_done(1_080) == 35_389_440 + 16_384


def test_the_2k_recipe_has_18154_steps() -> None:
    run = plan(*BATCH_2K, device_batch_size=512)
    assert run.total_steps == 27 * 626 + 1_252 == 18_154
    assert [(e.accumulate, run.micro_batch(e)) for e in (run.epochs[0], run.epochs[27])] == [
        (4, 512),
        (2, 512),
    ]
    assert run.shapes() == ((96, 512), (128, 512), (224, 512), (288, 512))


def test_an_epoch_carries_its_row_of_the_table() -> None:
    row = StageConfig(epochs=2, px=288, min_area=0.5, batch_size=16, val_px=320, rectangular_val=True)
    epoch = plan(stage(1, 96, 32), row, num_train=100, world_size=2).epochs[2]
    assert (epoch.epoch, epoch.recipe_epoch, epoch.stage) == (2, 2, 1)
    assert (epoch.px, epoch.min_area, epoch.val_px, epoch.rectangular_val) == (288, 0.5, 320, True)
    assert (epoch.batch_size, epoch.steps, epoch.full_steps, epoch.first_step) == (16, 7, 7, 4 + 7)
    assert epoch.images == 112


@pytest.mark.parametrize(
    ("step", "epoch", "epochs_done"),
    [(0, 0, 1 / 40), (39, 0, 1.0), (40, 1, 1.025), (559, 13, 14.0), (560, 14, 14.025), (1_158, 27, 28.0)],
)
def test_position_of_a_step(step: int, epoch: int, epochs_done: float) -> None:
    run = plan(*BATCH_32K)
    assert run.epoch_at(step).epoch == epoch
    assert run.epochs_done(step) == epochs_done


@pytest.mark.parametrize("step", [-1, 1_159])
def test_there_is_no_step_outside_the_run(step: int) -> None:
    with pytest.raises(ValueError, match=f"step {step} is outside the run's steps 0 to 1158"):
        plan(*BATCH_32K).epoch_at(step)


@pytest.mark.parametrize(
    ("rank_batch", "device_batch_size", "parts"),
    [
        (256, None, 1),
        (256, 512, 1),
        (256, 256, 1),
        (256, 255, 2),
        (256, 128, 2),
        (256, 100, 4),  # 3 parts of 86 would not be equal: 4 x 64
        (1_500, 256, 6),
        (1_400, 256, 7),
        (7, 3, 7),
        (1, 1, 1),
    ],
)
def test_accumulation_is_the_fewest_equal_parts(rank_batch: int, device_batch_size: int | None, parts: int) -> None:
    assert accumulation(rank_batch, device_batch_size) == parts


def test_steps_per_stage_runs_a_part_of_each_stage_at_its_place_in_the_recipe() -> None:
    run = plan(*BATCH_2K, steps_per_stage=30)
    assert [(e.epoch, e.stage, e.recipe_epoch, e.steps, e.full_steps, e.first_step) for e in run.epochs] == [
        (0, 0, 0, 30, 626, 0),
        (1, 1, 13, 30, 626, 30),
        (2, 2, 24, 30, 626, 60),
        (3, 3, 27, 30, 1_252, 90),
    ]
    assert (run.total_steps, run.recipe_epochs) == (120, 28)
    assert run.epochs_done(30) == 13 + 1 / 626


def test_steps_per_stage_is_at_most_an_epoch() -> None:
    run = plan(stage(5, 32, 16), stage(5, 64, 8), num_train=64, steps_per_stage=6)
    assert [e.steps for e in run.epochs] == [4, 6]


def config(*stages: StageConfig, devices: int = 1, num_nodes: int = 1) -> SimpleNamespace:
    trainer = SimpleNamespace(devices=devices, num_nodes=num_nodes)
    return SimpleNamespace(stages=list(stages), trainer=trainer)


def test_a_good_table_has_no_problems() -> None:
    assert check(config(*BATCH_32K, devices=8, num_nodes=16), IMAGENET) == []
    assert check(config(*BATCH_32K, devices=8, num_nodes=16), None) == []


def test_an_empty_table_is_named_with_a_row_to_paste() -> None:
    (problem,) = check(config(), IMAGENET)
    assert problem.what == "stages=[]: a run needs at least one row of the stage table"
    assert problem.fix == "'stages=[{epochs: 5, px: 128, min_area: 0.25, batch_size: 256, val_px: 128}]'"


@pytest.mark.parametrize(
    ("batch_size", "ranks", "fix"),
    [
        (100, 8, "stages.0.batch_size=96 or stages.0.batch_size=104"),
        (1_000, 3, "stages.0.batch_size=999 or stages.0.batch_size=1002"),
        (4, 8, "stages.0.batch_size=8"),
        (2_045, 8, "stages.0.batch_size=2040"),  # 2,048 would be more than there are images
    ],
)
def test_a_batch_that_does_not_divide_names_the_nearest_sizes(batch_size: int, ranks: int, fix: str) -> None:
    (problem,) = check(config(stage(1, 32, batch_size), devices=ranks), 2_046)
    assert problem.what == f"stages.0.batch_size={batch_size}: does not divide over {ranks} ranks"
    assert problem.fix == fix


@pytest.mark.parametrize(
    ("num_train", "batch_size", "ranks", "fix"),
    [
        (10, 16, 1, "stages.0.batch_size=10, or add training images"),
        (10, 16, 4, "stages.0.batch_size=8, or add training images"),
        (10, 15, 4, "stages.0.batch_size=8, or add training images"),  # one problem, a fix for both
        (3, 16, 4, "add images: 4 ranks need at least 4, one each"),
    ],
)
def test_fewer_images_than_a_batch(num_train: int, batch_size: int, ranks: int, fix: str) -> None:
    (problem,) = check(config(stage(1, 32, batch_size), devices=2, num_nodes=8), num_train, ranks)
    assert problem.what == (
        f"stages.0.batch_size={batch_size}: a batch is larger than the training set of {num_train} images"
    )
    assert problem.fix == fix


def test_fewer_images_than_ranks() -> None:
    (problem,) = check(config(stage(1, 32, 3), devices=4), 3)
    assert problem.fix == "use at most 3 ranks (trainer.devices x trainer.num_nodes)"


def test_all_rows_are_checked_at_once_and_the_plan_refuses_them() -> None:
    rows = (stage(1, 32, 100), stage(1, 32, 128), stage(1, 32, 5_000))
    problems = check(config(*rows, devices=4, num_nodes=2), 1_000)
    assert [p.what.split("=")[0] for p in problems] == ["stages.0.batch_size", "stages.2.batch_size"]
    with pytest.raises(ConfigError) as refused:
        plan(*rows, num_train=1_000, world_size=8)
    assert refused.value.problems == problems


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[StageConfig], int]:
    """Stage tables whose batches divide over 8 ranks, and a number of images that fills the largest."""
    rows = draw(
        st.lists(
            st.builds(
                stage,
                epochs=st.integers(1, 4),
                px=st.sampled_from([32, 64, 96]),
                batch_size=st.integers(1, 6).map(lambda eighth: 8 * eighth),
            ),
            min_size=1,
            max_size=4,
        )
    )
    return rows, draw(st.integers(max(row.batch_size for row in rows), 300))


limits = st.none() | st.integers(1, 20)


@given(tables(), limits)
def test_steps_add_up_and_every_step_lies_in_its_epoch(
    table: tuple[list[StageConfig], int], steps_per_stage: int | None
) -> None:
    rows, num_train = table
    run = plan(*rows, num_train=num_train, steps_per_stage=steps_per_stage)
    assert sum(e.steps for e in run.epochs) == run.total_steps
    assert [e.epoch for e in run.epochs] == list(range(len(run.epochs)))
    belongs = [e for e in run.epochs for _ in range(e.steps)]
    assert [run.epoch_at(step) for step in range(run.total_steps)] == belongs
    for step, epoch in enumerate(belongs):
        assert 0 <= step - epoch.first_step < epoch.steps <= epoch.full_steps
        assert epoch.recipe_epoch < run.epochs_done(step) <= epoch.recipe_epoch + 1
    assert run.images_done(run.total_steps - 1) == sum(e.images for e in run.epochs)


@given(tables())
def test_every_epoch_covers_the_images_and_repeats_less_than_a_batch(
    table: tuple[list[StageConfig], int],
) -> None:
    rows, num_train = table
    run = plan(*rows, num_train=num_train)
    assert len(run.epochs) == run.recipe_epochs == sum(row.epochs for row in rows)
    assert all(num_train <= e.images < num_train + e.batch_size for e in run.epochs)
    assert run.epochs_done(run.total_steps - 1) == run.recipe_epochs


@given(tables(), st.sampled_from([1, 2, 4, 8]), limits, limits)
def test_ranks_change_neither_steps_nor_batches(
    table: tuple[list[StageConfig], int],
    ranks: int,
    device_batch_size: int | None,
    steps_per_stage: int | None,
) -> None:
    rows, num_train = table
    alone = plan(*rows, num_train=num_train, steps_per_stage=steps_per_stage)
    spread = plan(
        *rows,
        num_train=num_train,
        world_size=ranks,
        device_batch_size=device_batch_size,
        steps_per_stage=steps_per_stage,
    )
    for one, many in zip(alone.epochs, spread.epochs, strict=True):
        assert (one.first_step, one.steps, one.batch_size) == (many.first_step, many.steps, many.batch_size)
        assert spread.micro_batch(many) * many.accumulate * ranks == many.batch_size
        assert spread.micro_batch(many) <= (device_batch_size or many.batch_size)
