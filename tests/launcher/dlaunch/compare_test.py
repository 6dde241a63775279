"""Twelve small programs under dlaunch, Open MPI, MPICH, srun and torchrun: what comes out of each, the exit status and
the saved files. The table in launcher/README.md says the same.

  compare_test.py <dlaunch> <with_slurm>           # dlaunch's column alone: the others change with their versions only
  compare_test.py <dlaunch> <with_slurm> --peers   # all columns
  compare_test.py <dlaunch> <with_slurm> --print   # the table as it is here, without a test

A launcher that is not installed is left out, with the reason. with_slurm is tests/launcher/dlaunch/with_slurm.cc.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

DLAUNCH, WITH_SLURM = map(os.path.abspath, sys.argv[1:3])
PEERS = "--peers" in sys.argv or "--print" in sys.argv
README = pathlib.Path(__file__).resolve().parents[3] / "launcher" / "README.md"
LIMIT_S = 60  # for one run
PROMPT_S = 10  # for a prompt to be seen; a launcher that waits for the end of the line never shows it
LEFT_S = 25  # for a launcher to end although a process that its rank has left behind holds its output for 60 s
AGAIN = 3  # times that a peer's cell is measured alone before it counts as another than the table's
DRAINED_S = 0.3  # without a byte, once the launcher has ended

SAVE = r"""
import os, signal, sys, time
def save(signum, frame):
    time.sleep(2)
    open(sys.argv[1] + '/saved', 'w').write('state')
    os._exit(0)
signal.signal(signal.SIGTERM, save)
open(sys.argv[1] + '/ready', 'w').close()
time.sleep(40)
"""
# Debian's torchrun 1.13 fails with Python 3.11, whose flags are no more iterated at zero: its default, no redirection.
TORCHRUN = """
import sys
from torch.distributed.elastic.multiprocessing.api import Std
from torch.distributed.run import main
Std.from_str = classmethod(lambda cls, text: Std(int(text)))
main(sys.argv[1:])
"""
RANK = "${RANK:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$SLURM_PROCID}}}"
BINARY = bytes(range(256)) * 300 + b"\r\n\r\0end"
LONG = b"x" * 100_000 + b"\n"


class Run:
    """One program under one launcher."""

    def __init__(self, command, folder, ranks, program, given=b"", env=None):
        self.folder = pathlib.Path(folder)
        mark = f"COHORT_COMPARED={os.getpid()}.{self.folder.name}"
        self.mark = mark.encode()
        environment = dict(os.environ, **dict([mark.split("=", 1)]), **(env or {}))
        environment.pop("PYTHONPATH", None)
        self.process = subprocess.Popen([*command(ranks), "bash", "-c", program, "program", folder], env=environment,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        start_new_session=True, cwd=folder)
        self.out, self.err = b"", b""
        self.limit = time.monotonic() + LIMIT_S
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self.process.stdin.write(given)
            self.process.stdin.close()

    def collect(self, until, limit=None):
        """Reads both streams until `until` holds, or both have ended; False when the time is over first."""
        limit = min(limit or self.limit, self.limit)
        open_streams = [self.process.stdout, self.process.stderr]
        while not until():
            if time.monotonic() > limit:
                return False
            if not open_streams:
                time.sleep(0.01)  # a bounded poll
                continue
            for stream in select.select(open_streams, [], [], 0.02)[0]:
                data = os.read(stream.fileno(), 1 << 16)
                if not data:
                    open_streams.remove(stream)
                elif stream is self.process.stdout:
                    self.out += data
                else:
                    self.err += data
        return True

    def wait(self, limit=None):
        """The exit status as a shell tells it, with all of the output; None when the time is over first."""
        if not self.collect(lambda: self.process.poll() is not None, limit):
            return None
        self.drain()
        status = self.process.returncode
        return 128 - status if status < 0 else status

    def drain(self):
        """Reads what the launcher has written until it ended, however slow this machine is."""
        open_streams = [self.process.stdout, self.process.stderr]
        while time.monotonic() < self.limit and (ready := select.select(open_streams, [], [], DRAINED_S)[0]):
            for stream in ready:
                data = os.read(stream.fileno(), 1 << 16)
                if not data:
                    open_streams.remove(stream)
                elif stream is self.process.stdout:
                    self.out += data
                else:
                    self.err += data

    def wait_for(self, name):
        return self.collect(lambda: (self.folder / name).exists() or self.process.poll() is not None)

    def left(self):
        """Processes of the job that live, this launcher's own among them."""
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and self.mark in pathlib.Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    if pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                        found.append(int(entry))
            except (OSError, IndexError):
                pass
        return found

    def clean(self):
        limit = time.monotonic() + 10
        while (left := self.left()) and time.monotonic() < limit:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            time.sleep(0.02)  # a bounded poll
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()


def written(text, out):
    return "as written" if out == text else "nothing" if not out else "cut" if text.startswith(out) else "changed"


def status_of(status):
    return "never ends" if status is None else str(status)


