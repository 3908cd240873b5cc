"""The environment variables that a script started by Windfall finds, and what each says.

They are the whole interface for scripts in other languages; the Python SDK reads the same ones.  Standard library
only; imports nothing of ours.
"""

from collections.abc import Mapping

SESSION = "WINDFALL_SESSION"
"""Folder of this attempt's pages and message files.  Without it the SDK does nothing."""
RUN = "WINDFALL_RUN"
"""URL of the run."""
TERM = "WINDFALL_TERM"
ATTEMPT = "WINDFALL_ATTEMPT"
"""Number of this start of the script within the run, from 1."""
STEP = "WINDFALL_STEP"
"""Step of the restored checkpoint; 0 on a fresh start."""
CHECKPOINT_DIR = "WINDFALL_CHECKPOINT_DIR"
"""Folder of the restored checkpoint: one sub-folder `<rank>` per shard, holding the file or folder that was handed over."""
CHECKPOINT = "WINDFALL_CHECKPOINT"
"""Path of the newest verified checkpoint of the lowest rank; unset on a fresh start."""
NOTICE_FILE = "WINDFALL_NOTICE_FILE"
"""A file that appears (JSON: level, seconds_left, deadline_unix, source) when a notice arrives and goes if it is withdrawn."""
NODE_RANK = "WINDFALL_NODE_RANK"
"""Number of this machine among those of the run, from 0."""
NODE_COUNT = "WINDFALL_NODE_COUNT"
MASTER_ADDR = "WINDFALL_MASTER_ADDR"
"""Host of machine 0, where the ranks of all machines meet; unset where one machine trains alone."""
MASTER_PORT = "WINDFALL_MASTER_PORT"
"""A port of machine 0 for that meeting, another one for each start of the script."""
NODE_ADDRESSES = "WINDFALL_NODE_ADDRESSES"
"""The hosts of all machines in the order of their numbers, with commas between."""
PEERS_TOKEN = "WINDFALL_PEERS_TOKEN"
"""What the machines of a generation know one another by; set for `windfall exec`, never shown to a script."""
LENT = "WINDFALL_LENT"
"""Names, with commas between, of variables that the controller lent a machine for the run's store; no script finds them."""
PATIENCE = "WINDFALL_PATIENCE"
"""How long every verb goes on asking a store that does not answer (`30s`); two minutes if not set, `--patience` wins."""
FAILPOINT = "WINDFALL_FAILPOINT"
"""`name` or `name:n`: the process kills itself with SIGKILL at the n-th pass of that point (tests and drills only)."""
FAILPOINT_TRACE = "WINDFALL_FAILPOINT_TRACE"
"""Path of a file to which every failpoint that is passed appends its name (tests only)."""


def without_lent(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as a user's own program may have it: without what the controller lent its machine."""
    lent = {LENT, *env.get(LENT, "").split(",")}
    return {name: value for name, value in env.items() if name not in lent}
