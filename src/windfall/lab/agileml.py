"""Proteus' tiers of reliability on 64 machines, predicted from machines and links: Figures 11 to 16.

The model (`models.tier_costs`) has one free number, how long a machine computes for each byte that it moves.  The text prints
one number that sets it: with servers on 4 machines for 60 others, stage 1 "slows the MF application by over 85%" (section 3.2).
That is read as a time per iteration of 1.85 times, and beside it as a rate lower by 85 %, 6.7 times.  All else is predicted,
with its error where the text prints a number, and judged by order where it has words; the bars themselves are drawn only.

Shapes, bytes and rates are the paper's: matrices of 480,189 and of 17,770 rows of 1,000 numbers of 4 bytes, machines linked at
1 Gb/s.  A worker has the ratings of some users, so that it alone uses their rows; of the films it uses all.

Figure 15 is of topics of documents (LDA), whose computing no number of the paper sets: it is that of our own kernel.  A worker
has the tokens of some documents, so that it alone uses their topics; of the words' counts, rows of 1,000 numbers, it uses all.

Source: A. Harlap et al., "Proteus: agile ML elasticity through tiered reliability in dynamic resource markets", EuroSys 2017,
sections 3.2, 6.1, 6.2 and 6.4 to 6.6.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

from windfall.lab.published_rows import (
    FigureSeries,
    Options,
    PaperFigure,
    PaperPart,
    Progress,
    PublishedRow,
    RowVerdict,
    compared,
    unprinted,
)
from windfall.models.tier_costs import ServedModel, TierShape, compute_s_for, iteration_s, last_push_s, traffic
from windfall.policies.layout.tiers import Stage, StageRatios, active_servers, stage_of
from windfall.structs import Struct, replace

LINK_BYTES_PER_S: Final = 1e9 / 8.0
"""1 Gb/s between each pair of machines (section 6.1), in and out at once."""
NETFLIX: Final = ServedModel(own_bytes=480_189 * 1000 * 4.0, shared_bytes=17_770 * 1000 * 4.0)
"""Matrix factorisation of rank 1,000, in single precision (section 6.2; the exact sizes are those of the data set)."""
TOKENS: Final = 100e6
NEW_YORK_TIMES: Final = ServedModel(own_bytes=TOKENS * 4.0, shared_bytes=100e3 * 1000 * 4.0)
"""Topics of 100 million tokens, and counts of 100 thousand words in 1,000 topics, in 4 bytes each (section 6.2)."""
CORES: Final = {FigureSeries.CORES_8: 8, FigureSeries.CORE_1: 1}
"""How many cores of a machine draw topics: all of its 8 (section 6.1), or one."""
DRAW_S: Final = 2e-6
"""How long one core takes to draw the topic of a token out of 1,000, roughly (`python -m benchmarks.applications`) [s]."""
MACHINES: Final = 64
TRADITIONAL: Final = TierShape(MACHINES, 0)
READINGS: Final = {"x1.85": 1.85, "x6.7": 1.0 / (1.0 - 0.85)}
"""How many times as long an iteration takes with servers on 4 of 64 machines, by two readings of "slows by over 85%"."""
STAGE_2_SLOWER_PCT: Final = 18.0
"""Stage 2 with 32 active servers at 15:1, over the traditional layout: "approx. 18 % slowdown", called the beginning of one."""
STAGE_2_AT_63_SLOWER_PCT: Final = 100.0
"""Stage 2 at 63:1: "loses to an all-reliable baseline by 2x" (section 3.2)."""
BLIP_PCT: Final = 13.0
"""The iteration in which 60 machines are evicted, over those on the 4 that are left (section 6.6)."""
STAGES_ABOVE: Final = {
    Stage.SERVERS_ON_TRANSIENT: StageRatios().stage_2_above,
    Stage.RELIABLE_ONLY_BACK_UP: StageRatios().stage_3_above,
}
"""Above which ratios the paper uses stages 2 and 3 (section 6.4): the defaults of the policy."""
TOLERANCE_PCT: Final = 10.0
"""Of a predicted number that the text prints [%]."""
_METHOD: Final = "time of computing and moving in an iteration, models.tier_costs"
_ERROR: Final = "the model has links, bytes and one rate of computing, and nothing else that takes time"
_DRAWN: Final = "the paper draws bars only"
_LITTLE: Final = f"less than the {STAGE_2_SLOWER_PCT:g} % that it calls the beginning of a slowdown"


class TierReading(Struct, frozen=True):
    """The model by one reading of the number that sets it.

    Attributes:
        name: of the reading.
        model: what is trained, with the rate of computing that follows.
    """

    name: str
    model: ServedModel

    @property
    def compute_ns_per_byte(self) -> float:
        """The free number: computing of a machine for each byte that it sends in the traditional layout [ns / byte]."""
        sent_bytes = traffic(self.model, TRADITIONAL)["reliable"].out_bytes
        return 1e9 * self.model.compute_s / MACHINES / sent_bytes

    def time_s(self, shape: TierShape) -> float:
        """Return how long an iteration takes [s]."""
        return iteration_s(self.model, shape, LINK_BYTES_PER_S)

    def slower_pct(self, shape: TierShape) -> float:
        """Return how much longer an iteration takes than in the traditional layout [%]."""
        return 100.0 * (self.time_s(shape) / self.time_s(TRADITIONAL) - 1.0)


@cache
def readings() -> tuple[TierReading, ...]:
    """Return the model by each reading."""
    found = []
    for name, ratio in READINGS.items():
        compute_s = compute_s_for(NETFLIX, TierShape(4, 60), TRADITIONAL, ratio, LINK_BYTES_PER_S)
        found.append(TierReading(name, replace(NETFLIX, compute_s=compute_s)))
    return tuple(found)


def staged(reliable: int, transient: int, stage: Stage) -> TierShape:
    """Return which machines do what in a stage, with active servers on half of the transient machines."""
    if stage is Stage.SERVERS_ON_RELIABLE:
        return TierShape(reliable, transient)
    return TierShape(reliable, transient, active_servers(transient), stage is Stage.SERVERS_ON_TRANSIENT)


# ----------------------------------------------------------------------------------------------------------------- the rows


def _judged(source: str, item: str, words: str, value: float, *, holds: bool, reason: str) -> PublishedRow:
    """Return the row of a claim in words: it matches if its order holds."""
    verdict = RowVerdict.MATCH if holds else RowVerdict.DIFFERS
    return PublishedRow(
        source, item, words, "%", None, value, None, verdict, "" if holds else reason, f"judged by order; {_METHOD}"
    )


def _little(source: str, reading: TierReading, name: str, words: str, shape: TierShape) -> PublishedRow:
    """Return the row of a shape that the paper says is about as fast as the traditional layout."""
    slower_pct = reading.slower_pct(shape)
    reason = f"by this reading it takes {slower_pct:.0f} % longer"
    quantity = f"longer than traditional; {words}: {_LITTLE}"
    return _judged(
        source, f"{reading.name}, {name}", quantity, slower_pct, holds=slower_pct < STAGE_2_SLOWER_PCT, reason=reason
    )


def _drawn(source: str, reading: TierReading, name: str, shape: TierShape) -> PublishedRow:
    """Return the row of a bar without a number."""
    return unprinted(
        source, f"{reading.name}, {name}", "longer than traditional", unit="%", ours=reading.slower_pct(shape),
        reason=_DRAWN, method=_METHOD,
    )  # fmt: skip


def _printed(source: str, reading: TierReading, name: str, printed: float, shape: TierShape) -> PublishedRow:
    """Return the row of a bar whose size the text prints [%]."""
    return compared(
        source, f"{reading.name}, {name}", "longer than traditional", unit="%", published=printed,
        ours=reading.slower_pct(shape), tolerance_pct=TOLERANCE_PCT, reason=_ERROR,
        method=f"within {TOLERANCE_PCT:g} %; {_METHOD}",
    )  # fmt: skip


def _fitted(source: str, reading: TierReading) -> PublishedRow:
    """Return the row of the number that sets the model."""
    return compared(
        source, f"{reading.name}, stage 1, 4 servers", "longer than traditional", unit="%",
        published=100.0 * (READINGS[reading.name] - 1.0), ours=reading.slower_pct(TierShape(4, 60)), tolerance_pct=1e-6,
        method=f"sets the one free number, {reading.compute_ns_per_byte:.3g} ns of computing for each byte moved; {_METHOD}",
    )  # fmt: skip


Bars = Callable[[TierReading], list[tuple[str, PublishedRow]]]


def _part(figure: PaperFigure, bars: Bars) -> PaperPart:
    """Return the part of a figure: bars by name, for each reading."""

    def rows(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
        del options, progress
        return tuple(
            row.placed(figure, FigureSeries(reading.name), name)
            for reading in readings()
            for name, row in bars(reading)
        )

    return PaperPart(rows)


def _figure_11(reading: TierReading) -> list[tuple[str, PublishedRow]]:
    source = "Proteus, Figure 11"
    few = _little(source, reading, "stage 1, 32 servers", "a negligible slowdown", TierShape(32, 32))
    middle = [
        (f"{servers} servers", _drawn(source, reading, f"stage 1, {servers} servers", TierShape(servers, 64 - servers)))
        for servers in (16, 8)
    ]
    return [("32 servers", few), *middle, ("4 servers", _fitted(source, reading))]


def _figure_12(reading: TierReading) -> list[tuple[str, PublishedRow]]:
    source = "Proteus, Figure 12"
    half = _printed(source, reading, "stage 2, 4 + 60, 32 active", STAGE_2_SLOWER_PCT, TierShape(4, 60, 32))
    fewer, more = (
        _drawn(source, reading, f"stage 2, 4 + 60, {active} active", TierShape(4, 60, active)) for active in (16, 48)
    )
    shape = staged(8, 56, Stage.SERVERS_ON_TRANSIENT)
    seven = _little(source, reading, "stage 2, 8 + 56", "at 7:1 it does not occur", shape)
    return [
        ("stage 1, 4 + 60", _fitted(source, reading)),
        ("16 active", fewer),
        ("32 active", half),
        ("48 active", more),
        ("8 + 56", seven),
    ]


def _figure_13(reading: TierReading) -> list[tuple[str, PublishedRow]]:
    source = "Proteus, Figure 13"
    second = staged(1, 63, Stage.SERVERS_ON_TRANSIENT)
    third = staged(1, 63, stage_of(1, 63, StageRatios()))
    return [
        ("stage 2, 1 + 63", _printed(source, reading, "stage 2, 1 + 63", STAGE_2_AT_63_SLOWER_PCT, second)),
        ("stage 3, 1 + 63", _little(source, reading, "stage 3, 1 + 63", "it matches the traditional layout", third)),
    ]


def _figure_14(reading: TierReading) -> list[tuple[str, PublishedRow]]:
    source = "Proteus, Figure 14"
    second, third = (reading.time_s(staged(8, 8, stage)) for stage in STAGES_ABOVE)
    longer_pct = 100.0 * (third / second - 1.0)
    row = _judged(
        source, f"{reading.name}, stage 3, 8 + 8", "longer than stage 2; stage 2 is better at 1:1", longer_pct,
        holds=longer_pct > 0.0, reason=f"by this reading stage 3 takes {longer_pct:.0f} % longer",
    )  # fmt: skip
    return [("stage 3 over stage 2, 8 + 8", row)]


def sampling(cores: int, draw_s: float = DRAW_S) -> ServedModel:
    """Return the topics of Figure 15 with the computing of a kernel.

    Args:
        cores: that each machine draws on.
        draw_s: how long one core takes for a token [s].
    """
    return replace(NEW_YORK_TIMES, compute_s=TOKENS * draw_s / cores)


def longer_than_ideal_pct(model: ServedModel, machines: int) -> float:
    """Return how much longer an iteration takes than it would if it went as the number of machines, from 4 on [%].

    The shapes are the figure's: 4 machines in the traditional layout, 8 in stage 1 (4 + 4), more in stage 3 (1 and the others).
    """
    few, many = (iteration_s(model, _scaled(number), LINK_BYTES_PER_S) for number in (4, machines))
    return 100.0 * (many * machines / (few * 4) - 1.0)


def _scaled(machines: int) -> TierShape:
    if machines <= 8:
        return TierShape(4, machines - 4)
    return staged(1, machines - 1, Stage.RELIABLE_ONLY_BACK_UP)


def draw_s_near_ideal(machines: int) -> float:
    """Return how long a machine must take for a token so that more machines are near ideal [s].

    Time for moving X and for drawing d on w machines of n: X_n + N d / w <= a (X_4 + N d / 4), where N tokens are drawn
    and a = 1.18 x 4 / n.
    """
    few_s, many_s = (iteration_s(NEW_YORK_TIMES, _scaled(number), LINK_BYTES_PER_S) for number in (4, machines))
    allowed = (1.0 + STAGE_2_SLOWER_PCT / 100.0) * 4 / machines
    gain = allowed / 4 - 1.0 / _scaled(machines).workers
    return (many_s - allowed * few_s) / (TOKENS * gain)


def _figure_15(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    del options, progress
    source, found = "Proteus, Figure 15", []
    for series, cores in CORES.items():
        model = sampling(cores)
        for machines in (8, 16, 32, 64):
            longer_pct, least_s = longer_than_ideal_pct(model, machines), draw_s_near_ideal(machines)
            moving_s = iteration_s(NEW_YORK_TIMES, _scaled(machines), LINK_BYTES_PER_S)
            computing_s = model.compute_s / _scaled(machines).workers
            reason = (
                f"moving rows of counts takes {moving_s:.1f} s, computing {computing_s:.1f} s; it would be near ideal if a "
                f"machine took {1e6 * least_s:.2g} us for a token, where ours takes {1e6 * DRAW_S / cores:.2g}"
            )
            row = _judged(
                source, f"{series}, {machines} machines", f"longer than ideal; it scales effectively: {_LITTLE}", longer_pct,
                holds=longer_pct < STAGE_2_SLOWER_PCT, reason=reason,
            )  # fmt: skip
            found.append(row.placed(PaperFigure.PROTEUS_15, series, f"{machines}"))
    return tuple(found)


def _figure_16(reading: TierReading) -> list[tuple[str, PublishedRow]]:
    source = "Proteus, Figure 16"
    few_s = reading.time_s(TierShape(4, 0))
    many_s = reading.time_s(staged(4, 60, stage_of(4, 60, StageRatios())))
    blip_pct = 100.0 * last_push_s(reading.model, 4, LINK_BYTES_PER_S) / few_s
    blip = compared(
        source, f"{reading.name}, 60 are evicted", "longer than on the 4 machines left", unit="%", published=BLIP_PCT,
        ours=blip_pct, tolerance_pct=TOLERANCE_PCT,
        method=f"within {TOLERANCE_PCT:g} %; the changes of one iteration to 4 backups",
        reason=f"{_ERROR}; the caption says that 35 are evicted, the text 60, which is played",
    )  # fmt: skip
    item, faster = f"{reading.name}, 60 are added", few_s / many_s
    added = unprinted(source, item, "times as fast", unit="", ours=faster, reason=_DRAWN, method=_METHOD)
    return [("60 are added", added), ("60 are evicted", blip)]


def _stages(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return from which ratio on each stage is the fastest, of 64 machines."""
    del options, progress
    found = []
    for reading in readings():
        for stage, printed in STAGES_ABOVE.items():
            found.append(
                unprinted(
                    "Proteus, section 6.4", f"{reading.name}, stage {stage:d}", "fastest above, transient machines / reliable",
                    unit="", ours=ratio_above_which(reading, stage), method=_METHOD,
                    reason=f"the paper measured its cluster, and uses {printed:g}",
                )
            )  # fmt: skip
    return tuple(found)


def ratio_above_which(reading: TierReading, stage: Stage) -> float:
    """Return the largest ratio, of 64 machines, at which an earlier stage is the fastest."""
    ratios = []
    for reliable in range(1, MACHINES // 2 + 1):
        transient = MACHINES - reliable
        times_s = {one: reading.time_s(staged(reliable, transient, one)) for one in Stage}
        if min(times_s, key=lambda one: times_s[one]) < stage:
            ratios.append(transient / reliable)
    return max(ratios)


PARTS: Final = {
    "figure-11": _part(PaperFigure.PROTEUS_11, _figure_11),
    "figure-12": _part(PaperFigure.PROTEUS_12, _figure_12),
    "figure-13": _part(PaperFigure.PROTEUS_13, _figure_13),
    "figure-14": _part(PaperFigure.PROTEUS_14, _figure_14),
    "figure-15": PaperPart(_figure_15),
    "figure-16": _part(PaperFigure.PROTEUS_16, _figure_16),
    "stages": PaperPart(_stages),
}
