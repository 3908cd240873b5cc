"""What Slurm's words mean here: states of jobs, reasons to wait, refusals of orders.

Words: `squeue` and `sbatch` of Slurm 22.05, sections "JOB STATE CODES" and "JOB REASON CODES" of squeue(1), and the texts
of slurm_errno.c.
"""

from __future__ import annotations

from types import MappingProxyType

from windfall.market import MachineEndCause, MachineLifecycle, Refusal

_PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_RUNNING = ("RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED")
ENDS = MappingProxyType(
    {
        "COMPLETED": MachineEndCause.STOPPED,
        "CANCELLED": MachineEndCause.CANCELLED,
        "PREEMPTED": MachineEndCause.PREEMPTED,
        "TIMEOUT": MachineEndCause.EXPIRED,
        "REVOKED": MachineEndCause.PREEMPTED,
        "FAILED": MachineEndCause.FAILED,
        "NODE_FAIL": MachineEndCause.FAILED,
        "BOOT_FAIL": MachineEndCause.FAILED,
        "LAUNCH_FAILED": MachineEndCause.FAILED,
        "RECONFIG_FAIL": MachineEndCause.FAILED,
        "DEADLINE": MachineEndCause.FAILED,
        "OUT_OF_MEMORY": MachineEndCause.FAILED,
    }
)
"""Final states.  The batch script ends with 0 when its machine has stopped itself, so FAILED means that it broke; what a
preemption cancels is PREEMPTED, so a job that is CANCELLED without a release was cancelled by a person."""


LEAD_S = 120.0
"""How long before its time limit a machine is told at most [s], as clouds do."""


def lead_s(left_s: float) -> float:
    """Return how long before its time limit a machine is told that has this long from its start [s].

    At most half of it: a machine that is told of its end as it starts would begin nothing, and neither would the next.
    """
    return min(LEAD_S, left_s / 2.0)


def lifecycle_of(state: str) -> MachineLifecycle:
    """Return a machine's state; a state that this release does not know counts as running, which buys nothing."""
    if state in _PENDING:
        return MachineLifecycle.PENDING
    return MachineLifecycle.GONE if state in ENDS else MachineLifecycle.RUNNING


_INVALID_REASONS = frozenset(
    {
        "AccountNotAllowed", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS",
        "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "QOSNotAllowed", "QOSTimeLimit",
    }
)  # fmt: skip
_QUOTA_PREFIXES = ("Assoc", "QOS", "MaxCpuPerAccount", "MaxGRESPerAccount", "MaxMemPerLimit", "MaxNodePerAccount")


def refusal_of_reason(reason: str) -> Refusal | None:
    """Return what a pending job's reason is in a buyer's words; None if it only waits for its turn or its dependency.

    An invalid one never starts as it is; the others may, once other jobs have ended.
    """
    if reason in _INVALID_REASONS:
        return Refusal.INVALID
    if reason.startswith(_QUOTA_PREFIXES):
        return Refusal.QUOTA
    if reason in {"None", "Dependency", "BeginTime", "JobArrayTaskLimit", "Prolog", "Cleaning"}:
        return None
    return Refusal.NO_CAPACITY


_REASON_WORDS = MappingProxyType(
    {
        "BeginTime": "its time to start has not come",
        "Dependency": "another job must end first",
        "Licenses": "a licence is in use",
        "Priority": "other jobs come first",
        "ReqNodeNotAvail": "a node that it needs is down or reserved",
        "Reservation": "its reservation has not begun",
        "Resources": "no fitting node is free",
    }
)
_LIMIT_WORDS = (("QOSMax", "a limit of the QOS"), ("QOSGrp", "a limit of the QOS"), ("Assoc", "a limit of the account"))


def reason_text(reason: str) -> str:
    """Return why a pending job waits: Slurm's code, and what it means; empty if Slurm has not looked at the job yet."""
    if reason in {"", "None"}:
        return ""
    limit = next((words for prefix, words in _LIMIT_WORDS if reason.startswith(prefix)), "")
    words = _REASON_WORDS.get(reason.partition(",")[0], limit)
    return f"{reason}: {words}" if words else reason


_OF_NODES = "configuration is not available"
_REFUSALS = (
    (
        Refusal.QUOTA,
        (
            "violates accounting/QOS policy", "MaxSubmit", "JobLimit", "submit limit", "Slurm temporarily unable to accept job",
            "allocation failure: Resource temporarily unavailable",
        ),
    ),
    (
        Refusal.CREDENTIALS,
        ("Access/permission denied", "Invalid user id", "group not permitted", "User not permitted", "not permitted to use"),
    ),
    (Refusal.NO_CAPACITY, ("inactive or drain", "nodes are busy", "not available now", "Required node not available")),
    (
        Refusal.INVALID,
        (
            "nvalid", _OF_NODES, "exceeds", "More processors requested", "can not be satisfied",
            "cannot be satisfied", "not supported", "unrecognized option", "specification", "Unable to open file",
        ),
    ),
)  # fmt: skip


def is_of_nodes(text: str) -> bool:
    """Return whether `sbatch` refused a job because no node can run it, as far as Slurm knows its nodes."""
    return _OF_NODES in text


def refusal_of_text(text: str) -> Refusal | None:
    """Return why `sbatch` refused a job, by its own words; None if they do not say that it was refused."""
    return next((kind for kind, words in _REFUSALS if any(word in text for word in words)), None)
