"""The process group of the backend "cohort".

It is a subclass of torch.distributed.ProcessGroup in Python: torch.distributed's own classes of backends can only be
extended in C++, by a library that is linked to one version of libtorch. torch calls the methods below, from C++ too
(DistributedDataParallel, functional collectives)."""

import datetime

import torch.distributed as dist

from cohort import _comm
from cohort.torch import groups
from cohort.torch.monitored_barrier import MonitoredBarrier
from cohort.torch.sparse import SparseSum
from cohort.torch.tensors import Staging, check, flatten, memory, per_element, reduction
from cohort.torch.work import Work


class ProcessGroup(dist.ProcessGroup):
    """A group of ranks over one communicator. Any thread may call."""

    def __init__(self, communicator, timeout):
        super().__init__(communicator.rank, communicator.size)
        self._communicator = communicator
        self._messages = _comm.Messages(communicator)
        self._monitored_barrier = MonitoredBarrier(communicator)
        self._timeout = timeout.total_seconds()
        self._calls = 0
        self._group_name = self._group_desc = ""

    # --- what torch asks a group ---

    def getBackendName(self):  # noqa: N802: torch's name
        return "cohort"

    def name(self):
        return "cohort"

    # torch keeps names in backends written in C++, of which this group has none.
    def getGroupName(self):  # noqa: N802
        return self._group_name

    def setGroupName(self, name):  # noqa: N802
        self._group_name = name

    def getGroupDesc(self):  # noqa: N802
        return self._group_desc

    def setGroupDesc(self, description):  # noqa: N802
        self._group_desc = description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    def set_timeout(self, timeout):
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self):
        """The communicator counts by itself."""

    def _get_sequence_number_for_group(self):
        return self._calls

    def abort(self):
        if self._communicator is not None:
            self._communicator.abort("torch.distributed aborted the process group")
            self.shutdown()

    def shutdown(self):
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            self._messages = None
            self._monitored_barrier.close()
            communicator.close()

    # --- collectives ---

    def _options(self, options):
        timeout = getattr(options, "timeout", None)
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else 0
        return {"timeout": seconds if seconds > 0 else self._timeout, "async_op": True}

    def _begin(self):
        if self._communicator is None:
            raise _comm.FailedPreconditionError("this process group has been destroyed")
        self._calls += 1
        return self._communicator

    def allreduce(self, tensors, opts=None, timeout=None):
        return self._all_reduce(tensors, opts)

    def allreduce_coalesced(self, tensors, opts=None):
        return self._all_reduce(tensors, opts)

    def _all_reduce(self, tensors, opts):
        communicator, staging = self._begin(), Staging()
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp if hasattr(opts, "reduceOp") else opts
        options = self._options(opts)
        calls = []
        if any(tensor.is_sparse for tensor in tensors):
            staging = SparseSum()
            for tensor in tensors:
                calls += staging.begin(communicator, tensor, op, options)
            return Work(calls, tensors, staging)
        for tensor in tensors:
            buffer = memory(staging.in_out(tensor))
            calls.append(communicator.all_reduce(buffer, buffer, reduction(op, tensor.dtype), **options))
        return Work(calls, tensors, staging)

    def broadcast(self, tensors, opts=None, root=0):
        communicator, staging = self._begin(), Staging()
        root = opts if isinstance(opts, int) else opts.rootRank if opts is not None else root
        options = self._options(opts)
        calls = [communicator.broadcast(memory(staging.in_out(tensor)), root, **options) for tensor in tensors]
        return Work(calls, tensors, staging)

    def reduce(self, tensors, opts):
        communicator, staging = self._begin(), Staging()
        calls = []
        for tensor in tensors:
            buffer = memory(staging.in_out(tensor))
            calls.append(communicator.reduce(buffer, buffer, reduction(opts.reduceOp, tensor.dtype), opts.rootRank,
                                             **self._options(opts)))
        return Work(calls, tensors, staging)

    def allgather(self, output_lists, inputs, opts=None):
        return self._all_gather_lists(output_lists, inputs, opts)

    def allgather_coalesced(self, output_lists, inputs, opts=None):
        # torch gives a list for each rank here, in place of a list for each tensor
        by_tensor = [list(outputs) for outputs in zip(*output_lists)]
        return self._all_gather_lists(by_tensor, inputs, opts, output_lists)

    def _all_gather_lists(self, output_lists, inputs, opts, result=None):
        communicator, staging = self._begin(), Staging()
        options = self._options(opts)
        calls = []
        for outputs, tensor in zip(output_lists, inputs):
            _check_list(outputs, self.size(), "all_gather")
            source = staging.input(tensor)
            flat = staging.split(outputs)
            if all(output.numel() == source.numel() for output in outputs):
                calls.append(communicator.all_gather(memory(source), memory(flat), **options))
            else:
                counts = _scaled([output.numel() for output in outputs], source)
                calls.append(communicator.all_gather_v(memory(source), memory(flat), counts, **options))
        return Work(calls, result or output_lists, staging)

    def _allgather_base(self, output, tensor, opts=None):
        return self.allgather_into_tensor_coalesced([output], [tensor], opts)

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        communicator, staging = self._begin(), Staging()
        options = self._options(opts)
        calls = [communicator.all_gather(memory(staging.input(tensor)), memory(staging.output(output)), **options)
                 for output, tensor in zip(outputs, inputs)]
        return Work(calls, outputs, staging)

    def gather(self, output_lists, inputs, opts):
        communicator, staging = self._begin(), Staging()
        options = self._options(opts)
        source = staging.input(inputs[0])
        if self.rank() == opts.rootRank:
            _check_list(output_lists[0], self.size(), "gather")
            call = communicator.gather(memory(source), memory(staging.split(output_lists[0])), opts.rootRank, **options)
        else:
            call = communicator.gather(memory(source), None, opts.rootRank, **options)
        return Work([call], output_lists[0] if output_lists else [], staging)

    def scatter(self, outputs, input_lists, opts):
        communicator, staging = self._begin(), Staging()
        options = self._options(opts)
        source = None
        if self.rank() == opts.rootRank:
            _check_list(input_lists[0], self.size(), "scatter")
            source = memory(flatten(input_lists[0]))
        call = communicator.scatter(source, memory(staging.output(outputs[0])), opts.rootRank, **options)
        return Work([call], outputs, staging)

    def reduce_scatter(self, outputs, input_lists, opts=None):
        communicator, staging = self._begin(), Staging()
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        options = self._options(opts)
        calls = []
        for output, inputs in zip(outputs, input_lists):
            _check_list(inputs, self.size(), "reduce_scatter")
            counts = [tensor.numel() for tensor in inputs]
            arguments = (memory(staging.output(output)), reduction(op, output.dtype))
            source = memory(flatten(inputs))
            if len(set(counts)) == 1:
                calls.append(communicator.reduce_scatter(source, *arguments, **options))
            else:
                calls.append(communicator.reduce_scatter_v(source, _scaled(counts, output), *arguments, **options))
        return Work(calls, outputs, staging)

    def _reduce_scatter_base(self, output, tensor, opts=None):
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        communicator, staging = self._begin(), Staging()
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        options = self._options(opts)
        calls = [communicator.reduce_scatter(memory(staging.input(tensor)), memory(staging.output(output)),
                                             reduction(op, tensor.dtype), **options)
                 for output, tensor in zip(outputs, inputs)]
        return Work(calls, outputs, staging)

    def alltoall_base(self, output, tensor, output_splits, input_splits, opts=None):
        communicator, staging = self._begin(), Staging()
        options = self._options(opts)
        source, target = memory(staging.input(tensor)), memory(staging.output(output))
        if not output_splits and not input_splits:
            _check_divides(tensor, self.size())
            call = communicator.all_to_all(source, target, **options)
        else:
            call = communicator.all_to_all_v(source, _rows(tensor, input_splits, self.size()), target,
                                             _rows(output, output_splits, self.size()), **options)
        return Work([call], [output], staging)

    def alltoall(self, outputs, inputs, opts=None):
        communicator, staging = self._begin(), Staging()
        _check_list(outputs, self.size(), "all_to_all")
        _check_list(inputs, self.size(), "all_to_all")
        call = communicator.all_to_all_v(
            memory(flatten(inputs)), _scaled([tensor.numel() for tensor in inputs], inputs[0]),
            memory(staging.split(outputs)), _scaled([tensor.numel() for tensor in outputs], outputs[0]),
            **self._options(opts))
        return Work([call], outputs, staging)

    def barrier(self, opts=None):
        return Work([self._begin().barrier(**self._options(opts))], [])

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """A barrier whose error names the ranks that are absent."""
        self._begin()
        seconds = self._timeout if timeout is None else timeout.total_seconds()
        self._monitored_barrier(seconds, wait_all_ranks)

    # --- messages ---

    def send(self, tensors, peer, tag=0):
        self._begin()
        source = check(tensors[0]).contiguous()
        return Work([self._messages.send(memory(source), peer, tag, self._timeout)], tensors)

    def recv(self, tensors, peer, tag=0):
        return self._receive(tensors, peer, tag)

    def recv_anysource(self, tensors, tag=0):
        return self._receive(tensors, None, tag)

    def _receive(self, tensors, peer, tag):
        self._begin()
        staging = Staging()
        call = self._messages.receive(memory(staging.output(tensors[0])), peer, tag, self._timeout)
        return Work([call], tensors, staging, self._timeout if peer is None else None)


