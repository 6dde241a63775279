#!/usr/bin/env python3
"""`dlaunch stacks` shows the Python line at which each rank is, whatever it is stuck in, and the ranks go on: the
program imports nothing of ours, and has a sitecustomize, a PYTHONPATH and signal handlers of its own. A job that ends
because a rank fails, or is told to end, reports where the ranks were that did not end by themselves.

usage: stacks_test.py DLAUNCH
"""
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from job_watch import wait_until

READY = "ready, rank "


def sleep_long():
    time.sleep(600)  # rank sleeps


def lock_twice():
    import threading
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # rank locks


def hold_the_gil():
    import ctypes
    while True:  # a signal ends it
        ctypes.PyDLL(None).usleep(600 * 1000 * 1000)  # rank holds


def sleep_as_asked(folder):
    """Until the folder has the file, and as often as that takes: a signal that ends no sleep."""
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.01)


def fail_as_asked(folder):
    sleep_as_asked(folder)
    sys.exit(3)


def work(what, folder):
    if os.environ.get("MINE"):
        import mine
        assert mine.value == 5 and sys.modules["sitecustomize"].mark == "the user's", sys.modules["sitecustomize"]
        assert os.environ["PYTHONPATH"] == os.environ["MINE"]
    rank = os.environ["RANK"]
    with open(os.path.join(folder, "rank" + rank), "w"):
        pass
    if what == "mixed":
        what = ["sleep", "lock", "gil", "sleep"][int(rank)]
    if what == "ends" and rank == "1":
        return
    if what == "stalls":
        what = "sleep" if rank == "1" else "fails"
    if what == "children" and rank == "0":
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    {"sleep": sleep_long, "lock": lock_twice, "gil": hold_the_gil, "children": sleep_long,
     "ends": lambda: sleep_as_asked(folder), "go": lambda: sleep_as_asked(folder),
     "fails": lambda: fail_as_asked(folder)}[what]()


def line_of(mark):
    with open(__file__) as file:
        return next(i for i, text in enumerate(file, 1) if text.endswith("  # " + mark + "\n"))


def stacks(*arguments):
    return subprocess.run([sys.argv[1], "stacks", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=50, text=True)


@contextlib.contextmanager
def job(options, command, ranks, environment=None):
    """Its id, its process, and a folder of its own, once all ranks have said that they are there."""
    with tempfile.TemporaryDirectory() as folder:
        command = [word.replace("FOLDER", folder) for word in command]
        with open(os.path.join(folder, "output"), "w") as output:
            started = subprocess.Popen([sys.argv[1], *options, "--", *command], stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=output, env={**os.environ, **(environment or {})})
        try:
            def said():
                with open(os.path.join(folder, "output")) as file:
                    return file.read()
            ready = wait_until(lambda: all(os.path.exists(os.path.join(folder, "rank%d" % i)) for i in range(ranks)), 40)
            assert ready, said()
            yield re.search(r"as (job-[0-9a-f]+)", said())[1], started, folder
        finally:
            started.send_signal(signal.SIGTERM)
            started.wait(40)


def script(what):
    return [sys.executable, os.path.abspath(__file__), "--rank", what, "FOLDER"]


def wait_for(condition, *arguments):
    """The first answer that meets it: a rank has said that it is there before it is at its line."""
    answers = []

    def asked():
        answers.append(stacks(*arguments).stdout)
        return condition(answers[-1])
    assert wait_until(asked, 30), answers[-1]
    return answers[-1]


def at(mark, function):
    return "line %d in %s" % (line_of(mark), function)


def check_mixed(options):
    with job(options, script("mixed"), 4) as (name, started, _):
        places = [at("rank sleeps", "sleep_long"), at("rank locks", "lock_twice"), at("rank holds", "hold_the_gil")]
        said = wait_for(lambda text: all(place in text for place in places) and "ranks 0,3:" in text, name)
        assert re.search(r"ranks 0,3:\n.*?%s.*rank 1 .*%s.*rank 2 .*%s" % tuple(map(re.escape, places)), said, re.S), said
        assert "most recent call first" in said, said
        one = stacks("--rank", "1", name)
        assert one.returncode == 0 and places[1] in one.stdout and places[0] not in one.stdout, one
        none = stacks("--rank", "4", name)
        assert none.returncode == 2 and "has the ranks 0 to 3" in none.stdout, none
        assert started.poll() is None


def check_they_go_on():
    with job(["-n", "2"], script("go"), 2) as (name, started, folder):
        for _ in range(5):
            wait_for(lambda text: "ranks 0-1:" in text or "in sleep_as_asked" in text, name)
        with open(os.path.join(folder, "go"), "w"):
            pass
        assert started.wait(40) == 0


def check_users_own():
    with tempfile.TemporaryDirectory() as mine:
        for name, text in (("sitecustomize.py", "mark = \"the user's\"\n"), ("mine.py", "value = 5\n")):
            with open(os.path.join(mine, name), "w") as file:
                file.write(text)
        with job(["-n", "1"], script("children"), 1, {"PYTHONPATH": mine, "MINE": mine}) as (name, _, _f):
            wait_for(lambda text: at("rank sleeps", "sleep_long") in text, name)


def check_wrapped():
    """Behind a shell, and one that has ended."""
    with job(["-n", "1"], ["sh", "-c", '"$@"; true', "sh", *script("lock")], 1) as (name, _, _f):
        wait_for(lambda text: at("rank locks", "lock_twice") in text and "  sh sleeps" in text, name)
    with job(["--on-failure", "continue", "-n", "2"], script("ends"), 2) as (name, _, _f):
        wait_for(lambda text: "rank 1:\n  has ended" in text and "in sleep_as_asked" in text, name)


def check_others():
    """Ranks that are no Python, and one that is stopped."""
    with job(["--stopped", "wait", "-n", "2"], ["sh", "-c", 'echo $$ > FOLDER/rank$RANK; exec sleep 600'], 2) as (
            name, _, folder):
        said = wait_for(lambda text: "ranks 0-1:\n  sleep sleeps" in text, name)
        assert "native stacks:" in said, said  # or why there are none
        with open(os.path.join(folder, "rank1")) as file:
            pid = int(file.read())
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda text: "  sleep is stopped by a signal" in text, name)
        os.kill(pid, signal.SIGCONT)


