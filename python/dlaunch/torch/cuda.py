"""Calls on CUDA tensors.

A group has a stream of its own on each device. A call goes there, behind the work that the caller's current stream had
been given; copies from and into tensors with gaps go there too. Work.wait() makes the current stream wait, and does not
block the host. The memory of a call is kept until the device has done with it, also when the program drops tensors."""

import datetime

import torch
import torch.distributed as dist

from dlaunch import _comm
from dlaunch.torch.tensors import Staging, memory
from dlaunch.torch.work import BaseWork, ended


class CudaStaging(Staging):
    """The place of one call on one device: its copies and its stream."""

    on_stream = True

    def __init__(self, device, stream):
        self.device = device
        self._stream = stream
        self.follow()

    def follow(self):
        """Makes later work wait for the current stream's work so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def options(self):
        """Options of the calls."""
        return {"stream": self._stream.cuda_stream}

    def input(self, tensor):
        with torch.cuda.stream(self._stream):
            ready = super().input(tensor)
        self._used(tensor, ready)
        return ready

    def output(self, tensor):
        with torch.cuda.stream(self._stream):
            return super().output(tensor)

    def in_out(self, tensor):
        with torch.cuda.stream(self._stream):
            return super().in_out(tensor)

    def copy(self, tensor):
        with torch.cuda.stream(self._stream):
            return super().copy(tensor)

    def split(self, outputs, beside=()):
        with torch.cuda.stream(self._stream):
            return super().split(outputs)

    def flatten(self, inputs, beside=()):
        with torch.cuda.stream(self._stream):
            flat = super().flatten(inputs)
        for tensor in inputs:
            self._used(tensor, flat)
        return flat

    def _later(self, tensor, copy):
        self._used(tensor, copy)
        return super()._later(tensor, copy)

    def _used(self, tensor, copy):
        """The stream reads or writes a tensor that no call keeps, since the call has the copy."""
        if copy is not tensor:
            tensor.record_stream(self._stream)

    def work(self, calls, result):
        with torch.cuda.stream(self._stream):
            self.finish()
        return CudaWork(calls, result, self._stream)


class CudaWork(BaseWork):
    """Calls that are on their stream, and the event behind them."""

    def __init__(self, calls, result, stream):
        super().__init__()
        self._calls = calls
        self._result = result
        self._stream = stream
        self._event = torch.cuda.Event()
        self._event.record(stream)
        self._future = None

    def _error(self):
        for call in self._calls:
            if call.done() and call.exception() is not None:
                return call.exception()
        return None

    def _raise(self):
        error = self._error()
        if error is not None:
            raise error

    def wait(self, timeout=datetime.timedelta(0)):
        """Makes the current stream wait. With a timeout it blocks the host as long as that, too."""
        if timeout.total_seconds() > 0:
            self._block(timeout.total_seconds())
        self._raise()
        torch.cuda.current_stream(self._stream.device).wait_event(self._event)
        return True

    def _block(self, seconds):
        for call in self._calls:
            if not ended(call, seconds):
                raise _comm.DeadlineExceededError(f"the operation was not complete after {seconds} s; it goes on")

    def synchronize(self):
        self.wait()

    def is_completed(self):
        return all(call.done() for call in self._calls) and self._event.query()

    def is_success(self):
        return self.is_completed() and self._error() is None

    def exception(self):
        return self._error()

    def result(self):
        self.wait()
        return self._result

    def get_future(self):
        """A future whose value is the list of tensors. It is complete at once: those who read it make their current
        stream wait for the event that it holds. Raises an error that is known by then; one that comes later is raised by
        wait() and by the next call on the group."""
        self._raise()
        if self._future is None:
            self._future = torch.futures.Future(devices=[self._stream.device])
            with torch.cuda.stream(self._stream):
                self._future.set_result(self._result)
        return self._future


class Exchange:
    """The sends and receives between _start_coalescing and _end_coalescing. They start as one call, so that none waits
    for another."""

    def __init__(self, staging):
        self.staging = staging
        self._sends, self._receives, self._tensors = [], [], []

    def send(self, tensor, peer):
        self.staging.follow()
        self._sends.append((memory(self.staging.input(tensor)), peer))
        self._tensors.append(tensor)

    def receive(self, tensor, peer):
        self.staging.follow()
        self._receives.append((memory(self.staging.output(tensor)), peer))
        self._tensors.append(tensor)

    def start(self, communicator, options):
        calls = []
        if self._tensors:
            calls.append(communicator.exchange(self._sends, self._receives, **options))
        return self.staging.work(calls, self._tensors)


def wait_for_devices(streams):
    """Blocks until the devices have done what the current streams and the group's were given."""
    for device, stream in streams.items():
        stream.wait_stream(torch.cuda.current_stream(device))
        stream.synchronize()


def batch_isend_irecv(operations):
    """torch.distributed.batch_isend_irecv for a group of cohort's class, for tensors that are not on the CPU."""
    c10d = dist.distributed_c10d
    c10d._check_p2p_op_list(operations)
    group = operations[0].group or c10d._get_default_group()
    with c10d._coalescing_manager(group, operations[0].tensor.device, async_ops=True) as manager:
        for operation in operations:
            operation.op(operation.tensor, operation.peer, operation.group, operation.tag)
    return manager.works
