"""PyTorch's own tests of backends, as its wheel brings them, over the backend cohort: pytorch_own_tests.py <ranks>.

Where those tests ask for Gloo they mean a backend for CPU tensors, so cohort passes for it. A test that fails over cohort
is repeated over Gloo, and counts where Gloo passes it. Skips, with the reason, where torch or expecttest is absent."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

LEAST = 80  # tests that pass, of PyTorch 2.11; most others want CUDA

try:
    import expecttest  # noqa: F401: torch's tests want it
    import torch
    from torch.testing._internal import common_distributed
except ImportError as error:
    print(f"skipped: {sys.executable} has no tests of PyTorch: {error}")
    sys.exit(77)

BACKEND = os.environ.setdefault("BACKEND", "cohort")
if __name__ == "__main__":
    os.environ["WORLD_SIZE"] = sys.argv[1]
    os.environ["OMP_NUM_THREADS"] = "1"
ASKED = 'BACKEND = os.environ["BACKEND"]'


class LikeGloo(str):
    """The name of a backend that passes for Gloo's."""

    def __eq__(self, other):
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash("gloo")


def tests_of_pytorch():
    """The module of PyTorch's tests, which decides as it is loaded what its backend can do."""
    path = os.path.join(os.path.dirname(common_distributed.__file__), "distributed", "distributed_test.py")
    name = "torch.testing._internal.distributed.distributed_test"
    with open(path, encoding="utf-8") as file:
        source = file.read()
    if BACKEND == "cohort":
        import cohort.torch  # noqa: F401: registers the backend

        common_distributed.DistTestCases.backend_feature["plugin"].add(BACKEND)
        if source.count(ASKED) != 1:
            print(f"skipped: the tests of PyTorch {torch.__version__} ask for their backend in another way")
            sys.exit(77)
        source = source.replace(ASKED, "BACKEND = _backend")
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path))
    module._backend = LikeGloo(BACKEND)
    sys.modules[name] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return module


_tests = tests_of_pytorch()


class OwnTests(_tests.TestDistBackend, _tests.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)  # a spawned one imports torch anew


def names_of(cases):
    return sorted(re.split(r"[. ]", case.id())[-1] for case, _ in cases)


def passes_over_gloo(names):
    command = [sys.executable, __file__, sys.argv[1], *names]
    done = subprocess.run(command, env={**os.environ, "BACKEND": "gloo"}, capture_output=True, text=True, check=False,
                          timeout=1000)
    failed = re.search(r"^failed:(.*)$", done.stdout, re.M)
    assert failed is not None, done.stdout + done.stderr
    return [name for name in names if name not in failed[1].split()]


def main():
    loader = unittest.TestLoader()
    names = sys.argv[2:] or loader.getTestCaseNames(OwnTests)
    suite = unittest.TestSuite(OwnTests(name) for name in names)
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        result = unittest.TextTestRunner(stream=sys.stdout if len(sys.argv) > 2 else nothing).run(suite)
    failed = names_of(result.failures + result.errors)
    passed = result.testsRun - len(failed) - len(result.skipped)
    print(f"PyTorch {torch.__version__}, backend {BACKEND}, {sys.argv[1]} ranks: {passed} tests passed, {len(failed)} failed, "
          f"{len(result.skipped)} are not for this machine or backend")
    print("failed:", *failed, flush=True)
    if BACKEND == "gloo":
        return 0
    refused = [reason for _, reason in result.skipped if "cohort" in reason]
    assert not refused, refused
    worse = passes_over_gloo(failed) if failed else []
    for case, text in result.failures + result.errors:
        if names_of([(case, text)])[0] in worse:
            print(f"{case.id()} passes over gloo:\n{text}")
    if not sys.argv[2:] and torch.__version__.startswith("2.11") and passed < LEAST:
        sys.exit(f"{passed} tests passed, of {LEAST} at least")
    return 1 if worse else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="cohort-pytorch-") as folder:
        os.environ["TEMP_DIR"] = folder
        status = main()
    sys.exit(status)
