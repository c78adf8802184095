"""Learning-rate schedules against transformers and the formulas of the papers."""

import pytest
import torch
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_inverse_sqrt_schedule,
    get_wsd_schedule,
)

from vit.training.optimization.schedule import build_schedule, cosine, inverse_sqrt, noam, noam_peak, wsd


def optimizer(lr=0.1):
    return torch.optim.SGD(
        [
            {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr},
            {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr / 4},
        ]
    )


def rates(scheduler, steps):
    seen = []
    for _ in range(steps):
        seen.append(scheduler.get_last_lr())
        scheduler.optimizer.step()
        scheduler.step()
    return torch.tensor(seen, dtype=torch.float64)


@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_cosine_equals_transformers(warmup):
    ours = build_schedule(optimizer(), "cosine", 40, warmup)
    theirs = get_cosine_schedule_with_warmup(optimizer(), warmup, 40)
    torch.testing.assert_close(rates(ours, 45)[:40], rates(theirs, 45)[:40], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("name", "reference"), [
    ("inverse_sqrt", get_inverse_sqrt_schedule), ("constant", get_constant_schedule_with_warmup)])
@pytest.mark.parametrize("warmup", [1, 4])
def test_schedules_without_an_end_equal_transformers(name, reference, warmup):
    ours = build_schedule(optimizer(), name, 40, warmup)
    theirs = reference(optimizer(), num_warmup_steps=warmup)
    torch.testing.assert_close(rates(ours, 40), rates(theirs, 40))


def test_wsd_equals_transformers_warmup_stable_decay():
    ours = build_schedule(optimizer(), "wsd", 40, 5, final=0.1, cooldown_fraction=0.25)
    theirs = get_wsd_schedule(
        optimizer(),
        num_warmup_steps=5,
        num_decay_steps=10,
        num_training_steps=40,
        min_lr_ratio=0.1,
        decay_type="linear",
    )
    # from the end of the warm-up on: theirs starts at the final rate, ours at 0 like the cosine's
    torch.testing.assert_close(rates(ours, 40)[5:], rates(theirs, 40)[5:], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("total", [1755, 1750, 11, 15])
def test_fractions_that_add_up_to_all_steps_fit(total):
    """0.1 and 0.9 of 1,755 steps are 175.5 and 1,579.5, both rounded up."""
    warmup = round(0.1 * total)
    seen = rates(build_schedule(optimizer(1.0), "wsd", total, warmup, cooldown_fraction=0.9), total + 1)[:, 0]
    assert seen[0] == 0 and seen[warmup] == 1 and seen[-1] == 0
    torch.testing.assert_close(seen[warmup:].diff(), torch.full_like(seen[warmup + 1:], -1 / (total - warmup)))


def test_trapezoid_is_a_former_name_of_wsd():
    assert torch.equal(rates(build_schedule(optimizer(), "trapezoid", 20, 3), 20),
                       rates(build_schedule(optimizer(), "wsd", 20, 3), 20))


def test_ends_and_bounds():
    assert cosine(100, 100, 10, final=0.05) == pytest.approx(0.05) == cosine(500, 100, 10, final=0.05)
    assert wsd(100, 100, 10, 20) == 0.0 and wsd(79, 100, 10, 20) == 1.0 and wsd(90, 100, 10, 20) == 0.5
    constant = build_schedule(optimizer(0.1), "constant", 10, 4)
    assert rates(constant, 6)[:, 0].tolist() == pytest.approx([0, 0.025, 0.05, 0.075, 0.1, 0.1])


def test_a_resumed_schedule_continues(tmp_path):
    whole = rates(build_schedule(optimizer(), "cosine", 20, 3), 20)
    first, opt = build_schedule(opt1 := optimizer(), "cosine", 20, 3), opt1
    rates(first, 8)
    torch.save({"s": first.state_dict(), "o": opt.state_dict()}, tmp_path / "s.pt")
    state = torch.load(tmp_path / "s.pt", weights_only=True)
    second = build_schedule(optimizer(), "cosine", 20, 3)
    second.optimizer.load_state_dict(state["o"])
    second.load_state_dict(state["s"])
    assert torch.equal(rates(second, 12), whole[8:])


def test_errors_name_the_numbers():
    with pytest.raises(ValueError, match="unknown schedule 'cosin'; nearest: cosine"):
        build_schedule(optimizer(), "cosin", 10)
    with pytest.raises(ValueError, match="wsd schedule: 15 warm-up and 8 cool-down steps do not fit into 20"):
        build_schedule(optimizer(), "wsd", 20, 15, cooldown_fraction=0.4)
    with pytest.raises(ValueError, match="30 warm-up and 0 cool-down steps do not fit into 20"):
        build_schedule(optimizer(), "cosine", 20, 30)
    with pytest.raises(ValueError, match="total_steps=0"):
        build_schedule(optimizer(), "constant", 0)


@pytest.mark.parametrize(("dim", "warmup"), [(512, 4000), (32, 10), (64, 1)])
def test_noam_equals_equation_3(dim, warmup):
    """lrate = d_model^-0.5 * min(step_num^-0.5, step_num * warmup_steps^-1.5), step_num from 1."""
    ours = rates(build_schedule(optimizer(noam_peak(dim, warmup)), "noam", 5000, warmup), 60)
    numbers = torch.arange(1, 61, dtype=torch.float64)
    expected = dim**-0.5 * torch.minimum(numbers**-0.5, numbers * warmup**-1.5)
    torch.testing.assert_close(ours[:, 0], expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours[:, 1], expected / 4, rtol=1e-12, atol=0)  # of a group with a lower rate
    assert ours[0, 0] > 0


def test_noam_needs_a_warmup():
    with pytest.raises(ValueError, match="computes the learning rate from its warm-up, which has 0 steps"):
        noam_peak(64, 0)


def test_inverse_sqrt_is_linear_up_to_the_peak_and_then_the_root():
    assert [inverse_sqrt(step, 4) for step in (0, 1, 2, 4)] == [0.0, 0.25, 0.5, 1.0]
    assert inverse_sqrt(16, 4) == 0.5 and inverse_sqrt(36, 4) == pytest.approx(1 / 3) and inverse_sqrt(0, 1) == 0.0
    assert [noam(step, 4) for step in range(50)] == [inverse_sqrt(step + 1, 4) for step in range(50)]
