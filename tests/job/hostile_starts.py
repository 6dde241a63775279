#!/usr/bin/env python3
"""Jobs start while strangers are busy on every TCP port that they open: none fails, none is much slower than in peace.

usage: hostile_starts.py DLAUNCH COLLPERF [--trials N] [--seed S] [--flood N]

Jobs of two nodes (simulated ones, and ones that meet by `dlaunch join`) run a few all-reduces, in turn in peace and under
attack. As soon as a process of the job listens, its port gets: scanners that connect and close or reset, an HTTP client,
random bytes, half of a TLS handshake, a silent peer, and a flood of connections that stay open until the job's end.
Prints both distributions. Fails when a job fails or is slower than the slowest in peace by ten times the promised second.
"""
import argparse
import os
import random
import re
import resource
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

from job_watch import processes_with, wait_until

PROMISED_SECONDS = 1
SLACK = 10
END_SECONDS = 60
TOKEN = re.compile(r"dlaunch join (\S+)")


def tls_hello():
    """What a TLS client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    try:
        context.wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def sockets_of(pids):
    """The inodes of these processes' sockets."""
    inodes = set()
    for pid in pids:
        try:
            for name in os.listdir("/proc/%d/fd" % pid):
                target = os.readlink("/proc/%d/fd/%s" % (pid, name))
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        except OSError:
            continue
    return inodes


def listening_sockets():
    """All TCP sockets that listen: inode -> (family, address, port)."""
    found = {}
    for path, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        try:
            with open(path) as file:
                lines = [line.split() for line in file if " 0A " in line]
        except OSError:
            continue
        for fields in lines:
            raw, port = fields[1].split(":")
            words = bytes.fromhex(raw)
            packed = b"".join(words[i:i + 4][::-1] for i in range(0, len(words), 4))
            address = socket.inet_ntop(family, packed)
            found[fields[9]] = ((socket.AF_INET, "127.0.0.1", int(port, 16)) if address in ("0.0.0.0", "::") else
                                (family, address, int(port, 16)))
    return found


