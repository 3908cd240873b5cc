"""Keys of all objects of a run, relative to its URL.  Names that must never collide contain the term and a nonce.

windfall.json                           the marker: format version, run id; created once, after the store was tested
log/00000001 ...                        the create-only sequence of records: the fence
heartbeats/00000007                     one per term, overwritten by its holder, watched by contenders
shards/<term>-<nonce>/<checkpoint>/...  the bytes of checkpoints and results; never overwritten
checkpoints/<checkpoint>/manifest.json  written after all shards and before the record that commits it
bundles/<sha256>.tar.gz                 the user's code
code/<sha256>.json                      path -> digest of the code files that an attempt ran
spool/<term>/00000001.jsonl             the journal of a term in numbered segments
output/<term>/00000001                  the script's output in numbered segments
output/<term>/00000001-<node>           its output on another machine of the generation
output/00000000/<machine>               output of the job's setup on a machine of a controlled job
output/shapes/<milliseconds>-<machine>  output of an elastic training's script on a machine, in the order of time
inbox/<nonce>.json                      messages to the holder of the run (stop, inject, estimates)
machines/<machine>/report.json          newest report of a machine of a controlled job (the mailbox)
machines/<machine>/directive.json       newest directive of the controller to it
job.json                                what a machine of a controlled job needs to start (contains no secret)
controller.json                         the controller's heartbeat, which the machines' dead-man limit watches
gone/00000007                           the provider reports that the machine of this term is gone, so its lease is void
probe/<nonce>                           written by the first `exec` and by `doctor`, and deleted at once
items/...                               of a bag: `bag_layout`
tiers/...                               of a parameter server: `tier_files`
shapes/...                              of an elastic training: `shape_files`, `shape_records`
deleting.json                           the run is being deleted: written before anything is, and deleted last
"""

from windfall import stored_forms

FORMAT_VERSION = stored_forms.MARKER.version
MARKER = "windfall.json"
INBOX = "inbox/"
LOG = "log/"
SHARDS = "shards/"
CHECKPOINTS = "checkpoints/"
SPOOL = "spool/"
OUTPUT = "output/"
MACHINES = "machines/"
CONTROLLER = "controller.json"
JOB = "job.json"
ITEMS = "items/"
TIERS = "tiers/"
SHAPES = "shapes/"
DELETING = "deleting.json"
FILES = (JOB, MARKER, CONTROLLER)
"""All objects of a run that are in no folder, but `DELETING`; the job first."""
FOLDERS = (
    "heartbeats/", ITEMS, TIERS, SHAPES, SHARDS, CHECKPOINTS, "bundles/", "code/", SPOOL, OUTPUT, INBOX, MACHINES, "gone/",
    "probe/", LOG,
)  # fmt: skip
"""All folders of a run, with the log last."""


def record_key(number: int) -> str:
    """Return the key of the log's record `number` (from 1)."""
    return f"log/{number:08d}"


def heartbeat_key(term: int) -> str:
    """Return the key of a term's heartbeat object."""
    return f"heartbeats/{term:08d}"


def shard_prefix(term: int, nonce: str, checkpoint_id: str, rank: int) -> str:
    """Return the folder of one rank's bytes of a checkpoint."""
    return f"shards/{term:08d}-{nonce}/{checkpoint_id}/{rank}/"


def manifest_key(checkpoint_id: str) -> str:
    """Return the key of a checkpoint's manifest."""
    return f"checkpoints/{checkpoint_id}/manifest.json"


def bundle_key(sha256: str) -> str:
    """Return the key of a bundle of code."""
    return f"bundles/{sha256}.tar.gz"


def code_key(sha256: str) -> str:
    """Return the key of a list of code files."""
    return f"code/{sha256}.json"


def spool_key(term: int, segment: int) -> str:
    """Return the key of a journal segment (from 1)."""
    return f"spool/{term:08d}/{segment:08d}.jsonl"


def output_key(term: int, segment: int, node: int = 0) -> str:
    """Return the key of an output segment (from 1) of the run's holder (node 0) or another machine."""
    return f"output/{term:08d}/{segment:08d}" + (f"-{node}" if node else "")


def setup_output_key(machine_id: str) -> str:
    """Return the key of the setup's output on one machine; it sorts before the output of all terms."""
    return f"output/{0:08d}/{machine_id}"


def shape_output_key(at_ms: int, machine_id: str) -> str:
    """Return the key of what an elastic training's script printed on a machine until a moment [ms since 1970]."""
    return f"output/shapes/{at_ms:014d}-{machine_id}"


def inbox_key(nonce: str) -> str:
    """Return the key of a message to the holder."""
    return f"inbox/{nonce}.json"


def probe_key(nonce: str) -> str:
    """Return the key of the object that tests the store's conditional writes."""
    return f"probe/{nonce}"


def report_key(machine_id: str) -> str:
    """Return the key of a machine's newest report."""
    return f"machines/{machine_id}/report.json"


def directive_key(machine_id: str) -> str:
    """Return the key of the controller's newest directive to a machine."""
    return f"machines/{machine_id}/directive.json"


def gone_key(term: int) -> str:
    """Return the key that marks the machine of a term as gone."""
    return f"gone/{term:08d}"
