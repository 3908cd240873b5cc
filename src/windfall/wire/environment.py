"""The environment variables that a script started by Windfall finds, and what each says.

They are the whole interface for scripts in other languages; the Python SDK reads the same ones.  Standard library
only; imports nothing of ours.
"""

SESSION = "WINDFALL_SESSION"
"""Folder of this attempt's pages and message files.  Without it the SDK does nothing."""
RUN = "WINDFALL_RUN"
"""URL of the run."""
EPOCH = "WINDFALL_EPOCH"
ATTEMPT = "WINDFALL_ATTEMPT"
"""Number of this start of the script within the run, from 1."""
STEP = "WINDFALL_STEP"
"""Step of the restored recovery point; 0 on a fresh start."""
POINT = "WINDFALL_POINT"
"""Folder of the restored point: one sub-folder `<rank>` per shard, holding the file or folder that was handed over."""
CHECKPOINT = "WINDFALL_CHECKPOINT"
"""Path of the newest verified checkpoint of the lowest rank; unset on a fresh start."""
NOTICE_FILE = "WINDFALL_NOTICE_FILE"
"""A file that appears (JSON: level, deadline as UTC text, seconds_left) when a notice arrives and goes if it is withdrawn."""
NODE_RANK = "WINDFALL_NODE_RANK"
NODE_COUNT = "WINDFALL_NODE_COUNT"
FAILPOINT = "WINDFALL_FAILPOINT"
"""`name` or `name:n`: the process kills itself with SIGKILL at the n-th pass of that point (tests and drills only)."""
FAILPOINT_TRACE = "WINDFALL_FAILPOINT_TRACE"
"""Path of a file to which every failpoint that is passed appends its name (tests only)."""
