"""How long a run takes on machines that can vanish, what it costs, and where the time goes: closed forms.

Symbols: W work [s of training], M = MTTP / n mean time between losses of any of the n machines [s] (any loss stops
all), lambda = 1 / M, tau interval between saves [s of training], delta stall of a save [s], d time from a save's
hand-over to its commit [s], during which the training continues, A allocation [s], P preparation of a machine until its
first finished step [s], B the part of P before it can take the run [s], G notice [s].  Losses are memoryless.

**Three ways to lose a machine.**  A share v of the losses is *silent*.  An announced loss is *covered* if an emergency
save fits the notice: no work is redone.  Otherwise it is *late*: the training continues until the machine is preempted,
and the work since the last durable checkpoint is redone.  u is the share of losses that redo work (silent + late),
c = 1 - u the covered share.

**A segment.**  Let V(w) be the expected time from a safe point until w seconds of training (tau + delta, or the rest of
the work) are done.  With the expected gaps g_c, g_u after a loss of each kind, conditioning on the first loss gives

    V(w) = int_0^w lambda e^(-lambda t) [t + c (g_c + V(w - t)) + u (g_u + V(w))] dt + w e^(-lambda w)

After a covered loss training resumes where it stopped, after any other the segment restarts.  With q = c e^(w/M) + u the
equation is linear in Y = int e^(lambda y) V dy, and

    V(w) = (M + c g_c + u g_u) / c * ln(1 + c (e^(w/M) - 1)),       c -> 0:  (M + g_u) (e^(w/M) - 1)

The limit is the known closed form for a fixed interval with restart time R = g_u (Daly, FGCS 22(3), 2006, eqs. 9 to
13), and with w = W the expected time without any checkpoint; its first order in w/M is the thesis' objective function
(equations 4.1 to 4.4, phi = 1/2).  The time in the training state alone (saves and redone work with it) is
M / c * ln(1 + c (e^(w/M) - 1)).

**Uploads in flight.**  A checkpoint counts only d after its save, and after a restart the first one needs d more without
a loss; without covered losses this is exactly (M + g_u) e^(d/M) in place of M + g_u, which is used here.

**Gaps.**  From a loss to training again: a wait w in which the lost machine's slot is empty, then the preparation,
in which each of the n machines can be lost again; the n - 1 others can also be lost in the wait.  A gap that is hit
restarts.  The part of the wait that the old machine does *not* cover:

    silent:   D + A                         D: the time until the loss is detected
    covered:  max(A - T/2 - delta, d - B)   the run changes hands when its last save is committed; the current step
                                            (T, on average half) still counts, then comes the save (delta, beside the
                                            wait), and after it the script stalls until the machine ends
    late:     max(A - G, -B)                the successor prepares while the old machine trains on

If the successor is not ordered at once because the notice is long (`policies.replacement.successor`), the last two have
A + the time until the order.

**The bill.**  Machines are billed from their start to their end, so that an empty slot costs nothing (a silent loss
saves A + D), and an announced loss is billed twice while successor and incumbent overlap: G - A, negative if the notice
is shorter than the allocation.  After a covered loss the incumbent is released sooner, once it has released the run and
the successor is ready: min(G - A, max(B, T/2 + delta + d - A)).

Neglected: losses of a machine between its notice and its end; the change of the save schedule by emergency saves (the
interval restarts at each; here the schedule is fixed); that a wait for several machines at once is the longest of
several.
"""

from __future__ import annotations

import math

from windfall.structs import Struct

_EXPONENT_MAX = 700.0
"""Beyond this a double overflows: the expectation is given as infinite."""


class Hazard(Struct, frozen=True):
    """How machines are lost.

    Attributes:
        mttp_s: of one machine, from its start to the first sign of its end (notice, or the end itself) [s]; infinite
            for machines that cannot be preempted.
        machines: n, how many train together.
        silent_share: v, share of losses without notice.
        notice_s: G, the notice of the others [s].
        covered: whether an emergency save fits that notice.
    """

    mttp_s: float
    machines: int = 1
    silent_share: float = 1.0
    notice_s: float = 0.0
    covered: bool = False

    @property
    def mttl_s(self) -> float:
        """M, mean time between losses of any machine [s]."""
        return self.mttp_s / self.machines


class Saving(Struct, frozen=True):
    """How the run is saved.

    Attributes:
        interval_s: tau, training between two saves [s]; infinite for none.
        stall_s: delta, how long a save stalls the script [s].
        durable_s: d, from its hand-over to its commit [s].
        step_s: T, a step, which is completed before an emergency save [s].
    """

    interval_s: float = math.inf
    stall_s: float = 0.0
    durable_s: float = 0.0
    step_s: float = 0.0


class Restart(Struct, frozen=True):
    """How a machine joins the training.

    Attributes:
        allocate_s: A, from the order to the machine's start [s].
        prepare_s: P, from its start to its first finished step [s].
        boot_s: B, the part of P before it can take the run [s], at most P; 0 if unknown, which overestimates the time.
        notice_loss_s: D, until the controller acts on a silent loss [s].
        order_late_s: how long after a notice the successor is ordered, because the notice is long [s].
        release_s: from the script's end to the end of the bill [s].
    """

    allocate_s: float
    prepare_s: float
    boot_s: float = 0.0
    notice_loss_s: float = 0.0
    order_late_s: float = 0.0
    release_s: float = 0.0


