"""Tensors as the memory that the communicator moves."""

import torch
import torch.distributed as dist

from dlaunch import _comm
from dlaunch.communicator import DataType, ReduceOp
from dlaunch.torch.work import started

# For each torch type, comm's type, and how many of those make an element.
_TYPES = {
    torch.bool: (DataType.UINT8, 1),
    torch.uint8: (DataType.UINT8, 1),
    torch.int8: (DataType.INT8, 1),
    torch.int16: (DataType.INT16, 1),
    torch.int32: (DataType.INT32, 1),
    torch.int64: (DataType.INT64, 1),
    torch.float16: (DataType.FLOAT16, 1),
    torch.bfloat16: (DataType.BFLOAT16, 1),
    torch.float32: (DataType.FLOAT32, 1),
    torch.float64: (DataType.FLOAT64, 1),
    torch.complex64: (DataType.FLOAT32, 2),
    torch.complex128: (DataType.FLOAT64, 2),
    torch.complex32: (DataType.FLOAT16, 2),
}
for _name, _type in (("uint16", DataType.UINT16), ("uint32", DataType.UINT32), ("uint64", DataType.UINT64),
                     ("float8_e4m3fn", DataType.FLOAT8_E4M3), ("float8_e5m2", DataType.FLOAT8_E5M2)):
    if hasattr(torch, _name):
        _TYPES[getattr(torch, _name)] = (_type, 1)

_OPS = tuple((getattr(dist.ReduceOp, name), getattr(ReduceOp, value))
             for name, value in (("SUM", "SUM"), ("AVG", "AVG"), ("MAX", "MAX"), ("MIN", "MIN"), ("PRODUCT", "PRODUCT"),
                                 ("BAND", "BAND"), ("BOR", "BOR"), ("BXOR", "BXOR")) if hasattr(dist.ReduceOp, name))
# A bool's sum is true where any is: torch stores bools as bytes of 0 and 1, and 2 is none.
_BOOL_OPS = {ReduceOp.SUM: ReduceOp.MAX, ReduceOp.PRODUCT: ReduceOp.MIN}


def _type_of(tensor):
    return _TYPES.get(tensor.dtype) or (DataType.UINT8, tensor.element_size())


def per_element(tensor):
    """How many of comm's elements make one of the tensor's."""
    return _type_of(tensor)[1]


def memory(tensor):
    """A contiguous tensor as an argument of the communicator, which keeps the tensor until the call is done."""
    code, factor = _type_of(tensor)
    if tensor.is_cuda:
        return (tensor.data_ptr(), tensor.numel() * factor, code, tensor, tensor.get_device())
    return (tensor.data_ptr(), tensor.numel() * factor, code, tensor)


def _is_plain(tensor):
    """Whether the memory has the elements as they are, in order: a lazy conjugate or negative has them otherwise."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def _plain(tensor):
    return tensor if _is_plain(tensor) else tensor.resolve_conj().resolve_neg().contiguous()


def share_memory(tensors):
    """Whether two of these tensors may have an element in common."""
    ends = sorted((tensor.data_ptr(), tensor.data_ptr() + _extent(tensor)) for tensor in tensors)
    return any(first[1] > second[0] for first, second in zip(ends, ends[1:]))


def _extent(tensor):
    """Bytes from the first element to behind the last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride()))
    return (last + 1) * tensor.element_size()


def check_device(kind, device, served):
    """A group of cohort serves tensors on devices of these kinds."""
    if kind not in served:
        raise ValueError(f"the backend cohort moves tensors on {' and '.join(sorted(served))} in this group, and this "
                         f"one is on {device}: name a backend for each device, as in 'cpu:cohort,cuda:nccl'")


def reduction(op, dtype):
    """comm's operation for one of torch's on elements of this type."""
    for theirs, ours in _OPS:
        if op == theirs:
            break
    else:
        raise ValueError(f"the backend cohort has no reduction {op}: it has SUM, AVG, MIN, MAX, PRODUCT, BAND, BOR and "
                         "BXOR")
    if dtype == torch.bool:
        if ours == ReduceOp.AVG:
            raise ValueError("the average of bools is none: convert them first")
        return _BOOL_OPS.get(ours, ours)
    if dtype.is_complex and ours not in (ReduceOp.SUM, ReduceOp.AVG):
        raise ValueError(f"{op} is not defined for complex numbers")
    if dtype not in _TYPES:
        raise ValueError(f"elements of type {dtype} cannot be reduced")
    return ours


