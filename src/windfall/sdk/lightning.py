"""PyTorch Lightning with Windfall: a callback, a resumable loader, and the checkpoint to resume from.

    trainer = Trainer(..., callbacks=[WindfallCallback()])
    trainer.fit(model, train_dataloaders=Loader(train_set, batch_size=32, shuffle=True), ckpt_path=wf.last())

On the first start `wf.last()` is None, as `fit` expects.  Lightning saves neither the random generators nor the
position within an epoch: the callback adds the first, `windfall.sdk.torch.Loader` the second.
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
"""Checkpoint files that stay on the local disk: the newest, and the one still being uploaded."""


class WindfallCallback(Callback):  # type: ignore[misc]  # the library has no types
    """Save when Windfall requests it, restore the random generators, and report Lightning's validation as a phase.

    Outside a Windfall run it only adds the random generators to Lightning's own checkpoints.

    Args:
        folder: where checkpoint files are written; default: inside the session's folder.
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
        """Return the states of the random generators for Lightning's checkpoint."""
        return {"random": random_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Store the states until training starts: Lightning's own setup draws random numbers too."""
        self._restored = state["random"]

    def setup(self, trainer: Any, _module: Any, stage: str) -> None:  # noqa: ARG002 - Lightning's signature
        """Remember the SIGTERM handler that was installed before Lightning's.

        Raises:
            ValueError: Lightning starts the ranks itself, so their numbers are unknown to Windfall.
        """
        inside = windfall.context().run is not None
        if inside and trainer.world_size > 1 and "RANK" not in os.environ:
            raise ValueError(
                f"Lightning would start {trainer.world_size} ranks itself, and Windfall cannot tell them apart: start "
                "the script with torchrun"
            )
        self._sigterm = signal.getsignal(signal.SIGTERM) if inside else None

    def on_train_start(self, trainer: Any, _module: Any) -> None:
        """Restore the earlier SIGTERM handler: Lightning's would stop before the save (`Loader` shields its workers)."""
        if self._sigterm not in (None, signal.SIG_DFL):
            signal.signal(signal.SIGTERM, self._sigterm)
        self._step = trainer.global_step

    def on_train_batch_start(self, _trainer: Any, _module: Any, _batch: Any, _number: int) -> None:
        """Restore the random generators from the checkpoint, before the first batch."""
        if self._restored is not None:
            set_random_state(self._restored)
            self._restored = None

    def on_train_batch_end(self, trainer: Any, _module: Any, _outputs: Any, _batch: Any, _number: int) -> None:
        """End the step, unless this batch only accumulated gradients; save if Windfall requests it."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        if windfall.step(self._step):
            self._save(trainer)

    def on_validation_start(self, trainer: Any, _module: Any) -> None:
        """Start the evaluation phase."""
        if not trainer.sanity_checking:
            self._validation = windfall.phase("evaluation")
            self._validation.__enter__()

    def on_validation_end(self, _trainer: Any, _module: Any) -> None:
        """End the evaluation phase."""
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
    """Delete a checkpoint; some strategies write a folder."""
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.exists(path):
        os.unlink(path)
