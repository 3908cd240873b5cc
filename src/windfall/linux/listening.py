"""Which sockets the processes of an installation listen on, as the kernel lists them; and ports that are free."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from windfall.linux import processes
from windfall.structs import Struct

_LISTENS = "0A"
"""State of a socket in /proc/net/tcp (include/net/tcp_states.h: TCP_LISTEN)."""
_FOLDERS = ("XDG_STATE_HOME", "WINDFALL_SESSION")
"""Variables that name the folder of Windfall's own files in the environment of its processes."""
_MODULE = "windfall."
_OPEN = frozenset({"windfall.cli.shape_process"})
"""Programs with a socket of torch, which asks for no token."""


class OpenSocket(Struct, frozen=True, order=True):
    """A socket on which a process waits for connections.

    Attributes:
        program: module, script or file that runs.
        address: of this machine, IPv4 where it is mapped into IPv6.
        port: TCP.
        pid: of the process.
        mode: the value of `RAY_AUTH_MODE` with which it was started; empty if none.
    """

    program: str
    address: str
    port: int
    pid: int
    mode: str

    @property
    def guarded(self) -> bool:
        """Whether who connects needs a token: Windfall's own programs ask for one, and Ray's where its mode says so."""
        return self.mode == "token" or (self.program.startswith(_MODULE) and self.program not in _OPEN)

    @property
    def beyond_loopback(self) -> bool:
        """Whether other machines can reach it, if nothing else is between."""
        return not ipaddress.ip_address(self.address).is_loopback


def listeners(state: Path) -> list[OpenSocket]:
    """Return the sockets on which an installation's processes listen, and all that these have started.

    Processes of other users are not seen.

    Args:
        state: folder of the installation's own files.
    """
    tables: dict[str, dict[str, tuple[str, int]]] = {}
    found: list[OpenSocket] = []
    for pid in _processes_of(str(state.resolve())):
        # A process may end meanwhile.
        with contextlib.suppress(OSError):
            space = os.readlink(f"/proc/{pid}/ns/net")
            if space not in tables:
                tables[space] = _addresses(pid)
            names = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
            there = [tables[space][name] for name in names if name in tables[space]]
            program, mode = _program(_words(pid)), _variables(pid).get("RAY_AUTH_MODE", "")
            found += [OpenSocket(program, address, port, pid, mode) for address, port in there]
    return sorted(found)


def _processes_of(state: str) -> Iterable[int]:
    own = os.getpid()
    roots = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]
    roots = [pid for pid in roots if _is_of(pid, state)]
    return {below for pid in roots for below in (pid, *processes.descendants(pid))} - {own}


def _is_of(pid: int, state: str) -> bool:
    words = _words(pid)
    if not words:
        return False
    folders = _variables(pid)
    if any(_within(word, state) for word in (*words[1:], *(folders.get(name, "") for name in _FOLDERS))):
        return True
    home = folders.get("HOME", "/nowhere")
    default = os.path.join(folders.get("XDG_STATE_HOME") or os.path.join(home, ".local/state"), "windfall")
    own = _program(words) == "windfall" or any(word.startswith(_MODULE) for word in words[1:])
    return own and default == state and "--state" not in words


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _words(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        return [word for word in words if word]
    return []


def _variables(pid: int) -> dict[str, str]:
    words = (word.decode("utf-8", "replace") for word in processes.environment_of(pid))
    return dict(word.split("=", 1) for word in words if "=" in word)


def _program(words: list[str]) -> str:
    """Return what a command line runs: the module or script of an interpreter, else the program's own name."""
    name = os.path.basename(words[0]) if words else "?"
    if not name.startswith("python"):
        return name
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    return next((os.path.basename(word) for word in words[1:] if not word.startswith("-")), name)


def _addresses(pid: int) -> dict[str, tuple[str, int]]:
    """Return address and port of each socket that listens in the network namespace of a process, by its name in /proc."""
    return {f"socket:[{inode}]": place for table in ("tcp", "tcp6") for inode, place in _listening(pid, table)}


def _listening(pid: int, table: str) -> Iterator[tuple[str, tuple[str, int]]]:
    # IPv6 may be off.
    with contextlib.suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/net/{table}").read_text("ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS:
                host, port = fields[1].split(":")
                yield fields[9], (_address(host), int(port, 16))


def _address(text: str) -> str:
    """Return an address from the kernel's hexadecimal, words of 32 bits in the order of this machine's bytes."""
    words = [int(text[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port of this machine that is free now, and that anybody may take before it is used.

    Args:
        host: its own address on which to look; empty for all of them.
    """
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        port: int = probe.getsockname()[1]
    return port
