"""Parcae, replicated: its cost model, its forecasts, what its simulator trains, and its cost table."""

from __future__ import annotations

import functools
import json
import math
import re
from pathlib import Path

import pytest

from tests.models.migration_examples import example, speeds
from tests.papers.reference import FOLDER, published
from windfall.cli.main import main
from windfall.errors import Misuse
from windfall.lab import parcae, parcae_policies
from windfall.lab import parcae_published as paper
from windfall.lab import parcae_tables as tables
from windfall.lab.published_rows import Options, PublishedRow, RowVerdict, replicated
from windfall.models import count_forecasts as forecasts
from windfall.models.migration_costs import migration_cost
from windfall.models.migrations import even_cut
from windfall.models.shape_costs import PublishedCosts
from windfall.models.shapes import Shape
from windfall.simulation import shape_replay
from windfall.structs import replace

TABLES = FOLDER / "parcae"
needs_tables = pytest.mark.skipif(not TABLES.is_dir(), reason="Parcae's measured tables are not beside this checkout")


def quiet(words: str) -> None:
    del words


@functools.cache
def rows(part: str, *, data: bool = True) -> tuple[PublishedRow, ...]:
    return replicated(parcae.PARTS, (part,), Options(0, folder=str(TABLES) if data else None), quiet)


@functools.cache
def samples(name: str, policy: str) -> float:
    return sum(parcae_policies.played(TABLES, name, policy).samples)


def test_what_is_printed_is_what_the_reference_has() -> None:
    """The cost table, the ratios, the worked example, and the totals of the simulator, number for number."""
    found = published("parcae/paper_results.json")
    names = {"BERT": "BERT-Large", "GPT-2": "GPT-2 1.5B", "GPT-3": "GPT-3 6.7B"}
    for name, cells in paper.COST.items():
        for place, (segment, cell) in enumerate(cells.items()):
            theirs = found["cost"][names.get(name, name)][segment]
            assert cell == (theirs["on_demand"], theirs["varuna"], theirs["bamboo"], theirs["parcae"])
            ratios = found["ratio_to_parcae_as_printed_[on_demand,varuna,bamboo]"][names.get(name, name)][segment]
            assert list(paper.RATIOS[name][place]) == ratios
    for (shape, rate, values), one in zip(paper.EXAMPLE, found["liveput_example"], strict=True):
        assert (shape, rate, list(values)) == ((one["D"], one["P"]), one["per_pipeline"], one["liveput"])
    totals = published("parcae/sim_results.json")["results"]
    for name, policies in paper.SAMPLES.items():
        for policy, total in policies.items():
            assert total == pytest.approx(totals[paper.MODELS[name]]["full"][policy]["total_samples"], abs=1e-3)


def test_the_scores_of_forecasts_are_those_of_the_reference() -> None:
    """Normalised L1 at 12 intervals: fresh ARIMA, last value, mean of the window, and ARIMA as it runs."""
    found = published("parcae/predictor.json")
    whole = found["upstream_accuracy_by_lookahead"]["12"]["mean_normalised_L1"]
    fresh = found["variants_lookahead12_history12"]["full_rules_fresh_state_no_poisson"]["mean_normalised_L1"]

    assert [*paper.L1.values(), paper.L1_AS_RUN] == pytest.approx(
        [fresh, whole["persist"], whole["mean"], whole["arima"]], abs=1e-8
    )


# -------------------------------------------------------------------------------------------------------- without tables


def test_liveput_is_the_slides_example() -> None:
    """100, 50, 20 and 90, 60, 36 samples/s with 0, 1 and 2 losses."""
    found = rows("example", data=False)

    assert [row.published for row in found] == [100.0, 50.0, 20.0, 90.0, 60.0, 36.0]
    assert {row.verdict for row in found} == {RowVerdict.MATCH}


def test_the_headlines_are_plain_means_of_the_ratios() -> None:
    """3.24, 2.59 and 3.0 times cheaper."""
    found = rows("headline", data=False)

    assert [row.published for row in found] == [3.24, 2.59, 3.0]
    assert {row.verdict for row in found} == {RowVerdict.MATCH}