class Expectation(Struct, frozen=True):
    """The expected course of a run; the parts add up to `wall_s`.

    Attributes:
        wall_s: from the first order to the script's end [s].
        billed_s: of all machines together [machine-seconds].
        preemptions: how many machines are lost.
        work_s: work that counts [s].
        redo_s: work done again [s].
        save_s: stalled by saves [s].
        allocate_s: waiting for machines [s].
        prepare_s: machines getting ready [s].
        finish_s: upload of the last checkpoint [s].
    """

    wall_s: float
    billed_s: float
    preemptions: float
    work_s: float
    redo_s: float
    save_s: float
    allocate_s: float
    prepare_s: float
    finish_s: float


class _LossKind(Struct, frozen=True):
    """A kind of loss: its share, the save and the wait it leads to [s], the time billed beyond the gap [s]."""

    share: float
    stall_s: float
    wait_s: float
    overlap_s: float


class _Gap(Struct, frozen=True):
    """An expected interruption: waiting [s], preparing [s], further losses in it."""

    wait_s: float
    prepare_s: float
    losses: float


def unsaved_s(work_s: float, mttl_s: float, restart_s: float) -> float:
    """Return the expected time of a run that is never saved: (M + R) (e^(W/M) - 1).

    Args:
        work_s: W [s].
        mttl_s: M, mean time between losses that no save covers [s].
        restart_s: R, from a loss to training again [s].

    Returns:
        [s]; infinite beyond the range of a double.

    Example:
        48 h of work, M = 8 h, R = 0: 3219 h.

    Source:
        Daly, FGCS 22(3), 2006: equation 13 with one segment.
    """
    return (mttl_s + restart_s) * _expm1(work_s / mttl_s)


def refunded_s(mttp_s: float, hour_s: float = 3600.0) -> float:
    """Return how much of a preempted machine's lifetime is free if the hour of the preemption is not charged.

    The mean of an exponential lifetime beyond its last full hour: M - h / (e^(h/M) - 1).

    Args:
        mttp_s: M, mean lifetime [s], > 0.
        hour_s: h, the unit that is refunded [s].

    Example:
        M much longer than the hour: half an hour; M much shorter: all of M.
    """
    return mttp_s - hour_s / _expm1(hour_s / mttp_s)


def expect(work_s: float, hazard: Hazard, saving: Saving, restart: Restart) -> Expectation:
    """Return the expected time, bill and losses of a run of `work_s` seconds of training.

    The run's start is an allocation A and a preparation P that losses can prolong; then come floor(W / tau) segments of
    tau + delta, the rest of the work, and the upload of the last checkpoint.  The module docstring has the derivation.

    Args:
        work_s: W, time of the work on these machines without saves, losses and restarts [s], >= 0.
        hazard: losses.
        saving: interval and costs of saves.
        restart: allocation and preparation.

    Example:
        The thesis' GPT-1.3B (W 1 975 029 s, tau 33 steps of 19.75 s, delta 19.5 s, d 78.5 s, M 3 h, A 136.5 s,
        P 325 s): 2.22e6 s, as Table 6.3 says.
    """
    saves = _saves(work_s, saving)
    training_s = _training_s(work_s - saves * saving.interval_s if saves else work_s, hazard)
    training_s += saves * _training_s(saving.interval_s + saving.stall_s, hazard) if saves else 0.0
    if math.isinf(training_s) or math.isinf(_expm1(restart.prepare_s / hazard.mttl_s)):
        return Expectation(math.inf, math.inf, math.inf, work_s, math.inf, 0.0, 0.0, 0.0, 0.0)
    silent, announced = _loss_kinds(hazard, saving, restart)
    retry = _retry((silent, announced), hazard, restart)
    after_silent, after_announced = (_gap(kind.wait_s, hazard, restart, retry) for kind in (silent, announced))
    start = _gap(0.0, hazard, restart, retry)
    losses = training_s / hazard.mttl_s
    silently, announcedly = losses * silent.share, losses * announced.share
    preemptions = losses + start.losses + silently * after_silent.losses + announcedly * after_announced.losses
    lag_s = saving.durable_s if saves else 0.0
    redo_s = training_s - work_s - saves * saving.stall_s + silently * _lag_s(lag_s, hazard, after_silent)
    redo_s += 0.0 if hazard.covered else announcedly * _lag_s(lag_s, hazard, after_announced)
    redo_s = max(redo_s, 0.0)  # the difference of two equal numbers may round to below zero
    save_s = saves * saving.stall_s + announcedly * announced.stall_s
    wait_s = start.wait_s + silently * after_silent.wait_s + announcedly * after_announced.wait_s
    prepare_s = start.prepare_s + silently * after_silent.prepare_s + announcedly * after_announced.prepare_s
    allocate_s, prepare_s = restart.allocate_s + max(wait_s, 0.0), prepare_s + min(wait_s, 0.0)
    wall_s = work_s + redo_s + save_s + allocate_s + prepare_s + lag_s
    billed_wall_s = wall_s - restart.allocate_s + restart.release_s
    overlap_s = silent.share * silent.overlap_s + announced.share * announced.overlap_s
    billed_s = hazard.machines * billed_wall_s + preemptions * overlap_s
    return Expectation(wall_s, billed_s, preemptions, work_s, redo_s, save_s, allocate_s, prepare_s, lag_s)


