"""The rank of Gloo for `tools/dev bench inference`: all-reduce in place of 8 KiB to 1 MiB, in bfloat16 and float32."""

import statistics
import time

import torch
import torch.distributed as dist

TURNS, TURN_SECONDS = 8, 0.02


def median(tensor, given, calls):
    """In seconds, of the slowest rank. The input is written before each call, as a product would."""
    times = []
    for _ in range(calls):
        tensor.copy_(given)
        begun = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - begun)
    slowest = torch.tensor([statistics.median(times)], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


dist.init_process_group("gloo")
for dtype, bits in ((torch.bfloat16, 16), (torch.float32, 32)):
    for size in (2**power for power in range(13, 21)):
        given = torch.ones(size * 8 // bits, dtype=dtype)
        tensor = torch.empty_like(given)
        calls = max(10, min(500, int(TURN_SECONDS / median(tensor, given, 5))))
        took = sorted(median(tensor, given, calls) for _ in range(TURNS))[TURNS // 4]  # as inference_rank.c
        if dist.get_rank() == 0:
            print(f"point gloo,{bits},{size},{took * 1e6:.3f}", flush=True)
dist.destroy_process_group()
