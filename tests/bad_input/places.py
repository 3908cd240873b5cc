"""Stores that cannot be used, and runs that were damaged."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tests.bad_input.box import Box, Case
from windfall.storage.manifest import digest_of


def _file_in_the_way(box: Box) -> list[str]:
    (box.folder / "file").write_text("mine")
    return box.exec(box.folder / "file")


def _bucket(server: str, url: str) -> object:
    def arrange(box: Box) -> list[str]:
        box.server(server)
        return box.exec(url)

    return arrange


def _endpoint_down(box: Box) -> list[str]:
    box.nobody_answers()
    return ["ps", "s3://lab/run"]


def _read_only(box: Box) -> list[str]:
    return box.exec(box.mounted("ro") / "run")


def _full(box: Box) -> list[str]:
    return box.exec(box.mounted("size=64k") / "run")


def _state_full(box: Box) -> list[str]:
    return box.exec(box.store, "--state", str(box.mounted("size=64k,nr_inodes=20")))


def _state_is_a_file(box: Box) -> list[str]:
    (box.folder / "file").write_text("mine")
    return box.exec(box.store, "--state", str(box.folder / "file"))


def _damage_newest(box: Box) -> str:
    url = box.waiting()
    for path in box.chunks(box.checkpoints()[-1]):
        box.rewrite(path, lambda text: text.replace("weights", "Weights"))
    return url


def _newest_damaged(box: Box) -> list[str]:
    return ["get", _damage_newest(box), str(box.folder / "out")]


def _newest_damaged_at_exec(box: Box) -> list[str]:
    return box.exec(_damage_newest(box))


def _chunk_missing(box: Box) -> list[str]:
    url = box.waiting()
    for path in box.chunks(box.checkpoints()[-1]):
        path.unlink()
    return ["get", url, str(box.folder / "out")]


def _manifest_missing(box: Box) -> list[str]:
    url = box.waiting()
    (box.store / "checkpoints" / box.checkpoints()[-1] / "manifest.json").unlink()
    return ["get", url, str(box.folder / "out")]


def _all_damaged(box: Box) -> str:
    url = box.waiting()
    for checkpoint in box.checkpoints():
        for path in box.chunks(checkpoint):
            path.write_bytes(b"")
    return url


def _newest_record(box: Box) -> Path:
    return max((box.store / "log").iterdir())


def _manifest_newer(box: Box) -> list[str]:
    url = box.waiting()
    path = box.store / "checkpoints" / box.checkpoints()[-1] / "manifest.json"
    old = digest_of(path.read_bytes())
    box.rewrite(path, lambda text: text.replace('"version":4', '"version":9', 1))
    box.rewrite(_newest_record(box), lambda text: text.replace(old, digest_of(path.read_bytes())))
    return ["get", url, str(box.folder / "out")]


def _record(old: str, new: str, *, exec_: bool = False) -> object:
    def arrange(box: Box) -> list[str]:
        url = box.waiting()
        box.rewrite(_newest_record(box), lambda text: re.sub(old, new, text, count=1, flags=re.DOTALL))
        return box.exec(url) if exec_ else ["ps", url]

    return arrange


def _marker(content: str) -> object:
    def arrange(box: Box) -> list[str]:
        box.store.mkdir()
        (box.store / "windfall.json").write_text(content)
        return box.exec(box.store)

    return arrange


def _journal(old: str, new: str) -> object:
    def arrange(box: Box) -> list[str]:
        url = box.waiting()
        box.rewrite(min((box.store / "spool").rglob("*.jsonl")), lambda text: re.sub(old, new, text, count=1))
        return ["replay", url]

    return arrange


def _heartbeat_damaged(box: Box) -> list[str]:
    """A run whose holder is of another machine and whose heartbeat is not one."""
    url = box.waiting()
    path = _newest_record(box)
    data = json.loads(path.read_text())
    earlier = json.loads((box.store / "log" / "00000001").read_text())
    holder = earlier["record"]["state"]["holder"] | {"boot_id": "elsewhere"}
    data["record"]["state"] |= {"holder": holder, "outcome": "running", "lease_s": 1.0}
    path.write_text(json.dumps(data))
    (box.store / "heartbeats" / "00000001").write_text("not a heartbeat")
    return box.exec(url)


def _there_already(box: Box) -> list[str]:
    url = box.waiting()
    assert os.path.exists(box.here)
    name = next(path for path in box.chunks(box.checkpoints()[-1]))
    manifest = json.loads((box.store / "checkpoints" / box.checkpoints()[-1] / "manifest.json").read_text())
    assert name
    (box.here / manifest["checkpoint"]["shards"][0]["name"]).write_text("mine")
    return ["get", url, "."]


def _no_points(box: Box) -> list[str]:
    url = box.waiting()
    box.rewrite(
        _newest_record(box),
        lambda text: re.sub(r'"checkpoints":\[.*?\],"attempts"', '"checkpoints":[],"attempts"', text),
    )
    return ["get", url, str(box.folder / "out")]


def _into_a_file(box: Box) -> list[str]:
    (box.here / "file").write_text("mine")
    return ["get", box.waiting(), "file"]


CASES = [
    Case("store-is-a-file", _file_in_the_way, 2, ("/file", "check the path"), process=True),
    Case("store-unwritable", lambda box: box.exec("/sys/windfall"), 1, ("/sys/windfall", "permission"), process=True),
    Case("store-read-only", _read_only, 1, ("mounted", "Read-only", "permission"), process=True),
    Case("disk-full", _full, 1, ("mounted", "no space left", "free some space"), process=True),
    Case("bucket-missing", _bucket("s3", "s3://nowhere/run"), 2, ("s3://nowhere/run", "create it"), process=True),
    Case("credentials-wrong", _bucket("denies", "s3://lab/run"), 1, ("AWS_ACCESS_KEY_ID", "403"), process=True),
    Case("bucket-full", _bucket("full", "gs://lab/run"), 1, ("gs://lab/run", "no space left"), process=True),
    Case("store-without-conditions", _bucket("dishonest", "gs://lab/run"), 2, ("If-None-Match",), process=True),
    Case("endpoint-down", _endpoint_down, 75, ("s3://lab/run", "connection refused", "AWS_ENDPOINT_URL")),
    Case("state-is-a-file", _state_is_a_file, 2, ("/file", "--state")),
    Case("state-unwritable", lambda box: box.exec(box.store, "--state", "/sys/mine"), 2, ("/sys/mine", "--state")),
    Case("state-full", _state_full, 2, ("mounted", "--state"), process=True),
    Case("newest-point-damaged", _newest_damaged, 0, ("have changed", "using the checkpoint before it")),
    Case(
        "newest-point-damaged-at-exec",
        _newest_damaged_at_exec,
        0,
        ("the script is done",),
        process=True,
        after=3,
        adds=True,
        starts=True,
    ),
    Case("bytes-missing", _chunk_missing, 0, ("is missing", "using the checkpoint before it")),
    Case("manifest-missing", _manifest_missing, 0, ("manifest is missing", "using the checkpoint before it")),
    Case(
        "all-points-damaged",
        lambda box: ["get", _all_damaged(box), str(box.folder / "out")],
        1,
        ("checkpoints of the run are damaged",),
    ),
    Case(
        "all-points-damaged-at-exec",
        lambda box: box.exec(_all_damaged(box)),
        1,
        ("checkpoints of the run are damaged",),
        process=True,
        after=2,
        adds=True,
    ),
    Case("manifest-newer", _manifest_newer, 2, ("version 9", "upgrade Windfall")),
    Case("record-newer", _record('"version":4', '"version":9'), 2, ("version 9", "upgrade Windfall")),
    Case(
        "record-newer-at-exec",
        _record('"version":4', '"version":9', exec_=True),
        2,
        ("upgrade Windfall",),
        process=True,
    ),
    Case("record-damaged", _record(r'"state".*', '"sta'), 1, ("log/0000", "damaged")),
    Case("record-damaged-at-exec", _record(r'"state".*', '"sta', exec_=True), 1, ("damaged",), process=True),
    Case("record-of-another-shape", _record('"term":', '"tarm":'), 1, ("log/0000", "damaged")),
    Case("marker-of-another-program", _marker("[1, 2]"), 1, ("windfall.json", "not a Windfall run"), process=True),
    Case("marker-older", _marker('{"v": 2, "run_id": "x"}'), 2, ("format 2", "use another URL"), process=True),
    Case("marker-newer", _marker('{"version": 9, "run_id": "x"}'), 2, ("format 9", "upgrade"), process=True),
    Case("journal-damaged", _journal('"facts"', '"fax"'), 1, ("spool/", "damaged in line 1")),
    Case("journal-newer", _journal('"version":5', '"version":9'), 2, ("version 9", "upgrade Windfall")),
    Case("heartbeat-damaged", _heartbeat_damaged, 1, ("heartbeats/", "not a heartbeat"), process=True, after=1),
    Case("run-held", lambda box: box.exec(box.prepared.held.url), 75, ("--wait",), process=True, after=1),
    Case("run-done", lambda box: box.exec(box.done()), 0, ("already done", "nothing was started"), process=True),
    Case("get-over-a-file", _there_already, 2, ("already exists", "another folder")),
    Case("get-into-a-file", _into_a_file, 2, ("file", "another folder")),
    Case("get-without-points", _no_points, 2, ("no checkpoint yet",)),
    Case(
        "get-of-an-unknown-point",
        lambda box: ["get", box.waiting(), "--checkpoint", "7"],
        2,
        ("7", "windfall checkpoints"),
    ),
]
