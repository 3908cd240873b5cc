"""How machines are lost: mean time to preemption and the share that comes without notice, learnt from a stated prior.

Memoryless losses of unknown rate: lambda ~ Gamma(2, 3 h).  After n preemptions in a total life of T the posterior mean
of 1 / lambda is (3 h + T) / (1 + n): the prior counts as one preemption after the thesis' MTTP (Tables 6.2, 6.3).
Lives that have not ended (the present machine, machines released by their user) count with their length and without a
preemption: they are censored, not forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

from windfall.errors import Misuse

PRIOR_MTTP_S = 10_800.0
"""Mean of the prior of the time to preemption [s]: 3 h, the thesis' MTTP."""
PRIOR_PREEMPTIONS = 1
"""How many observed preemptions the prior weighs."""
DEFAULT_RESTART_S = 136.5
"""Time from a loss to training again, before one was measured [s]: the thesis' allocation time."""


@dataclass(frozen=True, slots=True)
class Habit:
    """How a provider takes machines back, before anything was observed.

    Attributes:
        notice_s: the warning it usually gives [s].
        unannounced, announced: parameters of the Beta prior of the share of losses without notice; their sum is how
            many observed losses the prior weighs.
        by_signal: its notice is a SIGTERM, and as long as the grace after it.
    """

    notice_s: float
    unannounced: float
    announced: float
    by_signal: bool = False


_HABITS = (
    ("aws", Habit(120.0, 0.5, 4.5)),  # two minutes, "best effort"
    ("google", Habit(30.0, 0.5, 4.5)),  # up to 30 s after the metadata flips
    ("azure", Habit(30.0, 0.5, 4.5)),  # at least 30 s, none when hardware fails
    ("slurm", Habit(30.0, 1.5, 3.5, by_signal=True)),  # KillWait; a partition's GraceTime is 0 by default
    ("kubernetes", Habit(30.0, 1.0, 4.0, by_signal=True)),  # terminationGracePeriodSeconds
    ("local", Habit(30.0, 2.5, 2.5, by_signal=True)),  # nobody knows: even odds
)


def providers() -> tuple[str, ...]:
    """Return the providers whose habits are known."""
    return tuple(name for name, _ in _HABITS)


def habit(provider: str) -> Habit:
    """Return a provider's habit.

    Raises:
        Misuse: no such provider.
    """
    for name, known in _HABITS:
        if name == provider:
            return known
    raise Misuse(f"provider {provider!r} is unknown: use one of {', '.join(providers())}")


@dataclass(frozen=True, slots=True)
class Losses:
    """What is believed about losses on this machine.

    Of notices there is one belief, of two parts: what came (`preemptions`, `announced`, `notices_s`), and what is said:
    the grace that was given or else the provider's rule, with a weight of some losses (`Habit`).

    Attributes:
        lives_s: total life of the run's earlier machines [s].
        preemptions: how many of them were taken.
        announced: how many of those with a notice.
        notices_s: how long before the end the newest of these notices came [s].
        mttp_given_s: mean time to preemption as given by the user or the controller [s]; replaces the learnt one.
        restart_given_s: time from a loss to training again as measured or given [s].
        share_given: share of losses without notice as given; replaces the provider's habit, and weighs as much.
        notice_given_s: the notice as given [s]; replaces the provider's habit.
    """

    provider: str
    lives_s: float = 0.0
    preemptions: int = 0
    announced: int = 0
    notices_s: tuple[float, ...] = ()
    mttp_given_s: float | None = None
    restart_given_s: float | None = None
    share_given: float | None = None
    notice_given_s: float | None = None

    def mttp_s(self, current_life_s: float) -> float:
        """Return the mean time to preemption [s].

        Args:
            current_life_s: how long this machine has lived so far [s]; censored.

        Example:
            Nothing observed: 3 h.  Two preemptions in 5 h, this machine 1 h old: (3 + 5 + 1) h / 3 = 3 h.
        """
        if self.mttp_given_s is not None:
            return self.mttp_given_s
        life_s = PRIOR_MTTP_S * PRIOR_PREEMPTIONS + self.lives_s + current_life_s
        return life_s / (PRIOR_PREEMPTIONS + self.preemptions)

    def unannounced_share(self) -> float:
        """Return the posterior mean of the share of losses without notice, by what was said and what came.

        Example:
            `local`, nothing observed: 0.5; after 5 losses, all announced: 2.5 / 10 = 0.25.
        """
        said, announced = self.said_losses, self._said_announced
        return (said - announced + self.preemptions - self.announced) / (said + self.preemptions)

    @property
    def said_losses(self) -> float:
        """How many observed losses weigh as much as what is said of notices."""
        known = habit(self.provider)
        return known.unannounced + known.announced

    @property
    def _said_announced(self) -> float:
        if self.share_given is not None:
            return self.said_losses * (1.0 - self.share_given)
        return habit(self.provider).announced

    def covered(self, needs_s: float | None) -> float:
        """Return how many of the losses that came had a notice in which an emergency save fits.

        Args:
            needs_s: what an emergency save takes, to its commit [s]; None if unknown: then none is known to fit.
        """
        if needs_s is None or not self.notices_s:
            return 0.0
        return self.announced * self._long_enough(needs_s)

    def said_covered(self, needs_s: float | None) -> float:
        """Return for how many of the `said_losses` a sufficient notice is promised; lengths that came count for more.

        Args:
            needs_s: as in `covered`.
        """
        if needs_s is None:
            return 0.0
        if self.notices_s:
            return self._said_announced * self._long_enough(needs_s)
        return self._said_announced if needs_s < self.notice_s else 0.0

    def _long_enough(self, needs_s: float) -> float:
        return sum([needs_s < notice_s for notice_s in self.notices_s]) / len(self.notices_s)

    @property
    def restart_s(self) -> float:
        """Time from a loss to training again [s]."""
        return DEFAULT_RESTART_S if self.restart_given_s is None else self.restart_given_s

    @property
    def mttp_known(self) -> bool:
        """Whether the mean time to preemption was given, or rests on a loss: otherwise it is assumed."""
        return self.mttp_given_s is not None or self.preemptions > 0

    @property
    def notice_known(self) -> bool:
        """Whether the notice was given, or came: otherwise it is assumed."""
        return self.notice_given_s is not None or bool(self.notices_s)

    @property
    def notice_s(self) -> float:
        """The notice that is expected [s]: as given; else as the newest one came; else as the provider usually gives it."""
        if self.notice_given_s is not None:
            return self.notice_given_s
        return self.notices_s[-1] if self.notices_s else habit(self.provider).notice_s
