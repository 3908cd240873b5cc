"""A tiny model of a config alone under `Trainer`: run by `tests.support.forked`."""

from __future__ import annotations

import hashlib
import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import windfall as wf
from tests.support.forked import serve, sigterm_to_all
from windfall.sdk.transformers import WindfallCallback
from windfall.wire import script_page


class Texts(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(index, index + 8) % 32
        return {"input_ids": ids, "labels": ids}


class Ask(TrainerCallback):
    """Publishes the agent's request at step SAVE_AT, and ends the process there once it is saved."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == int(os.environ.get("SIGTERM_AT", "0")):
            sigterm_to_all()
        if state.global_step + 1 == int(os.environ.get("SAVE_AT", "0")):
            words = script_page.attach(os.path.join(os.environ["WINDFALL_SESSION"], script_page.page_name(0)))
            script_page.publish(words, request=1, target=state.global_step + 1, exact=True, kind=3)

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == int(os.environ.get("SAVE_AT", "0")):
            control.should_training_stop = True


def main() -> str:
    steps, out = int(os.environ["STEPS"]), os.environ["OUT"]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    arguments = TrainingArguments(
        output_dir=out,
        max_steps=steps,
        per_device_train_batch_size=4,
        save_steps=2,
        save_total_limit=1,
        eval_strategy="steps",
        eval_steps=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_num_workers=int(os.environ.get("WORKERS", "0")),
    )
    texts = Texts()
    callbacks = [WindfallCallback(), Ask()]
    trainer = Trainer(model=model, args=arguments, train_dataset=texts, eval_dataset=texts, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=wf.last())
    digest = hashlib.sha256()
    for tensor in trainer.model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return f"{trainer.state.global_step} {digest.hexdigest()}"


if __name__ == "__main__":
    serve(main)
