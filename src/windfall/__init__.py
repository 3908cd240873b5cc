"""What a training script imports: `import windfall as wf`.

The names arrive at their first use and stay here as plain attributes, so that the import loads nothing and a call costs
no look-up.  Without `WINDFALL_SESSION` in the environment every one of them does nothing.
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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'windfall' has no attribute {name!r}")
    from windfall.sdk.session import open_session  # noqa: PLC0415 - the import of this package loads nothing

    session = open_session()
    names = globals()
    names.update({public: getattr(session, public) for public in __all__})
    return names[name]
