"""`windfall serve`: run a team's controller in the foreground; manage its users and their tokens."""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from windfall.cli.locations import TOKEN, absolute_url, local_user, state_folder, web_address
from windfall.cli.options import OptionalUrl, StateFolder, Switch
from windfall.errors import EXIT_DONE, Misuse
from windfall.extras import for_jobs
from windfall.providers import provider_list
from windfall.storage.object_stores import check_url
from windfall.units import duration_text

if TYPE_CHECKING:
    from windfall.cli.controller_process import RunningController, Settings
    from windfall.control.http_server import Tls
    from windfall.storage.database import Database

PORT = 8470
"""The default port of a team's controller."""
_NAME_CHARACTERS_MAX = 64


_Certificate = Annotated[Path | None, Parameter(metavar="FILE")]
_User = Annotated[str | None, Parameter(metavar="NAME", group="Users")]
_OnUsers = Annotated[bool, Parameter(negative="", group="Users")]


def serve(
    *,
    host: Annotated[str, Parameter(metavar="ADDRESS")] = "127.0.0.1",
    port: int = PORT,
    database: OptionalUrl = None,
    tls_cert: _Certificate = None,
    tls_key: _Certificate = None,
    insecure: Switch = False,
    url: OptionalUrl = None,
    add_user: _User = None,
    admin: _OnUsers = False,
    remove_user: _User = None,
    users: _OnUsers = False,
    webhooks_inside: Switch = False,
    store: OptionalUrl = None,
    state: StateFolder = None,
) -> int:
    """Run a controller for a team in the foreground, or manage its users.

    At its start it prints which machine must stay on, and until when.  With --add-user, --remove-user or --users it
    changes or lists the users and exits.

    Example: `windfall serve --host 0.0.0.0 --tls-cert lab.pem --tls-key lab.key`

    Args:
        host: address to listen on; any other than 127.0.0.1 needs TLS.
        port: port to listen on; 0 for any free port.
        database: postgresql://USER@HOST/NAME (default: SQLite in the state folder).
        tls_cert: certificate chain (PEM).
        tls_key: private key of the certificate (PEM).
        insecure: listen on other addresses without TLS, because a proxy in front of the controller encrypts.
        url: address that users and machines use, if it is not the host and port.
        add_user: create a token for this user and print it once; it replaces an earlier one.
        admin: with --add-user, let the user see and stop all jobs.
        remove_user: revoke this user's access; their jobs keep running.
        users: list the users.
        webhooks_inside: let all users' webhooks reach this machine and its link (127.0.0.1, 169.254.0.0/16); otherwise
            only an admin's can.
        store: default store of runs: s3://lab/runs, gs://... or az://... (default: a folder in --state, which only this
            machine reaches).
        state: folder for the controller's own files (default: $XDG_STATE_HOME/windfall).
    """
    with for_jobs():
        from windfall.cli import controller_process  # noqa: PLC0415 - its packages are an extra
        from windfall.control.http_server import check_exposure  # noqa: PLC0415
    if url is not None:
        # Otherwise machines would be ordered one after another that cannot report.
        web_address(url, "--url", "https://windfall.example.org:8470")
    settings = controller_process.Settings(
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
        raise Misuse("--add-user, --remove-user and --users cannot be combined: choose one")
    if admin and add_user is None:
        raise Misuse("--admin needs --add-user")
    if add_user is not None:
        return _add_user(settings, add_user, admin=admin)
    if remove_user is not None:
        return _remove_user(settings, remove_user)
    if users:
        return _list_users(settings)
    check_exposure(host, settings.tls, insecure=insecure)
    return controller_process.run(settings, controller_process.default_builder(), _announce)


def _checked_store(text: str) -> str:
    place = absolute_url(text).rstrip("/")
    check_url(place)
    return place


def _tls(certificate: Path | None, key: Path | None) -> Tls | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise Misuse("--tls-cert and --tls-key must be given together")
    from windfall.control.http_server import Tls  # noqa: PLC0415 - its packages are an extra

    return Tls(certificate, key)


def _add_user(settings: Settings, name: str, *, admin: bool) -> int:
    if not name or len(name) > _NAME_CHARACTERS_MAX or not name.isprintable() or name.split() != [name]:
        raise Misuse(f"--add-user: must be up to {_NAME_CHARACTERS_MAX} characters without spaces, not {name!r}")
    from windfall.cli.controller_process import new_token  # noqa: PLC0415 - its packages are an extra
    from windfall.control.auth import hash_of  # noqa: PLC0415
    from windfall.storage.database import UserEntry  # noqa: PLC0415

    if name == local_user():
        # Every start of the controller makes them its admin, with the token in the state folder.
        raise Misuse(f"--add-user {name}: this is your own user; your token is in {settings.state / TOKEN}")
    token = new_token()
    with contextlib.closing(settings.open_database()) as database:
        _refuse_beside_jobs(database, name)
        was = any(user.admin for user in database.users() if user.name == name)
        database.add_user(UserEntry(name, hash_of(token), admin or was))
        print(f"{name} can use the controller of {database.place}; this token is shown only once:\n\n    {token}\n")
    print("The user sets WINDFALL_CONTROLLER to its address and WINDFALL_TOKEN to this token.", flush=True)
    return EXIT_DONE


def _refuse_beside_jobs(database: Database, name: str) -> None:
    """Refuse another user while jobs run as the controller's own account: they could read that user's data.

    Raises:
        Misuse: with the jobs.
    """
    from windfall.control.controller import is_over  # noqa: PLC0415 - its packages are an extra

    known = {user.name for user in database.users()}
    if not known or known == {name}:
        return
    single = [entry.name for entry in provider_list.PROVIDERS if entry.single_user]
    at_risk = [
        entry.job.job_id
        for entry in database.jobs()
        if not is_over(entry) and any(want.provider in {None, *single} for want in entry.job.resources)
    ]
    if len(known | {name}) > 1 and at_risk:
        raise Misuse(
            f"--add-user {name}: jobs of provider {' or '.join(single)} run as this controller's account and could read "
            f"{name}'s data: wait for {', '.join(at_risk)}, or stop it with `windfall stop`"
        )


def _remove_user(settings: Settings, name: str) -> int:
    with contextlib.closing(settings.open_database()) as database:
        if not database.remove_user(name):
            known = ", ".join(user.name for user in database.users()) or "none"
            raise Misuse(f"--remove-user {name}: no such user; users: {known}")
    print(f"{name} no longer has access; their jobs keep running")
    return EXIT_DONE


def _list_users(settings: Settings) -> int:
    with contextlib.closing(settings.open_database()) as database:
        for user in database.users():
            print(f"{user.name}{'  admin' if user.admin else ''}")
    return EXIT_DONE


def _announce(running: RunningController) -> None:
    """Print where the controller listens, and what depends on this machine."""
    status = running.status
    print(f"windfall: controller listens at {running.url} (database {status.database}, term {status.term})")
    print(f"windfall: {must_stay_on(running)}")
    print(
        "windfall: to add a user: `windfall serve --add-user NAME` (with the same --state and --database)", flush=True
    )


def must_stay_on(running: RunningController) -> str:
    """Return which machine must stay on, until when, and what happens if it does not."""
    status = running.status
    if status.unfinished == 0:
        return f"{status.host} must stay on while jobs are unfinished; there are none now"
    jobs = "1 unfinished job" if status.unfinished == 1 else f"{status.unfinished} unfinished jobs"
    until = (
        "until they are done (no estimate yet)"
        if status.finish_at is None
        else f"until about {_when(status.finish_at)}"
    )
    limit = (
        ""
        if status.dead_man_s is None
        else f"; without it, machines keep training for {duration_text(status.dead_man_s)}, then save and stop"
    )
    return f"{status.host} must stay on for {jobs} {until}{limit}"


def _when(moment: float) -> str:
    return dt.datetime.fromtimestamp(moment, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
