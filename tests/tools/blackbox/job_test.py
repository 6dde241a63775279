"""blackbox on a real job: while it runs, of a stopped and of a killed rank.

  job_test.py <dlaunch> <collperf> <blackbox>
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

DLAUNCH, COLLPERF, BLACKBOX = sys.argv[1:4]
STDOUT = "/dev/stdout" if os.path.exists("/dev/stdout") else "/proc/self/fd/1"  # a bare system may lack the link


def read(*arguments):
    done = subprocess.run([BLACKBOX, "--json", *arguments], capture_output=True, text=True, timeout=30, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def wait_for(what, look):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.01)  # between two looks
    raise AssertionError("waited in vain for " + what)


def children(pid):
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def descendants(pid):
    found = children(pid)
    for child in list(found):
        found += descendants(child)
    return found


def measures(rank):
    """The rank's latest call is one of those that are measured; what collperf starts with is none."""
    call = rank["calls"][0] if rank["calls"] else {}
    return (call.get("kind"), call.get("type"), call.get("bytes")) == ("all_reduce", "float32", 64)


def segment_of(job):
    """The document of the job: found through any of its processes."""
    for pid in descendants(job.pid):
        document = read(str(pid))
        if document and all(measures(rank) for rank in document["ranks"]):
            return document
    return None


def check_save(job):
    """Below a limit on files' size: an error, and nothing left; without one: the whole of it, also down a pipe."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "hung.box")
        name = job.removeprefix("job-")[:12]
        done = subprocess.run(["bash", "-c", 'ulimit -f 4; exec "$@"', "-", BLACKBOX, "--job", name, "--save", path],
                              capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 1 and "hung.box: File too large" in done.stderr, done
        assert not os.listdir(folder), os.listdir(folder)
        subprocess.run([BLACKBOX, "--job", name, "--save", path], timeout=30, check=True)
        assert read("--file", path)["job"] == job
        piped = subprocess.run([BLACKBOX, "--job", name, "--save", STDOUT], capture_output=True, timeout=30,
                               check=True)
        assert len(piped.stdout) == os.path.getsize(path)


def main():
    job = subprocess.Popen([DLAUNCH, "--nproc-per-node", "2", "--on-failure", "continue", COLLPERF, "all_reduce", "-b",
                            "64", "-e", "64", "-n", "60000", "--batch", "1000"], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    try:
        document = wait_for("calls", lambda: segment_of(job))
        ranks = document["ranks"]
        assert len(ranks) == 2, ranks
        for rank in ranks:
            assert rank["state"] == "joined", rank
            assert "call.cc" in rank["calls"][0]["site"], rank
        assert document["node"], document
        check_save(document["job"])
        stopped, other = ranks[1]["pid"], ranks[0]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        wait_for("a stopped rank", lambda: (read(str(other)) or {"ranks": [{}, {}]})["ranks"][1].get("process") == "stopped")
        os.kill(other, signal.SIGSTOP)  # it would end when it is told of the death, and the records with it
        os.kill(stopped, signal.SIGKILL)

        def dead():
            document = read(str(other))
            return document and document["ranks"][1]["process"] in ("gone", "ending") and document["ranks"][1]["calls"]

        wait_for("a dead rank's calls", dead)
        os.kill(other, signal.SIGKILL)
    finally:
        job.send_signal(signal.SIGTERM)
        try:
            job.wait(timeout=30)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()


if __name__ == "__main__":
    main()
