"""Shared by tests of whole jobs: finding the processes of a job by a mark in their environment, and what it left."""
import os
import re
import signal
import time


def environ(pid):
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def processes_with(mark):
    """Living processes, but this one, that carry `mark` ("NAME=value"), by pid: their command line."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid() or not alive(int(name)):
            continue
        if mark.encode() in environ(int(name)):
            try:
                with open("/proc/%s/cmdline" % name, "rb") as file:
                    found[int(name)] = file.read().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                pass
    return found


def parent_of(pid):
    """0 where there is no such process."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def kill_at_once(pids):
    """All at the same moment, as when the power fails: none can do anything in between."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:  # it went with one of the others
                pass


def rank_of(pid):
    for entry in environ(pid):
        if entry.startswith(b"RANK="):
            return int(entry[5:])
    return None


def describe_process(pid, command):
    """One line for people: what the kernel says that it is doing, and the CPU time that it has had."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            fields = file.read().rsplit(")", 1)[1].split()
        with open("/proc/%d/wchan" % pid) as file:
            waits_in = file.read()
    except OSError:
        return "pid %d has gone: %s" % (pid, command)
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return "pid %d, state %s in %s, %.2f s of CPU: %s" % (pid, fields[0], waits_in, seconds, command)


def own_cgroup():
    """The folder of this process' own control group of version 2; empty where there is none."""
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split()[4] for line in file if " - cgroup2 " in line]
    with open("/proc/self/cgroup") as file:
        paths = [line.strip()[3:] for line in file if line.startswith("0::/")]
    return mounts[0] + paths[0] if mounts and paths else ""


def cgroup_is_writable():
    """Whether agents can make control groups for their ranks here."""
    probe = os.path.join(own_cgroup(), "cohort-%d.probe" % os.getpid())
    try:
        os.mkdir(probe)
    except OSError:
        return False
    made = os.path.exists(os.path.join(probe, "cgroup.procs"))
    os.rmdir(probe)
    return made


def orphaned_cgroups():
    """Control groups of agents (cohort-PID.RANDOM) that live no more, of whatever job: an agent whose sentinel and
    keeper were killed with it leaves its own to the next job."""
    folder = own_cgroup()
    names = os.listdir(folder) if os.path.isdir(folder) else []
    agents = [(name, re.fullmatch(r"cohort-(\d+)\..*", name)) for name in names]
    return [os.path.join(folder, name) for name, agent in agents if agent and not alive(int(agent[1]))]


def leftovers(temporary):
    """All that a job could leave behind: anything in its own temporary folder, shared memory under a telling name, a control
    group."""
    found = orphaned_cgroups()
    found += [os.path.join(temporary, name) for name in os.listdir(temporary)]
    found += [os.path.join("/dev/shm", name) for name in os.listdir("/dev/shm") if "cohort" in name or "ucx" in name]
    return set(found)


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()
