"""Every error Windfall tells a user about, with its exit code.

    WindfallError                    1
    |-- Misuse                       2   the command line, a value, a file the user wrote
    |   `-- Misspelt                 2   a place in a file: file:line:column
    |-- Infeasible                   3   nothing that can be bought does what was asked
    |-- ProviderError                1   a provider did not do what was asked
    |   |-- ProviderUnreachable      1   no answer, or a lost one: whether it was done is not known
    |   `-- ProviderDenied           1   wrong or missing credentials
    |-- ControllerError              1   the controller did not do what was asked
    |   |-- ControllerUnreachable    1   nothing answers at its address
    |   |-- ControllerReplaced      75   another controller took the installation
    |   `-- DatabaseUnreachable      1   the controller's database did not do what was asked, or its answer was lost
    |-- StoreError                   1   the object store said no
    |   |-- StoreUnreachable        75   no answer for as long as was waited
    |   |   `-- StoreMissing         2   no such bucket, or a path that cannot be a folder: waiting does not help
    |   |-- StoreDenied              1   wrong or missing credentials
    |   |-- StoreUnfit               2   a store that does not keep its conditions
    |   `-- StoreFull                1   no space left
    |-- CheckpointDamaged            1   a checkpoint that does not match its manifest
    |-- Overwritten                  1   a shard changed while it was copied
    |-- LogDamaged                   1   a record of the run's log that cannot be read
    |-- NewerFormat                  2   written by a newer Windfall
    |-- OlderFormat                  2   written by a Windfall from before the first release
    |-- RunFailed                    1   the script failed by itself too often
    |-- Interrupted                  6   told to end while it waited for the run; 75 where the machine is taken
    |-- RunHeld                     75   a live machine holds the run
    |-- Apart                       75   the machines of a generation are not, or no longer, all there
    `-- Fenced                      75   another machine took the run from this one

A message is one sentence or two: what is wrong, where, and what to do instead.  It never carries a secret.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_MISUSE = 2
EXIT_INFEASIBLE = 3
EXIT_BUDGET = 4
EXIT_FORGOTTEN = 5
EXIT_STOPPED = 6
EXIT_AGAIN = 75

OLDER = "which a Windfall from before the first release wrote and this one does not read"


class WindfallError(Exception):
    """Anything Windfall reports in one sentence; `exit_code` is what the process ends with."""

    exit_code = EXIT_FAILED


class Misuse(WindfallError):
    """What the user wrote cannot be carried out."""

    exit_code = EXIT_MISUSE


class Misspelt(Misuse):
    """A file the user wrote is wrong at one place; the message begins with `file:line:column:`."""


class Infeasible(WindfallError):
    """Nothing that can be bought does what was asked; the message carries the arithmetic."""

    exit_code = EXIT_INFEASIBLE


class ProviderError(WindfallError):
    """A provider did not do what was asked of it."""


class ProviderUnreachable(ProviderError):
    """A provider did not answer, or answered that it is broken: the call may have been carried out or not."""


class ProviderDenied(ProviderError):
    """A provider refuses these credentials."""


class ControllerError(WindfallError):
    """The controller refused, with its reason."""


class ControllerUnreachable(ControllerError):
    """Nothing answers at the controller's address."""


class ControllerReplaced(ControllerError):
    """Another controller has taken the installation; this one must stop and decide nothing more."""

    exit_code = EXIT_AGAIN


class DatabaseUnreachable(ControllerError):
    """The controller's database did not answer: what was being written is there or not; nothing may be decided on it."""


class StoreError(WindfallError):
    """The object store did not do what was asked."""


class StoreUnreachable(StoreError):
    """The store does not answer, or not as it should; this may pass."""

    exit_code = EXIT_AGAIN


class StoreMissing(StoreUnreachable):
    """The address names nothing that is, or can become, a store."""

    exit_code = EXIT_MISUSE


class StoreDenied(StoreError):
    """The store refuses these credentials."""


class StoreUnfit(StoreError):
    """The store accepts a second creation of the same key: no fence can be built on it."""

    exit_code = EXIT_MISUSE


class StoreFull(StoreError):
    """No space is left where data must be written."""


class CheckpointDamaged(WindfallError):
    """A checkpoint is missing bytes or has other bytes than its manifest says."""


class Overwritten(WindfallError):
    """A part was changed or removed while it was being copied; what was copied may be torn and is not used."""


class Abandoned(WindfallError):
    """A transfer was stopped before its end because nobody wants its bytes any more."""


class LogDamaged(WindfallError):
    """A record of the run's log, or of its journal, is not what Windfall wrote."""


class NewerFormat(WindfallError):
    """Something was written by a newer version of Windfall."""

    exit_code = EXIT_MISUSE


class OlderFormat(WindfallError):
    """Something was written by a Windfall from before the first release; no reader for it exists."""

    exit_code = EXIT_MISUSE


class RunFailed(WindfallError):
    """The script failed by itself more often than allowed."""


class Interrupted(WindfallError):
    """Somebody asked this process to end before it held the run."""

    exit_code = EXIT_STOPPED


class RunHeld(WindfallError):
    """A live machine holds the run."""

    exit_code = EXIT_AGAIN


class Apart(WindfallError):
    """The machines of a generation did not come together, or lost one another."""

    exit_code = EXIT_AGAIN


class Fenced(WindfallError):
    """Another machine has taken the run; this one must stop and commit nothing more.

    Attributes:
        record: number of the record that says so; 0 if this machine's own release does.
        holder: the host that took the run.
    """

    exit_code = EXIT_AGAIN

    def __init__(self, sentence: str, *, record: int = 0, holder: str = "") -> None:
        super().__init__(sentence)
        self.record = record
        self.holder = holder
