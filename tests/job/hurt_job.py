"""A job under dlaunch --on-failure continue whose ranks get signals from outside, for trials that are made by the
hundred: starts it, notes what each rank prints and when, finds the ranks' processes, and checks that nothing stays."""
import os
import re
import signal
import subprocess
import tempfile
import threading
import time

from job_watch import describe_process, leftovers, parent_of, processes_with, rank_of, wait_until

LINE = re.compile(r"^\[(\d+)\] (.*)$")
START_SECONDS = 60
END_SECONDS = 60
GONE_SECONDS = 5


class HurtJob:
    """Use in a `with` statement, whose end kills what is left. `title` says which trial this is; `program` (a path) is
    what the ranks run, perhaps behind a `wrapper` that starts it. Every rank prints "ready" once it may be hurt, or the
    trial calls find_ranks by itself."""

    _count = 0
    _lock = threading.Lock()

    def __init__(self, title, dlaunch, program, arguments=(), ranks=4, nodes=1, wrapper=()):
        with HurtJob._lock:
            HurtJob._count += 1
            self._mark = "COHORT_HURT_JOB=%d.%d" % (os.getpid(), HurtJob._count)
        self.title = title
        self.ranks = range(ranks)
        self._nodes = nodes
        self.lines = {rank: [] for rank in self.ranks}
        self.began = None  # CLOCK_MONOTONIC in ns of the first signal
        self._program = program = os.path.abspath(program)  # as the kernel will name it
        placement = (["--nproc-per-node", str(ranks)] if nodes == 1 else
                     ["--simulate-nodes", str(nodes), "--nproc-per-node", str(ranks // nodes)])
        self._command = [dlaunch, "--on-failure", "continue", *placement, "--", *wrapper, program, *arguments]
        self._output = []  # (ns, line), of the job and of this script
        self._pids = {}

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="cohort-hurt-job-")
        self._before = leftovers(self._folder.name)
        name, value = self._mark.split("=")
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE,
                                         env=dict(os.environ, TMPDIR=self._folder.name, **{name: value}))
        self._readers = [threading.Thread(target=self._read, args=(stream,))
                         for stream in (self._process.stdout, self._process.stderr)]
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(self, *exception):
        for pid in processes_with(self._mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._process.wait()
        for reader in self._readers:
            reader.join()
        self._process.stdout.close()
        self._process.stderr.close()
        self._folder.cleanup()

    def _read(self, stream):
        for line in stream:
            text = line.decode(errors="replace").rstrip("\n")
            self._output.append((time.monotonic_ns(), text))
            match = LINE.match(text)
            if match and int(match.group(1)) in self.lines:
                self.lines[int(match.group(1))].append(match.group(2))

    def note(self, text):
        """A line of the trial's own among those of the job."""
        self._output.append((time.monotonic_ns(), "--- " + text))

    def fail(self, what):
        """Raises an error with all that the job has printed, the times since the first signal, and who still runs."""
        zero = self.began or time.monotonic_ns()
        left = ["  " + describe_process(pid, command) for pid, command in sorted(processes_with(self._mark).items())]
        printed = ["%9.1f  %s" % ((when - zero) / 1e6, text) for when, text in sorted(self._output)]
        raise AssertionError("%s: %s\n%s\nload %s; milliseconds since the first signal:\n%s\nprocesses: %s" % (
            self.title, what, " ".join(self._command), os.getloadavg(), "\n".join(printed),
            "\n" + "\n".join(left) if left else "none"))

    def wait_ready(self):
        if not wait_until(lambda: all("ready" in lines for lines in self.lines.values()), START_SECONDS):
            self.fail("the ranks did not come up")
        self.find_ranks()

    def find_ranks(self):
        self._pids = {rank_of(pid): pid for pid, command in processes_with(self._mark).items()
                      if command.startswith(self._program)}
        if set(self._pids) != set(self.ranks):
            self.fail("found processes of the ranks %s only" % sorted(self._pids))

    def signal(self, rank, number):
        now = time.monotonic_ns()
        try:
            os.kill(self._pids[rank], number)
        except ProcessLookupError:
            self.fail("rank %d has ended by itself" % rank)
        self._output.append((now, "--- %s to rank %d" % (signal.Signals(number).name, rank)))
        self.began = self.began or now

    def signal_node(self, node, number):
        """To all processes of a node: its agent, the agent's sentinel and the ranks."""
        commands = processes_with(self._mark)
        agents = [pid for pid, command in commands.items() if " agent --node=%d " % node in command]
        # The sentinel first: it would sweep, and end, once its agent is gone.
        agents[:0] = [pid for pid, command in commands.items() if " sentinel " in command and parent_of(pid) in agents]
        if len(agents) != 2:
            self.fail("node %d has the agents' processes %s, not an agent and a sentinel" % (node, agents))
        per_node = len(self.ranks) // self._nodes
        now = time.monotonic_ns()
        for pid in agents + [self._pids[rank] for rank in range(node * per_node, (node + 1) * per_node)]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                if pid in agents:  # ranks end by their agent's death, perhaps before their turn
                    self.fail("process %d of node %d has ended by itself" % (pid, node))
        self._output.append((now, "--- %s to node %d" % (signal.Signals(number).name, node)))
        self.began = self.began or now

    def wait_end(self):
        """Waits for the job's end and checks that it leaves nothing. The seconds since the first signal."""
        if not wait_until(lambda: self._process.poll() is not None, END_SECONDS):
            self.note("the job did not end in %d s: SIGTERM to dlaunch" % END_SECONDS)
            before = ["  " + describe_process(pid, command) for pid, command in processes_with(self._mark).items()]
            self._process.terminate()  # its last words say what each rank was doing
            wait_until(lambda: self._process.poll() is not None, 10)
            self.fail("the job did not end; its processes then:\n%s" % "\n".join(before))
        seconds = (time.monotonic_ns() - self.began) / 1e9
        for reader in self._readers:
            reader.join(10)
        if not wait_until(lambda: not processes_with(self._mark), GONE_SECONDS):
            self.fail("processes are left")
        # Other jobs' shared memory may come and go meanwhile: only what stays was left.
        if not wait_until(lambda: leftovers(self._folder.name) <= self._before, GONE_SECONDS):
            self.fail("files are left: %s" % (leftovers(self._folder.name) - self._before))
        return seconds

    def end(self):
        """Ends a job that still runs; from another thread."""
        if self._process.poll() is None:
            self._process.terminate()
