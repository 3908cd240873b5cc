"""What a real Slurm 22.05 printed, recorded from a cluster of `tests/slurm`; `~` stands for the separator of the columns."""

from __future__ import annotations

QUEUE = """\
12~N/A~sbatch~RUNNING~None~1795617067~1795617068~NONE~N/A~UNLIMITED~n[0-2]~high~0~(null)~
2~N/A~bad-time~CANCELLED~PartitionTimeLimit~1795617063~1795617069~1795617069~N/A~3:00:00~~low~0~windfall/own/job/1c0.5g/transient/0/0~
6~N/A~tiny-1~COMPLETED~None~1795617064~1795617064~1795617067~1795617067~10:00~n0~low~0~windfall/own/job/1c0.5g/transient/0/0~
9~N/A~one-2~PENDING~Resources~1795617064~1827153068~1827153668~N/A~10:00~~low~0~windfall/own/job/1c0.5g/transient/0/0~
18~0~pair-1~RUNNING~None~1795616055~1795616056~1827152056~N/A~365-00:00:00~n0~low~0~windfall/own/job/1c0.5g/transient/0.25/0~
18~1~pair-1~RUNNING~None~1795616055~1795616056~1795616070~1795616064~365-00:00:00~n1~low~0~windfall/own/job/1c0.5g/transient/0.25/0~
30~N/A~gang-1~RUNNING~None~1795616055~1795616056~1795616656~N/A~10:00~n[0-2]~low~0~windfall/own/job%2F7/1c0.5g/reliable/0/3~
"""
ACCOUNTS = """\
2|bad-time|CANCELLED by 0|None|1795617069|1
4|tok-4|PREEMPTED|1795616976|1795616988|1
4|tok-4|RUNNING|1795616998|Unknown|1
5|allocation|RUNNING|1795616998|Unknown|1
9|one-2|RUNNING|1795617071|Unknown|1
11|gang|COMPLETED|1795617064|1795617067|1
"""
ASSOCIATIONS = """\
lab|lab||normal,short|||3
lab|root||normal|||
"""
QOS = """\
normal|||
short|2||node=1
"""
CONFIG = """\
Configuration data as of 2026-11-25T13:58:58
AccountingStorageType   = accounting_storage/none
KillWait                = 5 sec
MaxJobCount             = 10000
MinJobAge               = 300 sec
PreemptMode             = REQUEUE
PreemptType             = preempt/partition_prio
PriorityFlags           = (null)
SLURM_VERSION           = 22.05.8

Slurmctld(primary) at vm is UP
"""
PARTITIONS = """\
PartitionName=low AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=YES QoS=N/A GraceTime=6 \
MaxTime=00:10:00 MinNodes=0 Nodes=n[0-2] PriorityTier=1 PreemptMode=REQUEUE State=UP TotalCPUs=3 TotalNodes=3 \
TRES=cpu=3,mem=1.50G,node=3,billing=3 TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=2.0
PartitionName=high AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=NO QoS=N/A GraceTime=0 \
MaxTime=UNLIMITED MinNodes=0 Nodes=n[0-2] PriorityTier=10 PreemptMode=OFF State=UP TotalCPUs=3 TotalNodes=3 \
TRES=cpu=3,mem=1.50G,node=3,billing=3
"""
NODES = """\
low*|n0|1|512|(null)|allocated|vm|
high|n0|1|512|(null)|allocated|vm|
low*|n1|1|512|(null)|idle|vm|
high|n1|1|512|(null)|idle|vm|
low*|n2|1|512|(null)|down*|vm|
high|n2|1|512|(null)|down*|vm|
gpu|g0|64|524288|gpu:a100:8(S:0-1)|mixed|g0|
gpu|g1|64|524288|gpu:a100:8(S:0-1)|drained|g1|
"""
REFUSED = {
    "sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed: Invalid partition name specified": "invalid",  # noqa: E501
    "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified": "invalid",
    "allocation failure: Invalid qos specification": "invalid",
    "sbatch: error: Invalid generic resource (gres) specification": "invalid",
    "allocation failure: Requested node configuration is not available": "invalid",
    "allocation failure: Invalid feature specification": "invalid",
    "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)": "quota",  # noqa: E501
    "allocation failure: Resource temporarily unavailable": "quota",
    "sbatch: error: Batch job submission failed: Required partition not available (inactive or drain)": "no-capacity",
    "sbatch: error: Batch job submission failed: User's group not permitted to use this partition": "credentials",
}
"""What `sbatch` said as it refused a job, and what kind of refusal that is."""
STARTS = "sbatch: Job 3 to start at 1795617700 using 1 processors on nodes n0 in partition low\n"
STARTS_AT = 1795617700.0
UNANSWERED = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
UNREACHABLE = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


def queue(text: str = QUEUE) -> str:
    """The queue as `squeue` prints it."""
    return text.replace("~", "\x1f")
