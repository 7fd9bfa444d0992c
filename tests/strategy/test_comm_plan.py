"""Plans, buckets, parts, settings and what is kept of them."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from fasttrain.config.files import project_folder
from fasttrain.errors import ConfigError, MachineError
from fasttrain.strategy import tune_cache
from fasttrain.strategy.hook import MIN_PART_BYTES, cut
from fasttrain.strategy.plan import MIB, STOCK, CommPlan, bucket_caps_mb
from fasttrain.strategy.settings import CommSettings
from fasttrain.strategy.topology import Topology, group_by_node, link_speed, network_interface, node_name
from fasttrain.strategy.wire import pack, unpack, wire_dtype


def test_buckets_begin_and_end_small() -> None:
    # 12 parameters of 1 MiB: 1 first, 1 last, 4 in each full bucket.
    assert bucket_caps_mb([MIB] * 12, 4.0) == [1.0, 4.0, 4.0, 2.0, 1.0]
    # DDP does not split a parameter: one of 392 MiB is a bucket of its own.
    assert bucket_caps_mb([MIB // 2, MIB // 2, 392 * MIB, MIB], 4.0) == [1.0, 392.0, 1.0]
    assert bucket_caps_mb([1000], 4.0) == [1000 / MIB]


@pytest.mark.parametrize("bucket_mb", [0.0625, 0.1, 1.0, 4.0, 25.0])
def test_caps_are_the_buckets_that_ddp_makes(bucket_mb: float) -> None:
    sizes = [4 * n for n in (7, 251, 180_720, 251 * 7, 17, 340, 20, 459, 17, 1_000_003, 64)]
    caps = bucket_caps_mb(sizes, bucket_mb)
    limits = [int(cap * MIB) for cap in caps]
    tensors = [torch.empty(size // 4) for size in sizes]
    buckets, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, limits, [False] * len(sizes))
    assert [sum(sizes[i] for i in bucket) for bucket in buckets] == limits


def test_parts_cover_a_tensor_once_and_none_is_tiny() -> None:
    streams = CommPlan(streams=4)
    assert cut(1 << 20, 4, streams, 1) == [(i << 18, (i + 1) << 18) for i in range(4)]
    assert cut(100, 4, streams, 1) == [(0, 100)]
    assert cut(0, 4, streams, 1) == [(0, 0)]
    least = MIN_PART_BYTES // 4
    assert cut(2 * least, 4, streams, 1) == [(0, least), (least, 2 * least)]
    odd = cut(10_000_002, 2, CommPlan(split_mb=1.0, streams=2), 3)
    assert [end for _, end in odd[:-1]] == [start for start, _ in odd[1:]]
    assert odd[-1][1] == 10_000_002
    assert all((end - start) % 3 == 0 for start, end in odd)


def test_packing_and_unpacking() -> None:
    buffers = [torch.arange(5.0), torch.arange(3.0) + 10]
    flat = pack(buffers, torch.bfloat16, 6)
    assert flat.tolist() == [0, 1, 2, 3, 4, 10, 11, 12, 0, 0, 0, 0]
    back = [torch.zeros(5), torch.zeros(3)]
    unpack(flat, back)
    assert all(torch.equal(a, b) for a, b in zip(back, buffers, strict=True))
    assert wire_dtype("bf16", torch.float32) == torch.bfloat16
    assert wire_dtype("fp16", torch.bfloat16) == torch.bfloat16
    assert wire_dtype("none", torch.float64) == torch.float64


def test_a_plan_for_an_object_that_cannot_be_built_anew() -> None:
    plan = CommPlan(bucket_mb=4.0, streams=2, lean=True).without_rebuild()
    assert plan == CommPlan(join_mb=4.0, streams=2)
    assert plan.wrapping == (None, False, True)
    assert not CommPlan(bucket_mb=4.0, lean=True).uses_hook


def test_the_option_file_has_the_classs_names_and_values() -> None:
    path = project_folder("conf") / "strategy" / "accelerated_ddp.yaml"
    values = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(values, dict)
    own = asdict(CommSettings())
    del values["kind"], values["timeout_s"], own["deterministic"]
    assert values == own
    assert {field.name for field in fields(CommSettings)} == {*own, "deterministic"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"streams": 9}, "streams=9: expected 1 to 8"),
        ({"wire_dtype": "int8"}, "expected one of none, bf16, fp16"),
        ({"tune_budget_steps": 20}, "expected 121 to"),
        ({"tune_cache": "/"}, "a folder, expected a file"),
    ],
)
def test_settings_that_cannot_be_run(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CommSettings(**settings)  # type: ignore[arg-type]


def test_tuned_plans_are_found_under_the_same_conditions_only(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "plans.json"
    weights = [torch.zeros(3, 4)]
    topology = Topology(((0, 1),), 0, "eth0", 1000)

    def mark(weights: list[torch.Tensor], topology: Topology, wire: str = "none") -> dict[str, object]:
        device = torch.device("cpu")
        return tune_cache.fingerprint(weights, topology, backend="gloo", device=device, wire=wire)

    same = mark(weights, topology)
    plan = CommPlan(bucket_mb=4.0, streams=4, lean=True)
    assert tune_cache.read_plan(path, same) is None
    tune_cache.keep_plan(path, same, plan)
    assert tune_cache.read_plan(path, same) == plan
    others = [
        mark([torch.zeros(4, 3)], topology),
        mark([torch.zeros(3, 4, dtype=torch.bfloat16)], topology),
        mark(weights, Topology(((0,), (1,)), 0, "eth0", 1000)),
        mark(weights, Topology(((0, 1),), 0, "eth0", 10_000)),
        mark(weights, topology, wire="bf16"),
    ]
    assert [tune_cache.read_plan(path, other) for other in others] == [None] * 5
    saved = json.loads(json.dumps(tune_cache.to_checkpoint(plan, same)))
    assert tune_cache.from_checkpoint(saved, same) == plan
    assert tune_cache.from_checkpoint(saved, others[0]) is None
    tune_cache.keep_plan(path, others[0], STOCK)
    assert tune_cache.read_plan(path, same) == plan
    path.write_text("[]")
    with pytest.raises(MachineError, match="no file of tuned plans"):
        tune_cache.read_plan(path, same)


def test_ranks_by_node() -> None:
    assert group_by_node(["a", "a", "b", "b"]) == ((0, 1), (2, 3))
    assert group_by_node(["a", "b", "a", "b"]) == ((0, 2), (1, 3))
    even = Topology(group_by_node(["a", "b", "a", "b"]), 3, "", None)
    assert (even.local_ranks, even.rails, even.has_levels) == ((1, 3), ((0, 1), (2, 3)), True)
    uneven = Topology(group_by_node(["a", "a", "b"]), 2, "", None)
    assert (uneven.rails, uneven.has_levels) == ((), False)
    assert not Topology(group_by_node(["a", "a"]), 0, "", None).has_levels
    assert not Topology(group_by_node(["a", "b"]), 0, "", None).has_levels
    # A launcher's count of ranks on a node goes before host names.
    assert node_name(1, {"LOCAL_WORLD_SIZE": "2"}) == node_name(0, {"LOCAL_WORLD_SIZE": "2"})
    assert node_name(2, {"LOCAL_WORLD_SIZE": "2"}) != node_name(1, {"LOCAL_WORLD_SIZE": "2"})
    assert node_name(3, {}) == node_name(0, {})


def test_the_interface_between_nodes(tmp_path: Path) -> None:
    routes = tmp_path / "route"
    routes.write_text("Iface\tDestination\tGateway\nens5\t0000A8C0\t0\nens6\t00000000\t0101A8C0\n")
    assert network_interface({}, routes) == "ens6"
    assert network_interface({"NCCL_SOCKET_IFNAME": "=ib0,ib1"}, routes) == "ib0"
    assert network_interface({"GLOO_SOCKET_IFNAME": "lo"}, routes) == "lo"
    assert network_interface({"NCCL_SOCKET_IFNAME": "^docker"}, routes) == "ens6"
    assert network_interface({}, tmp_path / "none") == ""
    for name, speed in (("fast", "25000\n"), ("virtual", "-1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(speed)
    assert [link_speed(name, tmp_path) for name in ("fast", "virtual", "none", "")] == [25_000, None, None, None]