def text_of(folder):
    with open(os.path.join(folder, "output")) as file:
        return file.read()


def check_stalled(options):
    """Ranks that have waited in vain fail; the report has the place of the one that they waited for."""
    with job(options, script("stalls"), 4) as (name, started, folder):
        wait_for(lambda text: at("rank sleeps", "sleep_long") in text and text.count("in sleep_as_asked"), name)
        with open(os.path.join(folder, "go"), "w"):
            pass
        assert started.wait(40) == 3
        said = text_of(folder)
        place = r"when they were told to end:\n    rank 1: \S+stacks_test\.py:%d in sleep_long\n      called from .* in work\n"
        assert re.search(place % line_of("rank sleeps"), said), said


def check_told_to_end():
    with job(["-n", "2"], script("sleep"), 2) as (name, started, folder):
        wait_for(lambda text: "ranks 0-1:" in text and at("rank sleeps", "sleep_long") in text, name)
        started.send_signal(signal.SIGINT)
        assert started.wait(40) == 130
        said = text_of(folder)
        assert re.search(r"    ranks 0 and 1: \S+:%d in sleep_long\n" % line_of("rank sleeps"), said), said
    with job(["-n", "1"], ["sh", "-c", "echo > FOLDER/rank$RANK; exec sleep 600"], 1) as (name, started, folder):
        wait_for(lambda text: "  sleep sleeps in" in text, name)
        started.send_signal(signal.SIGINT)
        assert started.wait(40) == 130
        assert "    rank 0: sleep sleeps in " in text_of(folder), text_of(folder)


def check_isolated():
    """A Python that takes nothing from its environment, and one of another program's, which has others beside it."""
    program = script("lock")
    with job(["-n", "1"], [program[0], "-S", "-E", *program[1:]], 1) as (name, _, _f):
        wait_for(lambda text: at("rank locks", "lock_twice") in text, name)
    command = ["sh", "-c", 'sleep 600 & "$@"; true', "sh", "sh", "-c", '"$@"; true', "sh", *script("sleep")]
    with job(["-n", "1"], command, 1) as (name, _, _f):
        wait_for(lambda text: at("rank sleeps", "sleep_long") in text, name)


def check_refusals():
    none = stacks("job-0123456789abcdef")
    assert none.returncode == 1 and "no job 'job-0123456789abcdef' runs on this machine" in none.stdout, none
    for bad in (["--rank", "x"], ["--rank", "1", "--rank", "2"], ["--ranks"]):
        assert stacks(*bad).returncode == 2, bad
    assert "Examples:" in stacks("--help").stdout


def main():
    check_mixed(["-n", "4"])
    check_mixed(["--simulate-nodes", "2", "--nproc-per-node", "2"])
    check_they_go_on()
    check_users_own()
    check_wrapped()
    check_others()
    check_stalled(["-n", "4"])
    check_stalled(["--simulate-nodes", "2", "--nproc-per-node", "2"])
    check_told_to_end()
    check_isolated()
    check_refusals()


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        work(sys.argv[2], sys.argv[3])
    else:
        main()
