"""The SDK for training scripts, and `Executor` for calls on machines: `import windfall as wf`.

Functions are loaded on first use and then become plain attributes, so importing this package loads nothing and calls
need no lookup.  If `WINDFALL_SESSION` is not set, every function does nothing.
"""

__all__ = [
    "backup",
    "check_save",
    "context",
    "enter_step",
    "exit_step",
    "last",
    "notice",
    "phase",
    "report",
    "save_result",
    "step",
    "step_context",
    "steps",
]

_CALLS = ("Executor", "as_completed")
"""What submits calls; the names above are for scripts, and `from windfall import *` loads only those."""
__version__ = "0.1.0"
TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import as_completed as as_completed

    from windfall.cli.executor import Executor as Executor
    from windfall.sdk.session import Session

    backup = Session({}).backup
    check_save = Session({}).check_save
    context = Session({}).context
    enter_step = Session({}).enter_step
    exit_step = Session({}).exit_step
    last = Session({}).last
    notice = Session({}).notice
    phase = Session({}).phase
    report = Session({}).report
    save_result = Session({}).save_result
    step = Session({}).step
    step_context = Session({}).step_context
    steps = Session({}).steps


def __dir__() -> list[str]:
    return sorted((*__all__, *_CALLS))


def __getattr__(name: str) -> object:
    if name not in (*__all__, *_CALLS):
        raise AttributeError(f"module 'windfall' has no attribute {name!r}")
    if name == "Executor":
        from windfall.cli.executor import Executor  # noqa: PLC0415 - only who submits calls needs it

        return Executor
    if name == "as_completed":
        from concurrent.futures import as_completed  # noqa: PLC0415 - as above

        return as_completed
    from windfall.sdk.session import open_session  # noqa: PLC0415 - the import of this package loads nothing

    session = open_session()
    names = globals()
    names.update({public: getattr(session, public) for public in __all__})
    return names[name]
