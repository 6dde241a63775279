"""FairScale: ShardedDataParallel over OSS (ZeRO-2), then tensor parallelism over groups of its own."""

import warnings

import torch
import torch.distributed as dist
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.nn.model_parallel import initialize_model_parallel
from fairscale.nn.model_parallel.layers import ColumnParallelLinear, RowParallelLinear
from fairscale.optim.oss import OSS

import result

warnings.filterwarnings("ignore")
dist.init_process_group("gloo")


def train(model, optimizer, seed):
    data = torch.Generator().manual_seed(seed)
    for _ in range(20):
        rows = torch.randn(8, 16, generator=data)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(rows), torch.sin(rows.sum(1, keepdim=True))).backward()
        optimizer.step()


def whole(tensor, dimension):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.detach().contiguous())
    return torch.cat(parts, dimension)


torch.manual_seed(0)
sharded = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = OSS(sharded.parameters(), optim=torch.optim.AdamW, lr=0.01)
train(ShardedDataParallel(sharded, optimizer), optimizer, seed=dist.get_rank())

initialize_model_parallel(dist.get_world_size())
torch.manual_seed(0)
tensor_parallel = torch.nn.Sequential(ColumnParallelLinear(16, 32, gather_output=False), torch.nn.Tanh(),
                                      RowParallelLinear(32, 1, input_is_parallel=True))
train(tensor_parallel, torch.optim.AdamW(tensor_parallel.parameters(), lr=0.01), seed=0)
result.show([*sharded.parameters(), whole(tensor_parallel[0].weight, 0), whole(tensor_parallel[2].weight, 1)])
dist.barrier()
