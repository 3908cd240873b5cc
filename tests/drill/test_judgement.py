"""What counts as forgotten: the pure comparison, on traces written down by hand."""

from __future__ import annotations

import json
from typing import Any

from windfall.drill.diagnosis import diagnose
from windfall.drill.drill_trace import ScriptTrace, parse, rounded
from windfall.jobs import DRILL, Job, Measurement, Resources, Work
from windfall.market import Offer
from windfall.policies.planning.estimates import Knowledge, offer_estimate
from windfall.terms import Reliability, Seconds, Unit

SAVED = 3


def trace(begin: int, steps: int, items: Any, losses: Any = lambda step: 1.0 / step) -> ScriptTrace:
    """A rank's trace from step `begin` on; `items` and `losses` say what each step begins with and shows."""
    lines = [{"m": "start", "n": 0, "at_s": 0.0}, {"m": "last", "n": 0, "at_s": 0.0, "path": "x" if begin else None}]
    for number in range(steps):
        step = begin + number + 1
        lines.append({"m": "begin", "n": number, "at_s": 0.0, "items": items(step), "same": []})
        end = {"loss:loss": {"v": losses(step)}}
        lines.append(
            {"m": "end", "n": number + 1, "at_s": 0.0, "step": step, "duration_s": 0.1, "items": end, "same": []}
        )
        if begin == 0 and number + 1 == SAVED:
            lines.append({"m": "backup", "n": SAVED, "at_s": 0.0, "path": "x", "stall_s": 0.1})
    return parse(0, [json.dumps(line) + "\n" for line in lines])


def judged(continued: Any, restored: Any, again: Any = None, **losses: Any) -> list[tuple[str, bool]]:
    """Diagnose one rank; the codes and whether each is held against the script."""
    a = trace(0, 2 * SAVED, continued, losses.get("a", lambda step: 1.0 / step))
    b1 = trace(SAVED, SAVED, restored, losses.get("b1", lambda step: 1.0 / step))
    b2 = trace(SAVED, SAVED, again or restored, losses.get("b2", losses.get("b1", lambda step: 1.0 / step)))
    return [(one.code, one.forgotten) for one in diagnose([a], [b1], [b2])]


def test_equal_traces_show_nothing() -> None:
    """Where everything is as in the continuation there is nothing to say."""
    assert judged(lambda step: {"param:m|w": {"d": str(step)}}, lambda step: {"param:m|w": {"d": str(step)}}) == []


def test_a_loss_within_the_noise_of_the_script_is_no_bug() -> None:
    """A script whose two restored runs differ as much as they do from the continuation is left in peace."""
    none: Any = lambda _: {}  # noqa: E731

    assert judged(none, none, a=lambda _: 1.00, b1=lambda _: 1.02, b2=lambda _: 1.01) == []


def test_a_loss_beyond_the_noise_is_told_though_nothing_explains_it() -> None:
    """A difference many times the script's own noise is not kept quiet."""
    none: Any = lambda _: {}  # noqa: E731

    assert judged(none, none, a=lambda _: 1.0, b1=lambda _: 1.5, b2=lambda _: 1.501) == [("unexplained", True)]


def test_parameters_that_come_out_close_by_chance_are_no_bug() -> None:
    """Where the losses of two restored runs are far apart, so may be the parameters of any other run."""

    def starts(late: float) -> Any:
        return lambda step: {"param:m|w": {"d": f"{step if step <= SAVED + 1 else late}", "x": [late], "n": late}}

    losses = {"b1": lambda _: 1.0, "b2": lambda _: 1.9}

    assert judged(starts(1.0), starts(1.9), starts(1.8), **losses) == []
    assert judged(starts(1.0), starts(1.9), starts(1.8)) == [("unexplained", True)]


def test_random_numbers_in_which_the_restored_runs_differ_are_not_judged() -> None:
    """An unseeded generator says nothing of the checkpoint: a note, not a complaint."""
    found = judged(
        lambda step: {"rng:torch": {"d": f"a{step}"}},
        lambda step: {"rng:torch": {"d": f"b{step}"}},
        lambda step: {"rng:torch": {"d": f"c{step}"}},
        b1=lambda _: 9.0,
    )

    assert ("torch-rng", False) in found
    assert ("torch-rng", True) not in found


def test_random_numbers_that_nobody_misses_are_not_missed() -> None:
    """A generator that is in another state and changes nothing else is not held against the script."""
    assert judged(lambda step: {"rng:torch": {"d": f"a{step}"}}, lambda step: {"rng:torch": {"d": f"b{step}"}}) == []


def test_a_clock_is_no_counter() -> None:
    """Variables that count this process's time or steps are notes at most."""
    found = judged(
        lambda step: {"value:steps_here": {"v": step}, "value:elapsed": {"v": step * 1.1}},
        lambda step: {"value:steps_here": {"v": step - SAVED}, "value:elapsed": {"v": step * 0.7}},
    )

    assert found
    assert not any(forgotten for _, forgotten in found)


def test_an_epoch_that_begins_anew_is_a_counter() -> None:
    """A variable called epoch that goes back to 0 is held against the script, whatever it does so far."""
    found = judged(
        lambda step: {"value:epoch": {"v": step // 2}}, lambda step: {"value:epoch": {"v": (step - SAVED) // 9}}
    )

    assert found == [("counter", True)]


def test_rounding_is_recognised() -> None:
    """Values that came back as their bfloat16 or float16 neighbours lost their precision."""
    expected = {"d": "a", "t": "float32", "s": [1], "n": 0.1, "x": [0.10000000149011612]}

    assert rounded(expected, {"d": "b", "t": "float32", "s": [1], "n": 0.1, "x": [0.10009765625]}) == "bfloat16"
    assert rounded(expected, {"d": "b", "t": "float32", "s": [1], "n": 0.1, "x": [0.0999755859375]}) == "float16"
    assert rounded(expected, {"d": "b", "t": "float32", "s": [1], "n": 0.2, "x": [0.2]}) is None


def measured(provider: str, work_per_s: float) -> Measurement:
    machine = "small" if provider != DRILL else "laptop"
    return Measurement(provider, machine, Unit.STEP, work_per_s, Seconds(7.0), Seconds(0.0), 1, stall_s=Seconds(0.5))


def test_a_real_run_outweighs_a_drill() -> None:
    """A plan uses a drill's numbers, marked, until a run on that type of machine has shown its own."""
    offer = Offer("local", "small", "a", 0.1, 0.2, Reliability.TRANSIENT, Seconds(30.0), 0.0)  # type: ignore[arg-type]
    job = Job("j-1", "j", "me", "file:///x", ("true",), (Resources(),), work=Work(100.0, Unit.STEP))

    drilled = offer_estimate(job, offer, Knowledge(measured=(measured(DRILL, 5.0),)))
    real = offer_estimate(job, offer, Knowledge(measured=(measured(DRILL, 5.0), measured("local", 8.0))))

    assert (drilled.work_per_s, real.work_per_s) == (5.0, 8.0)
    assert {one.source for one in drilled.numbers if one.name == "speed"} == {"measured in a drill on laptop"}
    assert {one.source for one in real.numbers if one.name == "speed"} == {"measured in 1 earlier run"}
