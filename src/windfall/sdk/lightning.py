"""Lightning under Windfall: one callback, a resumable loader, and the checkpoint to resume from.

    trainer = Trainer(..., callbacks=[WindfallCallback()])
    trainer.fit(model, train_dataloaders=Loader(train_set, batch_size=32, shuffle=True), ckpt_path=wf.last())

`wf.last()` is None on the first run, which is what `fit` expects then.  Lightning itself saves neither the random
generators nor the position within an epoch: the callback adds the first, `windfall.sdk.torch.Loader` the second.
"""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import AbstractContextManager
from typing import Any

from lightning.pytorch.callbacks import Callback

import windfall
from windfall.sdk.torch import Loader, random_state, set_random_state
from windfall.wire import environment

__all__ = ["Loader", "WindfallCallback"]

KEPT_FILES = 2
"""How many of its own files stay on the local disk: the newest, and the one still being uploaded."""


class WindfallCallback(Callback):  # type: ignore[misc]  # the library has no types
    """Saves when Windfall asks, keeps the random generators, and says when Lightning validates.

    Args:
        folder: where the files are made; inside the session's folder if not given.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder or os.path.join(os.environ.get(environment.SESSION) or os.curdir, "checkpoints")
        self._sigterm: Any = None
        self._validation: AbstractContextManager[object] | None = None
        self._restored: dict[str, Any] | None = None
        self._files: list[str] = []
        self._step = 0
        self._made = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the random generators, for Lightning's checkpoint."""
        return {"random": random_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the states until training really begins: what happens before it draws random numbers too."""
        self._restored = state["random"]

    def setup(self, trainer: Any, _module: Any, stage: str) -> None:  # noqa: ARG002 - Lightning's signature
        """Remember who hears SIGTERM before Lightning does.

        Raises:
            ValueError: Lightning starts the ranks itself, so that nobody else knows which is which.
        """
        inside = windfall.context().run is not None
        if inside and trainer.world_size > 1 and "RANK" not in os.environ:
            raise ValueError(
                f"Lightning would start {trainer.world_size} ranks by itself, which Windfall cannot tell apart: "
                "start the script with torchrun"
            )
        self._sigterm = signal.getsignal(signal.SIGTERM) if inside else None

    def on_train_start(self, trainer: Any, _module: Any) -> None:
        """Take SIGTERM back from Lightning, which would stop before the save (`Loader` shields its workers itself)."""
        if self._sigterm not in (None, signal.SIG_DFL):
            signal.signal(signal.SIGTERM, self._sigterm)
        self._step = trainer.global_step

    def on_train_batch_start(self, _trainer: Any, _module: Any, _batch: Any, _number: int) -> None:
        """Put the random generators back where the checkpoint left them."""
        if self._restored is not None:
            set_random_state(self._restored)
            self._restored = None

    def on_train_batch_end(self, trainer: Any, _module: Any, _outputs: Any, _batch: Any, _number: int) -> None:
        """End the step, unless this batch only accumulated gradients; save if that is asked for."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        if windfall.step(self._step):
            self._save(trainer)

    def on_validation_start(self, trainer: Any, _module: Any) -> None:
        """Mark the phase."""
        if not trainer.sanity_checking:
            self._validation = windfall.phase("evaluation")
            self._validation.__enter__()

    def on_validation_end(self, _trainer: Any, _module: Any) -> None:
        """End the phase."""
        if self._validation is not None:
            self._validation.__exit__(None, None, None)
            self._validation = None

    def _save(self, trainer: Any) -> None:
        self._made += 1
        path = os.path.join(self._folder, f"step-{self._step:09d}-{os.getpid()}-{self._made}.ckpt")
        trainer.save_checkpoint(path)
        if not trainer.is_global_zero:
            windfall.backup(None)
            return
        windfall.backup(path)
        self._files.append(path)
        for old in self._files[:-KEPT_FILES]:
            _remove(old)
        del self._files[:-KEPT_FILES]


def _remove(path: str) -> None:
    """Delete a checkpoint, which some strategies make a folder."""
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.exists(path):
        os.unlink(path)