@pytest.mark.parametrize("part", ["migrations", "forecasts", "policies", "costs"])
def test_without_tables_every_other_number_cannot_be_computed(part: str) -> None:
    """Each row names what it needs, and none has a number."""
    found = rows(part, data=False)

    assert found
    assert {(row.verdict, row.ours) for row in found} == {(RowVerdict.CANNOT, None)}
    assert all(row.reason in {paper.NO_DATA, parcae.OTHER_BATCHES} for row in found)


# ----------------------------------------------------------------------------------------------------------- the models


def test_every_published_cost_is_equal() -> None:
    """903 changes of shape in 27 cases: mean, least and most equal the published ones to a thousandth of a millisecond."""
    golden = published("parcae/migration_cost_golden.json")["models"]
    compared = 0
    for name, key in paper.MODELS.items():
        times = tables.read_model(TABLES, name).times
        for case, targets in golden[key].items():
            machines, pipelines, stages, _, lost = map(int, case.split(","))
            for target, values in targets.items():
                shape = Shape(*map(int, target.split("x")))
                found = migration_cost(times, Shape(pipelines, stages), machines, lost, shape)
                ours = [1e3 * value for value in (found.mean_s, found.least_s, found.most_s)]
                assert ours == pytest.approx(values, abs=1.001e-3), (name, case, target)
                compared += 1

    assert compared == 903


@needs_tables
def test_every_stage_charged_costs_more() -> None:
    """The switch adds what the published program forgets: GPT-3 from 2x13 to 2x12 with one of 32 lost is dearer by seconds."""
    last, every = (tables.read_model(TABLES, "GPT-3", every_stage=switch).times for switch in (False, True))
    change = (Shape(2, 13), 32, 1, Shape(2, 12))

    assert migration_cost(every, *change).mean_s > migration_cost(last, *change).mean_s + 5.0


def test_layers_are_cut_as_in_the_tables() -> None:
    """Every published cut of every model is the rule's."""
    for found in published("parcae/cost_model.json")["models"].values():
        for stages, cut in found["partition_by_P"].items():
            assert list(even_cut(found["n_layers_as_modelled"], int(stages))) == cut


def test_published_forecasts_are_equal() -> None:
    """16 examples: cleaned history, drift and persistence, forecast before rounding, and the final counts."""
    for one in published("parcae/predictor.json")["golden_examples_fresh_predictor_no_poisson_rule"]:
        counts = forecasts.cleaned(one["history"])
        final, _ = forecasts.guarded_arima(one["history"], 12, forecasts.Damping(), least=8, most=32)

        assert list(counts) == one["cleaned"]
        assert list(final) == one["final_N"]
        if one["arima110_params_const_ar1"] is not None:
            fit = forecasts.fit_drifting(counts)
            assert (fit.drift, fit.persistence) == pytest.approx(one["arima110_params_const_ar1"], abs=5e-5)
            assert forecasts.projected(counts, fit, 12) == pytest.approx(one["arima_raw_forecast"], abs=1e-3)


@needs_tables
def test_damping_that_stays_changes_later_forecasts() -> None:
    """Over the trace the factors end below 1 and never return, and the score differs from that of fresh forecasts."""
    counts = tables.read_model(TABLES, "GPT-2").counts
    damping, seen = forecasts.Damping(), []
    for start in range(12, len(counts)):
        _, damping = forecasts.guarded_arima(counts[start - 12 : start], 12, damping, least=8, most=32)
        seen.append(damping)

    first = next(place for place, one in enumerate(seen) if one.rising < 1.0 and one.falling < 1.0)
    assert all(one.rising < 1.0 and one.falling < 1.0 for one in seen[first:])
    assert first < len(seen) // 2


