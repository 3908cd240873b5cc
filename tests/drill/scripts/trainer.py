"""Hugging Face's Trainer: no variable of the script holds optimizer, schedule or data loader."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import windfall as wf
from windfall.sdk.transformers import WindfallCallback


class Texts(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(index, index + 8) % 32
        return {"input_ids": ids, "labels": ids}


torch.set_num_threads(1)
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))
arguments = TrainingArguments(
    output_dir="out",
    max_steps=60,
    per_device_train_batch_size=4,
    save_steps=1000,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Texts(), callbacks=[WindfallCallback()])
trainer.train(resume_from_checkpoint=wf.last())
