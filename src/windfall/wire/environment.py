"""The environment variables that Windfall sets for a script.

They are the complete interface for scripts in other languages; the Python SDK reads the same variables.  Uses only the
standard library, and no other module of Windfall.
"""

from collections.abc import Mapping

SESSION = "WINDFALL_SESSION"
"""Folder of this attempt's pages and message files; if it is not set, the SDK does nothing."""
RUN = "WINDFALL_RUN"
"""URL of the run."""
TERM = "WINDFALL_TERM"
"""Number of the lease: the fencing token."""
ATTEMPT = "WINDFALL_ATTEMPT"
"""Number of this attempt within the run, from 1."""
STEP = "WINDFALL_STEP"
"""Step of the restored checkpoint; 0 on a fresh start."""
CHECKPOINT_DIR = "WINDFALL_CHECKPOINT_DIR"
"""Folder of the restored checkpoint: one sub-folder `<rank>` per shard, with the file or folder handed over."""
CHECKPOINT = "WINDFALL_CHECKPOINT"
"""Path of the lowest rank's file or folder of the restored checkpoint; unset on a fresh start."""
NOTICE_FILE = "WINDFALL_NOTICE_FILE"
"""File that exists while a notice is active (JSON: level, seconds_left, deadline_unix, source)."""
NODE_RANK = "WINDFALL_NODE_RANK"
"""Number of this machine among those of the run, from 0."""
NODE_COUNT = "WINDFALL_NODE_COUNT"
"""How many machines train together."""
MASTER_ADDR = "WINDFALL_MASTER_ADDR"
"""Host of machine 0, the rendezvous of all ranks; unset if one machine trains alone."""
MASTER_PORT = "WINDFALL_MASTER_PORT"
"""Port of the rendezvous on machine 0, different for each attempt."""
NODE_ADDRESSES = "WINDFALL_NODE_ADDRESSES"
"""Hosts of all machines in the order of their numbers, separated by commas."""
PEERS_TOKEN = "WINDFALL_PEERS_TOKEN"
"""Shared secret with which the machines of a generation authenticate each other; hidden from the script."""
ITEM_FOLDER = "WINDFALL_ITEM_FOLDER"
"""Folder of an item of a bag."""
STORE_VARIABLES = "WINDFALL_STORE_VARIABLES"
"""Names, separated by commas, of the store credentials that the controller passed to a machine; hidden from the script."""
PATIENCE = "WINDFALL_PATIENCE"
"""How long to retry a store that does not answer (`30s`); default two minutes, overridden by `--patience`."""
FAILPOINT = "WINDFALL_FAILPOINT"
"""`name` or `name:n`: the process kills itself with SIGKILL at the n-th pass of this failpoint (tests and drills only)."""
FAILPOINT_TRACE = "WINDFALL_FAILPOINT_TRACE"
"""File to which each failpoint appends its name when it is passed (tests only)."""


def without_store_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for the user's programs: without the store credentials passed by the controller."""
    hidden = {STORE_VARIABLES, *env.get(STORE_VARIABLES, "").split(",")}
    return {name: value for name, value in env.items() if name not in hidden}
