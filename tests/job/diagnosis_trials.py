#!/usr/bin/env python3
"""The score of the diagnosis: jobs of four ranks in which one goes wrong in a known way. The first ten lines on dlaunch's
standard error must name the rank (or node) and what happened to it, and must not blame a process that dlaunch killed.

usage: diagnosis_trials.py DLAUNCH DIAGNOSIS_RANKS [--trials N] [--seed S] [--kind KIND] [--at-once N] [--show]

Each kind gets its share of the trials; victim, moment and number of nodes are drawn from the seed. Prints a table and
the score, and every trial that missed with what was printed. Fails below 98 %.
"""
import argparse
import concurrent.futures
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from job_watch import environ, kill_at_once, parent_of, processes_with, rank_of, wait_until

RANKS = 4
LINES = 10
TARGET = 98.0
START_SECONDS = 90
END_SECONDS = 60


class Kind:
    """`told`: what one of the first lines must hold, with {v} for the victim's rank and {node} for its node. `blamed`: how the
    line that blames must begin, after "dlaunch: "."""

    def __init__(self, told, fault="none", outside=None, status=None, blamed=r"rank {v}\b", prepare=None):
        self.told = told
        self.fault = fault
        self.outside = outside
        self.status = status
        self.blamed = blamed
        self.prepare = prepare


