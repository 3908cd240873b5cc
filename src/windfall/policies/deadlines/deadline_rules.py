"""Spot or on-demand before a deadline: the scalar rules, each a function of what is seen at one moment.

A rule is asked at every tick what the job's machines (one, or a gang: all or none) are to be.  The module imports nothing and
all arguments are plain positional numbers, so that the same lines decide live, in a simulated world and in a compiled kernel.

Symbols: C = compute left [s], R = time left [s], C0 and R0 = both at the start, d = changeover: from the decision for other
machines to the first second of work on them [s], k = price on demand, in prices of spot.  R - C is the slack: work on
machines keeps it, waiting and changeovers use it up.

Source: Z. Wu et al., "Can't Be Late: Optimizing Spot Instance Savings under Deadlines", NSDI 2024, sections 4.1 to 4.4.
"""

from __future__ import annotations

IDLE = 0
SPOT = 1
ON_DEMAND = 2
"""What the machines are; after a preemption `IDLE`."""


def net_slack_s(changeover_s: float, tick_s: float) -> float:
    """Return below which slack a job without machines must buy on demand, to keep its deadline [s].

    2 d covers a spot machine that is lost just before it works, and the changeover to on-demand after it (rule 2 of the
    paper); d + tick covers a wait until the rule is asked again.

    Args:
        changeover_s: d [s].
        tick_s: until the rule is asked again [s].

    Example:
        d = 720 s, a tick of 120 s: 1440 s.
    """
    return max(2.0 * changeover_s, changeover_s + tick_s)


def on_demand_only(compute_left_s: float) -> int:
    """Return what an on-demand job has: machines that cannot be preempted, until its work is done.

    Args:
        compute_left_s: C [s].
    """
    return ON_DEMAND if compute_left_s > 0.0 else IDLE


def greedy(on: int, spot: bool, compute_left_s: float, time_left_s: float, net_s: float) -> int:
    """Return what the machines are to be by rules 1 to 4: spot while it is safe, then on demand to the end.

    Among deterministic rules none has a better worst case: k times the best cost (section 4.2).

    Args:
        on: what the machines are.
        spot: whether spot machines are available.
        compute_left_s: C [s].
        time_left_s: R [s].
        net_s: `net_slack_s` [s].

    Example:
        48 h of work, 60 h, d = 0.2 h: without spot machines it waits for 11.6 h, then buys on demand.
    """
    if compute_left_s <= 0.0:
        return IDLE
    if on != IDLE:
        return on
    if time_left_s - compute_left_s < net_s:
        return ON_DEMAND
    return SPOT if spot else IDLE


def uniform_progress(  # noqa: PLR0917 - plain numbers, so that it compiles
    on: int,
    spot: bool,
    compute_left_s: float,
    time_left_s: float,
    net_s: float,
    compute_s: float,
    window_s: float,
    changeover_s: float,
    may_idle: bool,
) -> int:
    """Return what the machines are to be by Uniform Progress, rules 1 to 6: on demand whenever the job is behind.

    The progress expected at time t is ep(t) = t C0 / R0.  A job without machines that is behind it buys on demand (rule 5);
    it stays there until it is as far as is expected at t + 2 d (rule 6), so that leaving leaves it on time.  The paper's text
    lets it leave for nothing as well; leaving for an available spot machine alone is nearer to the published hours.

    Args:
        on: what the machines are.
        spot: whether spot machines are available.
        compute_left_s: C [s].
        time_left_s: R [s].
        net_s: `net_slack_s` [s].
        compute_s: C0 [s].
        window_s: R0 [s].
        changeover_s: d [s].
        may_idle: whether on-demand machines are also left when no spot machine is available.

    Example:
        48 h of work, 60 h, nothing done after an hour, no spot machine: 0 h < 0.8 h, on demand.
    """
    if compute_left_s <= 0.0 or on == SPOT:
        return IDLE if compute_left_s <= 0.0 else SPOT
    done_s, gone_s, pace = compute_s - compute_left_s, window_s - time_left_s, compute_s / window_s
    if on == ON_DEMAND:
        if done_s < (gone_s + 2.0 * changeover_s) * pace:
            return ON_DEMAND
        return SPOT if spot else IDLE if may_idle else ON_DEMAND
    if spot and time_left_s - compute_left_s >= net_s:
        return SPOT
    behind = done_s < gone_s * pace or time_left_s - compute_left_s < net_s
    return ON_DEMAND if behind else IDLE


def cheapest_safe(  # noqa: PLR0917 - plain numbers, so that it compiles
    on: int,
    spot: bool,
    slack_s: float,
    net_s: float,
    wait_s: float,
    idle_cost: float,
    spot_cost: float,
    on_demand_cost: float,
) -> int:
    """Return the cheapest of the three that keeps the deadline, whatever happens to spot machines.

    Args:
        on: what the machines are; spot machines are kept.
        spot: whether spot machines are available.
        slack_s: R - C [s].
        net_s: `net_slack_s`, the slack that a changeover to spot needs [s].
        wait_s: the slack that it needs to wait until the rule is asked again: d + tick [s].
        idle_cost: expected cost until the work is done, if the machines are idle next.
        spot_cost: if they are spot.
        on_demand_cost: if they are on demand.

    Example:
        with slack for one changeover and nothing more, a job without machines buys on demand, whatever the costs.
    """
    if on == SPOT:
        return SPOT
    chosen, least = ON_DEMAND, on_demand_cost
    if spot and spot_cost < least and slack_s >= net_s:
        chosen, least = SPOT, spot_cost
    if idle_cost < least and slack_s >= wait_s:
        chosen = IDLE
    return chosen


def lateness_bound_s(extra_s: float, changeover_s: float, changeover_s_max: float) -> float:
    """Return by how much a job is late at most: extra + 2 (d_max - d) [s] (section 4.4).

    Args:
        extra_s: by how much the job is longer than stated [s].
        changeover_s: d, as stated [s].
        changeover_s_max: the longest one that happened [s].

    Example:
        stated 720 s, the longest 900 s, work as stated: 360 s.
    """
    return extra_s + 2.0 * max(changeover_s_max - changeover_s, 0.0)
