#!/usr/bin/env python3
"""Ranks leave dumps as c10d's flight recorder does: a job that fails names them, once, with their ranks; `dlaunch
stacks` does too. Dumps of an earlier job, and links, are not named.

usage: flight_recorder_test.py DLAUNCH
"""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HEADING = "dlaunch: c10d's flight recorder left dumps (read them with PyTorch's torchfrtrace, and only if you trust the program):\n"


def rank(what, folder):
    """Rank 1 leaves a dump and fails; the others sleep, or rank 1 too."""
    number = int(os.environ["RANK"])
    if number > 0:
        with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(number), "w") as dump:
            dump.write("never read: " + 88 * "x")
    print("ready", flush=True)
    if what == "fails" and number == 1:
        while not os.path.exists(os.path.join(folder, "go")):
            time.sleep(0.01)
        sys.exit(3)
    time.sleep(600)


def start(what, folder, ranks):
    command = [sys.argv[1], "--env", "TORCH_FR_DUMP_TEMP_FILE=%s/of_" % folder, "-n", str(ranks), "--", sys.executable,
               os.path.abspath(__file__), "--rank", what, folder]
    job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = ""
    while said.count("ready") < ranks:
        said += job.stdout.readline()
        assert job.poll() is None, said
    return job, said


def check_report():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "of_0"), "w") as old:
            old.write("of yesterday")
        os.utime(old.name, (1, 1))
        os.symlink("/proc/self/stat", os.path.join(folder, "of_3"))
        job, said = start("fails", folder, 3)
        with open(os.path.join(folder, "go"), "w"):
            pass
        said += job.communicate(timeout=50)[0]
        assert job.returncode == 3, said
        lines = "".join("dlaunch:   | %s/of_%d: 100 bytes, of rank %d\n" % (folder, n, n) for n in (1, 2))
        assert said.count(HEADING) == 1 and HEADING + lines in said, said
        assert "of_0" not in said and "of_3" not in said, said


def check_stacks():
    with tempfile.TemporaryDirectory() as folder:
        job, said = start("sleeps", folder, 2)
        try:
            name = re.search("job-[0-9a-f]+", said)[0]
            shown = subprocess.run([sys.argv[1], "stacks", name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, timeout=50, text=True).stdout
            assert "    | %s/of_1: 100 bytes, of rank 1\n" % folder in shown, shown
        finally:
            job.send_signal(signal.SIGINT)
            job.communicate(timeout=50)


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank(*sys.argv[2:])
    check_report()
    check_stacks()
