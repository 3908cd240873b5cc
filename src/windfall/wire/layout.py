"""Where everything of a run lies under its URL.  Keys are relative; names that must never collide carry epoch and nonce.

windfall.json                     the marker: format version, run id; created once, after the store proved itself
log/00000001 ...                  the create-only sequence of records: the fence (architecture, "the law of the store")
heartbeats/00000007               one per epoch, replaced by its holder, watched by contenders
parts/<epoch>-<nonce>/<point>/... the bytes of recovery points; never overwritten
points/<point>/manifest.json      written after all parts, before the record that commits it
bundles/<sha256>.tar.gz           the user's code
code/<sha256>.json                path -> digest of the code files that an attempt ran
spool/<epoch>/00000001.jsonl      the journal of an epoch in numbered segments
output/<epoch>/00000001           what the script printed, in numbered segments
output/<epoch>/00000001-<node>    what it printed on another machine of the generation
output/00000000/<machine>         what the job's setup printed on a machine of a controlled job
inbox/<nonce>.json                messages to whoever holds the run (stop, inject, beliefs)
machines/<machine>/report.json    what a machine of a controlled job last said (the mailbox)
machines/<machine>/directive.json what the controller last wanted of it
job.json                          what a machine of a controlled job needs to begin (no secret is in it)
controller.json                   the controller's heartbeat, which the machines' dead-man limit watches
gone/00000007                     the provider says that the machine of this epoch is gone: no lease need be waited for
probe/<nonce>                     left by the first `exec` and by `doctor`; deleted at once
"""

FORMAT_VERSION = 1
MARKER = "windfall.json"
INBOX = "inbox/"
LOG = "log/"
PARTS = "parts/"
POINTS = "points/"
SPOOL = "spool/"
OUTPUT = "output/"
MACHINES = "machines/"
CONTROLLER = "controller.json"
JOB = "job.json"


def record_key(number: int) -> str:
    """Return the key of the log's record `number` (from 1)."""
    return f"log/{number:08d}"


def heartbeat_key(epoch: int) -> str:
    """Return the key of an epoch's heartbeat object."""
    return f"heartbeats/{epoch:08d}"


def part_prefix(epoch: int, nonce: str, point_id: str, rank: int) -> str:
    """Return the folder for one rank's bytes of one point."""
    return f"parts/{epoch:08d}-{nonce}/{point_id}/{rank}/"


def manifest_key(point_id: str) -> str:
    """Return the key of a point's manifest."""
    return f"points/{point_id}/manifest.json"


def bundle_key(sha256: str) -> str:
    """Return the key of a bundle of code."""
    return f"bundles/{sha256}.tar.gz"


def code_key(sha256: str) -> str:
    """Return the key of a listing of code files."""
    return f"code/{sha256}.json"


def spool_key(epoch: int, segment: int) -> str:
    """Return the key of a journal segment (from 1)."""
    return f"spool/{epoch:08d}/{segment:08d}.jsonl"


def output_key(epoch: int, segment: int, node: int = 0) -> str:
    """Return the key of an output segment (from 1) of the machine that holds the run, or of another one beside it."""
    return f"output/{epoch:08d}/{segment:08d}" + (f"-{node}" if node else "")


def setup_output_key(machine_id: str) -> str:
    """Return the key of what the setup printed on one machine; before every epoch's output."""
    return f"output/{0:08d}/{machine_id}"


def inbox_key(nonce: str) -> str:
    """Return the key of a message to the holder."""
    return f"inbox/{nonce}.json"


def probe_key(nonce: str) -> str:
    """Return the key used to prove the store's conditions."""
    return f"probe/{nonce}"


def report_key(machine_id: str) -> str:
    """Return the key of a machine's newest report."""
    return f"machines/{machine_id}/report.json"


def directive_key(machine_id: str) -> str:
    """Return the key of the controller's newest directive to a machine."""
    return f"machines/{machine_id}/directive.json"


def gone_key(epoch: int) -> str:
    """Return the key that says that the machine which holds an epoch no longer exists."""
    return f"gone/{epoch:08d}"