class Strangers:
    """They look for the ports of the job with this mark, and attack them, until `end`; not `hostile`, they only look."""

    def __init__(self, mark, flood, seed, hostile):
        self._mark = mark
        self._hostile = hostile
        self._flood = flood
        self._random = random.Random(seed)
        self._hello = tls_hello()
        self._over = threading.Event()
        self._open = []
        self.ports = set()
        self.connections = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self):
        self._over.set()
        self._thread.join()
        for peer in self._open:
            peer.close()

    def _connect(self, where):
        peer = socket.socket(where[0], socket.SOCK_STREAM)
        peer.setblocking(False)
        peer.connect_ex(where[1:])
        self.connections += 1
        return peer

    def _say(self, where, text):
        """A peer that says this much and then nothing."""
        peer = self._connect(where)
        peer.settimeout(1)
        try:
            peer.sendall(text)
        except OSError:
            pass
        self._open.append(peer)

    def _attack(self, where):
        self._say(where, b"GET /metrics HTTP/1.1\r\nHost: job\r\n\r\n")
        self._say(where, self._hello[:len(self._hello) // 2])
        self._say(where, self._random.randbytes(4096))
        self._open.append(self._connect(where))  # silent
        for number in range(self._flood):
            if self._over.is_set():
                return
            self._open.append(self._connect(where))
            if number % 10 == 0:
                self._scan(where)

    def _scan(self, where):
        self._connect(where).close()
        peer = self._connect(where)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        peer.close()

    def _run(self):
        known = set()
        while not self._over.wait(0.01):
            listening = listening_sockets()
            if not known.issuperset(listening):
                own = sockets_of(processes_with(self._mark))
                new = {listening[inode] for inode in own & listening.keys() - known}
                known |= listening.keys()
                self.ports |= new
                for where in new if self._hostile else ():
                    self._attack(where)
            for where in self.ports if self._hostile else ():
                self._scan(where)


class Start:
    def __init__(self, arguments, number, hostile):
        self.arguments = arguments
        self.number = number
        self.hostile = hostile
        self.joins = number % 2 == 1
        self.mark = "COHORT_HOSTILE_START=%d.%d.%d" % (os.getpid(), number, hostile)

    def fail(self, what, logs):
        raise AssertionError("start %d (seed %d), %s, %s: %s\nload %s\n%s" % (
            self.number, self.arguments.seed, "by dlaunch join" if self.joins else "simulated nodes",
            "under attack" if self.hostile else "in peace", what, os.getloadavg(), "\n---\n".join(logs())))

    def run(self):
        """Seconds that the job took, and the strangers."""
        with tempfile.TemporaryDirectory(prefix="cohort-hostile-") as folder:
            name, value = self.mark.split("=")
            environment = dict(os.environ, TMPDIR=folder, **{name: value})
            program = [self.arguments.collperf, "all_reduce", "-b", "8", "-e", "1K", "-n", "5"]
            paths, processes = [], []

            def logs():
                return [open(path, errors="replace").read() for path in paths]

            def start(arguments):
                paths.append(os.path.join(folder, "log%d" % len(paths)))
                with open(paths[-1], "wb") as file:
                    processes.append(subprocess.Popen(
                        ["sh", "-c", 'ulimit -Sn %d; exec "$0" "$@"' % self.arguments.descriptors,
                         self.arguments.dlaunch, *arguments],
                        stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment))
            strangers = Strangers(self.mark, self.arguments.flood, self.number, self.hostile)
            began = time.monotonic()
            try:
                if self.joins:
                    start(["--nnodes", "2", "--nproc-per-node", "2", "--wait", "60", "--", *program])
                    if not wait_until(lambda: TOKEN.search(logs()[0]) or processes[0].poll() is not None, END_SECONDS):
                        self.fail("no token was printed", logs)
                    token = TOKEN.search(logs()[0])
                    if not token:
                        self.fail("no token was printed", logs)
                    start(["join", token.group(1)])
                else:
                    start(["--simulate-nodes", "2", "--nproc-per-node", "2", "--", *program])
                if not wait_until(lambda: all(process.poll() is not None for process in processes), END_SECONDS):
                    self.fail("it did not end", logs)
                seconds = time.monotonic() - began
                if any(process.returncode != 0 for process in processes):
                    self.fail("exit status %s" % [process.returncode for process in processes], logs)
                return seconds, strangers
            finally:
                strangers.end()
                for process in processes:
                    if process.poll() is None:
                        process.kill()
                    process.wait()
                wait_until(lambda: not processes_with(self.mark), 5)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("dlaunch")
    parser.add_argument("collperf")
    parser.add_argument("--trials", type=int, default=20, help="job starts under attack")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flood", type=int, default=1000, help="connections that stay open, for each port")
    arguments = parser.parse_args()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8 * (arguments.flood + 100)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < wanted:
        print("skipped: hostile starts: ulimit -Hn is %d, and %d connections are to be held" % (limits[1], wanted))
        return 77
    arguments.descriptors = limits[0]  # what the jobs may have
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, limits[0]), limits[1]))
    peace, war, ports, connections = [], [], 0, 0
    for number in range(arguments.trials):
        if number < 4 or number % 10 < 2:  # of both kinds
            peace.append(Start(arguments, number, False).run()[0])
        seconds, strangers = Start(arguments, number, True).run()
        war.append(seconds)
        ports += len(strangers.ports)
        connections += strangers.connections
        if sys.stderr.isatty():
            print("\r%d of %d" % (number + 1, arguments.trials), end="", file=sys.stderr)
    print("%d job starts under attack: %d ports, %d connections of strangers; seconds from start to end" %
          (arguments.trials, ports, connections))
    for name, values in (("in peace", peace), ("attacked", war)):
        print("%-10s median %.3f  max %.3f" % (name, statistics.median(values), max(values)))
    slower = max(war) - max(peace)
    print("at most %.3f s slower than the slowest in peace (promised: %d s)" % (max(slower, 0), PROMISED_SECONDS))
    if slower > PROMISED_SECONDS * SLACK:
        raise AssertionError("a job start was %.1f s slower under attack" % slower)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AssertionError as wrong:
        print(wrong, file=sys.stderr)
        sys.exit(1)
