"""Runs on a bare machine before anything of Windfall is there: fetches the node agent and becomes it.

`start_script` puts this file's text into a shell script, so it uses the standard library alone, and no other module of
Windfall.  It may run again on a machine that starts again: what is there is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import stat
import sys
import time
import urllib.error
import urllib.request
import zipfile

TRIES, PAUSE_S, TIMEOUT_S = 6, 2.0, 60.0
MANIFEST = "windfall-agent.json"
SECRETS = "secrets.json"


def fail(message: str) -> None:
    """End with a message."""
    sys.exit("windfall: " + message)


def machine_folder() -> str:
    """Return this machine's folder for Windfall, for this user alone."""
    usual = "/var/lib/windfall" if os.getuid() == 0 else os.path.join(os.path.expanduser("~"), ".windfall-machine")
    folder = os.path.abspath(os.environ.get("WINDFALL_MACHINE_FOLDER") or usual)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def take_secrets(folder: str) -> None:
    """Move the secrets that the provider left beside the agent into this process's environment, and delete the file."""
    path = os.path.join(folder, SECRETS)
    if not os.path.exists(path):
        return
    if os.stat(path).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        fail(path + " can be read by other users of this machine: its secrets are not used")
    with open(path, encoding="utf-8") as file:
        os.environ.update(json.load(file))
    os.unlink(path)


def fetch(url: str, digest: str, path: str) -> None:
    """Download a file and check its SHA-256; a wrong one is never used."""
    for left in range(TRIES - 1, -1, -1):
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply, open(path + ".part", "wb") as file:  # noqa: S310
                shutil.copyfileobj(reply, file)
            break
        except (OSError, urllib.error.URLError) as error:
            if not left:
                fail("cannot fetch the agent from " + url + ": " + str(error))
            time.sleep(PAUSE_S)
    with open(path + ".part", "rb") as file:
        found = hashlib.sha256(file.read()).hexdigest()
    if found != digest:
        fail("the agent at " + url + " has the SHA-256 " + found + ", not " + digest)
    os.replace(path + ".part", path)


def unpack(path: str, folder: str) -> None:
    """Unpack the archive if this machine can use it."""
    with zipfile.ZipFile(path) as archive:
        needs = json.loads(archive.read(MANIFEST))
        here = {"python": ".".join(str(number) for number in sys.version_info[:2]), "machine": platform.machine()}
        for name in ("python", "machine"):
            if needs[name] != here[name]:
                fail("this agent is for " + name + " " + needs[name] + ", and the machine has " + here[name])
        shutil.rmtree(folder + ".part", ignore_errors=True)
        archive.extractall(folder + ".part")
    os.replace(folder + ".part", folder)


def main(plan: dict) -> None:  # type: ignore[type-arg]
    """Fetch what is missing and become the machine's command."""
    folder = machine_folder()
    os.chdir(folder)
    take_secrets(folder)
    argv = plan["argv"]
    if plan["url"]:
        home = os.path.join(folder, "agent-" + plan["sha256"][:16])
        if not os.path.isdir(home):
            fetch(plan["url"], plan["sha256"], home + ".zip")
            unpack(home + ".zip", home)
            os.unlink(home + ".zip")
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = home + (os.pathsep + before if before else "")
    sys.stderr.flush()
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        fail("cannot run " + argv[0] + ": " + str(error.strerror))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
