"""How long an iteration of training with a parameter server takes, by which machines serve, back up and compute.

Every worker reads the rows that it uses and pushes its changes of them, once in an iteration, evenly from and to all
servers.  An active server on a transient machine pushes the sum of all changes, once in an iteration, to the backups on
reliable machines.

Symbols: W workers, S servers, R reliable machines; P bytes of rows that one worker uses alone, Q bytes of rows that all use;
u = P / W + Q bytes that a worker reads, and pushes; B bytes/s of a link, at once in and out; C seconds that one machine takes
to compute a whole iteration.  Bytes out of a machine, and in:

    worker         u                      u                less the share u / S of its own server
    server         (W - 1 or W) u / S     the same         all workers but its own
    active server  (P + Q) / S            -                beside the server's
    backup         -                      (P + Q) / R

    time of a machine = C / W (if it computes) + max(bytes in, bytes out) / B
    time of an iteration = the longest of the machines that compute or serve

Workers compute, and then move what they changed: the two do not overlap.  (If they did, a machine would take the longer one;
then stage 2 would be no slower than the traditional layout at 15:1, where the paper measures 18 %.)  A machine that only
backs up holds up no other: where its link is too slow for every iteration's changes, active servers push those of several at
once.

Source: Proteus (EuroSys 2017), section 3.2, whose text names the traffic of each component; the formulas are ours.
"""

from __future__ import annotations

from windfall.errors import Misuse
from windfall.structs import Struct


class ServedModel(Struct, frozen=True):
    """What is trained.

    Attributes:
        own_bytes: P, rows of which each is used by one worker [bytes].
        shared_bytes: Q, rows that every worker uses [bytes].
        compute_s: C, how long one machine takes to compute an iteration [s].
    """

    own_bytes: float
    shared_bytes: float
    compute_s: float = 0.0

    @property
    def state_bytes(self) -> float:
        """All rows [bytes]."""
        return self.own_bytes + self.shared_bytes


class TierShape(Struct, frozen=True):
    """Which machines do what.

    Attributes:
        reliable, transient: machines.
        active: transient machines that serve; 0: all reliable machines serve, and none backs up.
        reliable_compute: whether reliable machines compute.
    """

    reliable: int
    transient: int
    active: int = 0
    reliable_compute: bool = True

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            Misuse: there is no reliable machine, more serve than there are, or none computes.
        """
        if self.reliable < 1 or not 0 <= self.active <= self.transient:
            raise Misuse(
                f"{self.reliable} reliable and {self.transient} transient machines, {self.active} of which serve: write at "
                "least one reliable machine, and no more that serve than there are"
            )
        if self.workers < 1 or (not self.active and not self.reliable_compute):
            raise Misuse(
                "no machine computes, or reliable machines serve without computing: stages 1 to 3 have neither"
            )

    @property
    def workers(self) -> int:
        """W, the machines that compute."""
        return self.transient + self.reliable * self.reliable_compute


class MachineTraffic(Struct, frozen=True):
    """What one machine moves in an iteration [bytes], and whether others wait for it."""

    out_bytes: float
    in_bytes: float
    computes: bool
    serves: bool


def traffic(model: ServedModel, shape: TierShape) -> dict[str, MachineTraffic]:
    """Return what a machine of each kind moves: "reliable", "active" (transient, serves) and "transient" (does not)."""
    workers, servers = shape.workers, shape.active or shape.reliable
    used = model.own_bytes / workers + model.shared_bytes
    whole = model.state_bytes

    def moved(*, computes: bool, serves: bool) -> float:
        own = used * (1.0 - serves / servers) if computes else 0.0
        return own + (workers - computes) * used / servers * serves

    found = {}
    reliable = moved(computes=shape.reliable_compute, serves=not shape.active)
    backed_up = whole / shape.reliable if shape.active else 0.0
    found["reliable"] = MachineTraffic(reliable, reliable + backed_up, shape.reliable_compute, not shape.active)
    if shape.active:
        active = moved(computes=True, serves=True)
        found["active"] = MachineTraffic(active + whole / shape.active, active, True, True)
    if shape.transient > shape.active:
        plain = moved(computes=True, serves=False)
        found["transient"] = MachineTraffic(plain, plain, True, False)
    return found


def iteration_s(model: ServedModel, shape: TierShape, link_bytes_per_s: float) -> float:
    """Return how long an iteration takes [s].

    Example:
        One machine computes 8 s, and 100 bytes of rows are used by all, at 10 bytes/s: on two machines that both serve, 4 s of
        computing and 10 s of moving 100 bytes out, half to each other's server and half from one's own; 14 s.
    """
    compute_s = model.compute_s / shape.workers
    return max(
        compute_s * one.computes + max(one.in_bytes, one.out_bytes) / link_bytes_per_s
        for one in traffic(model, shape).values()
        if one.computes or one.serves
    )


def compute_s_for(model: ServedModel, slow: TierShape, fast: TierShape, ratio: float, link_bytes_per_s: float) -> float:
    """Return the C with which an iteration in one shape takes `ratio` times as long as in another [s].

    The shapes have equally many workers, so that C / W = (X_slow - ratio X_fast) / (ratio - 1), with X the time
    for moving alone.

    Raises:
        Misuse: no C above 0 gives this ratio.
    """
    bare = ServedModel(model.own_bytes, model.shared_bytes)
    slow_s, fast_s = (iteration_s(bare, shape, link_bytes_per_s) for shape in (slow, fast))
    if slow.workers != fast.workers or not 1.0 < ratio < slow_s / fast_s:
        raise Misuse(
            f"an iteration {ratio:g} times as long: without any computing it is {slow_s / fast_s:.3g} times as long, and more "
            "computing brings the two closer; write a ratio between 1 and that, for shapes with equally many workers"
        )
    return slow.workers * (slow_s - ratio * fast_s) / (ratio - 1.0)


def last_push_s(model: ServedModel, reliable: int, link_bytes_per_s: float) -> float:
    """Return how long the changes of one iteration take to the reliable machines, before they can serve [s]."""
    return model.state_bytes / reliable / link_bytes_per_s
