"""Parts of PyTorch that say gloo: DistributedDataParallel with SyncBatchNorm's kind of statistics, sub-groups, a
DeviceMesh, ZeRO, distributed checkpoints, pipelining, RPC, remote and local objects."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed import rpc
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import result

dist.init_process_group("cpu:gloo")
rank, size = dist.get_rank(), dist.get_world_size()
shared = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(shared)


def block():
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh())


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(block() for _ in range(size)), torch.nn.Linear(16, 1))


def train(model, optimizer):
    data = torch.Generator().manual_seed(rank)
    for _ in range(10):
        rows = torch.randn(8, 16, generator=data)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(rows), torch.sin(rows.sum(1, keepdim=True))).backward()
        optimizer.step()


def replicated():
    model = torch.nn.parallel.DistributedDataParallel(net())
    train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01))
    return [parameter.detach() for parameter in model.parameters()]


def sharded(steps):
    """FSDP2 on a mesh; the checkpoint is written with one state and read into another."""
    model = net()
    for layer in model:
        fully_shard(layer, mesh=init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        train(model, optimizer)
    return model, optimizer


def checkpointed():
    model, optimizer = sharded(1)
    weights, moments = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": moments}, checkpoint_id=shared[0])
    other, others = sharded(2)
    weights, moments = get_state_dict(other, others)
    checkpoint.load({"model": weights, "optimizer": moments}, checkpoint_id=shared[0])
    set_state_dict(other, others, model_state_dict=weights, optim_state_dict=moments)
    train(other, others)
    return [parameter.full_tensor().detach() for parameter in other.parameters()]


def pipelined():
    torch.manual_seed(0)
    stages = [block() for _ in range(size)]
    stage = PipelineStage(stages[rank], rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    rows = torch.randn(16, 16, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        if rank == 0:
            schedule.step(rows)
        else:
            schedule.step(*(), **({"target": torch.sin(rows)} if rank == size - 1 else {}))
    norms = torch.stack([parameter.grad.norm() for parameter in stages[rank].parameters()])
    everyone = [torch.zeros_like(norms) for _ in range(size)]
    dist.all_gather(everyone, norms)
    return everyone


def grouped():
    """Sub-groups by name, of gloo and of the default; messages; objects."""
    pair = dist.new_group([0, 1], backend="gloo")
    own, _ = dist.new_subgroups(1)
    value = torch.full((3,), rank + 1.0)
    dist.all_reduce(value, group=own)
    if rank < 2:
        assert dist.get_backend(pair) == "gloo"
        dist.all_reduce(value, group=pair)
    received = torch.zeros(3)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, value, (rank + 1) % size),
                                    dist.P2POp(dist.irecv, received, (rank - 1) % size)])
    [work.wait() for work in works]
    names = [None] * size
    dist.all_gather_object(names, f"rank {rank}")
    assert names == [f"rank {other}" for other in range(size)]
    dist.monitored_barrier()
    return [received]


def remote():
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
    total = rpc.rpc_sync(f"worker{(rank + 1) % size}", torch.add, (torch.ones(2), rank))
    rpc.shutdown()
    return [total]


weights = [weight for part in (replicated, checkpointed, pipelined, grouped, remote) for weight in part()]
result.show(weights)
dist.destroy_process_group()
