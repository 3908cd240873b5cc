"""Hugging Face `Trainer` with Windfall: a callback, and the checkpoint to resume from.

    trainer = Trainer(..., callbacks=[WindfallCallback()])
    trainer.train(resume_from_checkpoint=wf.last())

On the first start `wf.last()` is None, as `train` expects.  The Trainer's own checkpoints are handed over too.  Its
pruning (`save_total_limit`) cannot race the upload: Windfall uploads from a second folder of hard links.
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
"""Folder inside `output_dir` for checkpoints that were handed over; the Trainer ignores it, and hard links work there."""
KEPT_FOLDERS = 2
"""Checkpoints that stay there: the newest, and the one still being uploaded."""


class WindfallCallback(TrainerCallback):  # type: ignore[misc]  # the library has no types
    """Save when Windfall requests it, hand over every checkpoint, and report the Trainer's evaluation as a phase.

    Outside a Windfall run it requests no saves and hands over nothing.
    """

    def __init__(self) -> None:
        self._evaluation: AbstractContextManager[object] | None = None
        self._folders: list[str] = []
        self._made = 0
        self._requested_only = False

    def on_train_begin(self, _args: Any, _state: Any, _control: Any, **given: Any) -> None:
        """Shield the data-loader workers from a SIGTERM that is sent to every process."""
        shield_workers(given.get("train_dataloader"))

    def on_step_end(self, _args: Any, state: Any, control: Any, **_given: Any) -> Any:
        """End the step; make the Trainer save if Windfall requests it."""
        if windfall.step(state.global_step):
            # The Trainer decides before it calls its callbacks: `should_save` is set if its own schedule saves now.
            self._requested_only = not control.should_save
            control.should_save = True
        return self._before_evaluation(control)

    def on_epoch_end(self, _args: Any, _state: Any, control: Any, **_given: Any) -> Any:
        """Start the evaluation phase if the Trainer evaluates at the end of the epoch."""
        return self._before_evaluation(control)

    def on_evaluate(self, _args: Any, _state: Any, _control: Any, **_given: Any) -> None:
        """End the evaluation phase."""
        if self._evaluation is not None:
            self._evaluation.__exit__(None, None, None)
            self._evaluation = None

    def on_save(self, args: Any, state: Any, _control: Any, **_given: Any) -> None:
        """Hand over the checkpoint that the Trainer has written."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()  # every rank writes its random state into the same folder
        if not state.is_world_process_zero:
            windfall.backup(None)
            return
        if windfall.context().run is None:
            return
        name = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        self._made += 1
        copy = os.path.join(args.output_dir, HANDED_OVER, f"{os.getpid()}-{self._made}", name)
        shutil.copytree(os.path.join(args.output_dir, name), copy, copy_function=_link_or_copy)
        windfall.backup(copy, keep=not self._requested_only)
        self._requested_only = False
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
    """Hard-link a file; copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