def output_of(text):
    def judge(run):
        status = run.wait()
        return f"{written(text, run.out)}, {status_of(status)}"
    return judge


def saves(run):
    run.wait_for("ready")
    run.process.send_signal(signal.SIGTERM)
    status = run.wait()
    return f"{'saved' if (run.folder / 'saved').exists() else 'lost'}, {status_of(status)}"


def neighbour(run):
    status = run.wait()
    return f"{'saved' if (run.folder / 'saved').exists() else 'lost'}, {status_of(status)}"


def prompt(run):
    run.wait_for("began")
    shown = run.collect(lambda: b"Name? " in run.out, time.monotonic() + PROMPT_S)
    (run.folder / "answer").touch()
    status = run.wait()
    return f"{'shown' if shown else 'held back'}, {status_of(status)}"


def child(run):
    run.wait_for("began")
    status = run.wait(time.monotonic() + LEFT_S)
    if status is None:
        return "waits for the child"
    return f"{written(b'done' + bytes([10]), run.out)}, {status_of(status)}, child {'lives' if run.left() else 'ended'}"


def streams(run):
    status = run.wait()
    lines = run.err.split(b"\n")
    beside = run.out == b"out 1\nout 2\n" and lines.index(b"err 2") > lines.index(b"err 1") >= 0 \
        if b"err 1" in lines and b"err 2" in lines else False
    return f"{'apart' if beside else 'mixed'}, {status_of(status)}"


def status_alone(run):
    return status_of(run.wait())


# name, what it does, ranks, program, standard input, how it is judged, what dlaunch promises
PROGRAMS = [
    ("filter", "`exec > >(sed 's/^/> /')`, then two lines", 1,
     "exec > >(sleep 0.2; sed 's/^/> /'); echo one; echo two", b"", output_of(b"> one\n> two\n"), "as written, 0"),
    ("unfinished", "a line without its newline", 1, "printf foo", b"", output_of(b"foo"), "as written, 0"),
    ("long", "a line of 100,000 characters", 1, "head -c 100000 /dev/zero | tr '\\0' x; echo", b"", output_of(LONG),
     "as written, 0"),
    ("binary", "all bytes, NUL and carriage returns too", 1, "cat $1/data", b"", output_of(BINARY), "as written, 0"),
    ("prompt", "`Name? ` without a newline, then waits", 1,
     "touch $1/began; printf 'Name? '; until [ -e $1/answer ]; do sleep 0.05; done", b"", prompt, "shown, 0"),
    ("input", "rank 0 of two reads the redirected input", 2, f'if [ "{RANK}" = 0 ]; then cat; fi', b"a\nb\n", output_of(b"a\nb\n"), "as written, 0"),
    ("streams", "lines on both streams", 1, "echo out 1; echo err 1 >&2; echo out 2; echo err 2 >&2", b"", streams,
     "apart, 0"),
    ("environment", "prints PYTHONPATH, where none is set", 1, "echo ${PYTHONPATH-unset}", b"", output_of(b"unset\n"),
     "as written, 0"),
    ("segfault", "a program behind a shell dies of SIGSEGV", 1, "ulimit -c 0; sh -c 'kill -SEGV $$'; exit $?", b"",
     status_alone, "139"),
    ("child", "ends, and leaves a child that holds its output", 1, "sleep 60 & echo done; touch $1/began", b"", child,
     "as written, 0, child ended"),
    ("saves", "behind a shell, saves on SIGTERM to the launcher", 1,
     "python3 $1/save.py $1; code=$?; exit $code", b"", saves, "saved, 143"),
    ("neighbour", "rank 1 ends with 3, rank 0 saves on SIGTERM", 2,
     f'if [ "{RANK}" = 1 ]; then '
     "until [ -e $1/ready ]; do sleep 0.05; done; exit 3; fi; python3 $1/save.py $1; exit 0", b"", neighbour,
     "saved, 3"),
]


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def needs(program):
    if not PEERS:
        return "a peer, and there is no --peers"
    return None if shutil.which(program) else f"{program} is not installed"


