"""All errors that Windfall reports to users, with their exit codes.

    WindfallError                    1
    |-- Misuse                       2   invalid command line, value or user file
    |   `-- InvalidFile              2   an error at one place in a file: file:line:column
    |-- Infeasible                   3   no available machine satisfies the request
    |-- ProviderError                1   a provider rejected a call
    |   |-- ProviderUnreachable      1   no answer: the call may or may not have been executed
    |   `-- ProviderDenied           1   wrong or missing credentials
    |       `-- ProviderAbsent       1   it is not installed here: of no interest to jobs that do not name it
    |-- ControllerError              1   the controller rejected a request
    |   |-- ControllerUnreachable    1   nothing answers at its address
    |   |-- ControllerReplaced      75   another controller took over the installation
    |   `-- DatabaseUnreachable      1   the controller's database failed, or its answer was lost
    |-- StoreError                   1   the object store rejected an operation
    |   |-- StoreUnreachable        75   no answer within the retry budget
    |   |   `-- StoreMissing         2   no such bucket, or a path that cannot be a folder: waiting does not help
    |   |-- StoreDenied              1   wrong or missing credentials
    |   |-- StoreUnsupported         2   the store does not support conditional writes
    |   `-- StoreFull                1   no space left
    |-- CheckpointDamaged            1   a checkpoint does not match its manifest
    |-- ShardChanged                 1   a shard changed during its upload
    |-- TransferCancelled            1   a transfer was cancelled
    |-- LogDamaged                   1   a record of the run's log cannot be read
    |-- NewerFormat                  2   written by a newer Windfall
    |-- OlderFormat                  2   written by a Windfall from before the first release
    |-- MachineUnfit                 1   a machine can run no item of a bag
    |-- RunFailed                    1   the script failed too often
    |-- Interrupted                  6   stopped while waiting for the run; 75 if the machine is preempted
    |-- RunHeld                     75   a live machine holds the run
    |-- GenerationIncomplete        75   not all machines of a generation are present
    `-- Fenced                      75   another machine acquired the run

A message has one or two sentences: what is wrong, where, and what to do.  It never contains a secret.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_MISUSE = 2
EXIT_INFEASIBLE = 3
EXIT_BUDGET = 4
EXIT_NOT_RESUMED = 5
EXIT_STOPPED = 6
EXIT_RETRY = 75

WRITTEN_BEFORE_RELEASE = "written before the first release of Windfall and no longer supported"


class WindfallError(Exception):
    """Base class of errors that Windfall reports to users; the process exits with `exit_code`."""

    exit_code = EXIT_FAILED


class Misuse(WindfallError):
    """The user's input is invalid or cannot be executed."""

    exit_code = EXIT_MISUSE


class InvalidFile(Misuse):
    """A user's file is invalid at one place; the message starts with `file:line:column:`."""


class Infeasible(WindfallError):
    """No available machine satisfies the request; the message shows the calculation."""

    exit_code = EXIT_INFEASIBLE


class ProviderError(WindfallError):
    """A provider rejected a call."""


class ProviderUnreachable(ProviderError):
    """A provider did not answer, or reported an internal error; the call may or may not have been executed."""


class ProviderDenied(ProviderError):
    """A provider rejected the credentials."""


class ProviderAbsent(ProviderDenied):
    """What a provider is reached by does not exist here; only who names this provider needs to know."""


class ControllerError(WindfallError):
    """The controller rejected a request; the message gives its reason."""


class ControllerUnreachable(ControllerError):
    """Nothing answers at the controller's address."""


class ControllerReplaced(ControllerError):
    """Another controller took over the installation; this one must stop and make no more decisions."""

    exit_code = EXIT_RETRY


class DatabaseUnreachable(ControllerError):
    """The controller's database did not answer; a pending write may or may not be stored, so nothing may depend on it."""


class StoreError(WindfallError):
    """The object store rejected an operation."""


class StoreUnreachable(StoreError):
    """The store does not answer, or answers incorrectly; retrying may help."""

    exit_code = EXIT_RETRY


class StoreMissing(StoreUnreachable):
    """No store exists, or can be created, at the address."""

    exit_code = EXIT_MISUSE


class StoreDenied(StoreError):
    """The store rejected the credentials."""


class StoreUnsupported(StoreError):
    """The store creates a key that already exists, so it cannot protect a run from a second holder."""

    exit_code = EXIT_MISUSE


class StoreFull(StoreError):
    """No space is left for data that must be written."""


class CheckpointDamaged(WindfallError):
    """Bytes of a checkpoint are missing or differ from its manifest."""


class ShardChanged(WindfallError):
    """A shard was changed or removed during its upload; the uploaded bytes may be inconsistent and are not used."""


class TransferCancelled(WindfallError):
    """A transfer was cancelled because its bytes are no longer needed."""


class LogDamaged(WindfallError):
    """A record of the run's log or journal is damaged."""


class NewerFormat(WindfallError):
    """Data was written by a newer version of Windfall."""

    exit_code = EXIT_MISUSE


class OlderFormat(WindfallError):
    """Data was written by a Windfall from before the first release, which can no longer be read."""

    exit_code = EXIT_MISUSE


class MachineUnfit(WindfallError):
    """This machine cannot run any item of a bag: another one may."""


class RunFailed(WindfallError):
    """The script failed more often than allowed."""


class Interrupted(WindfallError):
    """The process was stopped before it acquired the run."""

    exit_code = EXIT_STOPPED


class RunHeld(WindfallError):
    """A live machine holds the run."""

    exit_code = EXIT_RETRY


class GenerationIncomplete(WindfallError):
    """The machines of a generation did not all join, or lost contact with each other."""

    exit_code = EXIT_RETRY


class Fenced(WindfallError):
    """Another machine acquired the run; this one must stop and commit nothing more.

    Attributes:
        record: number of the record that fences this machine; 0 if it is this machine's own release.
        holder: the host that acquired the run.
    """

    exit_code = EXIT_RETRY

    def __init__(self, message: str, *, record: int = 0, holder: str = "") -> None:
        super().__init__(message)
        self.record = record
        self.holder = holder