def _saves(work_s: float, saving: Saving) -> int:
    """How many saves come between the start and the end of the work: none at the end itself."""
    return 0 if math.isinf(saving.interval_s) else max(math.ceil(work_s / saving.interval_s) - 1, 0)


def _training_s(needed_s: float, hazard: Hazard) -> float:
    """Time in the training state until `needed_s` from a safe point are done: M / c ln(1 + c (e^(w/M) - 1))."""
    mttl_s = hazard.mttl_s
    if math.isinf(mttl_s):
        return needed_s
    covered = 1.0 - hazard.silent_share if hazard.covered else 0.0
    if covered == 0.0:
        return mttl_s * _expm1(needed_s / mttl_s)
    if needed_s / mttl_s > _EXPONENT_MAX:
        return (needed_s + mttl_s * math.log(covered)) / covered
    return mttl_s / covered * math.log1p(covered * math.expm1(needed_s / mttl_s))


def _loss_kinds(hazard: Hazard, saving: Saving, restart: Restart) -> tuple[_LossKind, _LossKind]:
    allocate_s, share = restart.allocate_s, hazard.silent_share
    empty_s = allocate_s + restart.notice_loss_s
    silent = _LossKind(share, 0.0, empty_s, -empty_s)
    allocate_s += restart.order_late_s
    overlap_s = hazard.notice_s - allocate_s
    if hazard.covered:
        wait_s = max(allocate_s - saving.step_s / 2.0 - saving.stall_s, saving.durable_s - restart.boot_s)
        if restart.boot_s > 0.0:
            saved_s = saving.step_s / 2.0 + saving.stall_s + saving.durable_s
            overlap_s = min(overlap_s, max(restart.boot_s, saved_s - allocate_s))
        return silent, _LossKind(1.0 - share, saving.stall_s, wait_s, overlap_s)
    return silent, _LossKind(1.0 - share, 0.0, max(-overlap_s, -restart.boot_s), overlap_s)


def _attempt(wait_s: float, hazard: Hazard, restart: Restart) -> tuple[float, float, float]:
    """Expected wait and preparation until done or hit [s], and the probability of no hit.

    In the wait n - 1 machines can be lost, in the preparation all n.
    """
    mttl_s, mttp_s = hazard.mttl_s, hazard.mttp_s
    if math.isinf(mttl_s):
        return wait_s, restart.prepare_s, 1.0
    others = hazard.machines - 1
    waited_s, ready = wait_s, 1.0
    if others and wait_s > 0.0:
        waited_s = -mttp_s / others * math.expm1(-wait_s * others / mttp_s)
        ready = math.exp(-wait_s * others / mttp_s)
    prepared_s = -mttl_s * math.expm1(-restart.prepare_s / mttl_s) * ready
    return waited_s, prepared_s, ready * math.exp(-restart.prepare_s / mttl_s)


def _retry(kinds: tuple[_LossKind, _LossKind], hazard: Hazard, restart: Restart) -> _Gap:
    """The rest of a gap that was hit, whatever hit it: E = sum q (a + (1 - p) E), so E = sum q a / sum q p."""
    attempts = [(kind.share, *_attempt(kind.wait_s, hazard, restart)) for kind in kinds]
    unhit = math.fsum(share * probability for share, _, _, probability in attempts)
    return _Gap(
        math.fsum(share * wait_s for share, wait_s, _, _ in attempts) / unhit,
        math.fsum(share * prepare_s for share, _, prepare_s, _ in attempts) / unhit,
        (1.0 - unhit) / unhit,
    )


def _gap(wait_s: float, hazard: Hazard, restart: Restart, retry: _Gap) -> _Gap:
    waited_s, prepared_s, probability = _attempt(wait_s, hazard, restart)
    hit = 1.0 - probability
    return _Gap(waited_s + hit * retry.wait_s, prepared_s + hit * retry.prepare_s, hit * (1.0 + retry.losses))


def _lag_s(durable_s: float, hazard: Hazard, gap: _Gap) -> float:
    """The work that a loss redoes because checkpoints count only d after their save: (M + g) (e^(d/M) - 1) [s]."""
    if math.isinf(hazard.mttl_s):
        return 0.0
    return (hazard.mttl_s + gap.wait_s + gap.prepare_s) * _expm1(durable_s / hazard.mttl_s)


def _expm1(exponent: float) -> float:
    return math.expm1(exponent) if exponent <= _EXPONENT_MAX else math.inf
