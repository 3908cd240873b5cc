"""Hugging Face `Trainer` under Windfall: one callback, and the checkpoint to resume from.

    trainer = Trainer(..., callbacks=[WindfallCallback()])
    trainer.train(resume_from_checkpoint=wf.last())

`wf.last()` is None on the first run, which is what `train` expects then.  The Trainer's own checkpoints are handed over
as well.  Its pruning (`save_total_limit`) cannot race the upload: what is handed over is a second folder of hard links.
"""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

import windfall
from windfall.sdk.torch import shield_workers

HANDED_OVER = ".windfall"
"""Folder inside `output_dir`, out of the Trainer's sight, with what was handed over; on the same disk, so that links work."""
KEPT_FOLDERS = 2
"""How many stay there: the newest, and the one still being uploaded."""


class WindfallCallback(TrainerCallback):  # type: ignore[misc]  # the library has no types
    """Saves when Windfall asks, hands over every checkpoint, and says when the Trainer evaluates."""

    def __init__(self) -> None:
        self._evaluation: AbstractContextManager[object] | None = None
        self._folders: list[str] = []
        self._made = 0
        self._asked_alone = False

    def on_train_begin(self, _args: Any, _state: Any, _control: Any, **given: Any) -> None:
        """Shield the data-loader workers from a SIGTERM to every process."""
        shield_workers(given.get("train_dataloader"))

    def on_step_end(self, _args: Any, state: Any, control: Any, **_given: Any) -> Any:
        """End the step; let the Trainer save if that is asked for."""
        if windfall.step(state.global_step):
            # The Trainer decides before its callbacks are called: a save of its own schedule is asked for already.
            self._asked_alone = not control.should_save
            control.should_save = True
        return self._before_evaluation(control)

    def on_epoch_end(self, _args: Any, _state: Any, control: Any, **_given: Any) -> Any:
        """Mark the evaluation that the end of an epoch may bring."""
        return self._before_evaluation(control)

    def on_evaluate(self, _args: Any, _state: Any, _control: Any, **_given: Any) -> None:
        """End the phase."""
        if self._evaluation is not None:
            self._evaluation.__exit__(None, None, None)
            self._evaluation = None

    def on_save(self, args: Any, state: Any, _control: Any, **_given: Any) -> None:
        """Hand over the checkpoint that the Trainer has just written."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()  # every rank writes its random state into the one folder
        if not state.is_world_process_zero:
            windfall.backup(None)
            return
        if windfall.context().run is None:
            return
        name = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        self._made += 1
        copy = os.path.join(args.output_dir, HANDED_OVER, f"{os.getpid()}-{self._made}", name)
        shutil.copytree(os.path.join(args.output_dir, name), copy, copy_function=_link_or_copy)
        windfall.backup(copy, keep=not self._asked_alone)
        self._asked_alone = False
        self._folders.append(os.path.dirname(copy))
        for old in self._folders[:-KEPT_FOLDERS]:
            shutil.rmtree(old, ignore_errors=True)
        del self._folders[:-KEPT_FOLDERS]

    def _before_evaluation(self, control: Any) -> Any:
        if control.should_evaluate and self._evaluation is None:
            self._evaluation = windfall.phase("evaluation")
            self._evaluation.__enter__()
        return control


def _link_or_copy(source: str, target: str) -> None:
    """Give the bytes a second name; copy them where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
