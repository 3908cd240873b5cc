"""Slurm for tests: the one on the path, or the distribution's packages, unpacked into a cache without root.

`make slurm` runs `python -m tests.slurm.packages`, `make slurm ACCOUNTING=1` adds `--accounting` (slurmdbd and MariaDB).
Nothing is installed, and a second call does nothing. The cache is `windfall-tests` in the user's cache folder, or the folder
that `WINDFALL_TEST_CACHE` names: 13 MB for Slurm, 85 MB with accounting.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "WINDFALL_TEST_CACHE"
DOWNLOAD_LIMIT_S = 60.0
LIBRARIES = ("libmunge2", "libhwloc15", "libjson-c5", "libnuma1", "liblua5.1-0")
SLURM = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", *LIBRARIES)
ACCOUNTING = (
    *("slurmdbd", "slurm-wlm-mysql-plugin", "libmariadb3", "mariadb-server-core", "mariadb-client-core"),
    *("libaio1", "liburing2"),
)
COMMANDS = ("sbatch", "srun", "squeue", "sinfo", "scancel", "scontrol", "sacct", "sacctmgr")
DAEMONS = ("slurmctld", "slurmd", "slurmstepd")
DATABASE = ("slurmdbd", "mariadbd", "mariadb", "mariadb-install-db")
SSHD = ("openssh-server", "libwrap0")
SYSTEM_PATHS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


class SlurmUnavailable(Exception):
    """Slurm is neither on the path nor can it be had here; the message says why."""


class SlurmNotUnpacked(Exception):
    """Slurm could be had here, if it were not for what the message says."""


@dataclass(frozen=True)
class Installation:
    """Where Slurm's programs are; `root` is None for those of the system."""

    root: Path | None
    programs: dict[str, Path]

    @property
    def path(self) -> tuple[str, ...]:
        """The folders with the commands and the daemons."""
        return tuple(dict.fromkeys(str(program.parent) for program in self.programs.values()))

    @property
    def plugins(self) -> Path | None:
        """Slurm's plugins; None where it finds them itself."""
        return next(self.root.glob("usr/lib/*/slurm-wlm")) if self.root else None

    @property
    def libraries(self) -> tuple[str, ...]:
        """Folders for LD_LIBRARY_PATH."""
        return (str(self.plugins), str(self.plugins.parent)) if self.plugins else ()


def find_slurm(*, accounting: bool = False) -> Installation:
    """Slurm of the path, of the cache, or now unpacked into it.

    Raises `SlurmUnavailable` where there is none to have, `SlurmNotUnpacked` where it could be had and something here is wrong.
    """
    wanted = (*COMMANDS, *DAEMONS, *(DATABASE if accounting else ()))
    places = [*os.environ.get("PATH", "").split(os.pathsep), *SYSTEM_PATHS]
    if (system := _programs([name for name in wanted if name != "slurmstepd"], places)) is not None:
        return Installation(None, system)
    for complete in (True,) if accounting else (False, True):
        root = _root(accounting=complete)
        if root.is_dir():
            return _unpacked(root, wanted)
    root = _root(accounting=accounting)
    try:
        _unpack((*SLURM, *(ACCOUNTING if accounting else ())), root, _finish_slurm)
    except (OSError, subprocess.SubprocessError) as error:
        raise SlurmNotUnpacked(f"Slurm's packages cannot be unpacked into {root}: {error}") from error
    return _unpacked(root, wanted)


def find_sshd() -> tuple[Path, str]:
    """The system's sshd, or Debian's in the cache, now unpacked into it; and folders for LD_LIBRARY_PATH.

    Raises `SlurmUnavailable` where there is none to have.
    """
    if (system := shutil.which("sshd", path=os.pathsep.join(SYSTEM_PATHS))) is not None:
        return Path(system), ""
    root = _folder(SSHD, "sshd")
    try:
        _unpack(SSHD, root, lambda _: None)
    except (OSError, subprocess.SubprocessError) as error:
        raise SlurmNotUnpacked(f"the packages of sshd cannot be unpacked into {root}: {error}") from error
    return root / "usr/sbin/sshd", os.pathsep.join(map(str, root.glob("usr/lib/*-linux-*")))


def _unpacked(root: Path, wanted: Sequence[str]) -> Installation:
    programs = _programs(wanted, [str(root / "usr/bin"), str(root / "usr/sbin")])
    assert programs is not None, f"{root} is not complete: remove it and run `make slurm` again"
    return Installation(root, programs)


