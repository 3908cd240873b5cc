"""Keep-alive: how long an offer that was refused is left alone (thesis, section 5.1: allocate until it works).

Only a lack of capacity and a price above the bid are matters of waiting, with exponential back-off.  A quota and wrong
credentials change by what people do: they are tried again slowly, and shown.  What is invalid is never asked again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windfall.market import Refusal
from windfall.terms import Instant, Seconds

FIRST_S, FACTOR, LONGEST_S = 1.0, 2.0, 300.0
"""Pause after the first refusal [s], what each further one multiplies it by, its upper bound [s]."""
PEOPLE_S = 300.0
"""Pause before a quota or credentials are tried again unasked [s]."""


@dataclass(frozen=True, slots=True)
class Block:
    """Why an offer is left alone for now.

    Attributes:
        refusal: None if machines of this offer died before they spoke.
        sentence: the provider's words.
        tries: refusals in a row.
        until: when it may be asked again; infinity for never.
    """

    refusal: Refusal | None
    sentence: str
    tries: int
    until: Instant


def pause_s(tries: int) -> Seconds:
    """Return the pause after so many refusals in a row: min(FIRST_S x FACTOR^(tries - 1), LONGEST_S) [s].

    Args:
        tries: from 1.
    """
    assert tries >= 1, "there is no pause before the first refusal"
    return Seconds(min(FIRST_S * FACTOR ** min(tries - 1, 32), LONGEST_S))


def blocked(before: Block | None, refusal: Refusal | None, sentence: str, now: Instant) -> Block:
    """Return the block after one more refusal.

    Args:
        before: the offer's last one, None if it was taken since.
        refusal: None for a machine that died before it spoke.
        sentence: the provider's words.
        now: when it was refused.
    """
    tries = 1 if before is None or before.refusal is not refusal else before.tries + 1
    if refusal is Refusal.INVALID:
        until = Instant(math.inf)
    elif refusal in {Refusal.QUOTA, Refusal.CREDENTIALS}:
        until = Instant(now + PEOPLE_S)
    else:
        until = Instant(now + pause_s(tries))
    return Block(refusal, sentence, tries, until)
