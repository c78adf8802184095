"""The exponential moving average of the weights, against timm's and the formula."""

import copy

import pytest
import torch
from timm.utils import ModelEmaV3
from torch import nn

from vit.training.averaging.ema import EpochAverage, WeightAverage


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def train(net, steps, after, start=0):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(start, start + steps):
        net.train()
        batch = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
        net(batch.to(net[0].weight.dtype)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after(step + 1)


def test_equals_timms_ema():
    net = model()
    ours, theirs = WeightAverage(net, 0.9, warmup=False), ModelEmaV3(net, decay=0.9, exclude_buffers=True)
    train(net, 10, lambda step: (ours.update(step), theirs.update(net)))
    for name, tensor in theirs.module.state_dict().items():
        assert torch.equal(ours.average[name], tensor), name


def test_equals_the_formula_in_float64_with_warmup():
    net = model().double()
    average, expected = WeightAverage(net, 0.95), {n: p.detach().clone() for n, p in net.named_parameters()}

    def check(step):
        decay = min(0.95, (1 + step) / (10 + step))
        average.update(step)
        for name, parameter in net.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * parameter.detach()
            torch.testing.assert_close(average.average[name], expected[name], rtol=1e-12, atol=1e-14)

    train(net, 12, check)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_low_precision_are_averaged_in_float32(dtype):
    net, steps = model().to(dtype), 500
    average = WeightAverage(net, 0.999, warmup=False)
    start = net[0].weight.detach().float().clone()
    with torch.no_grad():
        net[0].weight.add_(0.5)
    for step in range(steps):
        average.update(step + 1)
    moved = net[0].weight.float() - start
    torch.testing.assert_close(average.average["0.weight"] - start, moved * (1 - 0.999**steps), rtol=1e-4, atol=1e-5)
    again = WeightAverage(net, 0.999)
    again.load_state_dict(average.state_dict())
    raw = net[0].weight.detach().clone()
    with again.swap():
        assert net[0].weight.dtype == dtype and torch.equal(net[0].weight, average.average["0.weight"].to(dtype))
    assert torch.equal(net[0].weight, raw)


def test_swap_evaluates_the_average_and_gives_the_weights_back():
    net = model()
    average = WeightAverage(net, 0.5)
    train(net, 3, average.update)
    raw = copy.deepcopy(net.state_dict())
    with pytest.raises(KeyError), average.swap():
        assert all(torch.equal(tensor, average.average[name]) for name, tensor in net.state_dict().items())
        with pytest.raises(RuntimeError, match="swap_out"):
            average.update(4)
        raise KeyError
    assert all(torch.equal(tensor, raw[name]) for name, tensor in net.state_dict().items())


def test_resume_is_exact(tmp_path):
    whole = model()
    uninterrupted = WeightAverage(whole, 0.9)
    train(whole, 8, uninterrupted.update)

    first = model()
    average = WeightAverage(first, 0.9)
    train(first, 3, average.update)
    torch.save({"raw": first.state_dict(), "average": average.state_dict()}, tmp_path / "c.pt")
    saved = torch.load(tmp_path / "c.pt", weights_only=True)
    second = model()
    second.load_state_dict(saved["raw"])
    resumed = WeightAverage(second, 0.9)
    resumed.load_state_dict(saved["average"])
    train(second, 5, resumed.update, start=3)
    assert all(torch.equal(uninterrupted.average[name], tensor) for name, tensor in resumed.average.items())


def test_names_are_those_of_the_bare_model():
    net = model()
    assert WeightAverage(torch.compile(net, backend="eager"), 0.9).state_dict().keys() == net.state_dict().keys()


def test_tied_weights_and_unsaved_buffers():
    net = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    net["b"].weight = net["a"].weight
    net["a"].register_buffer("table", torch.arange(3), persistent=False)
    average = WeightAverage(net, 0.9)
    assert list(average.average) == ["a.weight"]
    average.update(1)


def test_errors():
    average = WeightAverage(model(), 0.9)
    with pytest.raises(ValueError, match="1 name differs, the first is '0.bias'"):
        average.load_state_dict({k: v for k, v in average.state_dict().items() if k != "0.bias"})
    with pytest.raises(ValueError, match=r"'2.bias' has shape \(3,\), the model \(2,\)"):
        average.load_state_dict({**average.state_dict(), "2.bias": torch.zeros(3)})
    with pytest.raises(ValueError, match="ema decay is 1.0"):
        WeightAverage(model(), 1.0)
    with pytest.raises(RuntimeError, match="already holds its raw weights"):
        average.swap_out()
    with average.swap(), pytest.raises(RuntimeError, match="already holds the averaged weights"):
        average.swap_in()


@pytest.mark.parametrize("make", [lambda net: WeightAverage(net, 0.5), lambda net: EpochAverage(net, 2)])
def test_frozen_parameters_share_memory_with_their_average(make):
    net, whole = model(), model()
    for each in (net, whole):
        each[0].requires_grad_(False)
    average, kept = make(net), [net[0].weight.clone()]
    whole.requires_grad_(True)  # all of it is averaged; its first layer moves as little
    plain = make(whole)
    whole[0].requires_grad_(False)
    for each, network in ((average, net), (plain, whole)):
        train(network, 5, each.add_snapshot if isinstance(each, EpochAverage) else each.update)
    assert average.average["0.weight"].data_ptr() == net[0].weight.data_ptr()
    for name, tensor in average.state_dict().items():
        assert torch.equal(tensor, plain.average[name]), name
    with average.swap():
        assert torch.equal(net[0].weight, kept[0]) and torch.equal(net[2].weight, plain.average["2.weight"])
    again = make(net)
    saved = {"snapshots": average.snapshots_dict()} if isinstance(average, EpochAverage) else {}
    again.load_state_dict(plain.state_dict(), **saved)
    assert all(torch.equal(tensor, plain.average[name]) for name, tensor in again.average.items())
