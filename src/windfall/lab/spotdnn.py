"""spotDNN's evaluation, replicated: what its constants predict, what its provisioning buys, what its figures say of each other.

ResNet-110 has published constants, and is computed from them.  Inception-v3 has FITTED ones, and its rows say so.  VGG-19 and
EsperBERTo have none that give their plans; what can be checked without is (`spotdnn_figures` too).

Source:
    spotDNN (IWQoS 2023); `spotdnn_published` has the numbers and where each is from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from scipy.optimize import brentq

from windfall.lab import spotdnn_arms as arms
from windfall.lab import spotdnn_figures, spotdnn_simulated
from windfall.lab import spotdnn_published as paper
from windfall.lab.published_rows import (
    FigureSeries,
    Options,
    PaperFigure,
    PaperPart,
    Progress,
    PublishedRow,
    cannot,
    compared,
    unprinted,
)
from windfall.lab.spotdnn_published import Plan
from windfall.lab.spotdnn_rows import (
    CLOSE_PCT,
    FIGURE_USD,
    FITTED,
    NO_IDEAL,
    ON_THEIRS,
    RESNET,
    TABLE_USD,
    claim_row,
    cost_row,
    goal_item,
    plan_row,
    time_row,
)
from windfall.models import asp
from windfall.models.asp import AspModel
from windfall.policies.planning.exact_provisioning import cheapest_plan
from windfall.policies.planning.provisioning import ProvisioningProblem, plan_of
from windfall.policies.planning.provisioning_answers import TAKEOVER_S
from windfall.policies.planning.sliding_window import sliding_window

FITTED_TIME_PCT = 1.2
"""Times by the fitted constants of Inception-v3 match within this."""
SHARE_WIDTH = 0.005
"""The convergence coefficients are printed with two digits."""
NO_PLANS: Final = (
    "no constants are published, and none were found that give all three plans: at most 2 of 3 over some 10 million draws, "
    "with and without the CC in the loss. That fewer workers are too slow needs gamma1 small against the numerator, and the "
    "spread of the objective times over the losses needs it large"
)


def _cost_usd(model: AspModel, plan: Plan, loss: float, prices: Sequence[float]) -> float:
    return float(asp.time_for_s(model, plan, loss)) * float(np.dot(plan, prices)) / 3_600.0


# ------------------------------------------------------------------------------------------------------------- Table I


PERTURBED: Final = (
    "what CM-DARE+ buys is timed by the true model: the printed times are that time plus 5, 50 and 120 s, to 0.01 s, in "
    "Table I and Figure 7a (0.8 and 0.7), and no constant explains round numbers"
)


def _table_1(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    del options
    progress("spotDNN's Table I")
    source, loss, rows = "spotDNN, Table I", paper.TABLE_1_GOAL[0], []
    for arm, (plan, time_s, cost_usd, search_s) in paper.TABLE_1.items():
        model = arms.resnet_of(arm)
        found = arms.provisioned(arm, model, paper.TABLE_1_GOAL, paper.TABLE_1_PRICES, paper.TABLE_1_QUOTAS)
        assert found is not None, "the goal can be met"
        prices = arms.paid_prices(arm, paper.TABLE_1_PRICES)
        ours_s = float(asp.time_for_s(arms.resnet(), found, loss))
        reason = PERTURBED if arm == "CM-DARE+" else ""
        late = f"{PERTURBED}; the cost is that of the longer time" if reason else ""
        ours_usd = _cost_usd(arms.resnet(), found, loss, prices)
        method = f"{RESNET}, g3.16xl at 1.368 USD/h"
        rows += [
            plan_row(source, arm, published=plan, ours=found, method=method),
            time_row(source, arm, published=time_s, ours=ours_s, method=method, reason=reason),
            cost_row(source, arm, published=cost_usd, ours=ours_usd, within_usd=TABLE_USD, method=method, reason=late),
            cannot(source, arm, "time of the search", unit="s", published=search_s, reason=MEASURED),
        ]
    saved = 100.0 * (1.0 - _table_1_usd("spotDNN") / _table_1_usd("on demand"))
    rows.append(
        compared(source, "spotDNN", "cheaper than on demand", unit="%", published=paper.SAVED_TABLE_1_PCT, ours=saved,
                 tolerance_pct=0.2, method=f"{RESNET}; matches within 0.2 %")
    )  # fmt: skip
    return tuple(rows)


def _table_1_usd(arm: str) -> float:
    prices = arms.paid_prices(arm, paper.TABLE_1_PRICES)
    return _cost_usd(arms.resnet(), paper.TABLE_1[arm][0], paper.TABLE_1_GOAL[0], prices)


MEASURED: Final = "measured on the authors' machine, in Python; `make bench BENCH=planner` measures ours"


# -------------------------------------------------------------------------------------------------- Tables V and VI


THIRD: Final = (
    "Figure 7a draws 3568.33 s for this cell (and 4.5 and 15.1 USD), which are those of [2,0,4,0,0], the plan computed here; "
    "the printed [2,1,4,0,0] takes 3526 s and costs 4.83 USD, and is no run of neighbours in the sorted list"
)
INCEPTION_THIRD: Final = (
    "Figure 7b draws 19.6 USD on demand for 6607.5 s, so 10.68 USD/h: [2,0,0,1,0], the plan computed here; the printed "
    "[2,0,1,0,0] costs 8.40 USD/h. A digit in the wrong place"
)


def _table_5(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    del options
    progress("spotDNN's Table V")
    rows = []
    for arm in paper.ARMS:
        for place, goal in enumerate(paper.RESNET_GOALS):
            model = arms.resnet_of(arm)
            found = arms.provisioned(arm, model, goal, paper.FIGURE_PRICES, paper.QUOTAS)
            method = f"{RESNET}, FITTED speeds of GPUs alone" if arm == "CM-DARE+" else RESNET
            rows.append(
                plan_row("spotDNN, Table V, ResNet-110", goal_item(arm, goal), published=paper.TABLE_5_RESNET[arm][place],
                         ours=found, method=method, reason=THIRD)
            )  # fmt: skip
    return (*rows, *_table_5_inception())


def _table_5_inception() -> list[PublishedRow]:
    rows, source = [], "spotDNN, Table V, Inception-v3"
    for arm in paper.ARMS:
        for place, goal in enumerate(paper.INCEPTION_GOALS):
            printed = paper.TABLE_5_INCEPTION[arm][place]
            found = None
            if arm != "CM-DARE+":
                found = arms.provisioned(arm, arms.inception(), goal, paper.FIGURE_PRICES, paper.QUOTAS)
            reason = NO_IDEAL if arm == "CM-DARE+" else INCEPTION_THIRD
            rows.append(
                plan_row(source, goal_item(arm, goal), published=printed, ours=found, method=FITTED, reason=reason)
            )
    return rows


def _table_6(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    del options
    progress("spotDNN's Table VI")
    rows = []
    for load, cells in paper.TABLE_6.items():
        source = f"spotDNN, Table VI, {load}"
        ratio = _share_ratio(load)
        for loss, time_s, slow, fast, mixed, printed in cells:
            places = paper.TABLE_6_SLOW[load]
            goal = (loss, time_s)
            rows.append(plan_row(source, goal_item("spotDNN", goal), published=mixed, ours=None, reason=NO_PLANS))
            for arm, plan, place, coefficient in zip(
                ("Homo-slow", "Homo-fast"), (slow, fast), places, printed, strict=False
            ):
                same = arms.homogeneous(mixed, place)
                method = "as many workers as spotDNN's printed plan, of one type"
                shares = _of_shares(sum(same), 0, 1.0)
                item = goal_item(arm, goal)
                rows += [
                    plan_row(source, item, published=plan, ours=same, method=method),
                    _coefficient(source, item, published=coefficient, ours=shares, method="equal shares"),
                ]
            method, reason = _RATIOS[load]
            shares = _of_shares(mixed[places[1]], mixed[places[0]], ratio)
            item = goal_item("spotDNN", goal)
            rows.append(_coefficient(source, item, published=printed[2], ours=shares, method=method, reason=reason))
    return tuple(rows)


_RATIOS: Final = {
    "VGG-19": (
        "shares of slow and fast workers as 0.564:1, from the printed 0.51 of [1,1]",
        "0.51 for [1,1] fixes the shares (0.36 and 0.64), and they give 0.757 for [2,1]: 0.75 is cut, where 0.82 is rounded",
    ),
    "EsperBERTo": (
        "shares of slow and fast workers as 0.45:1, from the printed 0.83 of [0,0,1,3,0]",
        "the shares that give 0.83 for [0,0,1,3,0] give 0.74 for [0,0,1,2,0]; no shares give both",
    ),
}


def _share_ratio(load: str) -> float:
    """Return the share of a slow worker over that of a fast one, from one printed coefficient."""
    fast, printed = (1, 0.51) if load == "VGG-19" else (3, 0.83)
    return float(brentq(lambda ratio: _of_shares(fast, 1, ratio) - printed, 0.3, 1.0))


def _of_shares(fast: int, slow: int, ratio: float) -> float:
    """Return R of workers whose shares of the samples are as 1 and `ratio`."""
    return float(asp.totals((fast, slow), (1.0, 1.0), (1.0, ratio))[3])


def _coefficient(
    source: str, item: str, *, published: float, ours: float, method: str, reason: str = ""
) -> PublishedRow:
    return compared(source, item, "convergence coefficient", unit="", published=published, ours=ours,
                    tolerance_pct=100.0 * SHARE_WIDTH / published, reason=reason,
                    method=f"equation 5, {method}; the 1 on the largest share; matches within {SHARE_WIDTH:g}")  # fmt: skip


# ------------------------------------------------------------------------------------------------------ Figures 6 and 7


def _figure_6(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    del options, progress
    rows = []
    for load, points in paper.FIGURE_6.items():
        for loss, observed, predicted in points:
            source, item = f"spotDNN, Figure 6, {load}", f"loss {loss:g}"
            if load == "ResNet-110":
                ours = float(asp.iterations_for(arms.resnet(), paper.FIGURE_6_PLAN, loss))
                method = RESNET
            else:
                ours = float(asp.iterations_to(loss, paper.ESPER_SCALE, paper.ESPER_GAMMA1, paper.ESPER_GAMMA5))
                method = "FITTED gamma1, gamma5 and numerator of EsperBERTo: three numbers to these four points"
            rows += [
                compared(source, item, "iterations, predicted", unit="", published=predicted, ours=ours,
                         tolerance_pct=CLOSE_PCT, method=f"{method}; matches within {CLOSE_PCT:g} %").placed(
                    PaperFigure.SPOTDNN_6, FigureSeries.EXACT, f"{load}|{loss:g}"
                ),
                cannot(source, item, "iterations, observed", unit="", published=observed,
                       reason=ON_THEIRS),
            ]  # fmt: skip
    return tuple(rows)


FIGURE_7_FITTED: Final = (
    "the cost is the time at the prices of the plan: the fitted time is 1.2 % off, and no price in the paper or the repository "
    "gives 6.1 USD for the drawn 6607.5 s of [2,0,0,1,0] (5.88 USD at Table I's, 6.25 at the repository's, 7.10 at Table III's)"
)


def _figure_7(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    del options
    progress("spotDNN's Figure 7")
    rows = []
    for arm, (times_s, costs_usd) in paper.FIGURE_7_RESNET.items():
        prices = arms.paid_prices(arm, paper.FIGURE_PRICES)
        model = arms.resnet_of(arm)
        for goal, time_s, cost_usd in zip(paper.RESNET_GOALS, times_s, costs_usd, strict=True):
            found = arms.provisioned(arm, model, goal, paper.FIGURE_PRICES, paper.QUOTAS)
            assert found is not None, "the goal can be met"
            source, item = "spotDNN, Figure 7a, ResNet-110", goal_item(arm, goal)
            ours_s = float(asp.time_for_s(arms.resnet(), found, goal[0]))
            reason = PERTURBED if arm == "CM-DARE+" else ""
            rows += [
                time_row(source, item, published=time_s, ours=ours_s, method=RESNET, reason=reason).placed(
                    PaperFigure.SPOTDNN_7, FigureSeries.RUN_TIME, f"{arm}|{goal[0]:g}"
                ),
                cost_row(
                    source, item, published=cost_usd, ours=_cost_usd(arms.resnet(), found, goal[0], prices),
                    within_usd=FIGURE_USD, method=f"{RESNET}, the repository's prices", reason=reason,
                ).placed(PaperFigure.SPOTDNN_7, FigureSeries.COST, f"{arm}|{goal[0]:g}"),
            ]  # fmt: skip
    return (*rows, *_figure_7_inception(), *_saved())


def _figure_7_inception() -> list[PublishedRow]:
    rows, model = [], arms.inception()
    for arm, (times_s, costs_usd) in paper.FIGURE_7_INCEPTION.items():
        prices = arms.paid_prices(arm, paper.FIGURE_PRICES)
        for goal, time_s, cost_usd in zip(paper.INCEPTION_GOALS, times_s, costs_usd, strict=True):
            source, item = "spotDNN, Figure 7b, Inception-v3", goal_item(arm, goal)
            if arm == "CM-DARE+":
                rows += [
                    cannot(source, item, "time", unit="s", published=time_s, reason=NO_IDEAL),
                    cannot(source, item, "cost", unit="USD", published=cost_usd, reason=NO_IDEAL),
                ]
                continue
            found = arms.provisioned(arm, model, goal, paper.FIGURE_PRICES, paper.QUOTAS)
            assert found is not None, "the goal can be met"
            rows += [
                compared(source, item, "time", unit="s", published=time_s,
                         ours=float(asp.time_for_s(model, found, goal[0])), tolerance_pct=FITTED_TIME_PCT,
                         method=f"{FITTED}; matches within {FITTED_TIME_PCT:g} %"),
                cost_row(source, item, published=cost_usd, ours=_cost_usd(model, found, goal[0], prices),
                         within_usd=FIGURE_USD, method=f"{FITTED}, the repository's prices", reason=FIGURE_7_FITTED),
            ]  # fmt: skip
    return rows


def _saved() -> list[PublishedRow]:
    """Return how much cheaper than on demand the drawn bars of spotDNN are, at most."""
    bars = [
        (1.0 - spot / dear) * 100.0
        for figure in (paper.FIGURE_7_RESNET, paper.FIGURE_7_INCEPTION)
        for spot, dear in zip(figure["spotDNN"][1], figure["on demand"][1], strict=True)
    ]
    reason = f"the bars give {', '.join(f'{value:.1f}' for value in bars)} %, and none gives the claim"
    return [
        claim_row("spotDNN, Figure 7", "spotDNN", "cheaper than on demand, at most", published=paper.SAVED_PCT, ours=max(bars),
                  reason=reason)
    ]  # fmt: skip


# ----------------------------------------------------------------------------------------- overheads and the take-over


def _overheads(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    del options, progress
    rows, source = [], "spotDNN, section V-D"
    for load, seconds in paper.PROFILING_S.items():
        rows.append(cannot(source, load, "30 iterations alone", unit="s", published=seconds, reason=PROFILED))
        rows.append(
            cannot(source, load, "3 epochs of 2, 4 and 7 workers", unit="min", published=paper.PROFILING_MIN[load],
                   reason=PROFILED)
        )  # fmt: skip
    for instances, window_s, all_s in paper.SEARCH_S:
        item = f"{instances} instances"
        rows += [
            cannot(source, item, "time of spotDNN's search", unit="s", published=window_s, reason=MEASURED),
            cannot(source, item, "time of Srifty+'s search", unit="s", published=all_s, reason=MEASURED),
        ]
    problem = ProvisioningProblem(arms.resnet(), paper.QUOTAS, paper.FIGURE_PRICES, *paper.RESNET_GOALS[2])
    nodes = cheapest_plan(problem).nodes
    plans = float(np.prod([quota + 1 for quota in paper.QUOTAS])) - 1.0
    counted = f"counted; Srifty+ prices each of {plans:,.0f} plans"
    rows += [
        unprinted(source, "25 instances", "nodes of our exact search", unit="", ours=float(nodes),
                  reason="the paper prints times only", method=counted),
        compared(source, "25 instances", "spotDNN's search faster", unit="%", published=84.6,
                 ours=100.0 * (1.0 - paper.SEARCH_S[0][1] / paper.SEARCH_S[0][2]), tolerance_pct=0.1,
                 method="from the two printed times; matches within 0.1 %"),
        compared(source, "Table I", "spotDNN's search faster", unit="times", published=10.0,
                 ours=paper.TABLE_1["Srifty+"][3] / paper.TABLE_1["spotDNN"][3], tolerance_pct=10.0,
                 method="from the two printed times; matches within 10 %"),
    ]  # fmt: skip
    return tuple(rows)


PROFILED: Final = "measured on the authors' cluster; `--item simulated` runs the same protocol on a simulated one"


TAKE_OVER: Final = (
    f"{RESNET}; the three g3.16xl that are left are paid until the end; Table III's quotas, no g3.8xl; 30 s to join"
)
DEARER: Final = (
    "at Table III's prices p3.2xl is dearer by a third, and one is cheapest; the figures follow the repository's"
)


def _figure_9(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return what the take-over buys: Algorithm 1 with the machines that remain."""
    del options, progress
    source, case = "spotDNN, Figure 9", paper.FIGURE_9
    rows = []
    for prices, what in (
        (paper.FIGURE_PRICES, "the repository's prices"),
        (paper.TABLE_3_PRICES, "Table III's prices"),
    ):
        problem = _taken_over(paper.FIGURE_9_QUOTAS, paper.FIGURE_9_LEFT, prices)
        for arm, found in (("spotDNN", sliding_window(problem)), ("Srifty+", cheapest_plan(problem).plan)):
            assert found is not None, "one p3.2xl is enough"
            rows.append(
                plan_row(source, f"{arm}, {what}", published=paper.FIGURE_9_ADDED, ours=arms.as_plan(found.added),
                         method=f"{TAKE_OVER}, {what}", reason=DEARER)
            )  # fmt: skip
    for added in (0, 1, 2, 3):
        held = (added, *paper.FIGURE_9_LEFT[1:])
        item, quantity = f"take-over by {added} p3.2xl", "from a loss of 0.9 to 0.8"
        alone = _taken_over((0,) * len(held), held, paper.FIGURE_PRICES)
        ours = plan_of(alone, held).time_s - alone.takeover_s
        if added == case["added"]:
            rows.append(
                compared(source, item, quantity, unit="s", published=60.0 * (case["finished_min"] - case["joined_min"]),
                         ours=ours, tolerance_pct=CLOSE_PCT, method=f"{RESNET}; matches within {CLOSE_PCT:g} %",
                         reason="the printed one is measured, from the joining of the new workers to the end; its loss then "
                         "is not printed, and minutes are printed to 0.1")
            )  # fmt: skip
        else:
            rows.append(unprinted(source, item, quantity, unit="s", ours=ours, method=RESNET,
                                  reason="not printed; 810 s are left"))  # fmt: skip
    rows += [
        cannot(source, "take-over", "slower training", unit="s", published=case["degraded_s"], reason=ON_THEIRS),
        cannot(source, "take-over", "new workers join after", unit="min", published=case["join_min"], reason=ON_THEIRS),
    ]
    return tuple(rows)


def _taken_over(quotas: tuple[int, ...], held: tuple[int, ...], prices: tuple[float, ...]) -> ProvisioningProblem:
    case = paper.FIGURE_9
    return ProvisioningProblem(
        arms.resnet(), quotas, prices, case["loss"], case["time_left_s"], case["loss_now"], held, TAKEOVER_S
    )


PARTS: Final[Mapping[str, PaperPart]] = {
    "table-1": PaperPart(_table_1),
    "figure-2": PaperPart(spotdnn_figures.figure_2),
    "figure-3": PaperPart(spotdnn_figures.figure_3),
    "figure-5": PaperPart(spotdnn_figures.figure_5),
    "figure-6": PaperPart(_figure_6),
    "table-5": PaperPart(_table_5),
    "figure-7": PaperPart(_figure_7),
    "table-6": PaperPart(_table_6),
    "figure-8": PaperPart(spotdnn_figures.figure_8),
    "figure-9": PaperPart(_figure_9),
    "overheads": PaperPart(_overheads),
    "simulated": PaperPart(spotdnn_simulated.rows, simulated=True),
}
"""The parts that can be replicated, by their names on the command line."""
