"""`windfall serve`: a controller for a team, in the foreground; users and their tokens."""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

from windfall.cli.exec import absolute_url, state_folder
from windfall.cli.named import extra
from windfall.cli.places import TOKEN, local_user, web_address
from windfall.errors import EXIT_DONE, Misuse
from windfall.storage.objects import check_url
from windfall.units import duration_text

if TYPE_CHECKING:
    from windfall.cli.controller import Running, Settings
    from windfall.control.serving import Tls
    from windfall.storage.sql import Database

PORT = 8470
"""Where a team's controller listens, if nothing else is said."""
_NAME_CHARACTERS_MAX = 64


def serve(
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    database: str | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    insecure: bool = False,
    url: str | None = None,
    add_user: str | None = None,
    admin: bool = False,
    remove_user: str | None = None,
    users: bool = False,
    webhooks_inside: bool = False,
    store: str | None = None,
    state: Path | None = None,
) -> int:
    """Run a controller for a team, until it is told to stop; says which machine must stay on, and until when.

    Example: `windfall serve --host 0.0.0.0 --tls-cert lab.pem --tls-key lab.key`

    With one of the last options but `--state` nothing is served: users are changed, or listed, and it ends.

    Args:
        host: address to listen on; another than this machine's own (127.0.0.1) needs TLS.
        port: to listen on; 0 for any that is free.
        database: postgresql://USER@HOST/NAME; SQLite in the state folder if not given.
        tls_cert: certificate chain, PEM.
        tls_key: its private key, PEM.
        insecure: listen without TLS on other addresses too: something in front of it encrypts.
        url: how users and machines call this controller, if not by host and port.
        add_user: give this user a token, printed once; a new one replaces the old, and an admin stays one.
        admin: with --add-user: may see and stop everybody's jobs.
        remove_user: take this user's access away; their jobs go on.
        users: list the users.
        webhooks_inside: let every user's webhooks lead to this machine and its link (127.0.0.1, 169.254.0.0/16), not
            an admin's alone.
        store: where runs lie whose job file names no store: s3://lab/runs, gs://..., az://... (default: a folder in
            --state, which only this machine reaches).
        state: folder for this controller's own files (default: $XDG_STATE_HOME/windfall).
    """
    with extra():
        from windfall.cli import controller  # noqa: PLC0415 - its packages are an extra
        from windfall.control.serving import check_exposure  # noqa: PLC0415
    if url is not None:
        # Machines would be bought that cannot report, one after the other.
        web_address(url, "--url", "https://windfall.example.org:8470")
    settings = controller.Settings(
        state or state_folder(),
        database=database,
        host=host,
        port=port,
        url=url,
        tls=_tls(tls_cert, tls_key),
        webhooks_inside=webhooks_inside,
        store=None if store is None else _checked_store(store),
    )
    if sum((add_user is not None, remove_user is not None, users)) > 1:
        raise Misuse("give one of --add-user, --remove-user and --users")
    if admin and add_user is None:
        raise Misuse("--admin goes with --add-user")
    if add_user is not None:
        return _add_user(settings, add_user, admin=admin)
    if remove_user is not None:
        return _remove_user(settings, remove_user)
    if users:
        return _list_users(settings)
    check_exposure(host, settings.tls, insecure=insecure)
    return controller.run(settings, controller.built_by_wiring(), _tell)


def _checked_store(text: str) -> str:
    place = absolute_url(text).rstrip("/")
    check_url(place)
    return place


def _tls(certificate: Path | None, key: Path | None) -> Tls | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise Misuse("--tls-cert and --tls-key go together")
    from windfall.control.serving import Tls  # noqa: PLC0415 - its packages are an extra

    return Tls(certificate, key)


def _add_user(settings: Settings, name: str, *, admin: bool) -> int:
    if not name or len(name) > _NAME_CHARACTERS_MAX or not name.isprintable() or name.split() != [name]:
        raise Misuse(f"--add-user {name!r} is no name: use up to {_NAME_CHARACTERS_MAX} characters without spaces")
    from windfall.cli.controller import new_token  # noqa: PLC0415 - its packages are an extra
    from windfall.control.auth import hash_of  # noqa: PLC0415
    from windfall.storage.sql import UserEntry  # noqa: PLC0415

    if name == local_user():
        # Every start of the controller makes them its admin, with the token in the state folder.
        raise Misuse(
            f"--add-user {name}: that is you, and your token is in {settings.state / TOKEN}: name somebody else"
        )
    token = new_token()
    with contextlib.closing(settings.open_database()) as database:
        _refuse_beside_jobs(database, name)
        was = any(user.admin for user in database.users() if user.name == name)
        database.add_user(UserEntry(name, hash_of(token), admin or was))
        print(f"{name} may use the controller of {database.place}; this token is shown once:\n\n    {token}\n")
    print("They set WINDFALL_CONTROLLER to its address and WINDFALL_TOKEN to this.", flush=True)
    return EXIT_DONE


def _refuse_beside_jobs(database: Database, name: str) -> None:
    """Refuse another user while jobs run as the controller's own account: they could read what is the other's.

    Raises:
        Misuse: with the jobs.
    """
    from windfall.control.office import is_over  # noqa: PLC0415 - its packages are an extra

    known = {user.name for user in database.users()}
    if not known or known == {name}:
        return
    local = [
        entry.job.job_id
        for entry in database.jobs()
        if not is_over(entry) and any(want.provider in {None, "local"} for want in entry.job.wants)
    ]
    if len(known | {name}) > 1 and local:
        raise Misuse(
            f"--add-user {name}: a job of provider local runs as the account of this controller, and could read what is "
            f"{name}'s: wait for {', '.join(local)}, or end it with `windfall stop`"
        )


def _remove_user(settings: Settings, name: str) -> int:
    with contextlib.closing(settings.open_database()) as database:
        if not database.remove_user(name):
            known = ", ".join(user.name for user in database.users()) or "nobody"
            raise Misuse(f"--remove-user {name}: there is no such user; there is {known}")
    print(f"{name} has no access any more; their jobs go on")
    return EXIT_DONE


def _list_users(settings: Settings) -> int:
    with contextlib.closing(settings.open_database()) as database:
        for user in database.users():
            print(f"{user.name}{'  admin' if user.admin else ''}")
    return EXIT_DONE


def _tell(running: Running) -> None:
    """Say where it listens, and what depends on this machine."""
    status = running.status
    print(f"windfall: controller listens at {running.url} (database {status.database}, term {status.term})")
    print(f"windfall: {must_stay_on(running)}")
    print(
        "windfall: add a user with `windfall serve --add-user NAME` (with the same --state and --database)", flush=True
    )


def must_stay_on(running: Running) -> str:
    """Say which machine must stay on and until when, and what happens if it does not."""
    status = running.status
    if status.unfinished == 0:
        return f"{status.host} must stay on while jobs are unfinished; there are none now"
    jobs = "1 unfinished job" if status.unfinished == 1 else f"{status.unfinished} unfinished jobs"
    until = (
        "until they are done (when that is cannot be said yet)"
        if status.finish_at is None
        else f"until {_when(status.finish_at)} as expected now"
    )
    limit = (
        ""
        if status.dead_man_s is None
        else f"; machines go on without it, and after {duration_text(status.dead_man_s)} they save and stop"
    )
    return f"{status.host} must stay on for {jobs} {until}{limit}"


def _when(moment: float) -> str:
    return dt.datetime.fromtimestamp(moment, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
