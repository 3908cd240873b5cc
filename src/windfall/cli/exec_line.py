"""The command line of `windfall exec`, without its parser: checks, defaults, and a quick way for plain lines.

Loading the parser takes longer than everything else before the script's first instruction, and most lines need only this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windfall.agent.exec_request import ExecRequest
from windfall.agent.exec_start import become_supervisor, checked_command
from windfall.cli.locations import absolute_url, state_folder, web_address
from windfall.errors import Misuse, WindfallError
from windfall.notices import notice_sources
from windfall.policies.checkpointing.decision import parse_policy
from windfall.settings import patience_s
from windfall.spelling import nearest, plain
from windfall.storage.object_stores import check_url
from windfall.terms import DEFAULT_SAVING, RunOptions, Seconds
from windfall.units import duration_s, rate_bytes_per_s
from windfall.wire.peer_messages import host_and_port


def request_of(
    url: str,
    command: tuple[str, ...],
    *,
    policy: str = DEFAULT_SAVING,
    mttp: str | None = None,
    keep: int | None = None,
    max_failures: int = 3,
    retry_codes: str = "",
    grace: str | None = None,
    lease: str = "30s",
    patience: str | None = None,
    wait: bool = False,
    bundle: bool = False,
    new_code: bool = False,
    provider: str = "auto",
    metadata_url: str | None = None,
    uplink: str | None = None,
    isolation: str = "auto",
    state: Path | None = None,
    generation: int = 0,
    node_rank: int = 0,
    peers: str = "",
) -> ExecRequest:
    """Check a command line, whose options `cli.exec` documents, and return its request.

    Raises:
        Misuse: an option has a value that it does not allow, or there is no such command.
    """
    cwd = _current_folder()
    place = absolute_url(url)
    check_url(place)
    if command and command[0].startswith("--"):
        options = [f"--{name.replace('_', '-')}" for name in _DEFAULTS]
        raise Misuse(f"unknown option {command[0]}; {nearest(command[0].partition('=')[0], options)}")
    return ExecRequest(
        url=place,
        argv=checked_command(command, url),
        cwd=cwd,
        options=RunOptions(
            policy=parse_policy(policy),
            keep=_at_least(keep, 1, "--keep"),
            failures_max=_at_least(max_failures, 1, "--max-failures") or 1,
            retry_codes=_codes(retry_codes),
            grace_s=None if grace is None else Seconds(duration_s(grace, "--grace")),
            lease_s=Seconds(_lease(lease)),
            mttp_s=None if mttp is None else Seconds(_positive(mttp, "--mttp")),
        ),
        state=str(state or state_folder()),
        provider=provider_of(provider),
        metadata_url=_metadata_address(metadata_url),
        patience_s=patience_s() if patience is None else duration_s(patience, "--patience"),
        wait=wait,
        bundle=bundle or new_code,
        new_code=new_code,
        isolation=one_of(isolation, ("auto", "namespace", "subreaper"), "--isolation"),
        uplink_bytes_per_s=None if uplink is None else rate_bytes_per_s(uplink, "--uplink"),
        generation=generation,
        node_rank=node_rank,
        peers=_peers(peers, node_rank, generation),
    )


def quick_request(words: Sequence[str]) -> ExecRequest | None:
    """Return the request of a plain line: options with a value each, a URL, `--` and a command.

    Returns:
        None if the line is not plain, asks for help or holds a mistake: the parser says what is wrong.
    """
    given: dict[str, Any] = {}
    urls: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        if not word.startswith("-"):
            urls.append(word)
            continue
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if option[:2] != "--" or name in given or name not in _DEFAULTS or "_" in option:
            return None
        is_switch = _DEFAULTS[name] is False
        if is_switch and equals:
            return None
        found = True if is_switch else _value(name, value if equals else next(rest, "-"))
        if found is None:
            return None
        given[name] = found
    if len(urls) != 1:
        return None
    try:
        return request_of(urls[0], tuple(rest), **given)
    except (WindfallError, OSError):
        return None


_DEFAULTS: Mapping[str, Any] = request_of.__kwdefaults__ or {}
_COUNT_MAX = 1_000_000
_DIGITS_MAX = 18
"""An integer that is longer does not fit into 64 bits."""
_INTEGERS = frozenset({"keep", "max_failures", "generation", "node_rank"})


def _value(name: str, text: str) -> str | int | Path | None:
    if not text or text.startswith("-"):
        return None
    if name in _INTEGERS:
        return int(text) if text.isascii() and text.isdecimal() and len(text) < _DIGITS_MAX else None
    return Path(text) if name == "state" else text


def start(request: ExecRequest) -> int:
    """Become the supervisor; return the exit code if that is not possible."""
    try:
        become_supervisor(request)
    except WindfallError as error:
        sys.stderr.write(f"windfall: {plain(str(error), lines=True)}\n")
        return error.exit_code


def _peers(text: str, node_rank: int, generation: int) -> tuple[str, ...]:
    """Return the addresses of the machines that train together.

    Raises:
        Misuse: --peers, --node-rank and --generation do not fit together.
    """
    if not text:
        if node_rank or generation:
            raise Misuse("--node-rank and --generation need --peers: the addresses of all machines")
        return ()
    addresses = tuple(address.strip() for address in text.split(","))
    for address in addresses:
        try:
            host_and_port(address)
        except ValueError as error:
            raise Misuse(f"--peers: {error}; give one address per machine, separated by commas") from error
    if len(addresses) < 2:
        raise Misuse(f"--peers: {text!r} is a single machine; leave --peers out to train on one machine")
    if not 0 <= node_rank < len(addresses):
        raise Misuse(f"--node-rank: must be 0 to {len(addresses) - 1} for the machines in --peers, not {node_rank}")
    if not 1 <= generation <= _COUNT_MAX:
        raise Misuse(f"--generation: --peers needs a generation number, 1 to {_COUNT_MAX:,}")
    return addresses


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise Misuse(
            "the current folder no longer exists: change to the folder that the command must run in"
        ) from error


def _positive(text: str, option: str) -> float:
    length_s = duration_s(text, option)
    if length_s <= 0:
        raise Misuse(f"{option}: must be more than 0, for example 3h, not {text!r}")
    return length_s


def provider_of(name: str) -> str:
    """Return whose notices to watch: the named provider's, or with `auto` the detected provider's.

    Raises:
        Misuse: there is no such provider.
    """
    chosen = one_of(name, ("auto", *notice_sources.names()), "--provider")
    return notice_sources.detect(os.environ) if chosen == "auto" else chosen


def _metadata_address(url: str | None) -> str | None:
    return None if url is None else web_address(url, "--metadata-url", "http://169.254.169.254")


def _codes(text: str) -> tuple[int, ...]:
    codes = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and 1 <= int(word) <= 255 for word in codes):
        raise Misuse(f"--retry-codes: must be exit codes separated by commas, for example 75,137, not {text!r}")
    return tuple(int(word) for word in codes)


def _lease(text: str) -> float:
    lease_s = duration_s(text, "--lease")
    if lease_s < 1:
        raise Misuse(f"--lease: must be at least 1s, because a store needs time to answer, not {text!r}")
    return lease_s


def one_of(value: str, allowed: tuple[str, ...], option: str) -> str:
    """Return the value of an option that allows only some values.

    Raises:
        Misuse: another value; the message suggests the nearest.
    """
    if value not in allowed:
        raise Misuse(f"{option}: unknown value {value!r}; {nearest(value, allowed)}")
    return value


def _at_least(value: int | None, least: int, option: str) -> int | None:
    if value is not None and not least <= value <= _COUNT_MAX:
        raise Misuse(f"{option}: must be at least {least} and at most {_COUNT_MAX:,}, not {value}")
    return value
