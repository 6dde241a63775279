"""Ranks of a test of the way that CUDA tensors take through dlaunch.torch, on machines without a device.

CPU tensors stand in for them: the communicator is told that their memory is a device's, and a library that stands in
for the CUDA runtime (tests/support/fake_nccl) has device memory in host memory. There is no NCCL, so that the calls go
through host memory. Streams and events of torch are replaced by ones that do nothing: that library's copies are done at
once."""

import contextlib
import datetime

import torch
import torch.distributed as dist

import dlaunch.torch.cuda
import dlaunch.torch.process_group
import dlaunch.torch.sparse
import dlaunch.torch.tensors
import torch_differential
from dlaunch.torch.tensors import memory
from torch_differential import RANK, SIZE

LIMIT = datetime.timedelta(seconds=100)


class Stream:
    cuda_stream = 0
    device = torch.device("cpu")
    waits = 0

    def wait_stream(self, _):
        Stream.waits += 1

    def wait_event(self, event):
        assert event.recorded
        Stream.waits += 1

    def synchronize(self):
        pass


class Event:
    recorded = False

    def record(self, _):
        self.recorded = True

    def query(self):
        return self.recorded


def stand_in():
    torch.cuda.Stream, torch.cuda.Event = lambda _: Stream(), Event
    torch.cuda.current_stream = lambda _: Stream()
    torch.cuda.stream = lambda _: contextlib.nullcontext()
    torch.Tensor.record_stream = lambda *_: None
    future = torch.futures.Future
    torch.futures.Future = lambda devices=None: future()
    group = dlaunch.torch.process_group
    group.ProcessGroup._staging = lambda self, tensor: self._staging_on(torch.device("cpu"))
    for module in (group, dlaunch.torch.cuda, dlaunch.torch.tensors):
        module.memory = lambda tensor: (*memory(tensor), 0)


def check_all(members, group):
    done = 0
    for call in torch_differential.REDUCING + torch_differential.MOVING:
        for dtype in torch_differential.TYPES:
            for layout in torch_differential.LAYOUTS:
                if call is torch_differential.send_recv:
                    continue  # device memory has no messages that do not wait for their receiver
                ops = torch_differential.ops_for(dtype) if call in torch_differential.REDUCING else (None,)
                for op in ops:
                    done += 1
                    case = torch_differential.Case(members, dtype, layout, done % 2 == 0)
                    actual, expected = call(case, group, *([op] if op else []))
                    for ours, right in zip(actual, expected):
                        assert torch.equal(ours, right), (call.__name__, dtype, layout, op, ours, right)
    return done


def messages():
    for count in (1, 100_000):
        value = torch.full((count,), 7.0)
        if RANK == 0:
            dist.send(value, 1)
        elif RANK == 1:
            received = torch.zeros(2, count).t()[:, 0]
            dist.recv(received, 0)
            assert (received == 7).all()
    for call, text in ((lambda: dist.recv(torch.zeros(1)), "name the source"),
                       (lambda: dist.send(torch.zeros(1), (RANK + 1) % SIZE, tag=2), "no tags")):
        try:
            call()
            raise AssertionError("not refused")
        except ValueError as error:
            assert text in str(error), error


def works():
    value = torch.full((5,), float(RANK))
    work = dist.all_reduce(value, async_op=True)
    before = Stream.waits
    work.wait()
    assert Stream.waits == before + 1, "the current stream does not wait"
    work.wait(LIMIT)
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert work.result()[0] is value and (value == sum(range(SIZE))).all()
    dist.barrier()
    net = torch.nn.Linear(4, 4)
    model = torch.nn.parallel.DistributedDataParallel(net)
    model(torch.full((2, 4), float(RANK))).sum().backward()
    assert (net.weight.grad == 2 * sum(range(SIZE)) / SIZE).all()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("cohort", timeout=LIMIT)
    stand_in()
    done = check_all(list(range(SIZE)), None)
    messages()
    works()
    print(f"{done} calls")
    dist.destroy_process_group()