class Staging:
    """The tensors of one call, all on one device. Gives contiguous memory for outputs that are not, and copies it back
    once the call is done."""

    on_stream = False
    device = None
    copies = ()  # (output, the memory that stands for it)

    def check(self, tensor):
        if tensor.device != self.device:
            raise ValueError(f"the tensors of one call lie on one device, and these on {self.device} and "
                             f"{tensor.device}")
        if tensor.layout != torch.strided:
            raise ValueError(f"the backend cohort moves dense tensors, and this one is {tensor.layout}: pass "
                             "tensor.to_dense()")
        return tensor

    def input(self, tensor):
        return _plain(self.check(tensor))

    def output(self, tensor):
        """For memory that the call only writes."""
        if _is_plain(self.check(tensor)):
            return tensor
        return self._later(tensor, torch.empty_like(tensor, memory_format=torch.contiguous_format))

    def in_out(self, tensor):
        """For memory that the call reads and writes."""
        return tensor if _is_plain(self.check(tensor)) else self._later(tensor, _plain(tensor))

    def copy(self, tensor):
        """As in_out, and always of its own: for tensors that share memory."""
        return self._later(tensor, _plain(self.check(tensor)).clone(memory_format=torch.contiguous_format))

    def split(self, outputs, beside=()):
        """Memory for a list of outputs, which follow one another in it. `beside`: the other tensors of the call."""
        flat = torch.empty(sum(tensor.numel() for tensor in outputs), dtype=outputs[0].dtype, device=self.device)
        place = 0
        for tensor in outputs:
            self.check(tensor)
            self._later(tensor, flat[place:place + tensor.numel()].view(tensor.shape))
            place += tensor.numel()
        return memory(flat)

    def _later(self, tensor, copy):
        if tensor.numel() and any(stride == 0 and size > 1 for size, stride in zip(tensor.size(), tensor.stride())):
            raise ValueError("a tensor that expand() made has one memory for several elements, so none can be written: "
                             "pass tensor.clone()")
        self.copies += ((tensor, copy),)
        return copy

    def finish(self):
        if not self.copies:
            return
        with torch.no_grad():
            for tensor, copy in self.copies:
                tensor.detach().copy_(copy)
        self.copies = ()

    def flatten(self, inputs, beside=()):
        """A list of tensors one after another in one memory. `beside`: the other tensors of the call."""
        for tensor in inputs:
            self.check(tensor)
        with torch.no_grad():
            return memory(torch.cat([tensor.detach().reshape(-1) for tensor in inputs]))

    def work(self, calls, result):
        """The work that torch gets for the started calls."""
        return started(calls, result, self)


class CpuStaging(Staging):
    """On the CPU, lists of contiguous tensors are moved without PyTorch's help. Tensors that follow one another in memory,
    as those of torch.chunk, are not copied at all, unless the call uses that memory otherwise too.

    The tensors are kept until the call is done, also when the program changes its list."""

    device = torch.device("cpu")
    _joined = ()  # (memory, its pieces, the outputs that they belong to)

    def check(self, tensor):
        return tensor if tensor.is_cpu and tensor.layout is torch.strided else super().check(tensor)

    def split(self, outputs, beside=()):
        return self._in_one(tuple(outputs), beside, filled=False) or super().split(outputs)

    def flatten(self, inputs, beside=()):
        return self._in_one(tuple(inputs), beside, filled=True) or super().flatten(inputs)

    def _in_one(self, tensors, beside, filled):
        """One memory for the tensors: their own, or another, which has their contents or gives them its own at the end.
        None where they are not plain."""
        pieces = self._pieces(tensors)
        if pieces is None:
            return None
        if _adjacent(pieces) and not _touches(pieces, beside):
            return _whole(pieces[0][0], tensors, tensors)
        address, owner = _comm.join(pieces, filled)
        if not filled:
            self._joined += ((owner, pieces, tensors),)
        return _whole(address, tensors, owner)

    def _pieces(self, tensors):
        """(address, bytes) of each, or None where one is not plain."""
        pieces = []
        for tensor in tensors:
            if not _is_plain(self.check(tensor)):
                return None
            pieces.append((tensor.data_ptr(), tensor.numel() * tensor.element_size()))
        return pieces

    def finish(self):
        for owner, pieces, outputs in self._joined:
            if self._pieces(outputs) != pieces:
                raise ValueError("an output was resized, or got other memory, while the call was under way")
            _comm.part(owner, pieces)
        self._joined = ()
        super().finish()


def _adjacent(pieces):
    end = pieces[0][0]
    for address, size in pieces:
        if address != end:
            return False
        end += size
    return True


def _touches(pieces, tensors):
    """Whether one of these tensors lies in the memory of adjacent pieces. Those with gaps are copied first."""
    begin, end = pieces[0][0], pieces[-1][0] + pieces[-1][1]
    return any(tensor.data_ptr() < end and begin < tensor.data_ptr() + tensor.numel() * tensor.element_size()
               for tensor in tensors)


def _whole(address, tensors, owner):
    """The argument of the communicator for the memory of all these tensors."""
    code, factor = _type_of(tensors[0])
    return (address, sum(tensor.numel() for tensor in tensors) * factor, code, owner)
