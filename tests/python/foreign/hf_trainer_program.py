"""The HF Trainer on CPUs: a small GPT-2 with random weights, evaluation and a checkpoint."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.utils import logging

import result

logging.set_verbosity_error()
set_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, attn_pdrop=0.0,
                                   embd_pdrop=0.0, resid_pdrop=0.0))
tokens = torch.randint(0, 64, (128, 1), generator=torch.Generator().manual_seed(0)) + torch.arange(16)
data = [{"input_ids": row, "labels": row} for row in tokens % 64]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, use_cpu=True, ddp_backend="gloo", num_train_epochs=2, seed=0,
                                  per_device_train_batch_size=8, learning_rate=1e-2, report_to=[], save_strategy="no",
                                  eval_strategy="epoch", disable_tqdm=True, logging_strategy="no",
                                  ddp_find_unused_parameters=False)
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:32])
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    trainer.save_model(folder)
    result.show([*trainer.accelerator.unwrap_model(trainer.model).parameters(), torch.tensor([loss])])
    torch.distributed.barrier()