def _check_list(tensors, size, what):
    if len(tensors) != size:
        raise ValueError(f"{what}: a list has a tensor for each of the {size} ranks, and this one has {len(tensors)}")
    if len({tensor.dtype for tensor in tensors}) != 1:
        raise ValueError(f"{what}: the tensors of a list have one type")


def _check_divides(tensor, size):
    if tensor.dim() > 0 and tensor.size(0) % size != 0:
        raise ValueError(f"all_to_all_single: {tensor.size(0)} rows do not divide among {size} ranks: pass split sizes")


def _scaled(counts, tensor):
    """Counts in elements of comm."""
    factor = per_element(tensor)
    return [count * factor for count in counts]


def _rows(tensor, splits, size):
    """Counts of elements of comm, from numbers of rows; without numbers in equal parts."""
    if not splits:
        _check_divides(tensor, size)
        splits = [tensor.size(0) // size] * size
    if len(splits) != size or sum(splits) != tensor.size(0):
        raise ValueError(f"all_to_all_single: split sizes {list(splits)} are not {size} numbers that add up to the "
                         f"{tensor.size(0)} rows of the tensor")
    row = tensor.numel() // tensor.size(0) if tensor.size(0) else 0
    return _scaled([split * row for split in splits], tensor)


def create(options, _backend_options=None):
    """What torch.distributed calls to make a group, on its members."""
    return ProcessGroup(groups.communicator_of(options), options.timeout)
