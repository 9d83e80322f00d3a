"""Planning: arithmetic with a clock that is made up."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyvit.optim import warmup_linear
from tinyvit.training.budget import Cost, Pace, share

seconds = st.floats(0.001, 10.0)


@given(step=seconds, evaluation=st.floats(0.0, 30.0), test=st.floats(0.0, 30.0), per_epoch=st.integers(1, 400),
       budget=st.floats(0.0, 1000.0))
def test_steps_are_as_many_as_fit(step, evaluation, test, per_epoch, budget):
    cost = Cost(step, per_epoch, evaluation, test)
    steps = cost.steps(budget)
    assert steps >= 0
    if steps:
        assert cost.seconds(steps) <= budget + 1e-6 * max(1.0, budget)
    assert cost.seconds(steps + 2) > budget  # (+ 2 for rounding)


def test_an_epoch_that_has_no_room_for_its_evaluation_is_left_out():
    cost = Cost(step=1.0, steps_per_epoch=10, evaluation=4.0)
    assert cost.steps(14.0) == 10 and cost.steps(18.9) == 10 and cost.steps(19.0) == 11


def test_share_gives_every_model_its_test_and_a_part_of_the_rest():
    costs = {"a": Cost(1, 10, 1, 10), "b": Cost(1, 10, 1, 30)}
    parts = share(100.0, costs, {"a": 3.0, "b": 1.0, "not asked for": 5.0})
    assert parts == {"a": pytest.approx(55.0), "b": pytest.approx(45.0)}


COST = Cost(0.5, 50, 2.0)
PLANNED = COST.steps(100.0)


def simulate(pace, planned, step_seconds, evaluation=2.0, per_epoch=50):
    """A run whose steps take `step_seconds(step)`; returns it when it is over, with the factors it used."""
    run = SimpleNamespace(step=0, steps=planned, asked_steps=planned, steps_per_epoch=per_epoch, history=[], seconds=0.0,
                          training_seconds=0.0, schedule=warmup_linear(planned, planned // 5))
    factors = []
    pace.on_start(run)
    while run.step < run.steps:
        factors.append(run.schedule(run.step))
        run.seconds += step_seconds(run.step)
        run.training_seconds += step_seconds(run.step)
        run.step += 1
        pace.on_step(run)
        if run.step == run.steps or run.step % per_epoch == 0:
            run.seconds += evaluation
            run.history.append(None)
    return run, factors


def rises_to_one_and_falls_to_zero(run, factors):
    top = factors.index(max(factors))
    return (0.85 < factors[top] <= 1.0 and factors[:top + 1] == sorted(factors[:top + 1])
            and factors[top:] == sorted(factors[top:], reverse=True)
            and 0.0 < factors[-1] <= 0.25 and run.schedule(run.steps) == 0.0)


def test_a_machine_that_keeps_its_pace_is_left_alone():
    said = []
    run, _ = simulate(Pace(100.0, COST, 10_000, said.append), PLANNED, lambda step: 0.5)
    assert run.steps == PLANNED and not said


@pytest.mark.parametrize("slow", [1.2, 2.0, 5.0])
@pytest.mark.parametrize("since", [0, 20, 60, 120])
def test_a_machine_that_slows_down_still_ends_in_time_with_its_whole_schedule(slow, since):
    said = []
    run, factors = simulate(Pace(100.0, COST, 10_000, said.append), PLANNED,
                            lambda step: 0.5 * (slow if step >= since else 1.0))
    assert run.seconds <= 106.0
    assert run.step < PLANNED and bool(said) == (run.step < 0.9 * PLANNED) and all("slower" in line for line in said[:1])
    assert rises_to_one_and_falls_to_zero(run, factors)


@pytest.mark.parametrize("fast", [0.8, 0.4])
@pytest.mark.parametrize("since", [0, 20, 60, 120])
def test_a_machine_that_gets_faster_uses_its_time(fast, since):
    said = []
    run, factors = simulate(Pace(100.0, COST, 10_000, said.append), PLANNED,
                            lambda step: 0.5 * (fast if step >= since else 1.0))
    assert 93.0 <= run.seconds <= 106.0
    assert run.step > PLANNED and bool(said) == (run.step > 1.1 * PLANNED) and all("faster" in line for line in said[:1])
    assert rises_to_one_and_falls_to_zero(run, factors)


def test_a_burst_is_made_good_after_it():
    said = []
    run, factors = simulate(Pace(100.0, COST, 10_000, said.append), PLANNED,
                            lambda step: 2.0 if step < 5 else 0.5)
    assert "slower" in said[0] and "faster" in said[-1]
    assert run.seconds == pytest.approx(100.0, abs=6.0)
    assert rises_to_one_and_falls_to_zero(run, factors)


def test_a_fast_machine_stops_at_the_most_steps():
    run, _ = simulate(Pace(100.0, COST, PLANNED + 3, lambda line: None), PLANNED, lambda step: 0.1)
    assert run.steps == PLANNED + 3


def test_a_plan_that_was_changed_survives_a_checkpoint():
    pace = Pace(100.0, COST, 500, lambda line: None)
    run, factors = simulate(pace, PLANNED, lambda step: 1.0)
    again = Pace(1.0, Cost(9.0, 50, 9.0), 0, lambda line: None)
    again.load_state_dict(pace.state_dict())
    resumed = SimpleNamespace(steps=run.steps, asked_steps=PLANNED, schedule=warmup_linear(PLANNED, PLANNED // 5))
    again.on_start(resumed)
    assert [resumed.schedule(step) for step in range(run.steps - 20, run.steps)] == factors[-20:]
    assert again.seconds == 100.0 and again.cost.evaluation == 2.0 and again.most == 500
