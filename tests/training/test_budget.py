"""Planning: arithmetic with a clock that is made up."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def simulate(pace, planned, step_seconds, evaluation=2.0, per_epoch=50, schedule=lambda step: 1.0):
    """A run whose steps take `step_seconds(step)`; returns it when it is over, with the factors it used."""
    run = SimpleNamespace(step=0, steps=planned, steps_per_epoch=per_epoch, history=[], seconds=0.0,
                          training_seconds=0.0, schedule=schedule)
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


def test_a_machine_that_keeps_its_pace_is_left_alone():
    said = []
    cost = Cost(0.5, 50, 2.0)
    run, _ = simulate(Pace(100.0, cost, said.append), cost.steps(100.0), lambda step: 0.5)
    assert run.steps == cost.steps(100.0) and not said


@pytest.mark.parametrize("slow", [1.2, 2.0, 5.0])
@pytest.mark.parametrize("since", [0, 60, 120])
def test_a_machine_that_slows_down_still_ends_in_time_at_rate_zero(slow, since):
    said = []
    cost = Cost(0.5, 50, 2.0)
    planned = cost.steps(100.0)
    pace = Pace(100.0, cost, said.append)
    run, factors = simulate(pace, planned, lambda step: 0.5 * (slow if step >= since else 1.0))
    assert run.seconds <= 105.0
    assert run.step < planned and said
    assert run.schedule(run.steps) == 0.0 and factors[-1] <= 0.25
    assert factors == sorted(factors, reverse=True)


def test_a_plan_that_was_changed_survives_a_checkpoint():
    cost = Cost(0.5, 50, 2.0)
    pace = Pace(100.0, cost, lambda line: None)
    run, factors = simulate(pace, cost.steps(100.0), lambda step: 1.0)
    again = Pace(1.0, Cost(9.0, 50, 9.0), lambda line: None)
    again.load_state_dict(pace.state_dict())
    resumed = SimpleNamespace(steps=run.steps, schedule=lambda step: 1.0)
    again.on_start(resumed)
    assert resumed.schedule(run.steps - 1) == pytest.approx(factors[-1])
    assert again.seconds == 100.0 and again.cost.evaluation == 2.0
