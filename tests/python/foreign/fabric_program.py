"""Lightning Fabric: a loop of one's own over its DDP strategy."""

import os

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

import result

fabric = Fabric(accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]))
fabric.launch()
fabric.seed_everything(0, verbose=False)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
rows = torch.randn(256, 16)
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(rows, torch.sin(rows.sum(1, keepdim=True))), batch_size=8,
                                             shuffle=True))
for epoch in range(4):
    loader.sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
assert fabric.all_gather(loss.detach()).numel() == fabric.world_size
assert fabric.broadcast({"rank": fabric.global_rank}) == {"rank": 0}
fabric.barrier()
result.show(model.parameters())