@needs_tables
def test_scores_are_the_published_ones_and_last_value_is_better() -> None:
    """0.121 for Parcae's ARIMA, 0.099 for the last value, which is Windfall's."""
    found = {row.item: row for row in rows("forecasts")}

    assert {row.verdict for row in found.values() if row.published is not None} == {RowVerdict.MATCH}
    assert found["last value"].ours == pytest.approx(0.09947, abs=1e-5)
    assert found["Parcae's ARIMA"].ours == pytest.approx(0.12116, abs=1e-5)


# -------------------------------------------------------------------------------------------------------- the simulator


def test_a_change_longer_than_an_interval_takes_the_rest_from_the_next() -> None:
    """90 s of a start: nothing in the first minute, 30 s in the second; a change before it is paid costs a restart more."""
    times = example(every_stage=True)
    started_s = times.restart_s(Shape(1, 1), adding=True) + times.state_s(18e6)
    slow = replace(times, rendezvous_s=times.rendezvous_s + 90.0 - started_s)
    costs, rate = PublishedCosts(slow, speeds(2)), speeds(2).rate
    staying = shape_replay.play((1, 1, 1), costs, lambda seen: Shape(1, 1))
    moving = shape_replay.play((2, 2, 2), costs, lambda seen: Shape(1, 1) if seen.number == 0 else Shape(1, 2))
    again_s = slow.restart_s(Shape(1, 2), adding=False)
    change_s = migration_cost(slow, Shape(1, 1), 2, 0, Shape(1, 2)).mean_s

    assert staying.samples == pytest.approx((0.0, 30.0 * rate(Shape(1, 1)), 60.0 * rate(Shape(1, 1))))
    assert sum(moving.samples) == pytest.approx((120.0 - change_s - again_s) * rate(Shape(1, 2)))


def test_a_policy_sees_what_is_known_when_it_decides() -> None:
    """The machines of now and of before, and the counts before now; nothing of later, and now is not among the past."""
    seen: list[shape_replay.Moment] = []
    costs = PublishedCosts(example(every_stage=True), speeds(2))

    def choose(moment: shape_replay.Moment) -> Shape:
        seen.append(moment)
        return Shape(1, 1)

    shape_replay.play((2, 1, 2), costs, choose)

    assert [(one.before, one.now, one.past) for one in seen] == [(0, 2, ()), (2, 1, (2,)), (1, 2, (2, 1))]


@needs_tables
@pytest.mark.parametrize("name", paper.MODELS)
def test_totals_without_draws_match_to_rounding(name: str) -> None:
    """The free optimum and the restart from a checkpoint, to 1e-6; the reactive policy with migration within 0.1 %."""
    for policy in (paper.IDEAL, paper.CHECKPOINTS):
        assert samples(name, policy) == pytest.approx(paper.SAMPLES[name][policy], rel=1e-6)
    assert samples(name, paper.MIGRATING) == pytest.approx(paper.SAMPLES[name][paper.MIGRATING], rel=1e-3)


@needs_tables
@pytest.mark.parametrize("name", paper.MODELS)
def test_one_policy_for_all_models_trains_what_the_best_published_one_does(name: str) -> None:
    """Now and last value: at least 99.9 % of the published total, and no less than the reactive policy."""
    found = samples(name, paper.PERSISTING)

    assert found >= 0.999 * paper.SAMPLES[name][paper.PERSISTING]
    assert found >= samples(name, paper.MIGRATING) - 1e-6


@needs_tables
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", paper.MODELS)
def test_the_average_over_both_forecasts_trains_what_the_best_of_each_does(name: str) -> None:
    """One policy for all models: at least 99.9 % of liveput with the last value, of liveput with ARIMA, and of migration."""
    found = samples(name, paper.BOTH)

    for policy in (paper.PERSISTING, paper.FORECASTING, paper.MIGRATING):
        assert found >= 0.999 * paper.SAMPLES[name].get(policy, 0.0), policy


