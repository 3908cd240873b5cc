"""`windfall doctor`: will a run on this machine, at this place, keep its promises?"""

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

from windfall import units, wiring
from windfall.cli import machine
from windfall.cli.exec import absolute_url, provider_of, state_folder
from windfall.cli.places import web_address
from windfall.cli.runs import Json
from windfall.errors import EXIT_FAILED, StoreError, WindfallError
from windfall.ports import GetRange, PutRange, Steps
from windfall.report import checks
from windfall.report.checks import Check, Verdict
from windfall.report.showing import console
from windfall.storage import log
from windfall.storage.clocks import SystemClock
from windfall.storage.mounts import file_system_of, is_shared
from windfall.storage.objects import open_store, prove_conditions
from windfall.storage.operations import delete_all, get, keys_under, put, ranges
from windfall.storage.taking import parse_marker
from windfall.terms import Bytes, Outcome
from windfall.units import duration_text, size_text
from windfall.wire.layout import MARKER, SHARDS, probe_key

STREAMS = 8
"""As many stretches move side by side as the uploader moves."""
SMALL_OBJECTS = 10
SHARE_OF_NOTICE = 0.8
"""What is promised of a notice's time: the rest is for the step under way, the snapshot and the commit."""
NOTICES_S = (30.0, 120.0)
"""Google's and Azure's warning, and AWS's."""
SLOW_S = 1.0
"""A commit is about four small requests: with more than this for each, short notices go to waste."""


def doctor(
    url: str | None = None,
    *,
    size: str = "64MB",
    provider: str = "auto",
    metadata_url: str | None = None,
    state: Path | None = None,
    json_: Json = False,
) -> int:
    """Check this machine, and a place for runs.

    Of a place: credentials, conditions, speed; nothing is left behind.  Exit code 0 if nothing failed, else 1.

    Example: `windfall doctor s3://lab/run42`

    Args:
        url: a run, or where one shall be; without it only this machine is looked at.
        size: how much data to send and fetch for the measurement of speed.
        provider: whose notices to look for (auto, aws, google, azure, slurm, kubernetes, local).
        metadata_url: where the provider's metadata service answers, if not at its usual address.
        state: folder for this machine's own files (default: $XDG_STATE_HOME/windfall).
        json_: one JSON object a line.
    """
    amount, chosen = Bytes(units.size_bytes(size, "--size")), provider_of(provider)
    found: list[Check] = []
    if metadata_url is not None:
        web_address(metadata_url, "--metadata-url", "http://169.254.169.254")
    for check in _all(url, amount, chosen, metadata_url, state):
        found.append(check)
        _show(check, as_json=json_)
    return EXIT_FAILED if any(check.verdict is Verdict.FAIL for check in found) else 0


def _all(
    url: str | None, amount: Bytes, provider: str, metadata_url: str | None, state: Path | None
) -> Iterator[Check]:
    yield from machine.checks(provider, metadata_url, state)
    if url is not None:
        yield from place(absolute_url(url), amount, state or state_folder())


def _show(check: Check, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(checks.as_json(check)), flush=True)
    else:
        console().print(checks.table([check]))


def place(url: str, amount: Bytes, state: Path) -> Iterator[Check]:
    """Look at a place for runs; what it wrote there is gone when it ends, also after an error.

    Args:
        url: of a run that may not exist yet.
        amount: data to send and fetch [B].
        state: folder in which the data lies meanwhile.

    Raises:
        Misuse: the URL is none.
    """
    reader = wiring.Reader(open_store(url), SystemClock())
    folder = Path(reader.store.url.removeprefix("file://")) if reader.store.url.startswith("file://") else None
    with _as_it_was(folder), _cleaned(reader, nonce := wiring.new_nonce()):
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


def _reach(reader: wiring.Reader) -> Check:
    try:
        data = reader.run(get(MARKER))
        if data is None:
            says = f"{reader.store.url} answers; no run is there yet"
        else:
            head = reader.run(log.read_head())
            outcome = "not started" if head is None else head.state.outcome.value
            says = f"{reader.store.url} answers; run {parse_marker(data)} is {outcome}"
    except WindfallError as error:
        return Check("store", Verdict.FAIL, str(error))
    return Check("store", Verdict.OK, says)


