"""Writes peft_corpus/: adapters of Python's peft, their base, and what they compute: make_peft_corpus.py <folder>.

peft_corpus_test.cc reads them. The files there are of peft 0.21.2 and torch 2.15.
"""

import json
import os
import sys

import peft
import safetensors.torch
import torch
import transformers

FOLDER = sys.argv[1]
CODES = (torch.arange(22) % 11).view(2, 11)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(4, 6)
        self.down = torch.nn.Linear(6, 4)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(11, 4)
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.up = torch.nn.Linear(4, 3)

    def forward(self, codes):
        x = self.tokens(codes)
        for layer in self.layers:
            x = layer(x)
        return self.up(x)


def base(fan_in_fan_out=False):
    """The model, with GPT-2's layers in the place of linear ones if asked for."""
    torch.manual_seed(1)
    net = Net()
    for block in [*net.layers, net] if fan_in_fan_out else ():
        turned = transformers.pytorch_utils.Conv1D(block.up.out_features, block.up.in_features)
        turned.load_state_dict({"weight": block.up.weight.t(), "bias": block.up.bias})
        block.up = turned
    return net


def adapted(**options):
    """A model with adapters whose matrices are not zero."""
    torch.manual_seed(2)
    model = peft.get_peft_model(base(options.get("fan_in_fan_out", False)), peft.LoraConfig(r=2, lora_alpha=6, **options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.randn(parameter.shape) * 0.3)
    return model


def rename(case, change, dtype=torch.float32):
    path = os.path.join(FOLDER, case, "adapter_model.safetensors")
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file({change(name): value.to(dtype) for name, value in tensors.items()}, path)


def computed(case):
    """The result of peft with the saved adapter."""
    model = peft.PeftModel.from_pretrained(base(case == "fan_in_fan_out"), os.path.join(FOLDER, case))
    return model.eval()(CODES).detach()


READ = {
    "list": {"target_modules": ["tokens", "down", "up"]},
    "rslora": {"target_modules": ["up"], "use_rslora": True},
    "expression": {"target_modules": r"layers\.\d+\.(?!down)\w+"},
    "all_linear": {"target_modules": "all-linear"},
    "layers_to_transform": {"target_modules": ["up", "down"], "layers_to_transform": [1], "layers_pattern": "layers"},
    "exclude_modules": {"target_modules": ["up", "down"], "exclude_modules": ["layers.0.up"]},
    "gaussian": {"target_modules": ["down"], "init_lora_weights": "gaussian", "lora_dropout": 0.25},
    "orthogonal": {"target_modules": ["down"], "init_lora_weights": "orthogonal"},
    "bfloat16": {"target_modules": ["down"]},
    "rank_pattern": {"target_modules": ["up", "down"], "rank_pattern": {"layers.0.up": 1, "up": 3}},
    "alpha_pattern": {"target_modules": ["tokens", "up", "down"], "alpha_pattern": {"^up": 3, r"layers\.\d+\.up": 10, "up": 100, "tok.*": 5}},
    "patterns": {"target_modules": r".*(up|down)", "rank_pattern": {"layers.1.(up|down)": 4, "up": 1}, "alpha_pattern": {"0.down": 2},
                 "use_rslora": True},
    "fan_in_fan_out": {"target_modules": ["up"], "fan_in_fan_out": True},
}
REFUSED = {
    "init_lora_weights": {"target_modules": ["up"], "init_lora_weights": "pissa"},
    "use_dora": {"target_modules": ["up"], "use_dora": True},
    "bias": {"target_modules": ["up"], "bias": "lora_only"},
    "modules_to_save": {"target_modules": ["up"], "modules_to_save": ["tokens"]},
    "rank_pattern": {"target_modules": ["up"], "rank_pattern": {"(?!layers).*up": 1}},
    "lora_bias": {"target_modules": ["up"], "lora_bias": True},
    "trainable_token_indices": {"target_modules": ["up"], "trainable_token_indices": {"tokens": [1]}},
    "target_parameters": {"target_modules": [], "target_parameters": ["up.weight"]},
}

torch.use_deterministic_algorithms(True)
saved = {f"base.{name}": value for name, value in base().state_dict().items()}
for case, options in READ.items():
    model = adapted(**options)
    model.save_pretrained(os.path.join(FOLDER, case))
    if case == "bfloat16":
        rename(case, lambda name: name, torch.bfloat16)
    saved[f"output.{case}"] = computed(case)
    assert not torch.allclose(saved[f"output.{case}"], base()(CODES), atol=1e-2), case
# Names as a whole state_dict has them, and as DDP and torch.compile change them.
for case, change in {
    "default_names": lambda name: name.replace(".weight", ".default.weight"),
    "wrapped_names": lambda name: name.replace("base_model.model.", "base_model.model._orig_mod.module."),
    "bare_names": lambda name: name.replace("base_model.model.", ""),
}.items():
    adapted(target_modules=["down"]).save_pretrained(os.path.join(FOLDER, case))
    saved[f"output.{case}"] = computed(case)
    rename(case, change)
for case, options in REFUSED.items():
    adapted(**options).save_pretrained(os.path.join(FOLDER, "refused_" + case))
    os.remove(os.path.join(FOLDER, "refused_" + case, "adapter_model.safetensors"))
for folder, _, files in os.walk(FOLDER):
    for name in files:
        if name == "README.md":  # a card of the model
            os.remove(os.path.join(folder, name))
        elif name == "adapter_config.json":
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
            assert config["peft_version"].startswith("0.21."), config["peft_version"]
safetensors.torch.save_file(saved, os.path.join(FOLDER, "outputs.safetensors"))
