"""The SDK for training scripts: `import windfall as wf`.

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

__version__ = "0.1.0"
TYPE_CHECKING = False
if TYPE_CHECKING:
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
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'windfall' has no attribute {name!r}")
    from windfall.sdk.session import open_session  # noqa: PLC0415 - the import of this package loads nothing

    session = open_session()
    names = globals()
    names.update({public: getattr(session, public) for public in __all__})
    return names[name]
