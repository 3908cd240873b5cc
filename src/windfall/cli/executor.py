"""`wf.Executor`: calls of Python functions as items of a bag, on machines that Windfall orders and replaces.

It has the interface of `concurrent.futures.Executor`, with that module's own futures.  A call runs in a process of its own;
one whose machine vanishes runs again elsewhere, so a call may run more than once, but one result counts.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from windfall.bags import CLIENT_SILENT_S, Bag
from windfall.cli import executor_calls
from windfall.cli.executor_calls import RemoteCalls
from windfall.cli.local_zone import local_time
from windfall.cli.locations import state_folder
from windfall.errors import ControllerUnreachable, Misuse
from windfall.extras import for_jobs
from windfall.fleet import TERMINAL
from windfall.jobs import RuntimeSpec
from windfall.linux.clock import SystemClock
from windfall.policies.layout import bag_rules
from windfall.policies.policy_registry import BAG
from windfall.sdk import remote_call
from windfall.storage.object_stores import open_reader
from windfall.structs import replace
from windfall.terms import Seconds
from windfall.wire import environment

P = ParamSpec("P")
T = TypeVar("T")
_NAME = "calls"
_STOP_S = 30.0
"""How long Ctrl-C waits until the bag is stopped [s]."""


class Executor(concurrent.futures.Executor):
    """Calls functions on machines that Windfall orders; see `concurrent.futures.Executor` for `submit`, `map`, `shutdown`.

    Leaving its `with` block waits for all calls; Ctrl-C there cancels them, and releases the machines.  If this process is
    killed, the calls are given up and the machines released once it was not heard of for `client_silent_s`.

    Args:
        resources: the block `resources` of a job file, or the path of a job file, whose `run` is not used; None for any
            machine.
        name: of the job.
        num_nodes: machines that run calls (default: that of the job file, or 1).
        cpus_per_item: processors that a call needs; a machine runs as many calls at once as fit.
        retries: how often a call that raised is tried again.
        item_timeout_s: how long a call may take before it is killed, and raises `TimeoutError` [s]; None for no limit.
        workdir: folder whose modules the calls can import; it is uploaded.
        setup: shell commands that each new machine runs once.
        python: the Python that runs calls on the machines (default: the one that runs Windfall there); it has the version
            of this one, and cloudpickle.
        inject: rehearsed preemptions, as for `windfall run --inject`.
        client_silent_s: see above [s].
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).

    Raises:
        Misuse: an argument, or the job file, is wrong.
        Infeasible: no offer meets the job.
        ControllerError: the controller does not answer.
    """

    def __init__(
        self,
        resources: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        num_nodes: int | None = None,
        cpus_per_item: float = 1.0,
        retries: int = 0,
        item_timeout_s: float | None = None,
        workdir: str | os.PathLike[str] | None = None,
        setup: str | None = None,
        python: str | None = None,
        inject: str | None = None,
        client_silent_s: float = CLIENT_SILENT_S,
        state: str | os.PathLike[str] | None = None,
    ) -> None:
        for argument, value, least in (
            ("cpus_per_item", cpus_per_item, 1e-3),
            ("retries", retries, 0),
            ("item_timeout_s", item_timeout_s, 1e-3),
            ("client_silent_s", client_silent_s, 1.0),
        ):
            if value is not None and not (isinstance(value, (int, float)) and value >= least):
                raise Misuse(f"Executor({argument}=...) must be a number of at least {least:g}, not {value!r}")
        keys = {"name": name, "num_nodes": num_nodes, "setup": setup, "run": _command(python)}
        keys["workdir"] = None if workdir is None else os.path.abspath(workdir)
        bag = Bag(
            items=0,
            parameters=executor_calls.PARAMETERS,
            rows=(),
            rows_each=1,
            item_timeout_s=None if item_timeout_s is None else Seconds(item_timeout_s),
            retries_max=retries,
            cores=float(cpus_per_item),
            shuffled=False,
            collect=(remote_call.RESULT,),
            grows=True,
            client_silent_s=Seconds(client_silent_s),
            inputs=executor_calls.INPUTS,
        )
        given = {key: value for key, value in keys.items() if value is not None}
        self._start(resources, given, bag, inject, state_folder() if state is None else Path(state))
        atexit.register(self.shutdown)

    def _start(
        self,
        resources: Mapping[str, Any] | str | os.PathLike[str] | None,
        keys: dict[str, Any],
        bag: Bag,
        inject: str | None,
        state: Path,
    ) -> None:
        with for_jobs():
            from windfall.cli import client, job_submit  # noqa: PLC0415 - their packages are an extra
            from windfall.spec import job_loader, yaml_positions  # noqa: PLC0415
            from windfall.spec.yaml_positions import YamlDocument, YamlPosition  # noqa: PLC0415
        now = local_time(SystemClock().wall_time())
        if isinstance(resources, (str, os.PathLike)):
            path = os.fspath(resources)
            written = yaml_positions.parse(yaml_positions.read(path), path)
            for key in ("bag", "runtime"):
                if isinstance(written.value, dict) and key in written.value:
                    where = written.position((key,), key=True)
                    raise Misuse(f"{where}: {key} is not for an Executor, which has calls as items; remove it")
            overrides = {key: json.dumps(value) for key, value in keys.items()}
            options = {key: f"Executor({key}=...)" for key in keys}
            file = job_loader.load(path, overrides=overrides, now=now, options=options)
        else:
            value = {"name": _NAME, "resources": dict(resources or {}), **keys}
            here = YamlPosition(0, 0, "Executor")
            file = job_loader.checked(YamlDocument("Executor", value, {}, {(): here}, {}), name=_NAME)
        draft = job_submit.draft_of(file, Path(), inject, state, now=now, pack=True)
        secrets = job_submit.secrets_of(file)
        self.job_id = draft.job_id
        runtime = RuntimeSpec(BAG, bag_rules.settings_of(bag))
        with contextlib.ExitStack() as undo:
            self._client = undo.enter_context(client.connect(state, start=True))
            self._client.plan(replace(draft.job(), runtime=runtime, work=None))
            job = replace(job_submit.upload_code(draft), runtime=runtime, work=None)
            reader = open_reader(job.run_url)
            self._calls = RemoteCalls(reader.store, reader.clock, bag, self._why_ended)
            self._calls.beat()
            self._client.submit(job, secrets)
            undo.pop_all()
        self._calls.start()

    def _why_ended(self) -> str | None:
        """Return why the job has ended; None if it has not, or nothing is known now."""
        try:
            view = self._client.job(self.job_id)
        except ControllerUnreachable:
            return None
        return f"the job {self.job_id} is over: {view.message}" if view.phase in TERMINAL else None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function on a machine; the future has its result.

        Raises:
            Misuse: function or arguments cannot be pickled, or are too large.
            RuntimeError: the executor was shut down.
            RunFailed: its job has ended.
        """
        return self._calls.add(fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; with `wait`, wait for all, with `cancel_futures`, cancel those that have not started."""
        try:
            self._calls.seal()
            if cancel_futures:
                self._calls.cancel_waiting()
            if not wait:
                return
            self._calls.join(None)
        except KeyboardInterrupt:
            self._stop()
            raise
        self._close()

    def _stop(self) -> None:
        self._calls.stop()
        self._calls.join(_STOP_S)
        self._close()

    def _close(self) -> None:
        atexit.unregister(self.shutdown)
        self._client.close()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        if exc_type is not None and not issubclass(exc_type, Exception):
            self._stop()
            return False
        return super().__exit__(exc_type, exc_val, exc_tb)


def _command(python: str | None) -> str:
    names = " ".join(f"{{{{{name}}}}}" for name in executor_calls.PARAMETERS)
    interpreter = python or f'"${environment.CALL_PYTHON}"'
    return f"exec {interpreter} -P -m windfall.sdk.remote_call {names}"
