"""Accelerate on CPUs: data parallelism, gradient accumulation, gathered metrics, objects, a saved and loaded state."""

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object, set_seed
from torch.utils.data import DataLoader, TensorDataset

import result

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
rows = torch.randn(256, 16)
loader = DataLoader(TensorDataset(rows, torch.sin(rows.sum(1, keepdim=True))), batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(4):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    losses = accelerator.gather_for_metrics(loss.detach().reshape(1))
assert len(losses) == accelerator.num_processes
assert gather_object([accelerator.process_index]) == list(range(accelerator.num_processes))
folder = broadcast_object_list([tempfile.mkdtemp() if accelerator.is_main_process else None])[0]
accelerator.save_state(folder)
accelerator.wait_for_everyone()
accelerator.load_state(folder)
result.show(accelerator.unwrap_model(model).parameters())
accelerator.end_training()
