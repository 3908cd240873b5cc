"""Estimates of how machines are lost: mean time to preemption and the share of losses without notice, from a prior.

Memoryless losses of unknown rate: lambda ~ Gamma(2, 3 h).  After n preemptions in a total lifetime of T the posterior
mean of 1 / lambda is (3 h + T) / (1 + n): the prior counts as one preemption after the thesis' MTTP (Tables 6.2, 6.3).
Lifetimes that have not ended (the current machine, machines released by their user) count with their length and without
a preemption: they are censored, not ignored.
"""

from __future__ import annotations

from windfall.errors import Misuse
from windfall.structs import Struct

PRIOR_MTTP_S = 10_800.0
"""Mean of the prior of the time to preemption [s]: 3 h, the thesis' MTTP."""
PRIOR_PREEMPTIONS = 1
"""The weight of the prior, in observed preemptions."""
DEFAULT_RESTART_S = 136.5
"""Assumed time from a loss to training again before one was measured [s]: the thesis' allocation time."""


class PreemptionPattern(Struct, frozen=True):
    """How a provider preempts machines, before any observation.

    Attributes:
        notice_s: the notice it usually gives [s].
        unannounced, announced: parameters of the Beta prior of the share of losses without notice; their sum is the
            weight of the prior, in observed losses.
        by_signal: its notice is a SIGTERM, and lasts for the grace period after it.
    """

    notice_s: float
    unannounced: float
    announced: float
    by_signal: bool = False


_PATTERNS = (
    ("aws", PreemptionPattern(120.0, 0.5, 4.5)),  # two minutes, "best effort"
    ("google", PreemptionPattern(30.0, 0.5, 4.5)),  # up to 30 s after the metadata flips
    ("azure", PreemptionPattern(30.0, 0.5, 4.5)),  # at least 30 s, none when hardware fails
    ("slurm", PreemptionPattern(30.0, 1.5, 3.5, by_signal=True)),  # KillWait; a partition's GraceTime is 0 by default
    ("kubernetes", PreemptionPattern(30.0, 1.0, 4.0, by_signal=True)),  # terminationGracePeriodSeconds
    ("local", PreemptionPattern(30.0, 2.5, 2.5, by_signal=True)),  # unknown: even odds
)

UNKNOWN = "local"
"""Whose pattern is assumed of a provider of which none is known: even odds."""


def providers() -> tuple[str, ...]:
    """Return the providers whose preemption pattern is known."""
    return tuple(name for name, _ in _PATTERNS)


def preemption_pattern(provider: str) -> PreemptionPattern:
    """Return a provider's preemption pattern.

    Raises:
        Misuse: there is no such provider.
    """
    for name, known in _PATTERNS:
        if name == provider:
            return known
    raise Misuse(f"provider {provider!r} is unknown: use one of {', '.join(providers())}")


class PreemptionHistory(Struct, frozen=True):
    """The preemptions that a run has observed, the given values, and the estimates from both.

    The estimate of notices combines observations (`preemptions`, `announced`, `notices_s`) with a prior: the given grace
    period, or else the provider's rule, with the weight of a few losses (`PreemptionPattern`).

    Attributes:
        lifetimes_s: total lifetime of the run's earlier machines [s].
        preemptions: how many of them were preempted.
        announced: how many of those with a notice.
        notices_s: how long before the end the newest of these notices came [s].
        mttp_given_s: mean time to preemption given by the user or the controller [s]; replaces the estimate.
        restart_given_s: time from a loss to training again as measured or given [s].
        share_given: given share of losses without notice; replaces the provider's pattern, with the same weight.
        notice_given_s: the given notice [s]; replaces the provider's pattern.
    """

    provider: str
    lifetimes_s: float = 0.0
    preemptions: int = 0
    announced: int = 0
    notices_s: tuple[float, ...] = ()
    mttp_given_s: float | None = None
    restart_given_s: float | None = None
    share_given: float | None = None
    notice_given_s: float | None = None

    def mttp_s(self, running_s: float) -> float:
        """Return the mean time to preemption [s].

        Args:
            running_s: how long this machine has run so far [s]; censored.

        Example:
            No observations: 3 h.  Two preemptions in 5 h, this machine 1 h old: (3 + 5 + 1) h / 3 = 3 h.
        """
        if self.mttp_given_s is not None:
            return self.mttp_given_s
        lifetime_s = PRIOR_MTTP_S * PRIOR_PREEMPTIONS + self.lifetimes_s + running_s
        return lifetime_s / (PRIOR_PREEMPTIONS + self.preemptions)

    def unannounced_share(self) -> float:
        """Return the posterior mean of the share of losses without notice, from the prior and the observations.

        Example:
            `local`, no observations: 0.5; after 5 losses, all announced: 2.5 / 10 = 0.25.
        """
        prior, announced = self.prior_losses, self._prior_announced
        return (prior - announced + self.preemptions - self.announced) / (prior + self.preemptions)

    @property
    def prior_losses(self) -> float:
        """The weight of the prior on notices, in observed losses."""
        known = preemption_pattern(self.provider)
        return known.unannounced + known.announced

    @property
    def _prior_announced(self) -> float:
        if self.share_given is not None:
            return self.prior_losses * (1.0 - self.share_given)
        return preemption_pattern(self.provider).announced

    def covered(self, needs_s: float | None) -> float:
        """Return how many of the observed losses had a notice in which an emergency save fits.

        Args:
            needs_s: the time of an emergency save up to its commit [s]; None if unknown: then none is known to fit.
        """
        if needs_s is None or not self.notices_s:
            return 0.0
        return self.announced * self._long_enough(needs_s)

    def prior_covered(self, needs_s: float | None) -> float:
        """Return for how many of the `prior_losses` a sufficient notice is expected.

        Observed notice lengths take precedence over the expected one.

        Args:
            needs_s: as in `covered`.
        """
        if needs_s is None:
            return 0.0
        if self.notices_s:
            return self._prior_announced * self._long_enough(needs_s)
        return self._prior_announced if needs_s < self.notice_s else 0.0

    def _long_enough(self, needs_s: float) -> float:
        return sum([needs_s < notice_s for notice_s in self.notices_s]) / len(self.notices_s)

    @property
    def restart_s(self) -> float:
        """Time from a loss to training again [s]."""
        return DEFAULT_RESTART_S if self.restart_given_s is None else self.restart_given_s

    @property
    def mttp_known(self) -> bool:
        """Whether the mean time to preemption was given or is based on a loss; otherwise it is assumed."""
        return self.mttp_given_s is not None or self.preemptions > 0

    @property
    def notice_known(self) -> bool:
        """Whether the notice was given or observed; otherwise it is assumed."""
        return self.notice_given_s is not None or bool(self.notices_s)

    @property
    def notice_s(self) -> float:
        """The expected notice [s]: the given one, else the newest observed one, else the provider's usual one."""
        if self.notice_given_s is not None:
            return self.notice_given_s
        return self.notices_s[-1] if self.notices_s else preemption_pattern(self.provider).notice_s
