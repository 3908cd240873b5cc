"""`windfall doctor`: can this machine, and this store, do what a run needs?"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windfall import units
from windfall.cli import machine_checks
from windfall.cli.exec_line import provider_of
from windfall.cli.locations import absolute_url, state_folder, web_address
from windfall.cli.options import Json, OptionalUrl, StateFolder
from windfall.cli.provider_checks import provider_checks
from windfall.cli.slurm_checks import slurm_checks
from windfall.errors import EXIT_FAILED, StoreError, WindfallError
from windfall.linux.clock import SystemClock
from windfall.linux.random_names import new_nonce
from windfall.ports import GetRange, PutRange, Steps
from windfall.report import doctor_checks
from windfall.report.console import console
from windfall.report.doctor_checks import Check, Verdict
from windfall.storage import object_stores, run_log
from windfall.storage.acquire_run import parse_marker
from windfall.storage.object_stores import file_system_of, is_shared, open_store, prove_conditions
from windfall.storage.store_operations import delete_all, get, keys_under, put, ranges
from windfall.terms import Bytes, Outcome
from windfall.units import duration_text, size_text
from windfall.wire.run_layout import MARKER, SHARDS, probe_key

CLUSTER = "slurm"
"""What stands in place of a URL to check the cluster; a folder of that name is `./slurm`."""
STREAMS = 8
"""Parallel transfers, as many as the uploader uses."""
SMALL_OBJECTS = 10
SHARE_OF_NOTICE = 0.8
"""Share of a notice that an upload may use; the rest is for the present step, the snapshot and the commit."""
NOTICES_S = (30.0, 120.0)
"""The notice of Google and Azure, and of AWS [s]."""
SLOW_S = 1.0
"""A commit takes about four small requests: if each takes longer than this [s], short notices are wasted."""


def doctor(
    url: str | None = None,
    /,
    *,
    size: Annotated[str, Parameter(metavar="SIZE")] = "64MB",
    provider: Annotated[str, Parameter(metavar="NAME")] = "auto",
    metadata_url: OptionalUrl = None,
    state: StateFolder = None,
    json_: Json = False,
) -> int:
    """Check that this machine, and a store, can run Windfall.

    Shows what the configuration file says of each provider, without secrets.  In the store, it checks credentials,
    conditional writes and speed, and leaves nothing behind.

    Exit codes: 0 no check failed, 1 a check failed.

    `windfall doctor slurm` says what the settings of the user's cluster mean; nothing is submitted.

    Example: `windfall doctor s3://lab/run42`

    Args:
        url: an existing or future run, or `slurm`; without it, only this machine is checked.
        size: how much data to upload and download to measure the speed.
        provider: whose preemption notices to check: auto, aws, google, azure, slurm, kubernetes or local.
        metadata_url: address of the provider's metadata service, if not the usual one.
        state: folder for this machine's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON object per line.
    """
    if url == CLUSTER:
        return _report(slurm_checks(state), as_json=json_)
    amount, chosen = Bytes(units.size_bytes(size, "--size")), provider_of(provider)
    if metadata_url is not None:
        web_address(metadata_url, "--metadata-url", "http://169.254.169.254")
    return _report(_all(url, amount, chosen, metadata_url, state), as_json=json_)


def _report(checks: Iterable[Check], *, as_json: bool) -> int:
    """Print each check as soon as it is known; return the exit code."""
    found: list[Check] = []
    for check in checks:
        found.append(check)
        _show(check, as_json=as_json)
    return EXIT_FAILED if any(check.verdict is Verdict.FAIL for check in found) else 0


def _all(
    url: str | None, amount: Bytes, provider: str, metadata_url: str | None, state: Path | None
) -> Iterator[Check]:
    yield from machine_checks.checks(provider, metadata_url, state)
    yield from provider_checks()
    if url is not None:
        yield from check_store(absolute_url(url), amount, state or state_folder())


def _show(check: Check, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(doctor_checks.as_json(check)), flush=True)
    else:
        console().print(doctor_checks.table([check]))


def check_store(url: str, amount: Bytes, state: Path) -> Iterator[Check]:
    """Check a store for runs; everything written there is deleted at the end, also after an error.

    Args:
        url: of a run that may not exist yet.
        amount: data to upload and download [B].
        state: folder for the data meanwhile.

    Raises:
        Misuse: the URL is not valid.
    """
    reader = object_stores.Reader(open_store(url), SystemClock())
    folder = Path(reader.store.url.removeprefix("file://")) if reader.store.url.startswith("file://") else None
    with _restored(folder), _cleaned(reader, nonce := new_nonce()):
        yield (first := _reach(reader))
        if first.verdict is Verdict.FAIL:
            return
        yield _conditions(reader, nonce)
        if folder is not None:
            yield _disk(folder)
        yield (answers := _latency(reader, nonce))
        if answers.verdict is not Verdict.FAIL:
            yield from _speed(reader, nonce, amount, state)
        yield _leftovers(reader, nonce)


def _reach(reader: object_stores.Reader) -> Check:
    try:
        data = reader.run(get(MARKER))
        if data is None:
            says = f"{reader.store.url} answers; there is no run yet"
        else:
            head = reader.run(run_log.read_head())
            outcome = "not started" if head is None else head.state.outcome.value
            says = f"{reader.store.url} answers; run {parse_marker(data)} is {outcome}"
    except WindfallError as error:
        return Check("store", Verdict.FAIL, str(error))
    return Check("store", Verdict.OK, says)


def _conditions(reader: object_stores.Reader, nonce: str) -> Check:
    try:
        reader.run(prove_conditions(nonce))
    except StoreError as error:
        return Check("conditions", Verdict.FAIL, str(error))
    return Check("conditions", Verdict.OK, "conditional writes work: two machines cannot hold one run")


def _disk(folder: Path) -> Check:
    kind = file_system_of(str(folder))
    if is_shared(kind):
        return Check("reach", Verdict.OK, f"{folder} is on {kind}: every machine that mounts it can take over the run")
    advice = "to resume on other machines, use a shared disk, s3://, gs:// or az://"
    says = f"{folder} is on {kind or 'a local disk'}, which only this machine reaches"
    return Check("reach", Verdict.WARN, says, advice)


def _latency(reader: object_stores.Reader, nonce: str) -> Check:
    writes: list[float] = []
    reads: list[float] = []
    try:
        for number in range(SMALL_OBJECTS):
            key = probe_key(f"{nonce}-small-{number}")
            writes.append(_timed(reader, put(key, b"x" * 1000)))
            reads.append(_timed(reader, get(key)))
    except StoreError as error:
        return Check("small objects", Verdict.FAIL, str(error))
    write_s, read_s = statistics.median(writes), statistics.median(reads)
    numbers = {"write_s": write_s, "read_s": read_s}
    says = f"written in {write_s * 1000:.1f} ms, read in {read_s * 1000:.1f} ms"
    if max(write_s, read_s) > SLOW_S:
        return Check("small objects", Verdict.WARN, says, "use a store that is closer", numbers)
    return Check("small objects", Verdict.OK, says, numbers=numbers)


def _speed(reader: object_stores.Reader, nonce: str, amount: Bytes, state: Path) -> Iterator[Check]:
    """Upload random bytes as the uploader does, and download them as a restore does."""
    stretches = _stretches(nonce, amount)
    try:
        state.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="doctor-", dir=state) as scratch:
            sent, fetched = os.path.join(scratch, "sent"), os.path.join(scratch, "fetched")
            _write_random(sent, amount, nonce)
            up_s = _timed(reader, ranges(tuple(PutRange(key, sent, at, length) for key, at, length in stretches)))
            yield _rate("speed up", amount, up_s)
            yield _fits(amount / up_s)
            with open(fetched, "wb") as file:
                file.truncate(amount)
            down_s = _timed(reader, ranges(tuple(GetRange(key, fetched, at, length) for key, at, length in stretches)))
            yield _rate("speed down", amount, down_s)
    except OSError as error:
        advice = "choose another folder with --state, or a smaller --size"
        yield Check("speed up", Verdict.FAIL, f"{state} cannot hold {size_text(amount)} ({error.strerror})", advice)
    except StoreError as error:
        yield Check("speed up", Verdict.FAIL, str(error))


def _stretches(nonce: str, amount: Bytes) -> list[tuple[str, int, int]]:
    length = -(-amount // STREAMS)
    starts = range(0, amount, length)
    return [(probe_key(f"{nonce}-{at}"), at, min(length, amount - at)) for at in starts]


def _write_random(path: str, amount: Bytes, nonce: str) -> None:
    # Random, so that nothing on the way can compress or deduplicate them.
    block = random.Random(nonce).randbytes(1 << 20)  # noqa: S311 - bytes to send, no secret
    with open(path, "wb") as file:
        blocks = range(-(-amount // len(block)))
        file.writelines(number.to_bytes(8, "little") + block[8:] for number in blocks)
        file.truncate(amount)


def _rate(name: str, amount: Bytes, took_s: float) -> Check:
    rate = amount / took_s
    says = f"{size_text(rate)}/s ({size_text(amount)} in {duration_text(took_s)})"
    return Check(name, Verdict.OK, says, numbers={"bytes_per_s": rate})


def _fits(bytes_per_s: float) -> Check:
    sizes = {f"fits_in_{notice_s:g}_s_bytes": SHARE_OF_NOTICE * notice_s * bytes_per_s for notice_s in NOTICES_S}
    short, long = (size_text(size) for size in sizes.values())
    says = f"within 30 s of notice, {short} can be saved; within 120 s, {long}"
    return Check("emergency", Verdict.OK, says, numbers=sizes)


def _leftovers(reader: object_stores.Reader, nonce: str) -> Check:
    try:
        left = reader.run(_left_behind(nonce))
    except WindfallError as error:
        return Check("leftovers", Verdict.FAIL, str(error))
    if not left:
        return Check("leftovers", Verdict.OK, "none")
    advice = "the next `windfall exec` deletes leftover shards; probe/ can be deleted by hand"
    return Check("leftovers", Verdict.WARN, f"{len(left)} unneeded objects, such as {left[0]}", advice)


def _left_behind(nonce: str) -> Steps[list[str]]:
    """Return other processes' probes, and shards of checkpoints that the run does not need unless it is held now."""
    probes = [key for key in (yield from keys_under("probe/")) if nonce not in key]
    head = yield from run_log.read_head()
    if head is None or head.state.outcome is Outcome.RUNNING:
        return probes
    live = {checkpoint.checkpoint_id for checkpoint in head.state.checkpoints}
    parts = yield from keys_under(SHARDS)
    return probes + [key for key in parts if key.split("/")[2] not in live]


def _timed(reader: object_stores.Reader, steps: Steps[object]) -> float:
    started = reader.clock.now()
    reader.run(steps)
    return max(reader.clock.now() - started, 1e-6)


@contextlib.contextmanager
def _cleaned(reader: object_stores.Reader, nonce: str) -> Iterator[None]:
    """Delete this check's probes at the end; if the store fails even then, that has been reported already."""
    try:
        yield
    finally:
        with contextlib.suppress(StoreError):
            reader.run(_remove_probes(nonce))


def _remove_probes(nonce: str) -> Steps[None]:
    mine = [key for key in (yield from keys_under("probe/")) if nonce in key]
    yield from delete_all(mine)


@contextlib.contextmanager
def _restored(folder: Path | None) -> Iterator[None]:
    """Remove the folders that checking a file store created."""
    if folder is None:
        yield
        return
    made = list(_missing(folder))
    try:
        yield
    finally:
        for workshop in folder.glob(f".tmp/{os.getpid()}-*"):
            shutil.rmtree(workshop, ignore_errors=True)
        _remove_empty([folder / ".tmp", folder / "probe", *made])


def _missing(folder: Path) -> Iterator[Path]:
    while not folder.exists():
        yield folder
        folder = folder.parent


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
