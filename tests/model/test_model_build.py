"""Networks, their BatchNorm options and their first weights."""

from __future__ import annotations

import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from torch import nn

from fasttrain.errors import ConfigError, MachineError
from fasttrain.model import hub
from fasttrain.model.batchnorm import batchnorms
from fasttrain.model.build import build_model
from tests.model.defaults import MODEL, OWN


def build(name: str = "resnet18d", *, num_classes: int = 10, **changes: Any) -> nn.Module:
    batchnorm = replace(OWN, **{k: changes.pop(k) for k in vars(OWN) if k in changes})
    return build_model(replace(MODEL, name=name, batchnorm=batchnorm, **changes), num_classes)


def same(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def refused(*args: Any, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        build(*args, **changes)
    return str(caught.value)


def test_the_network_is_timms_own_with_the_asked_number_of_classes() -> None:
    torch.manual_seed(3)
    ours = build("resnet18d", num_classes=7)
    torch.manual_seed(3)
    theirs = timm.create_model("resnet18d", num_classes=7)
    assert same(ours, theirs)
    assert ours(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, {0.0}), (True, {0.0}), (False, {1.0})], ids=["null", "true", "false"]
)
def test_zero_init_last_of_a_resnet(asked: bool | None, expected: set[float]) -> None:
    model = build("resnet18d", zero_init_last=asked)
    last = [block.bn2.weight for layer in (model.layer1, model.layer4) for block in layer]
    assert {float(value) for weight in last for value in weight.detach()} == expected
    assert float(model.layer1[0].bn1.weight.detach().min()) == 1.0


def test_zero_init_last_does_not_change_the_other_weights() -> None:
    states = []
    for asked in (True, False):
        torch.manual_seed(5)
        states.append(build("resnet18d", zero_init_last=asked).state_dict())
    differing = {key for key in states[0] if not torch.equal(states[0][key], states[1][key])}
    assert differing == {f"layer{stage}.{block}.bn2.weight" for stage in (1, 2, 3, 4) for block in (0, 1)}


@pytest.mark.parametrize(("asked", "num_zero"), [(None, 0), (False, 0), (True, 9)])
def test_zero_init_last_of_a_network_whose_class_lacks_it(asked: bool | None, num_zero: int) -> None:
    model = build("efficientnet_b0", zero_init_last=asked)
    zero = [norm for norm in batchnorms(model) if not norm.weight.any()]
    # EfficientNet-B0 has 16 blocks, 9 of which keep stride and width and therefore have a skip.
    assert len(zero) == num_zero


def test_zero_init_last_without_residual_blocks_is_refused() -> None:
    assert "model.batchnorm.zero_init_last=false" in refused("densenet121", zero_init_last=True)


def test_batchnorm_momentum_and_eps_reach_every_batchnorm() -> None:
    norms = batchnorms(build("resnet18d", momentum=0.4, eps=1e-12))
    # 3 in the stem, 2 in each of 8 blocks, 1 in each of 3 shortcuts.
    assert len(norms) == 22
    assert {(norm.momentum, norm.eps) for norm in norms} == {(0.4, 1e-12)}
    assert {(norm.momentum, norm.eps) for norm in batchnorms(build("resnet18d"))} == {(0.1, 1e-5)}


def test_batchnorm_options_on_a_network_without_batchnorm_are_refused() -> None:
    message = refused("vit_tiny_patch16_224", eps=1e-3)
    assert "model.batchnorm.eps=0.001" in message
    assert "has no BatchNorm" in message
    assert "model.batchnorm.eps=null" in message


def test_head_init_std() -> None:
    torch.manual_seed(0)
    head = build("resnet18d", num_classes=1000, head_init_std=0.01).get_classifier()
    assert float(head.weight.detach().std()) == pytest.approx(0.01, rel=0.01)
    assert not head.bias.any()
    assert "no linear layer" in refused("resnetv2_50", head_init_std=0.01)


def test_arguments_reach_timm() -> None:
    assert build("resnet18d", args={"drop_rate": 0.25}).drop_rate == 0.25
    message = refused("resnet18d", args={"drop_rte": 0.25})
    assert "model.args={drop_rte: 0.25}" in message
    assert "unexpected keyword argument 'drop_rte'" in message


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("resnet05", "model.name=resnet50"), ("resnet_18d", "model.name=resnet18d"), ("RESNET50", "resnet50")],
)
def test_an_unknown_name_is_answered_with_close_ones(name: str, suggestion: str) -> None:
    message = refused(name)
    assert f"model.name={name}" in message
    assert "did you mean" in message
    assert suggestion in message


def test_a_name_like_nothing_is_answered_with_the_way_to_all_names() -> None:
    assert "timm.list_models()" in refused("qqqqqq")


