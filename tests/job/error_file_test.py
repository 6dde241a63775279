#!/usr/bin/env python3
"""A rank's program fails and tells why only in the file that TORCHELASTIC_ERROR_FILE names, as programs do whose
standard error goes elsewhere: dlaunch's headline has the exception all the same.

usage: error_file_test.py DLAUNCH
"""
import json
import os
import subprocess
import sys
import traceback


def divide(by):
    return 1 / by


def fail():
    """Does what torch.distributed.elastic's @record does for a function that throws."""
    try:
        divide(0)
    except ZeroDivisionError as error:
        message = {"message": "%s: %s" % (type(error).__name__, error),
                   "extraInfo": {"py_callstack": traceback.format_exc(), "timestamp": "1700000000"}}
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": message}, file)
        sys.exit(1)


def run(*options):
    me = os.path.abspath(__file__)
    return subprocess.run([sys.argv[1], *options, sys.executable, me, "--rank"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=50, text=True)


def main():
    line = next(i for i, text in enumerate(open(__file__), 1) if "return 1 / by" in text)
    for layout in (["-n", "2"], ["--simulate-nodes", "2", "--nproc-per-node", "1"]):
        done = run(*layout)
        assert done.returncode == 1, done
        said = next(text for text in done.stdout.splitlines() if text.startswith("dlaunch: rank"))
        assert "ZeroDivisionError: division by zero at error_file_test.py:%d" % line in said, done.stdout
        assert "in divide" in done.stdout, done.stdout
    mine = os.path.join(os.getcwd(), "error_file_test.%d.json" % os.getpid())  # a user's own is used, and kept
    try:
        done = run("-n", "1", "--env", "TORCHELASTIC_ERROR_FILE=" + mine)
        assert done.returncode == 1 and "ZeroDivisionError" not in done.stdout, done.stdout
        with open(mine) as file:
            assert json.load(file)["message"]["message"] == "ZeroDivisionError: division by zero"
    finally:
        os.remove(mine)


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        fail()
    main()
