"""Hugging Face's Trainer, with its own schedule of saves and a limit on them."""

import hashlib
import os
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import windfall as wf
from windfall.sdk.transformers import WindfallCallback


class Texts(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(index, index + 8) % 32
        return {"input_ids": ids, "labels": ids}


class Log(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.02)
        with open(os.environ["LOG"], "a") as log:
            log.write(f"{state.global_step}\n")


torch.set_num_threads(1)
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))
args = TrainingArguments(
    output_dir="trained", max_steps=80, per_device_train_batch_size=4, save_steps=20, save_total_limit=2,
    report_to=[], use_cpu=True, disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(model=model, args=args, train_dataset=Texts(), callbacks=[Log(), WindfallCallback()])
trainer.train(resume_from_checkpoint=wf.last())
digest = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values()))
print("result", digest.hexdigest(), flush=True)