class Trial:
    def __init__(self, arguments, number, name):
        choose = random.Random(arguments.seed * 1_000_003 + number)
        self.arguments = arguments
        self.number = number
        self.name = name
        self.kind = KINDS[name]
        self.nodes = 2 if name in ("node_lost", "agent_killed") else choose.choice((1, 2))
        self.victim = choose.randrange(RANKS)
        if name == "partition":
            self.nodes = 2
        if name in ("node_lost", "agent_killed", "partition"):
            self.victim = choose.choice((2, 3))  # node 0 has the rendezvous
        self.calls = choose.randrange(1, 60)
        self.node = self.victim // (RANKS // self.nodes)
        self.mark = "COHORT_DIAGNOSIS_TRIAL=%d.%d" % (os.getpid(), number)
        self.missed = None
        self.cgroup = None
        self.debugger = None
        self.skipped = ""

    def describe(self):
        return "trial %d (seed %d): %s of rank %d of %d on %d node(s) after %d calls" % (
            self.number, self.arguments.seed, self.name, self.victim, RANKS, self.nodes, self.calls)

    def words(self, pattern):
        return pattern.replace("{v}", str(self.victim)).replace("{node}", "node%d" % self.node)

    def process_of_rank(self, rank):
        for pid, command in processes_with(self.mark).items():
            if rank_of(pid) == rank and command.startswith(self.arguments.diagnosis_ranks):
                return pid
        raise AssertionError("%s: no process of rank %d" % (self.describe(), rank))

    def node_processes(self, which):
        """The agent of the victim's node, or all of its processes."""
        agents = sorted(pid for pid, command in processes_with(self.mark).items() if "dlaunch agent" in command)
        agent = agents[self.node]
        if which == "agent":
            return [agent]
        own = [pid for pid in processes_with(self.mark)
               if rank_of(pid) is not None and rank_of(pid) // (RANKS // self.nodes) == self.node]
        with_parent = [pid for pid, command in processes_with(self.mark).items()
                       if "dlaunch sentinel" in command and parent_of(pid) == agent]
        return [agent, *with_parent, *own]

    def run(self):
        with tempfile.TemporaryDirectory(prefix="cohort-diagnosis-") as self.folder:
            self.program = [self.arguments.diagnosis_ranks, self.kind.fault, str(self.victim), str(self.calls)]
            self.options = []
            if self.kind.prepare:
                self.kind.prepare(self)
            placement = (["--nproc-per-node", str(RANKS)] if self.nodes == 1 else
                         ["--simulate-nodes", str(self.nodes), "--nproc-per-node", str(RANKS // self.nodes)])
            name, value = self.mark.split("=")
            command = [self.arguments.dlaunch, *placement, *self.options, "--", *self.program]
            if self.name == "partition":
                helper = os.path.join(os.path.dirname(self.arguments.diagnosis_ranks), "job_partitioned_job")
                command = [helper, str(5 * self.calls), *self.program]
            out, err = os.path.join(self.folder, "out"), os.path.join(self.folder, "err")
            with open(out, "wb") as out_file, open(err, "wb") as err_file:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file,
                                           env=dict(os.environ, TMPDIR=self.folder,
                                                    COHORT_TEST_BIN_DIR=os.path.dirname(self.arguments.dlaunch),
                                                    **{name: value}))
            try:
                if self.kind.outside:
                    def ready():
                        return read(out).count("ready") == RANKS or process.poll() is not None
                    if wait_until(ready, START_SECONDS):
                        time.sleep(self.calls / 200)  # the moment
                        self.kind.outside(self)
                ended = wait_until(lambda: process.poll() is not None, END_SECONDS)
                if not ended:
                    process.terminate()
                    wait_until(lambda: process.poll() is not None, 10)
            finally:
                if self.debugger:
                    self.debugger.kill()
                    self.debugger.wait()
                for pid in processes_with(self.mark):
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                process.wait()
            if self.cgroup:
                wait_until(lambda: removed(self.cgroup), 5)
            if self.name == "partition" and process.returncode == 77:
                self.skipped = read(err)
            else:
                self.judge(read(err), process.returncode, ended)
        return self

    def judge(self, text, status, ended):
        lines = text.splitlines()
        # Before the fault there is the summary of the job, and what the victim itself has printed.
        if lines and re.match(r"dlaunch: \d+ ranks? ", lines[0]):
            lines = lines[1:]
        lines = [line for line in lines if not re.match(r"\[\d+\] cohort: .* talks to other nodes", line)]
        own = "[%d] " % self.victim
        first = next((i for i, line in enumerate(lines) if not line.startswith(own)), len(lines))
        head = lines[max(0, first - 3):first + LINES]
        blamed = [line[len("dlaunch: "):] for line in head if line.startswith("dlaunch: ")]
        wanted = [self.words(pattern) for pattern in self.kind.told]
        why = []
        if not ended:
            why.append("the job did not end")
        if self.kind.status is not None and status != self.kind.status:
            why.append("exit status %d, expected %d" % (status, self.kind.status))
        if not blamed or not re.match(self.words(self.kind.blamed), blamed[0]):
            why.append("the first word of dlaunch does not blame '%s'" % self.words(self.kind.blamed))
        why += ["no line has '%s'" % pattern for pattern in wanted if not re.search(pattern, "\n".join(head))]
        if why:
            self.missed = "%s: %s\n%s" % (self.describe(), "; ".join(why), "\n".join("  > " + line for line in lines[:25]))
        self.head = "\n".join("  > " + line for line in head)


def read(path):
    with open(path, errors="replace") as file:
        return file.read()


def removed(cgroup):
    try:
        os.rmdir(cgroup)
    except OSError:
        return False
    return True


def only_the_victim(command):
    """A shell that does `command` as the victim and runs the program as any other."""
    def prepare(trial):
        quoted = ["sh", "-c", 'if [ "$RANK" = %d ]; then %s; fi; exec "$0" "$@"' % (
            trial.victim, command.replace("{folder}", trial.folder)), *trial.program]
        trial.program = quoted
    return prepare


def python_script(text):
    """The victim runs `text` as a Python program, after it has printed a lot; the others run the program as usual."""
    def prepare(trial):
        script = os.path.join(trial.folder, "train.py")
        with open(script, "w") as file:
            file.write(text)
        only_the_victim("exec %s {folder}/train.py" % sys.executable)(trial)
    return prepare


def broken_library(trial):
    library = os.path.join(trial.folder, "libstdc++.so.6")
    with open(library, "w") as file:
        file.write("not a library")
    only_the_victim("export LD_LIBRARY_PATH={folder}")(trial)


def missing_program(trial):
    trial.program = [os.path.join(trial.folder, "no-such-program")]


def forbidden_program(trial):
    path = os.path.join(trial.folder, "program")
    with open(path, "w") as file:
        file.write("#!/bin/sh\nexit 0\n")
    os.chmod(path, 0o644)
    trial.program = [path]


def missing_interpreter(trial):
    path = os.path.join(trial.folder, "script")
    with open(path, "w") as file:
        file.write("#!/no/such/python\n")
    os.chmod(path, 0o755)
    trial.program = [path]


def full_log(trial):
    """A log folder in which the victim's file lies on a full disk; the job itself goes well."""
    folder = os.path.join(trial.folder, "log")
    os.mkdir(folder)
    os.symlink("/dev/full", os.path.join(folder, "rank-%d.out" % trial.victim))
    trial.options = ["--log-dir", folder]
    trial.program = ["sh", "-c", "echo a line"]


def memory_cgroup(trial):
    """A cgroup of the victim's own with little memory; None where it can't be made."""
    for parent, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = os.path.join(parent, "cohort-" + trial.mark.split("=")[1])
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            with open(os.path.join(folder, limit), "w") as file:
                file.write(str(128 << 20))
            return folder
        except OSError:
            os.rmdir(folder)
    return None


def little_memory(trial):
    trial.cgroup = memory_cgroup(trial)
    only_the_victim("echo $$ > %s/cgroup.procs" % trial.cgroup)(trial)


def kill_rank(trial):
    os.kill(trial.process_of_rank(trial.victim), signal.SIGKILL)


def terminate_rank(trial):
    os.kill(trial.process_of_rank(trial.victim), signal.SIGTERM)


def stop_rank(trial):
    os.kill(trial.process_of_rank(trial.victim), signal.SIGSTOP)


def hang_up_rank(trial):
    os.kill(trial.process_of_rank(trial.victim), signal.SIGHUP)


def attach_debugger(trial):
    """A debugger that stops the victim, and keeps it so until the job has ended."""
    trial.debugger = subprocess.Popen(["gdb", "-q", "-nx", "-p", str(trial.process_of_rank(trial.victim))],
                                      stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def why_no_debugger():
    """Empty where gdb can attach to another process of this user."""
    if shutil.which("gdb") is None:
        return "there is no gdb here"
    other = subprocess.Popen(["sleep", "60"])
    try:
        tried = subprocess.run(["gdb", "-q", "-nx", "-batch", "-p", str(other.pid)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        refused = re.search(r"ptrace: .*", tried.stdout)
        return "gdb can't attach here: " + refused.group() if refused else ""
    finally:
        other.kill()
        other.wait()


def kill_agent(trial):
    os.kill(trial.node_processes("agent")[0], signal.SIGKILL)


def lose_node(trial):
    processes = trial.node_processes("all")
    kill_at_once(processes)


LATE = [r"rank {v}\b.*(has not|did not|never|absent|missing|not (yet )?(called|entered|reached))"]
KINDS = {
    "exit_code": Kind([r"rank {v}\b.* exited with code 42"], "exit", status=42),
    "exit_message": Kind([r"rank {v}\b.* exited with code 3", r"no tensor named 'weight'"], "message", status=3),
    "left_early": Kind([r"rank {v}\b.*(left|ended|exited)"], "leave"),
    "killed": Kind([r"rank {v}\b.* killed by SIGKILL"], outside=kill_rank, status=137),
    "terminated": Kind([r"rank {v}\b.* killed by SIGTERM"], outside=terminate_rank, status=143),
    "segv": Kind([r"rank {v}\b.* killed by SIGSEGV", "invalid memory"], "segv", status=139),
    "bus": Kind([r"rank {v}\b.* killed by SIGBUS"], "bus", status=135),
    "fpe": Kind([r"rank {v}\b.* killed by SIGFPE"], "fpe", status=136),
    "ill": Kind([r"rank {v}\b.* killed by SIGILL"], "ill", status=132),
    "abort": Kind([r"rank {v}\b.* killed by SIGABRT", "assertion failed: loss is finite"], "abort", status=134),
    "exception": Kind([r"rank {v}\b.* killed by SIGABRT", "the data loader has lost its file"], "exception", status=134),
    "bad_alloc": Kind([r"rank {v}\b.* killed by SIGABRT", "bad_alloc"], "bad_alloc", status=134),
    "out_of_memory": Kind([r"rank {v}\b.* killed by SIGKILL, .*out of memory"], "memory", status=137,
                          prepare=little_memory),
    "cpu_limit": Kind([r"rank {v}\b.* killed by SIGXCPU", "CPU time limit"], "cpu_limit", status=152),
    "file_limit": Kind([r"rank {v}\b.* killed by SIGXFSZ"], "file_limit", status=153),
    "hang": Kind(LATE, "hang"),
    "slow": Kind(LATE, "slow"),
    "mismatch": Kind([r"calls do not match: .*rank {v} called all_reduce\(max, float32, 32\)"], "mismatch",
                     blamed="calls do not match"),
    "hung_up": Kind([r"rank {v}\b.* killed by SIGHUP"], outside=hang_up_rank, status=129),
    "debugger": Kind([*LATE, r"stopped by a debugger \(gdb, pid \d+\)"], "wait", outside=attach_debugger,
                     blamed=r"rank {v}\b.* is stopped by a debugger"),
    "stopped": Kind([r"rank {v}\b.*SIGSTOP"], outside=stop_rank, status=137),
    "disk_full": Kind([r"rank {v}\b.* exited with code 4", "No space left on device"], "disk_full", status=4),
    "no_descriptors": Kind([r"rank {v}\b.* exited with code 9", "Too many open files"], "no_descriptors", status=9),
    "agent_killed": Kind([r"{node}\b.*(agent|lost)"], outside=kill_agent, status=125, blamed=".*{node}"),
    "node_lost": Kind([r"{node}\b.*(agent|lost)"], outside=lose_node, status=125, blamed=".*{node}"),
    "partition": Kind([r"ranks 2 and 3 \(.* lost", "silent for"], status=125, blamed=r"ranks 2 and 3\b"),
    "no_program": Kind(["no-such-program", "there is no program"], prepare=missing_program, status=127, blamed=""),
    "no_interpreter": Kind(["script.*No such file", "interpreter"], prepare=missing_interpreter, blamed=""),
    "not_executable": Kind(["program.*not executable", "chmod"], prepare=forbidden_program, status=126, blamed=""),
    "one_without": Kind([r"rank {v}\b.* exited with code 127", "not found"], status=127,
                        prepare=only_the_victim("exec no-such-program")),
    "one_forbidden": Kind([r"rank {v}\b.* exited with code 126", "[Pp]ermission denied"], status=126,
                          prepare=only_the_victim("exec /etc/passwd")),
    "bad_library": Kind([r"rank {v}\b.* exited with code 127", "libstdc"], prepare=broken_library, status=127),
    # Kinds that nobody has tuned the diagnosis for.
    "deadlock": Kind(LATE, "deadlock"),
    "spin": Kind(LATE, "spin"),
    "exit_hangs": Kind(LATE, "exit_hangs"),
    "thread_exit": Kind([r"rank {v}\b.* exited with code 5"], "thread_exit", status=5),
    "flood": Kind([r"rank {v}\b.* exited with code 7"], "flood", status=7),
    "long_line": Kind([r"rank {v}\b.* exited with code 8"], "long_line", status=8),
    "comm_abort": Kind([r"rank {v}\b.*the loss is no number"], "comm_abort"),
    "recursion": Kind([r"rank {v}\b.* exited with code 1: RecursionError: maximum recursion depth exceeded"], status=1,
                      prepare=python_script("def f():\n    f()\nf()\n")),
    "syntax": Kind([r"rank {v}\b.* exited with code 1: SyntaxError: "], status=1, prepare=python_script("x = = 1\n")),
    "full_log": Kind([r"rank-{v}\.out: No space left on device"], prepare=full_log, status=0, blamed=".*rank-{v}"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("dlaunch")
    parser.add_argument("diagnosis_ranks")
    parser.add_argument("--trials", type=int, default=2 * len(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, help="trials of this kind only")
    parser.add_argument("--at-once", type=int, default=4, help="jobs side by side")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="beside N processes that compute all the time")
    parser.add_argument("--show", action="store_true", help="print what the first lines were")
    arguments = parser.parse_args()
    arguments.dlaunch = os.path.abspath(arguments.dlaunch)
    arguments.diagnosis_ranks = os.path.abspath(arguments.diagnosis_ranks)
    names = [arguments.kind] if arguments.kind else list(KINDS)
    probe = memory_cgroup(Trial(arguments, 0, "out_of_memory"))
    if probe:
        os.rmdir(probe)
    elif "out_of_memory" in names:
        names.remove("out_of_memory")
        print("out_of_memory is left out: no cgroup with a limit of memory can be made here (it needs root)")
    if "debugger" in names and why_no_debugger():
        names.remove("debugger")
        print("debugger is left out: " + why_no_debugger())
    trials = [Trial(arguments, number, names[number % len(names)]) for number in range(arguments.trials)]
    began = time.monotonic()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(arguments.busy)]
    try:
        with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
            for trial in pool.map(Trial.run, trials):
                if trial.missed:
                    print("missed: " + trial.missed, flush=True)
                elif arguments.show:
                    print("%s\n%s" % (trial.describe(), trial.head), flush=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    trials = [trial for trial in trials if not trial.skipped or print(trial.skipped, end="")]
    print("%d faults in %.0f s: is the right rank and kind in the first %d lines?" %
          (len(trials), time.monotonic() - began, LINES))
    print("%-16s %7s %7s" % ("kind", "faults", "right"))
    for name in names:
        of_kind = [trial for trial in trials if trial.name == name]
        if of_kind:
            print("%-16s %7d %7d" % (name, len(of_kind), sum(not trial.missed for trial in of_kind)))
    score = 100.0 * sum(not trial.missed for trial in trials) / len(trials)
    print("score %.1f %% (target %.0f %%)" % (score, TARGET))
    return 0 if score >= TARGET else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AssertionError as wrong:
        print(wrong, file=sys.stderr)
        sys.exit(1)
