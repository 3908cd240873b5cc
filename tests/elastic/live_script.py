"""What users of an elastic training run: a small model; the end's digest goes to the file that the command line names."""

import hashlib
import sys
import time
from pathlib import Path

import torch

from windfall import elastic

STEPS, WAIT_S = int(sys.argv[2]), float(sys.argv[3])


class Slow(torch.nn.Module):
    """A layer that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(8, 8)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(WAIT_S)
        return torch.tanh(self.wide(values)) + values


torch.set_num_threads(1)
torch.manual_seed(1)
layers = [torch.nn.Linear(4, 8), *(Slow() for _ in range(4)), torch.nn.Linear(8, 1)]
draw = torch.Generator().manual_seed(7)
inputs = torch.randn(96, 4, generator=draw)
dataset = torch.utils.data.TensorDataset(inputs, inputs.prod(1, keepdim=True))
model = elastic.Model(
    layers,
    torch.nn.functional.mse_loss,
    lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    batch=16,
    micro_batch=2,
)
for step, loss in model.train(dataset, STEPS):
    if step % 50 == 0:
        print(f"step {step}: loss {loss:.6f}", flush=True)
found = hashlib.blake2b(digest_size=16)
for layer in layers:
    for value in layer.parameters():
        found.update(value.detach().numpy().tobytes())
path = Path(sys.argv[1])
path.with_suffix(f".{time.monotonic_ns()}").write_text(found.hexdigest())