@needs_tables
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", ["GPT-3", pytest.param("GPT-2", marks=pytest.mark.slow), "BERT", "ResNet-152", "VGG-19"]
)
def test_the_truth_is_worth_what_it_is_in_the_published_simulator(name: str) -> None:
    """At least 99.9 % of 8.958, 34.762, 441.06, 2242.9 and 1545.5 samples/s, and less than the free optimum."""
    printed = {"GPT-2": 34.762, "BERT": 441.06, "GPT-3": 8.958, "ResNet-152": 2242.9, "VGG-19": 1545.5}[name]
    found = parcae_policies.played(TABLES, name, paper.TRUTH)

    assert len(found.samples) == (666 if name == "GPT-3" else 683)
    assert found.per_s >= 0.999 * printed
    assert sum(found.samples) < samples(name, paper.IDEAL)


@needs_tables
def test_other_systems_rules_say_what_shapes_and_changes_take() -> None:
    """GPT-3: the two parts that a reason names are the whole difference, no rule beats migration, and Bamboo's has no shape."""
    ideal, found = samples("GPT-3", paper.IDEAL), parcae_policies.baselines(TABLES, "GPT-3")
    rows = {row.item: row for row in parcae_policies._baseline_rows(TABLES, "GPT-3", "")}

    for item, (note, run) in found.items():
        row = rows[f"{item}, {note}" if note else item]
        if run is None:
            assert (item, row.ours) == (parcae_policies.BAMBOO, 0.0)
            continue
        parts = [float(number) for number in re.findall(r"([+-]\d+\.\d) %", row.reason)]
        assert len(parts) == 2
        assert sum(parts) == pytest.approx(100.0 * (sum(run.samples) / ideal - 1.0), abs=0.11)
        assert sum(run.samples) < samples("GPT-3", paper.MIGRATING)
    assert sum(found[parcae_policies.VARUNA][1].samples) < 0.6 * sum(found[parcae_policies.DEPTH][1].samples)  # type: ignore[union-attr]


@needs_tables
def test_segments_are_the_published_ones() -> None:
    """The free optimum of each segment and model equals the published one: the intervals are the same."""
    totals = published("parcae/sim_results.json")["results"]
    for name, key in paper.MODELS.items():
        for segment, interval in paper.SEGMENTS.items():
            found = parcae_policies.played(TABLES, name, paper.IDEAL, interval)
            assert sum(found.samples) == pytest.approx(totals[key][segment][paper.IDEAL]["total_samples"], rel=1e-6)


@needs_tables
def test_the_cost_table_says_what_can_be_rebuilt() -> None:
    """All 20 cells on demand match; none of Bamboo's can be computed; Varuna's and Parcae's say why they differ."""
    found = rows("costs")
    verdicts = {system: [row.verdict for row in found if row.item.endswith(f", {system}")] for system in paper.SYSTEMS}

    assert {system: len(seen) for system, seen in verdicts.items()} == {
        "on demand": 20, "Varuna": 19, "Bamboo": 19, "Parcae": 20,
    }  # fmt: skip
    assert set(verdicts["on demand"]) == {RowVerdict.MATCH}
    assert set(verdicts["Bamboo"]) == {RowVerdict.CANNOT}
    assert all(row.reason for row in found if row.verdict is not RowVerdict.MATCH)
    assert all(row.ours is None or math.isfinite(row.ours) for row in found)


# ------------------------------------------------------------------------------------------------------------- bad input


def test_a_folder_without_tables_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file that is missing, and which folder to pass; exit status 2."""
    assert main(["lab", "replicate", "parcae", "--data", str(tmp_path)]) == 2

    told = capsys.readouterr().err
    assert "has no throughput_profiles.json: pass the folder of Parcae's tables" in " ".join(told.split())
    assert "Traceback" not in told


def test_tables_that_are_damaged_are_refused(tmp_path: Path) -> None:
    """No JSON, and JSON without the model: each names the file or what is missing."""
    for name in tables.FILES:
        (tmp_path / name).write_text(json.dumps({"models": {}}))
    with pytest.raises(Misuse, match=r"have no 'gpt-1\.5b' of gpt-1\.5b"):
        tables.read_model(tmp_path, "GPT-2")
    (tmp_path / "throughput_profiles.json").write_text("{")
    with pytest.raises(Misuse, match="cannot read"):
        tables.read_model(tmp_path, "GPT-2")
