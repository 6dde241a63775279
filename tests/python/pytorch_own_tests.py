"""PyTorch's own tests of backends, as its wheel brings them, over the backend cohort.

    pytorch_own_tests.py <ranks>...          all tests with the first number of ranks, the skipped ones with the next
    pytorch_own_tests.py --gloo <ranks>...   all tests with each number, over cohort and over Gloo

Cohort passes for Gloo, and for MPI where a test asks for it to have all-to-all on the CPU. A test that fails over cohort
is repeated over Gloo, and counts where Gloo does not fail. The tests that are skipped with every number of ranks stand
in `pytorch_skipped.txt` with the reasons; `--write` writes it. Skips, with the reason, where torch or expecttest is absent."""

import collections
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import traceback
import unittest

ASKED = 'BACKEND = os.environ["BACKEND"]'
LISTED = "2.15"  # the version of PyTorch whose tests are in the list
LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorch_skipped.txt")
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


# --- one run: a process, since the tests decide as they are loaded what to do with that number of ranks ---


class ServesCpu(str):
    """The name of a backend that passes for Gloo's, and for MPI's where a test wants no other."""

    def __eq__(self, other):
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other):
        return other != "mpi" and not self == other

    def __hash__(self):
        return hash("gloo")


def tests_of_pytorch(backend, ranks):
    """The module of PyTorch's tests."""
    from torch.testing._internal import common_distributed as common

    # The same skips as theirs, before processes are forked for them.
    common.skip_if_no_gpu = unittest.skip("wants CUDA devices")
    common.skip_if_lt_x_gpu = lambda n, allow_cpu=False: (lambda test: test) if allow_cpu else common.skip_if_no_gpu
    common.skip_if_small_worldsize = unittest.skipIf(ranks < 8, common.TEST_SKIPS["small_worldsize"].message)
    path = os.path.join(os.path.dirname(common.__file__), "distributed", "distributed_test.py")
    with open(path, encoding="utf-8") as file:
        source = file.read()
    name = "torch.testing._internal.distributed.distributed_test"
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path))
    if backend == "cohort":
        import dlaunch.torch  # noqa: F401: registers the backend

        common.DistTestCases.backend_feature["plugin"].add(backend)
        if source.count(ASKED) != 1:
            return None
        source = source.replace(ASKED, "BACKEND = _backend")
        module._backend = ServesCpu(backend)
    sys.modules[name] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return module


class Results(unittest.TestResult):
    """The end of each test, and the reason."""

    def __init__(self):
        super().__init__()
        self.of = {}

    def _note(self, test, state, why=""):
        self.of[test._testMethodName] = [state, why]

    def addSuccess(self, test):  # noqa: N802: unittest's name
        self._note(test, PASSED)

    def addSkip(self, test, reason):  # noqa: N802
        self._note(test, SKIPPED, reason)

    def addError(self, test, err):  # noqa: N802
        self._note(test, FAILED, "".join(traceback.format_exception(*err)))

    addFailure = addError  # noqa: N815


def run_here(backend, ranks, target, names):
    folder = os.path.dirname(target)
    os.environ.update(BACKEND=backend, WORLD_SIZE=ranks, OMP_NUM_THREADS="1", TEMP_DIR=folder, CUDA_VISIBLE_DEVICES="",
                      INIT_METHOD=f"file://{folder}/init")
    results = Results()
    try:
        import expecttest  # noqa: F401: torch's tests want it
        import torch

        theirs = tests_of_pytorch(backend, int(ranks))
        missing = None if theirs else f"PyTorch {torch.__version__} asks for the backend of its tests in another way"
    except ImportError as error:
        missing = f"{sys.executable} has no tests of PyTorch: {error}"
    if missing is None:
        class OwnTests(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):
            def setUp(self):
                super().setUp()
                self._start_processes(torch.multiprocessing.get_context("fork").Process)  # a spawned one imports torch

        unittest.TestSuite(map(OwnTests, names or unittest.TestLoader().getTestCaseNames(OwnTests))).run(results)
    with open(target, "w", encoding="utf-8") as file:
        json.dump({"version": None if missing else torch.__version__, "missing": missing, "tests": results.of}, file)


# --- the test ---


def run(backend, ranks, names=()):
    """The version of PyTorch, and what became of these tests, or of all."""
    with tempfile.TemporaryDirectory(prefix="cohort-pytorch-") as folder:
        target = os.path.join(folder, "results")
        done = subprocess.run([sys.executable, __file__, "--run", backend, ranks, target, *names], check=False, text=True,
                              errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            sys.exit(f"{done.stdout}\nexit status {done.returncode}")
        with open(target, encoding="utf-8") as file:
            results = json.load(file)
    if results["missing"]:
        print("skipped:", results["missing"])
        sys.exit(77)
    tests = results["tests"]
    states = collections.Counter(state for state, _ in tests.values())
    print(f"PyTorch {results['version']}, backend {backend}, {ranks} ranks:",
          ", ".join(f"{states[state]} {state}" for state in (PASSED, FAILED, SKIPPED)), flush=True)
    if states[FAILED]:
        print(done.stdout)
    return results["version"], tests


def named(tests, *states):
    return [name for name, (state, _) in tests.items() if state in states]


def worse_than_gloo(ours, theirs):
    """The tests that Gloo passes and cohort does not, and those that fail over cohort alone."""
    return [name for name, (state, _) in theirs.items() if ours[name][0] == FAILED and state != FAILED
            or ours[name][0] != PASSED and state == PASSED]


def listed(left):
    """Tests by reason, as the file lists them."""
    by_reason = collections.defaultdict(list)
    for name, reason in left.items():
        by_reason[reason].append(name)
    return "".join(f"{reason}\n" + "".join(f"    {name}\n" for name in sorted(by_reason[reason]))
                   for reason in sorted(by_reason))


def main(numbers, with_gloo, write):
    passed, served, left, worse = set(), set(), {}, []
    for ranks in numbers:
        version, ours = run("cohort", ranks, () if with_gloo or not left else sorted(left))
        again = named(ours, PASSED, FAILED, SKIPPED) if with_gloo else named(ours, FAILED)
        theirs = run("gloo", ranks, again)[1] if again else {}
        for name in worse_than_gloo(ours, theirs):
            worse.append(name)
            print(f"{name} with {ranks} ranks, over gloo {theirs[name][0]}:\n{ours[name][1]}")
        passed.update(named(ours, PASSED))
        served.update(named(theirs, PASSED))
        for name in named(ours, SKIPPED):
            if "world size" in left.get(name, "world size"):  # another reason holds for each number of ranks
                left[name] = ours[name][1]
        left = {name: reason for name, reason in left.items() if name not in passed}
    print(f"{len(passed)} different tests passed" + (f", and over gloo {len(served)}" if with_gloo else ""))
    if worse:
        sys.exit(f"worse than Gloo: {' '.join(worse)}")
    if write:
        with open(LIST, "w", encoding="utf-8") as file:
            file.write(listed(left))
    if version.startswith(LISTED):
        with open(LIST, encoding="utf-8") as file:
            known = {line.strip() for line in file if line.startswith(" ")}
        if unknown := left.keys() - known:
            sys.exit(f"skipped, and not in {LIST}:\n{listed({name: left[name] for name in unknown})}")
        if stale := passed & known:
            sys.exit(f"passed, and in {LIST} too: {' '.join(sorted(stale))}")


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        run_here(*sys.argv[2:5], sys.argv[5:])
    else:
        main([word for word in sys.argv[1:] if not word.startswith("-")], "--gloo" in sys.argv, "--write" in sys.argv)