PREFIXES = ["", "module.", "_orig_mod.", "model.", "module._orig_mod.", "model._orig_mod.module."]


@pytest.mark.parametrize("prefix", PREFIXES, ids=PREFIXES)
def test_init_from_takes_names_of_wrapped_networks(prefix: str, tmp_path: Any) -> None:
    source = build("resnet18d")
    path = tmp_path / "saved.ckpt"
    torch.save({"state_dict": {prefix + key: value for key, value in source.state_dict().items()}}, path)
    loaded = build("resnet18d", init_from=str(path))
    assert same(loaded, source)


def test_init_from_takes_a_bare_state_dict_with_a_part_compiled(tmp_path: Any) -> None:
    source = build("resnet18d")
    compiled = {key.replace("layer1.", "layer1._orig_mod."): v for key, v in source.state_dict().items()}
    torch.save(compiled, tmp_path / "saved.pt")
    assert same(build("resnet18d", init_from=str(tmp_path / "saved.pt")), source)


def test_init_from_another_network_names_it_and_the_first_differing_keys(tmp_path: Any) -> None:
    torch.save({"state_dict": build("resnet18").state_dict()}, tmp_path / "saved.ckpt")
    message = refused("resnet18d", init_from=str(tmp_path / "saved.ckpt"))
    assert "not the weights of model.name=resnet18d" in message
    assert "not in the file: conv1.0.weight, conv1.1.weight" in message
    assert "not in the network: conv1.weight" in message


def test_init_from_another_width_names_the_shapes(tmp_path: Any) -> None:
    torch.save({"state_dict": build("efficientnet_b0").state_dict()}, tmp_path / "saved.ckpt")
    message = refused("efficientnet_b1", init_from=str(tmp_path / "saved.ckpt"))
    assert "not the weights of model.name=efficientnet_b1" in message
    message = refused("resnet18d", init_from=str(tmp_path / "saved.ckpt"))
    assert " more" in message


@pytest.mark.parametrize(("then", "now"), [(2, 3), (1, 2), (2, 1)])
def test_init_from_another_number_of_networks_names_the_ensemble(tmp_path: Any, then: int, now: int) -> None:
    torch.save(build("test_resnet", ensemble=then).state_dict(), tmp_path / "saved.ckpt")
    message = refused("test_resnet", ensemble=now, init_from=str(tmp_path / "saved.ckpt"))
    assert f"fix: model.ensemble={then}" in message
    assert "model.name" not in message
    other = refused("resnet18d", ensemble=now, init_from=str(tmp_path / "saved.ckpt"))
    assert "fix: model.name=NAME of the network that the file was saved from" in other
    assert f"model.ensemble={then}" in other


def test_init_from_another_number_of_classes_is_refused(tmp_path: Any) -> None:
    torch.save({"state_dict": build("resnet18d", num_classes=16).state_dict()}, tmp_path / "saved.ckpt")
    message = refused("resnet18d", num_classes=10, init_from=str(tmp_path / "saved.ckpt"))
    assert "trained for 16 classes, this run has 10" in message


def test_init_from_a_file_that_is_no_checkpoint(tmp_path: Any) -> None:
    broken = tmp_path / "broken.ckpt"
    broken.write_bytes(b"not a checkpoint")
    assert "not a readable checkpoint" in refused(init_from=str(broken))
    torch.save({"epoch": 3}, tmp_path / "empty.ckpt")
    assert "holds no weights" in refused(init_from=str(tmp_path / "empty.ckpt"))
    assert "no such file" in refused(init_from=str(tmp_path / "none.ckpt"))


def test_an_unreadable_file_is_told_in_one_plain_reason(tmp_path: Any) -> None:
    broken = tmp_path / "broken.ckpt"
    for content, reason in ((b"", "is empty"), (b"hello, no weights", "no file of torch.save"), (b"PK", "is cut off")):
        broken.write_bytes(content)
        assert reason in refused(init_from=str(broken))
    torch.save({"state_dict": SimpleNamespace(a=1)}, broken)
    message = refused(init_from=str(broken))
    assert "holds objects other than tensors" in message
    assert "weights_only" not in message
    assert "Is a directory" in refused(init_from=str(tmp_path))


def test_published_weights_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: Any, **__: Any) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", no_network)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(MachineError) as caught:
        build("resnet18", pretrained=True)
    (problem,) = caught.value.problems
    assert caught.value.exit_code == 4
    assert "cannot connect to huggingface.co:443 (Network is unreachable)" in problem.what
    assert problem.fix == "model.pretrained=false"
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: "/cache/model.safetensors")
    assert hub.unreachable("resnet18") == ""
