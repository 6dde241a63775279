"""The process group of the backend "cohort".

It is a subclass of torch.distributed.ProcessGroup in Python: torch.distributed's own classes of backends can only be
extended in C++, by a library that is linked to one version of libtorch. torch calls the methods below, from C++ too
(DistributedDataParallel, functional collectives)."""

import datetime

import torch
import torch.distributed as dist

from dlaunch import _comm
from dlaunch.torch import groups, mixed
from dlaunch.torch.cuda import CudaStaging, Exchange, wait_for_devices
from dlaunch.torch.mixed import by_device
from dlaunch.torch.monitored_barrier import MonitoredBarrier
from dlaunch.torch.sparse import SparseSum
from dlaunch.torch.tensors import CpuStaging, check_device, memory, per_element, reduction, share_memory
from dlaunch.torch.work import Work, started


_CPU = torch.device("cpu")
# comm's own error of a receive comes first where it can: it names who waits for whom.
_GRACE = 2  # seconds
_STARTS_EVERY_BATCH = torch.__version__.startswith("1.")


class ProcessGroup(dist.ProcessGroup):
    """A group of ranks over one communicator, and over the backends of other devices where it has such. Any thread may
    call."""

    supports_coalescing = supports_splitting = True
    supports_shrinking = supports_time_estimate = supports_tensor_alloc = False

    def __init__(self, communicator, timeout, plan):
        super().__init__(communicator.rank, communicator.size)
        self.devices, self.rest, self.others = plan.devices, plan.rest, plan.others
        self._backend_name = plan.name
        self._streams = {}  # by device
        self._exchange = None
        self._communicator = communicator
        self._messages = _comm.Messages(communicator)
        self._monitored_barrier = MonitoredBarrier(communicator)
        self.set_timeout(timeout)
        self._calls = 0
        self._here, self._members = communicator.rank, communicator.size  # rank() and size() go through C++ and back
        self._group_name = self._group_desc = ""

    # --- what torch asks a group ---

    def getBackendName(self):  # noqa: N802: torch's name
        return "cohort"  # C++ asks, and takes the backend of one called gloo for its own

    def name(self):
        return self._backend_name

    _get_backend_name = name

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

    @property
    def _device_types(self):
        others = self.rest._device_types if self.rest is not None else []
        return [torch.device(device) for device in sorted(self.devices)] + others

    def _get_backend(self, device):
        if device.type in self.devices:
            return _CpuBackend(self) if device.type == "cpu" else self
        if self.rest is not None:
            return self.rest._get_backend(device)
        raise RuntimeError(f"No backend type associated with device type {device.type}")

    get_backend = _get_backend

    def set_timeout(self, timeout):
        self._timeout = timeout.total_seconds()
        # of calls that name no timeout, by whether the program waits itself
        self._usual_options = [{"timeout": self._timeout, "async_op": asynchronous} for asynchronous in (False, True)]

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self):
        """The communicator counts by itself."""

    def _get_sequence_number_for_group(self):
        return self._calls

    def get_group_store(self):
        return dist.PrefixStore(f"{self._group_name}/", dist.distributed_c10d._get_default_store())

    def split_group(self, ranks, timeout=None, opts=None, group_name="", group_desc="", device_types=None):  # noqa: ARG002
        """Makes a group of these members. All of them call it; None for the others."""
        if self._here not in ranks:
            return None
        part = type(self)(self._begin().subgroup(list(ranks)), timeout or datetime.timedelta(seconds=self._timeout),
                          mixed.Plan(self.devices, name=self._backend_name))
        part.setGroupName(group_name)
        part.setGroupDesc(group_desc)
        return part

    def abort(self):
        if self._communicator is not None:
            self._communicator.abort("torch.distributed aborted the process group")
            if self.rest is not None:
                self.rest.abort()
            self.shutdown()

    def shutdown(self):
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            for stream in self._streams.values():
                stream.synchronize()  # a communicator that is closed ends its calls
            self._messages = None
            self._monitored_barrier.close()
            communicator.close()
            if self.rest is not None:
                self.rest.shutdown()

    # --- collectives ---

    def _options(self, options, staging=None, several=False):
        timeout = getattr(options, "timeout", None)
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else 0
        if staging is not None and staging.on_stream:
            return {"timeout": seconds if seconds > 0 else self._timeout, "async_op": True, **staging.options()}
        # comm waits where torch would at once, in a quarter less time. Several calls go on beside one another.
        asynchronous = several or getattr(options, "asyncOp", True)
        if seconds > 0:
            return {"timeout": seconds, "async_op": asynchronous}
        return self._usual_options[asynchronous]

    def _begin(self):
        if self._communicator is None:
            raise _destroyed()
        self._calls += 1
        return self._communicator

    def _call(self, options, tensors):
        """The communicator, the staging and the options of a call on these tensors."""
        communicator = self._begin()
        staging = self._staging(tensors[0] if tensors else None)
        return communicator, staging, self._options(options, staging, len(tensors) > 1)

    def _staging(self, tensor):
        if tensor is None or tensor.is_cpu:
            check_device("cpu", _CPU, self.devices)
            return CpuStaging()
        return self._staging_on(tensor.device)

    def _staging_on(self, device):
        check_device(device.type, device, self.devices)
        return CudaStaging(device, self._stream(device))

    def _stream(self, device):
        stream = self._streams.get(device)
        return stream or self._streams.setdefault(device, torch.cuda.Stream(device))

    # --- collectives ---

    @by_device
    def allreduce(self, tensors, opts=None, timeout=None):
        return self._all_reduce(tensors, opts)

    @by_device
    def allreduce_coalesced(self, tensors, opts=None):
        return self._all_reduce(tensors, opts)

    def _all_reduce(self, tensors, opts):
        communicator, staging, options = self._call(opts, tensors)
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp if hasattr(opts, "reduceOp") else opts
        calls = []
        if tensors and tensors[0].is_sparse:
            staging, options = SparseSum(), {**options, "async_op": True}
            for tensor in tensors:
                calls += staging.begin(communicator, tensor, op, options)
            return Work(calls, tensors, staging)
        shared = len(tensors) > 1 and share_memory(tensors)
        for tensor in tensors:
            buffer = memory(staging.copy(tensor) if shared else staging.in_out(tensor))
            calls.append(communicator.all_reduce(buffer, buffer, reduction(op, tensor.dtype), **options))
        return staging.work(calls, tensors)

    @by_device
    def broadcast(self, tensors, opts=None, root=0):
        communicator, staging, options = self._call(opts, tensors)
        root = opts if isinstance(opts, int) else opts.rootRank if opts is not None else root
        calls = [communicator.broadcast(memory(staging.in_out(tensor)), root, **options) for tensor in tensors]
        return staging.work(calls, tensors)

    @by_device
    def reduce(self, tensors, opts):
        communicator, staging, options = self._call(opts, tensors)
        calls = []
        for tensor in tensors:
            buffer = memory(staging.in_out(tensor))
            calls.append(communicator.reduce(buffer, buffer, reduction(opts.reduceOp, tensor.dtype), opts.rootRank,
                                             **options))
        return staging.work(calls, tensors)

    @by_device
    def allgather(self, output_lists, inputs, opts=None):
        return self._all_gather_lists(output_lists, inputs, opts)

    @by_device
    def allgather_coalesced(self, output_lists, inputs, opts=None):
        # torch gives a list for each rank here, in place of a list for each tensor
        by_tensor = [list(outputs) for outputs in zip(*output_lists)]
        return self._all_gather_lists(by_tensor, inputs, opts, output_lists)

    def _all_gather_lists(self, output_lists, inputs, opts, result=None):
        communicator, staging, options = self._call(opts, inputs)
        calls = []
        for outputs, tensor in zip(output_lists, inputs):
            _check_list(outputs, self._members, "all_gather")
            source = staging.input(tensor)
            flat = staging.split(outputs, (source,))
            if all(output.numel() == source.numel() for output in outputs):
                calls.append(communicator.all_gather(memory(source), flat, **options))
            else:
                counts = _scaled([output.numel() for output in outputs], source)
                calls.append(communicator.all_gather_v(memory(source), flat, counts, **options))
        return staging.work(calls, result or output_lists)

    @by_device
    def _allgather_base(self, output, tensor, opts=None):
        return self.allgather_into_tensor_coalesced([output], [tensor], opts)

    @by_device
    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        communicator, staging, options = self._call(opts, inputs)
        calls = [communicator.all_gather(memory(staging.input(tensor)), memory(staging.output(output)), **options)
                 for output, tensor in zip(outputs, inputs)]
        return staging.work(calls, outputs)

    @by_device
    def gather(self, output_lists, inputs, opts):
        communicator, staging, options = self._call(opts, inputs)
        source = staging.input(inputs[0])
        if self._here == opts.rootRank:
            _check_list(output_lists[0], self._members, "gather")
            call = communicator.gather(memory(source), staging.split(output_lists[0], (source,)), opts.rootRank, **options)
        else:
            call = communicator.gather(memory(source), None, opts.rootRank, **options)
        return staging.work([call], output_lists[0] if output_lists else [])

    @by_device
    def gather_single(self, output, tensor, opts):
        communicator, staging, options = self._call(opts, [tensor])
        source = memory(staging.input(tensor))
        target = memory(staging.output(output)) if self._here == opts.rootRank else None
        return staging.work([communicator.gather(source, target, opts.rootRank, **options)], [output])

    @by_device
    def scatter(self, outputs, input_lists, opts):
        communicator, staging, options = self._call(opts, outputs)
        source = None
        if self._here == opts.rootRank:
            _check_list(input_lists[0], self._members, "scatter")
            source = staging.flatten(input_lists[0], outputs)
        call = communicator.scatter(source, memory(staging.output(outputs[0])), opts.rootRank, **options)
        return staging.work([call], outputs)

    @by_device
    def reduce_scatter(self, outputs, input_lists, opts=None):
        communicator, staging, options = self._call(opts, outputs)
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        calls = []
        for output, inputs in zip(outputs, input_lists):
            _check_list(inputs, self._members, "reduce_scatter")
            counts = [tensor.numel() for tensor in inputs]
            arguments = (memory(staging.output(output)), reduction(op, output.dtype))
            source = staging.flatten(inputs, (output,))
            if len(set(counts)) == 1:
                calls.append(communicator.reduce_scatter(source, *arguments, **options))
            else:
                calls.append(communicator.reduce_scatter_v(source, _scaled(counts, output), *arguments, **options))
        return staging.work(calls, outputs)

    @by_device
    def _reduce_scatter_base(self, output, tensor, opts=None):
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    @by_device
    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        communicator, staging, options = self._call(opts, inputs)
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        calls = [communicator.reduce_scatter(memory(staging.input(tensor)), memory(staging.output(output)),
                                             reduction(op, tensor.dtype), **options)
                 for output, tensor in zip(outputs, inputs)]
        return staging.work(calls, outputs)

    @by_device
    def alltoall_base(self, output, tensor, output_splits, input_splits, opts=None):
        communicator, staging, options = self._call(opts, [tensor])
        source, target = memory(staging.input(tensor)), memory(staging.output(output))
        if not output_splits and not input_splits:
            _check_divides(tensor, self._members)
            call = communicator.all_to_all(source, target, **options)
        else:
            call = communicator.all_to_all_v(source, _rows(tensor, input_splits, self._members), target,
                                             _rows(output, output_splits, self._members), **options)
        return staging.work([call], [output])

    @by_device
    def alltoall(self, outputs, inputs, opts=None):
        _check_list(outputs, self._members, "all_to_all")
        _check_list(inputs, self._members, "all_to_all")
        communicator, staging, options = self._call(opts, inputs)
        call = communicator.all_to_all_v(
            staging.flatten(inputs, outputs), _scaled([tensor.numel() for tensor in inputs], inputs[0]),
            staging.split(outputs, inputs), _scaled([tensor.numel() for tensor in outputs], outputs[0]), **options)
        return staging.work([call], outputs)

    # the names of PyTorch 2.15
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base
    gather_into_tensor = gather_single

    def barrier(self, opts=None):
        """On CUDA devices the calling thread waits for what the streams have been given, then for the other ranks."""
        device = getattr(opts, "device", None)
        if device is not None and device.type in self.others:
            return self.rest.barrier(opts)
        communicator = self._begin()
        if device is not None and device.type == "cuda" and device.index is not None:
            self._stream(device)
        wait_for_devices(self._streams)
        return started([communicator.barrier(**self._options(opts))], [])

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """A barrier whose error names the ranks that are absent."""
        self._begin()
        seconds = self._timeout if timeout is None else timeout.total_seconds()
        self._monitored_barrier(seconds, wait_all_ranks)

    # --- messages ---

    def _start_coalescing(self, device=_CPU):
        """PyTorch 1.13 starts every batch of messages so and names no device; later ones only those on CUDA."""
        if device.type in self.others:
            self.rest._start_coalescing(device)
        elif device.type == "cuda":
            self._exchange = Exchange(self._staging_on(device))
        elif not _STARTS_EVERY_BATCH:
            raise RuntimeError(f"the backend cohort starts calls together on CUDA tensors, and not on {device}")

    def _end_coalescing(self, device):
        if self._exchange is None:
            return None if _STARTS_EVERY_BATCH else self.rest._end_coalescing(device)
        exchange, self._exchange = self._exchange, None
        return exchange.start(self._begin(), self._options(None, exchange.staging))

    def _open_messages(self):
        messages = self._messages
        if messages is None:  # another thread has just destroyed the group
            raise _destroyed()
        return messages

    @by_device
    def send(self, tensors, peer, tag=0):
        try:
            return self._send(tensors, peer, tag)
        except BaseException:
            self._exchange = None  # torch does not call _end_coalescing when a message of a batch is refused
            raise

    def _send(self, tensors, peer, tag):
        communicator, staging, options = self._call(None, tensors)
        if not staging.on_stream:
            call = self._open_messages().send(memory(staging.input(tensors[0])), peer, tag, self._timeout)
            return Work([call], tensors)
        _check_message(peer, tag)
        if self._exchange is not None:
            return self._exchange.send(tensors[0], peer)
        return staging.work([communicator.send(memory(staging.input(tensors[0])), peer, **options)], tensors)

    @by_device
    def recv(self, tensors, peer, tag=0):
        try:
            return self._receive(tensors, peer, tag)
        except BaseException:
            self._exchange = None  # as in send()
            raise

    @by_device
    def recv_anysource(self, tensors, tag=0):
        return self._receive(tensors, None, tag)

    def _receive(self, tensors, peer, tag):
        communicator, staging, options = self._call(None, tensors)
        if not staging.on_stream:
            call = self._open_messages().receive(memory(staging.output(tensors[0])), peer, tag, self._timeout)
            return Work([call], tensors, staging, self._timeout + (0 if peer is None else _GRACE))
        _check_message(peer, tag)
        if self._exchange is not None:
            return self._exchange.receive(tensors[0], peer)
        return staging.work([communicator.recv(memory(staging.output(tensors[0])), peer, **options)], tensors)


class _CpuBackend:
    """A group as torch sees it for CPU tensors: it asks this before it makes one call of a batch of messages, and on the
    CPU each has a work of its own."""

    supports_coalescing = False

    def __init__(self, group):
        self._group = group

    def __getattr__(self, name):
        return getattr(self._group, name)


MixedProcessGroup = mixed.of_several_backends(ProcessGroup)


def _destroyed():
    return _comm.FailedPreconditionError("this process group has been destroyed")


def _check_message(peer, tag):
    if peer is None:
        raise ValueError("CUDA tensors are received from one rank, not from any: name the source, or send and receive "
                         "CPU tensors")
    if tag != 0:
        raise ValueError(f"messages of CUDA tensors have no tags, and this one has {tag}: they arrive in the order in "
                         "which they were sent; leave the tag out, or send CPU tensors")


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
    """Makes a group. torch.distributed calls it on the members."""
    plan = mixed.plan()
    group_class = MixedProcessGroup if plan.others else ProcessGroup
    return group_class(groups.communicator_of(options), options.timeout, plan)
