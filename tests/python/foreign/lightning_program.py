"""Lightning's Trainer: DDP, synchronised logs, validation, a checkpoint."""

import logging
import os
import tempfile
import warnings

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import result

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def loss(self, batch, name):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log(name, loss, sync_dist=True)
        return loss

    def training_step(self, batch, _):
        return self.loss(batch, "training")

    def validation_step(self, batch, _):
        self.loss(batch, "validation")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


lightning.seed_everything(0, verbose=False)
rows = torch.randn(256, 16)
data = TensorDataset(rows, torch.sin(rows.sum(1, keepdim=True)))
trainer = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]), max_epochs=3,
                            gradient_clip_val=1.0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                            enable_model_summary=False, default_root_dir=tempfile.gettempdir())
model = Net()
trainer.fit(model, DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=32))
validated = trainer.validate(model, DataLoader(data, batch_size=32), verbose=False)[0]["validation"]
with tempfile.TemporaryDirectory() as folder:
    trainer.save_checkpoint(os.path.join(folder, "last.ckpt"))
result.show([*model.parameters(), torch.tensor([validated])])