def _programs(wanted: Sequence[str], places: Sequence[str]) -> dict[str, Path] | None:
    """Each program's path; None unless all are there."""
    found = {name: shutil.which(name, path=os.pathsep.join(places)) for name in wanted}
    return {name: Path(path) for name, path in found.items() if path} if all(found.values()) else None


def _root(*, accounting: bool) -> Path:
    return _folder((*SLURM, *(ACCOUNTING if accounting else ())), "slurm")


def _folder(names: Sequence[str], word: str) -> Path:
    """The folder of one list of packages: another list is another folder."""
    cache = os.environ.get(CACHE_VARIABLE)
    base = Path(cache) if cache else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windfall-tests"
    return base / f"{word}-{hashlib.sha256(' '.join(names).encode()).hexdigest()[:8]}"


def _unpack(names: Sequence[str], root: Path, finish: Callable[[Path], None]) -> None:
    """Download and unpack; the folder appears whole or not at all. Of several processes one does it, the others wait."""
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise SlurmUnavailable(f"no Slurm on the path, and no {tool} to fetch Debian's packages: install slurm-wlm")
    root.parent.mkdir(parents=True, exist_ok=True)
    with _alone(root.with_suffix(".lock")):
        if root.is_dir():
            return
        with tempfile.TemporaryDirectory(prefix="slurm-", dir=root.parent) as staging:
            archives = Path(staging, "archives")
            archives.mkdir()
            _download(names, archives, Path(staging))
            unpacked = Path(staging, "root")
            for archive in sorted(archives.glob("*.deb")):
                subprocess.run(["dpkg", "-x", archive, unpacked], check=True, timeout=DOWNLOAD_LIMIT_S)
            finish(unpacked)
            unpacked.chmod(0o755)
            unpacked.rename(root)


def _finish_slurm(unpacked: Path) -> None:
    for program in unpacked.glob("usr/sbin/*-wlm"):
        program.with_name(program.name.removesuffix("-wlm")).symlink_to(program.name)
    _check_libraries(unpacked)


def _download(names: Sequence[str], archives: Path, staging: Path) -> None:
    """Fetch the packages; where the system's package lists are missing or old, with lists of our own."""
    options = [f"Dir::Cache={staging}/cache", "APT::Sandbox::User=", "Acquire::Retries=1", "Acquire::http::Timeout=20"]
    apt = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
    lists = ["-o", f"Dir::State::lists={staging}/lists"]
    tries = (
        [[*apt, "download", *names]],
        [[*apt, *lists, "-o", "APT::Update::Error-Mode=any", "update"], [*apt, *lists, "download", *names]],
    )
    (staging / "lists/partial").mkdir(parents=True)
    (staging / "cache").mkdir()
    said = ""
    for commands in tries:
        for command in commands:
            done = _apt(command, archives)
            errors = [line for line in done.stderr.splitlines() if line.startswith("E: ")]
            said = (errors or [f"exit code {done.returncode}"])[0]
            if done.returncode != 0:
                break
        else:
            return
    raise SlurmUnavailable(f"no Slurm on the path, and its packages cannot be fetched: apt-get says {said!r}")


def _apt(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=DOWNLOAD_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"E: nothing after {DOWNLOAD_LIMIT_S:.0f} s\n")


def _check_libraries(root: Path) -> None:
    plugins = next(root.glob("usr/lib/*/slurm-wlm"), None)
    if plugins is None:
        raise SlurmUnavailable(
            "the packages that apt-get fetched are not Debian's slurm-wlm: they have no plugins folder"
        )
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{plugins}:{plugins.parent}"}
    programs = [path for path in (*root.glob("usr/bin/*"), *root.glob("usr/sbin/*")) if not path.is_symlink()]
    told = subprocess.run(["ldd", *programs], env=environment, capture_output=True, text=True, check=False).stdout
    missing = sorted({line.split()[0] for line in told.splitlines() if "not found" in line})
    if missing:
        raise SlurmUnavailable(f"Slurm's packages need libraries that are not installed here: {', '.join(missing)}")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Have Slurm for the tests, and say where it is; exit code 1 and one sentence if that cannot be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accounting", action="store_true", help="also slurmdbd and MariaDB, for sacct")
    try:
        found = find_slurm(accounting=parser.parse_args().accounting)
    except (SlurmUnavailable, SlurmNotUnpacked) as error:
        print(f"make slurm: {error}", file=sys.stderr)
        return 1
    print(f"Slurm for the tests: {found.programs['slurmctld'].parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
