#!/usr/bin/env python3
"""The environment of a rank is the user's: what dlaunch adds to it is what the page lists, and the rest is as it was, also
on other hosts, where an ssh of the test's own that forgets everything stands for them.

usage: environment_test.py DLAUNCH REFERENCE.md
"""
import os
import re
import subprocess
import sys
import tempfile

# Variables that libraries and interpreters read, and what is odd.
GIVEN = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": "/my/lib", "PYTHONUNBUFFERED": "1",
         "LD_LIBRARY_PATH": "/my/so", "NCCL_DEBUG": "WARN", "TORCH_LOGS": "+dynamo", "CUDA_LAUNCH_BLOCKING": "1",
         "UCX_TLS": "tcp", "GRPC_TRACE": "x", "EMPTY": "", "TWO_LINES": "a\nb", "BASH_FUNC_greet%%": "() {  echo hello\n}"}
ONLY_WITH_GPUS = {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"}
FORGETFUL_SSH = """#!/bin/sh
while [ "$1" != -T ]; do shift; done
exec env -i PATH=/usr/bin:/bin sh -c "$3"
"""
OF_SHELLS = {"PWD", "OLDPWD", "SHLVL", "_"}  # of the one that ssh starts


def listed(page):
    """The variables that the page's list has."""
    with open(page) as file:
        part = re.search(r"dlaunch sets these variables and no others:\n\n(.*?)\n\n", file.read(), re.S)[1]
    names = set()
    for item in re.split(r"^- ", part, flags=re.M):
        names |= set(re.findall(r"`([A-Z][A-Z0-9_]*)`", item.split(":")[0]))
    return names


def run(arguments, environment=None, **options):
    return subprocess.run([sys.argv[1], *arguments], env=environment or GIVEN, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, **options)


def environment_of_rank(options, folder):
    path = os.path.join(folder, "environ")
    done = run([*options, "--", "cp", "/proc/self/environ", path])
    assert done.returncode == 0, done
    with open(path) as file:
        return dict(entry.split("=", 1) for entry in file.read().split("\0") if entry)


def check_added(options, folder, expected):
    seen = environment_of_rank(options, folder)
    for name, value in GIVEN.items():
        assert seen.get(name) == value, (options, name, seen.get(name))
    added = set(seen) - set(GIVEN) - OF_SHELLS
    assert added - ONLY_WITH_GPUS == expected - ONLY_WITH_GPUS, (options, added ^ expected)


def check_unset_stays_unset(folder):
    """A shell's default for what nobody has set, and a module that is found by it."""
    os.mkdir(os.path.join(folder, "lib"))
    with open(os.path.join(folder, "lib", "mymod.py"), "w") as file:
        file.write("value = 5\n")
    line = "export PYTHONPATH=${PYTHONPATH:-$PWD/lib}; python3 -c 'import mymod, sys; sys.exit(mymod.value)'"
    done = run(["-n", "1", "bash", "-c", line], {"PATH": GIVEN["PATH"]}, cwd=folder)
    assert done.returncode == 5, done


def check_python(folder):
    """In the program itself: the paths of modules, the handlers of signals and the descriptors that it would have."""
    program = ("import os, signal, sys; print(sys.path, sys.argv, sys.flags, sorted(os.environ), sorted(sys.modules),"
               "[signal.getsignal(number) for number in sorted(signal.valid_signals())],"
               "sorted(os.listdir('/proc/self/fd'), key=int)[:6])")
    alone = subprocess.run(["python3", "-c", program], env=GIVEN, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, check=True)
    ranks = run(["-n", "1", "--no-prefix", "python3", "-c", program])
    expected = re.sub(r"\['EMPTY'|'BASH_FUNC.*?\]", "", alone.stdout)
    seen = re.sub(r"\['EMPTY'|'BASH_FUNC.*?\]", "", ranks.stdout)
    assert ranks.returncode == 0 and seen == expected, (alone, ranks)


def main():
    expected = listed(sys.argv[2])
    assert {"COHORT_AGENT", "RANK", "OMP_NUM_THREADS", "TORCHELASTIC_ERROR_FILE"} <= expected, expected
    assert not expected & set(GIVEN), expected
    with tempfile.TemporaryDirectory() as folder:
        check_added(["-n", "1"], folder, expected)
        check_added(["--simulate-nodes", "2", "-n", "1"], folder, expected)
        ssh = os.path.join(folder, "forgetful ssh".replace(" ", "-"))
        with open(ssh, "w") as file:
            file.write(FORGETFUL_SSH)
        os.chmod(ssh, 0o755)
        remote = ["--ssh", ssh, "--hosts", "c1", "-n", "1"]
        if "has no address that others may reach" in run([*remote, "true"]).stderr:
            print("no other host: this machine has no address that others may reach")
        else:
            check_added(remote, folder, expected)
        check_unset_stays_unset(folder)
        check_python(folder)


if __name__ == "__main__":
    main()
