"""Ranges and steps of Python programs, and of PyTorch's record_function, are in a trace: ranges.py <dlaunch> <python>
<folder of read_trace.py> [torch]. As a rank: ranges.py rank [torch]."""

import collections
import os
import subprocess
import sys
import tempfile

STEPS = 5


def rank(with_torch):
    import dlaunch

    with dlaunch.range("before the job"):  # is no error, and recorded nowhere
        dlaunch.step(1)
    world = dlaunch.init()
    if with_torch:
        import dlaunch.torch
        import torch

        dlaunch.torch.register()

        @torch.jit.script
        def scripted(x):
            with torch.autograd.profiler.record_function("scripted"):
                return x * 2

    for step in range(STEPS):
        dlaunch.step(step)
        with dlaunch.range("outer"):
            with dlaunch.range("inner"):
                pass
        if with_torch:
            with torch.profiler.record_function("recorded"):
                assert scripted(torch.ones(2)).sum() == 4
    try:
        with dlaunch.range("raises"):
            raise ValueError
    except ValueError:
        pass
    for wrong in (-1, "two", None):
        try:
            dlaunch.step(wrong)
        except (OverflowError, TypeError):
            continue
        raise AssertionError(wrong)
    world.barrier()


def main(dlaunch, python, folder, *with_torch):
    if with_torch and subprocess.run([python, "-c", "import torch"], check=False, capture_output=True).returncode != 0:
        print(f"skipped: ranges.py: {python} has no torch")
        sys.exit(77)
    sys.path.insert(0, folder)
    from read_trace import Trace

    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "job.pftrace")
        ran = subprocess.run([dlaunch, "-n", "2", "--trace", path, "--", python, os.path.abspath(__file__), "rank",
                              *with_torch], check=False, timeout=300, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert ran.returncode == 0, ran.stdout
        trace = Trace(path)
    ranges = collections.Counter((found.track, found.name) for found in trace.slices if found.track.endswith(" program"))
    expected = {("outer", STEPS), ("inner", STEPS), ("raises", 1)} | ({("recorded", STEPS)} if with_torch else set())
    for number in range(2):
        assert {(name, count) for (track, name), count in ranges.items()
                if track == f"rank {number} program"} == expected, ranges
        steps = [found.arguments["number"] for found in trace.instants
                 if found.name == "step" and found.track == f"rank {number}"]
        assert steps == list(range(STEPS)), steps
    outer = [found for found in trace.slices if found.name == "outer"]
    for inner in (found for found in trace.slices if found.name == "inner"):
        assert any(one.track == inner.track and one.begin_ns <= inner.begin_ns and inner.end_ns <= one.end_ns
                   for one in outer), inner
    assert not [found for found in trace.instants if found.name.endswith(" missing")], ran.stdout


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank(len(sys.argv) > 2)
    else:
        main(*sys.argv[1:])
