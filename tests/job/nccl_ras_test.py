#!/usr/bin/env python3
"""A rank listens as NCCL's RAS service does: a job that fails or is stopped prints its answer, once and safe for a
terminal. Services that do not answer, or that are not the job's, leave no trace.

usage: nccl_ras_test.py DLAUNCH
"""
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

QUESTION = b"CLIENT PROTOCOL 2\nTIMEOUT 1\nSTATUS\n"
SAID = "dlaunch: NCCL RAS said at rank 1, before ranks were told to end:\n"


def address():
    """One of loopback's many, so that tests side by side don't meet at NCCL's port."""
    number = os.getpid()
    return "127.%d.%d.%d" % (64 + number % 64, number // 64 % 250, number // 16000 % 250 + 1)


def listen(host):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, 28028))
    listener.listen(4)
    return listener


def serve(what):
    listener = listen(os.environ["NCCL_RAS_ADDR"].rpartition(":")[0])
    print("listens", flush=True)
    while True:
        client, _ = listener.accept()
        question = b""
        while b"STATUS\n" not in question:
            question += client.recv(100)
        assert question == QUESTION, question
        if what == "mute":
            time.sleep(600)
        answer = b"SERVER PROTOCOL 2\nOK\n\nJob summary\n===\ndlaunch: \x1b[2Jrank 0 is dead\n\xff\n"
        if what == "long":
            answer += 5000 * b"a communicator of many\n"
        with client, contextlib.suppress(ConnectionError):  # the agent leaves a long answer
            client.sendall(answer)


def rank(what, folder):
    """Rank 1 serves; rank 0 fails when it is told to."""
    if os.environ["RANK"] == "1" and what != "nobody":
        serve(what)
    print("listens", flush=True)
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.01)
    sys.exit(3)


def run(what, *options, by=None):
    """Exit status and output of dlaunch after rank 0 has failed, or dlaunch has got the signal `by`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.argv[1], "--env", "NCCL_RAS_ADDR=%s:28028" % address(), *options, "--", sys.executable,
                   os.path.abspath(__file__), "--rank", what, folder]
        with open(os.path.join(folder, "output"), "w+b") as output:
            job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

            def text():
                with open(output.name, "rb") as file:
                    return file.read().decode()
            try:
                while text().count("listens") < 2:
                    assert job.poll() is None, text()
                    time.sleep(0.02)
                if by is None:
                    with open(os.path.join(folder, "go"), "w"):
                        pass
                else:
                    job.send_signal(by)
                return job.wait(50), text()
            finally:
                job.kill()


def check_answer():
    lines = ["Job summary", "===", "dlaunch: \\x1b[2Jrank 0 is dead", "\\xff"]
    shown = SAID + "".join("dlaunch:   | %s\n" % line for line in lines)
    status, text = run("answers", "-n", "2")
    assert status == 3 and text.count(shown) == 1, text
    assert text.index(shown) < text.index("rank 0 (") and "exited with code 3" in text, text
    status, text = run("answers", "-n", "2", by=signal.SIGINT)
    assert status == 130 and text.count(shown) == 1, text
    status, text = run("answers", "--simulate-nodes", "2", "--nproc-per-node", "1")  # rank 0's node asks, and has none
    assert status == 3 and "RAS" not in text, text


def check_long_answer():
    status, text = run("long", "-n", "2")
    assert status == 3 and text.count("dlaunch:   | a communicator of many") == 56, text
    assert re.search("\ndlaunch:   and 4[0-9][0-9] more lines\n", text), text


def stacks(*arguments):
    return subprocess.run([sys.argv[1], "stacks", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=50, text=True).stdout


def check_stacks():
    """While the job runs, from the rank that listens, and not from another."""
    with subprocess.Popen([sys.argv[1], "--env", "NCCL_RAS_ADDR=%s:28028" % address(), "-n", "2", "--", sys.executable,
                           os.path.abspath(__file__), "--rank", "answers", "/nowhere"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        said = ""
        try:
            while said.count("listens") < 2:
                said += job.stdout.readline()
                assert job.poll() is None, said
            name = re.search("job-[0-9a-f]+", said)[0]
            shown = stacks(name)
            assert "  NCCL RAS says:\n    | Job summary\n    | ===\n    | dlaunch: \\x1b[2Jrank" in shown, shown
            assert "RAS" not in stacks("--rank", "0", name)
        finally:
            job.send_signal(signal.SIGINT)
            job.communicate(timeout=50)


def check_silence():
    for what in ("mute", "nobody"):
        status, text = run(what, "-n", "2")
        assert status == 3 and "RAS" not in text, text
    with listen(address()) as mine:  # another job's, say
        status, text = run("nobody", "-n", "2")
        assert status == 3 and "RAS" not in text, text
        mine.setblocking(False)
        try:
            mine.accept()
            raise AssertionError("a stranger's service was asked")
        except BlockingIOError:
            pass


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank(*sys.argv[2:])
    check_answer()
    check_long_answer()
    check_stacks()
    check_silence()
