"""TRL's SFTTrainer on CPUs: a small GPT-2 with random weights and a tokenizer made here."""

import tempfile

import torch
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from transformers.utils import logging
from trl import SFTConfig, SFTTrainer

import result

logging.set_verbosity_error()
disable_progress_bars()
set_seed(0)
words = {word: number for number, word in enumerate(["<pad>", "<eos>", *(f"w{i}" for i in range(30))])}
split = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
split.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=split, pad_token="<pad>", eos_token="<eos>")
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=32, n_embd=32, n_layer=2, n_head=2, attn_pdrop=0.0,
                                   embd_pdrop=0.0, resid_pdrop=0.0, eos_token_id=1, bos_token_id=1, pad_token_id=0))
texts = [" ".join(f"w{(7 * row + word) % 30}" for word in range(4 + row % 9)) for row in range(64)]
with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(folder, use_cpu=True, bf16=False, num_train_epochs=2, per_device_train_batch_size=4, seed=0,
                          learning_rate=1e-2, max_length=32, report_to=[], save_strategy="no", disable_tqdm=True,
                          logging_strategy="no", gradient_checkpointing=False)
    trainer = SFTTrainer(model, arguments, train_dataset=Dataset.from_dict({"text": texts}), processing_class=tokenizer)
    trainer.train()
    result.show(trainer.accelerator.unwrap_model(trainer.model).parameters())
    torch.distributed.barrier()