def _conditions(reader: wiring.Reader, nonce: str) -> Check:
    try:
        reader.run(prove_conditions(nonce))
    except StoreError as error:
        return Check("conditions", Verdict.FAIL, str(error))
    return Check("conditions", Verdict.OK, "a second creation is refused: two machines cannot hold one run")


def _disk(folder: Path) -> Check:
    kind = file_system_of(str(folder))
    if is_shared(kind):
        return Check("reach", Verdict.OK, f"{folder} is on {kind}: every machine that mounts it can take the run over")
    advice = "for other machines use a shared disk, or s3://, gs://, az://"
    return Check("reach", Verdict.WARN, f"{folder} is on {kind or 'a local disk'}: this machine only", advice)


def _latency(reader: wiring.Reader, nonce: str) -> Check:
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
        return Check("small objects", Verdict.WARN, says, "use a store that is nearer", numbers)
    return Check("small objects", Verdict.OK, says, numbers=numbers)


def _speed(reader: wiring.Reader, nonce: str, amount: Bytes, state: Path) -> Iterator[Check]:
    """Send random bytes as the uploader sends a checkpoint, fetch them as a restore does."""
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
        advice = "name another place with --state, or a smaller --size"
        yield Check("speed up", Verdict.FAIL, f"{state} cannot hold {size_text(amount)} ({error.strerror})", advice)
    except StoreError as error:
        yield Check("speed up", Verdict.FAIL, str(error))


def _stretches(nonce: str, amount: Bytes) -> list[tuple[str, int, int]]:
    length = -(-amount // STREAMS)
    starts = range(0, amount, length)
    return [(probe_key(f"{nonce}-{at}"), at, min(length, amount - at)) for at in starts]


def _write_random(path: str, amount: Bytes, nonce: str) -> None:
    # Nothing on the way can compress them or store them once.
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
    says = f"a checkpoint of {short} fits into 30 s of notice, {long} into 120 s"
    return Check("emergency", Verdict.OK, says, numbers=sizes)


def _leftovers(reader: wiring.Reader, nonce: str) -> Check:
    try:
        left = reader.run(_left_behind(nonce))
    except WindfallError as error:
        return Check("leftovers", Verdict.FAIL, str(error))
    if not left:
        return Check("leftovers", Verdict.OK, "none")
    advice = "the next `windfall exec` removes what dead machines left in shards/; probes may be deleted by hand"
    return Check("leftovers", Verdict.WARN, f"{len(left)} objects that nothing needs (such as {left[0]})", advice)


def _left_behind(nonce: str) -> Steps[list[str]]:
    """Return probes of others, and bytes of points that a run does not need, unless a machine holds it now."""
    probes = [key for key in (yield from keys_under("probe/")) if nonce not in key]
    head = yield from log.read_head()
    if head is None or head.state.outcome is Outcome.RUNNING:
        return probes
    live = {point.checkpoint_id for point in head.state.checkpoints}
    parts = yield from keys_under(SHARDS)
    return probes + [key for key in parts if key.split("/")[2] not in live]


def _timed(reader: wiring.Reader, steps: Steps[object]) -> float:
    began = reader.clock.now()
    reader.run(steps)
    return max(reader.clock.now() - began, 1e-6)


@contextlib.contextmanager
def _cleaned(reader: wiring.Reader, nonce: str) -> Iterator[None]:
    """Delete this look's probes at the end; a store that fails even then has been told of already."""
    try:
        yield
    finally:
        with contextlib.suppress(StoreError):
            reader.run(_remove_probes(nonce))


def _remove_probes(nonce: str) -> Steps[None]:
    mine = [key for key in (yield from keys_under("probe/")) if nonce in key]
    yield from delete_all(mine)


@contextlib.contextmanager
def _as_it_was(folder: Path | None) -> Iterator[None]:
    """Remove the folders that a look at a file store made."""
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
