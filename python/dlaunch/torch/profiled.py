"""Shows the ranges of torch.profiler.record_function in traces of dlaunch."""

import functools

from dlaunch import _comm

_NAME = "_dlaunch_range"


def show_record_functions(torch):
    """Lets torch.profiler.record_function, which optimizers, data loaders and DistributedDataParallel use too, make
    ranges. The functions say whom they wrap, so that TorchScript and inspect find torch's own source."""
    kind = torch.autograd.profiler.record_function
    enter, leave = kind.__enter__, kind.__exit__

    @functools.wraps(enter)
    def __enter__(self):
        setattr(self, _NAME, _comm.open_range(self.name))
        return enter(self)

    @functools.wraps(leave)
    def __exit__(self, *raised):
        setattr(self, _NAME, None)
        return leave(self, *raised)

    kind.__enter__, kind.__exit__ = __enter__, __exit__