class Slurm:
    """A cluster on this machine, for as long as its input is open."""

    def __init__(self):
        self.process, self.configuration, self.why_not = None, "", "a peer, and there is no --peers"
        if not PEERS:
            return
        self.process = subprocess.Popen([WITH_SLURM, "sh", "-c", "echo $SLURM_CONF; cat"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.configuration = self.process.stdout.readline().strip()
        self.why_not = None if self.configuration.endswith(".conf") else self.configuration or "no Slurm here"

    def close(self):
        if self.process is None:
            return
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def launchers(slurm):
    """Column, command for a number of ranks, more environment, why it is not here."""
    return [
        ("dlaunch", lambda n: [DLAUNCH, "--no-prefix", "-n", str(n)], {}, None),
        ("Open MPI", lambda n: ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(n)], {},
         needs("mpirun.openmpi")),
        ("MPICH", lambda n: ["mpirun.mpich", "-n", str(n)], {}, needs("mpirun.mpich")),
        ("srun", lambda n: ["srun", "--nodes=1", "--overcommit", "-n", str(n)], {"SLURM_CONF": slurm.configuration},
         slurm.why_not),
        ("torchrun", lambda n: ["/usr/bin/python3", "-c", TORCHRUN, "--rdzv_backend", "c10d",
                                "--rdzv_endpoint", f"localhost:{free_port()}", "--no_python",
                                "--monitor_interval", "0.1", "--nproc_per_node", str(n)], {},
         needs("/usr/bin/torchrun")),
    ]


# The versions that the table is of: how each launcher tells its own, and how that begins.
VERSIONS = {"Open MPI": (["mpirun.openmpi", "--version"], "4.1."),
            "MPICH": (["mpirun.mpich", "--version"], "4.0."),
            "srun": (["srun", "--version"], "22.05."),
            "torchrun": (["/usr/bin/python3", "-c", "import torch; print(torch.__version__)"], "1.13.")}


def version(column, env):
    """Its version, empty where it is the table's."""
    command, told = VERSIONS[column]
    said = subprocess.run(command, env=dict(os.environ, **env), capture_output=True, text=True, timeout=LIMIT_S).stdout
    found = re.search(r"\d+\.\d+\S*", said)
    return "" if found and found.group().startswith(told) else said.strip() or "unknown"


def measure(command, env, name, ranks, program, given, judge):
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        (pathlib.Path(folder) / "save.py").write_text(SAVE)
        (pathlib.Path(folder) / "data").write_bytes(BINARY)
        run = Run(command, folder, ranks, program, given, env)
        try:
            return judge(run)
        finally:
            if "--verbose" in sys.argv:
                print(name, command(ranks)[0], run.out[:200], run.err[-2000:].decode(errors="replace"), file=sys.stderr)
            run.clean()


def measure_all(told):
    """Cells by program and launcher, why launchers are not here, and the versions that the table is not of.

    `told` has the table's cells. A peer's cell that differs is measured again, alone: srun cuts output by chance when
    twelve programs run beside it.
    """
    slurm = Slurm()
    try:
        columns = launchers(slurm)
        missing = {column: why for column, _, _, why in columns if why}
        others = {column: version(column, env) for column, _, env, why in columns if column in VERSIONS and not why}
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            cells = {(name, column): pool.submit(measure, command, env, name, ranks, program, given, judge)
                     for column, command, env, why in reversed(columns) if not why
                     for name, _, ranks, program, given, judge, _ in PROGRAMS}
            measured = {key: cell.result() for key, cell in cells.items()}
        for column, command, env, why in columns:
            if why or others.get(column, "not a peer"):
                continue
            for name, _, ranks, program, given, judge, _ in PROGRAMS:
                for _ in range(AGAIN):
                    if measured[name, column] not in told.get((name, column), [measured[name, column]]):
                        measured[name, column] = measure(command, env, name, ranks, program, given, judge)
        return measured, missing, others
    finally:
        slurm.close()


COLUMNS = ("dlaunch", "Open MPI", "MPICH", "srun", "torchrun")


def alternatives(cell):
    """"saved, 0 or 15": "saved, 0" and "saved, 15", where a launcher's status is chance."""
    start, _, statuses = cell.rpartition(", ")
    return [", ".join(filter(None, [start, status])) for status in statuses.split(" or ")]


def table():
    """The README's cells, as alternatives by program and launcher."""
    lines = README.read_text().splitlines()
    told = {}
    for name, what, *_ in PROGRAMS:
        [line] = [line for line in lines if line.startswith(f"| {what} |")]
        for column, cell in zip(COLUMNS, line.strip("|").split("|")[1:]):
            told[name, column] = alternatives(cell.strip())
    return told


def row(what, cells):
    return "| " + " | ".join([what, *cells]) + " |"


class Comparison(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.told = table()
        cls.cells, cls.missing, cls.others = measure_all(cls.told)
        for column, why in cls.missing.items():
            print(f"left out: {column}: {why}")

    def test_dlaunch_does_what_it_promises(self):
        promised = {name: promise for name, *_, promise in PROGRAMS}
        self.assertEqual({name: self.cells[name, "dlaunch"] for name in promised}, promised)

    def test_the_table_says_what_was_measured(self):
        for (name, column), expected in self.told.items():
            if column in self.missing:
                continue
            seen = self.cells[name, column]
            if other := self.others.get(column):
                if seen not in expected:
                    print(f"not compared, {column} is another version ({other}): {name}: {seen}")
            else:
                self.assertIn(seen, expected, f"{name}: {column}")


if __name__ == "__main__":
    if "--print" in sys.argv:
        measured, absent, _ = measure_all(told={})
        print(row("program", COLUMNS))
        print(row("---", ["---"] * len(COLUMNS)))
        for program_name, text, *_ in PROGRAMS:
            print(row(text, [measured.get((program_name, column), "?") for column in COLUMNS]))
        print(absent)
    else:
        unittest.main(argv=sys.argv[:1])
