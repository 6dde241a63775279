"""Writes deepspeed_schedules.json: make_deepspeed_schedules.py <deepspeed's sources>.

For each schedule of a DeepSpeed configuration, the learning rates of the first steps and Adam's first beta, as an
optimizer sees them under DeepSpeed's own schedulers. deepspeed_schedule_test.cc reads it. The file there is of DeepSpeed
0.19.8 and torch 2.15.
"""

import importlib.util
import json
import os
import sys
import types

import torch

STEPS = 16
WARMUP = {"warmup_num_steps": 5}
CYCLE = {"cycle_min_lr": 0.01, "cycle_max_lr": 0.09, "cycle_first_step_size": 4}
CASES = [
    ("WarmupLR", {**WARMUP, "warmup_min_lr": 0.25, "warmup_max_lr": 0.75}),
    ("WarmupLR", {**WARMUP, "warmup_type": "linear"}),
    ("WarmupLR", {"warmup_num_steps": 1}),
    ("WarmupDecayLR", {**WARMUP, "total_num_steps": 12, "warmup_max_lr": 0.5}),
    ("WarmupDecayLR", {**WARMUP, "total_num_steps": 12, "warmup_min_lr": 0.125, "warmup_type": "linear"}),
    ("WarmupDecayLR", {**WARMUP, "total_num_steps": 3}),
    ("WarmupCosineLR", {**WARMUP, "total_num_steps": 11}),
    ("WarmupCosineLR", {**WARMUP, "total_num_steps": 14, "warmup_min_ratio": 0.5, "cos_min_ratio": 0.25, "warmup_type": "linear"}),
    ("WarmupCosineLR", {**WARMUP, "total_num_steps": 2}),
    ("LRRangeTest", {}),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.5, "lr_range_test_step_size": 3, "lr_range_test_step_rate": 2.5}),
    ("LRRangeTest", {"lr_range_test_step_size": 3, "lr_range_test_staircase": True}),
    ("OneCycle", CYCLE),
    ("OneCycle", {**CYCLE, "cycle_second_step_size": 7, "decay_step_size": 2, "decay_lr_rate": 0.5, "decay_mom_rate": 0.01}),
    ("OneCycle", {**CYCLE, "cycle_second_step_size": 0, "decay_step_size": 3, "decay_lr_rate": 0.25}),
    ("OneCycle", {**CYCLE, "cycle_first_stair_count": 2}),
    ("OneCycle", {**CYCLE, "cycle_second_step_size": 6, "cycle_first_stair_count": 3, "cycle_second_stair_count": 2}),
    ("OneCycle", {**CYCLE, "cycle_first_stair_count": 2, "cycle_second_stair_count": 0}),
    ("OneCycle", {**CYCLE, "cycle_min_mom": 0.5, "cycle_max_mom": 0.75, "decay_step_size": 1, "decay_mom_rate": -0.125}),
    ("OneCycle", {**CYCLE, "cycle_momentum": False}),
]


def lr_schedules(folder):
    """DeepSpeed's module alone."""
    logger = types.SimpleNamespace(warning=lambda text: None)
    sys.modules["deepspeed"] = types.ModuleType("deepspeed")
    sys.modules["deepspeed.utils"] = types.SimpleNamespace(logger=logger)
    path = os.path.join(folder, "deepspeed", "runtime", "lr_schedules.py")
    spec = importlib.util.spec_from_file_location("lr_schedules", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(folder):
    module, cases = lr_schedules(folder), []
    for name, params in CASES:
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=0.4, betas=(0.7, 0.95))
        scheduler = getattr(module, name)(optimizer, **params)
        rates, betas = [], []
        for _ in range(STEPS):  # as DeepSpeed's engine, which steps the scheduler behind the optimizer
            rates.append(optimizer.param_groups[0]["lr"])
            betas.append(optimizer.param_groups[0]["betas"])
            scheduler.step()
        cases.append({"scheduler": {"type": name, "params": params}, "rates": rates, "betas": betas})
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "deepspeed_schedules.json"), "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])
