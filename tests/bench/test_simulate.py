"""The simulator against figures that were measured, and against sums that can be done by hand."""

from __future__ import annotations

import math

import pytest

from fasttrain.bench.cluster import STOCK_FLOWS, cluster_table, gradient_sizes, run_cluster, work_of
from fasttrain.errors import ConfigError
from fasttrain.strategy.plan import MIB, STOCK, CommPlan
from fasttrain.strategy.simulate import Cluster, Work, buckets, calibrate, negotiation_ms, simulate_step


def test_one_bucket_by_hand() -> None:
    # 1 Gbit/s at 0.92: 8 MiB between two nodes is 8 MiB on each link, 72.9 ms; the gradient is ready at 30 ms.
    cluster = Cluster(2, 1, 1.0, latency_ms=1.0)
    work = Work([8 * MIB], forward_ms=10, backward_ms=20, update_ms=5)
    wire = 8 * MIB * 8 / 0.92e9 * 1e3
    step = simulate_step(cluster, work, STOCK)
    assert step.step_ms == pytest.approx(30 + 1 + wire + 5)
    assert step.exposed_ms == pytest.approx(1 + wire)
    assert step.label == "simulated"
    assert "(simulated)" in str(step)
    assert simulate_step(Cluster(1, 1, 1.0), work, STOCK).step_ms == 35


def test_buckets_overlap_with_the_backward_pass() -> None:
    # Four buckets of 1 MiB, ready at 10, 20, 30 and 40 ms, 9.1 ms each on the wire: only the last one is waited for.
    cluster = Cluster(2, 1, 1.0, latency_ms=0.0)
    work = Work([MIB] * 4, forward_ms=0, backward_ms=40)
    one = MIB * 8 / 0.92e9 * 1e3
    assert simulate_step(cluster, work, CommPlan(bucket_mb=1.0)).step_ms == pytest.approx(40 + one)
    assert simulate_step(cluster, work, CommPlan(bucket_mb=16.0)).step_ms == pytest.approx(40 + 4 * one)


def test_streams_count_where_connections_are_capped_and_nowhere_else() -> None:
    capped, free = Cluster(2, 1, 1.6, 0.5, latency_ms=0), Cluster(2, 1, 1.6, latency_ms=0)
    times = [capped.reduce_ms(26 * MIB, CommPlan(streams=k)) for k in (1, 2, 4)]
    # 0.5, 1.0 and 0.92 x 1.6 Gbit/s.
    assert [times[0] / ms for ms in times] == pytest.approx([1, 2, 2.944])
    assert free.reduce_ms(26 * MIB, CommPlan(streams=4)) == free.reduce_ms(26 * MIB, STOCK)


def test_node_by_node_sends_less_over_the_link() -> None:
    cluster = Cluster(2, 4, 1.0, latency_ms=0.0)
    # 2 (N - 1) / N of the bytes for eight ranks in a ring, 2 (n - 1) / n for two nodes.
    flat, levels = cluster.reduce_ms(MIB, STOCK), cluster.reduce_ms(MIB, CommPlan(hierarchical=True))
    assert flat / levels == pytest.approx(1.75)
    assert cluster.reduce_ms(MIB, CommPlan(wire="bf16")) == pytest.approx(flat / 2)


def test_ddps_own_buckets() -> None:
    assert buckets([2 * MIB] * 13, STOCK) == [(2 * MIB, 1), (24 * MIB, 13)]
    assert buckets([MIB] * 30, STOCK) == [(MIB, 1), (25 * MIB, 26), (4 * MIB, 30)]


def test_calibration_from_two_all_reduces() -> None:
    # 2 ms and 17 ms a MiB.
    assert calibrate((MIB, 19.0), (8 * MIB, 138.0)) == pytest.approx((2.0, 17.0))
    assert calibrate((MIB, 16.0), (8 * MIB, 138.0))[0] == 0.0
    with pytest.raises(ValueError, match="more bytes must take longer"):
        calibrate((MIB, 19.0), (8 * MIB, 18.0))


def test_the_articles_sixteen_gpus() -> None:
    """ResNet-50, 32 images a GPU, 2 x 8 GPUs over 32 Gbit/s: 91.2 ms in stock DDP, 71.3 ms in ACSpeed.

    Assumed: a computation of 53.6 ms (their 597 images/s on one machine), 10 Gbit/s a connection, two connections
    of NCCL's own, eight streams, 0.25 ms a bucket, 1 ms for BatchNorm's buffers.
    """
    cluster = Cluster(2, 8, 32.0, 10.0)
    plain = work_of(gradient_sizes("resnet50"), 53.6)
    work = Work(plain.sizes, plain.forward_ms, plain.backward_ms, plain.update_ms, buffers_ms=1.0)
    assert sum(work.sizes) == 4 * 25_557_032
    stock = simulate_step(cluster, work, STOCK, stock_flows=STOCK_FLOWS).step_ms
    ours = simulate_step(cluster, work, CommPlan(streams=8)).step_ms
    assert stock == pytest.approx(32 / 351 * 1000, rel=0.15)
    assert ours == pytest.approx(32 / 449 * 1000, rel=0.15)


def test_two_measured_runs_of_gloo_over_a_shaped_network() -> None:
    """26 MiB of gradients on two CPU ranks, 1.6 Gbit/s a node, 0.5 a connection: 496 and 202 ms a step, 54 alone.

    Measured on 2 cores with `fasttrain.bench.network` and `fasttrain.bench.reduces`: an all-reduce of 1 and of
    8 MiB took 17.6 and 136.4 ms. What of it is not the wire is taken for copies.
    """
    latency_ms, ms_per_mib = calibrate((MIB, 17.59), (8 * MIB, 136.37))
    copies = ms_per_mib - MIB * 8 / 0.5e9 * 1e3
    assert copies == pytest.approx(0.19, abs=0.01)
    cluster = Cluster(2, 1, 1.6, 0.5, latency_ms=latency_ms, copies_ms_per_mib=copies)
    sizes = gradient_sizes("layers_26mib")
    assert sum(sizes) / MIB == pytest.approx(26, abs=0.01)
    work = work_of(sizes, 54.0)
    assert simulate_step(cluster, work, STOCK).step_ms == pytest.approx(496, rel=0.15)
    assert simulate_step(cluster, work, CommPlan(bucket_mb=16.0, streams=4)).step_ms == pytest.approx(202, rel=0.15)


def test_negotiation_grows_with_ranks_or_with_their_logarithm() -> None:
    # 256 messages at 128 ranks, against two for each of seven rounds.
    assert negotiation_ms(128, central=True) / negotiation_ms(128, central=False) == pytest.approx(256 / 14)
    text = cluster_table("resnet50", Cluster(16, 8, 32.0, 10.0), work_of([MIB] * 98, 53.6))
    assert "16 x 8 ranks" in text
    assert "simulated" in text
    for column in ("central negotiation", "decentralised", "order agreed once (DDP)"):
        assert column in text
    row = next(line for line in text.splitlines() if line.strip().startswith("stock DDP"))
    agreed, central, decentralised = (float(word) for word in row.split()[2:5])
    assert agreed < decentralised < central


def test_the_command_refuses_what_is_no_cluster() -> None:
    with pytest.raises(ConfigError, match="--nodes: expected more than 0"):
        run_cluster(["--nodes", "0"])
    with pytest.raises(ConfigError, match="--model"):
        run_cluster(["--model", "gpt"])
    assert math.isinf(Cluster(1, 1, 1.0).flow_gbps)
