"""The sum of sparse tensors: every rank gets all entries of all ranks, and adds those of one place."""

import math

import torch
import torch.distributed as dist

from dlaunch.torch.tensors import memory, per_element


class SparseSum:
    """The staging of one all_reduce of COO tensors, each with its places and values from all ranks."""

    def __init__(self):
        self._tensors = []

    def begin(self, communicator, tensor, op, options):
        """Starts the calls for one tensor. Blocks while the ranks exchange their shapes and numbers of entries."""
        if op != dist.ReduceOp.SUM:
            raise ValueError(f"the backend cohort sums sparse tensors, and has no {op} of them: pass tensor.to_dense()")
        if tensor.layout != torch.sparse_coo or tensor.device.type != "cpu":
            raise ValueError(f"the backend cohort sums sparse tensors of the layout torch.sparse_coo on the CPU, and this "
                             f"one is {tensor.layout} on {tensor.device}: pass tensor.to_dense()")
        with torch.no_grad():
            own = tensor.detach().coalesce()
            places, values = own.indices().t().contiguous(), own.values().contiguous()
        # The form that all ranks must have, with the number of entries: shapes of other lengths are other calls.
        own_form = torch.tensor([places.size(0), places.size(1), *tensor.shape], dtype=torch.int64)
        forms = torch.zeros(communicator.size, len(own_form), dtype=torch.int64)
        communicator.all_gather(memory(own_form), memory(forms), **options).wait()
        for rank, form in enumerate(forms[:, 1:].tolist()):
            if form != own_form[1:].tolist():
                raise ValueError(f"all_reduce of sparse tensors: rank {rank}'s has the shape {form[1:]}, {form[0]} of its "
                                 f"dimensions sparse, and this rank's {list(tensor.shape)}, {places.size(1)}")
        counts = forms[:, 0]
        calls, gathered = [], []
        for part in (places, values):
            whole = torch.empty((int(counts.sum()), *part.shape[1:]), dtype=part.dtype)
            row = math.prod(part.shape[1:]) * per_element(part)
            rows = [count * row for count in counts.tolist()]
            calls.append(communicator.all_gather_v(memory(part), memory(whole), rows, **options))
            gathered.append(whole)
        self._tensors.append((tensor, *gathered))
        return calls

    def finish(self):
        with torch.no_grad():
            for tensor, places, values in self._tensors:
                total = torch.sparse_coo_tensor(places.t(), values, tensor.shape)
                tensor.copy_(total.coalesce())  # a detached one has entries of its own
        self._tensors = []
