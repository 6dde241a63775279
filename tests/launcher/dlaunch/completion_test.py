"""Completion as people use it: bash and zsh at a terminal of their own, and fish where it is installed.

  completion_test.py <dlaunch> <folder of installed completion>

A shell that is not installed is left out, with the reason.
"""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

DLAUNCH = os.path.realpath(sys.argv[1])
SHARE = os.path.realpath(sys.argv[2])
OTHERS = ("blackbox", "collperf", "plan", "schedule")  # whose completion is installed beside dlaunch's
DEADLINE_S = 60
KILL_LINE, COMPLETE, ALL, SHOW = "\x15", "\t", "\x14", "\x07"

BASH = r"""
PS1='$ '
bind 'set bell-style none'
bind 'set enable-bracketed-paste off' 2>/dev/null
bind 'set completion-query-items 0'
bind 'set page-completions off'
bind '"\C-t": insert-completions'
bind -x '"\C-g": printf "\nLINE[%s]\n" "$READLINE_LINE"'
"""
ZSH = r"""
PS1='$ '
unsetopt beep
zstyle ':completion:*' menu no
zle -C all-matches complete-word _generic
bindkey '^T' all-matches
zstyle ':completion:all-matches::::' completer _all_matches _complete
zstyle ':completion:all-matches:*' insert true
bindkey '^I' complete-word
bindkey '^U' kill-whole-line
function show-line() { zle -I; print -r -- "LINE[$BUFFER]" }
zle -N show-line
bindkey '^G' show-line
"""


class Shell:
    """A shell with a terminal of its own. Tells what a line has become after keys."""

    def __init__(self, command, environment, folder):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environment)
        self.read = ""

    def line_after(self, typed, key):
        end = time.monotonic() + DEADLINE_S
        while self.shown(KILL_LINE) != "":  # a shell that still lists something may drop keys
            assert time.monotonic() < end
        return self.shown(typed + key)

    def shown(self, keys):
        begin = len(self.read)
        os.write(self.fd, (keys + SHOW).encode())
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            found = re.search(r"LINE\[(.*)\]\r?\n", self.read[begin:])
            if found:
                return found.group(1)
            if select.select([self.fd], [], [], 0.2)[0]:
                self.read += os.read(self.fd, 65536).decode(errors="replace")
        raise AssertionError(f"no line after {keys!r}: {self.read[begin:]!r}")

    def end(self):
        os.close(self.fd)
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


class Folder:
    """A user's home, with dlaunch in PATH and hosts of earlier jobs."""

    def __init__(self, test):
        self.path = tempfile.mkdtemp()
        test.addCleanup(shutil.rmtree, self.path)
        os.mkdir(self.path + "/bin")
        os.symlink(DLAUNCH, self.path + "/bin/dlaunch")
        os.makedirs(self.path + "/state/dlaunch")
        self.write("state/dlaunch/hosts", "node1\nnode2\nlogin\n")
        self.write("numbers.txt", "")
        os.mkdir(self.path + "/numbers.d")
        self.write("two words.txt", "")
        os.mkdir(self.path + "/two words.d")
        self.environment = {"PATH": self.path + "/bin:" + os.environ["PATH"], "HOME": self.path, "TERM": "dumb",
                            "XDG_STATE_HOME": self.path + "/state", "LC_ALL": "C.UTF-8", "HISTFILE": "/dev/null"}

    def write(self, name, text):
        with open(f"{self.path}/{name}", "w", encoding="utf-8") as file:
            file.write(text)


def running_job(test, environment):
    """The id of a job that runs until the test is over."""
    process = subprocess.Popen([DLAUNCH, "sleep", "600"], stderr=subprocess.PIPE, text=True, env=environment)
    test.addCleanup(process.wait)
    test.addCleanup(process.stderr.close)
    test.addCleanup(process.terminate)
    job = re.search(r"job-[0-9a-f]+", process.stderr.readline()).group(0)
    end = time.monotonic() + DEADLINE_S
    while subprocess.run([DLAUNCH, "status", job], capture_output=True, env=environment, check=False).returncode != 0:
        test.assertLess(time.monotonic(), end)
        time.sleep(0.05)
    return job


class CompletionTest(unittest.TestCase):
    def check(self, shell, job, all_matches):
        self.assertEqual(shell.line_after("dlaunch --simulate-n", COMPLETE).rstrip("= "), "dlaunch --simulate-nodes")
        self.assertEqual(shell.line_after("dlaunch --bind nu", COMPLETE), "dlaunch --bind numa ")
        self.assertEqual(shell.line_after("dlaunch --bind=nu", COMPLETE), "dlaunch --bind=numa ")
        self.assertEqual(shell.line_after("dlaunch --launcher sl", COMPLETE), "dlaunch --launcher slurm ")
        self.assertEqual(shell.line_after("dlaunch --hosts log", COMPLETE).rstrip(" ,"), "dlaunch --hosts login")
        self.assertEqual(shell.line_after("dlaunch -H node2,log", COMPLETE).rstrip(" ,"), "dlaunch -H node2,login")
        self.assertEqual(shell.line_after("dlaunch docto", COMPLETE), "dlaunch doctor ")
        # Options that --help names beside others.
        self.assertEqual(shell.line_after("dlaunch --trace-l", COMPLETE).rstrip("= "), "dlaunch --trace-last")
        self.assertEqual(shell.line_after("dlaunch --trace-last 60s --simulate-n", COMPLETE).rstrip("= "),
                         "dlaunch --trace-last 60s --simulate-nodes")
        self.assertEqual(shell.line_after("dlaunch kill --n", COMPLETE), "dlaunch kill --now ")
        self.assertEqual(shell.line_after("dlaunch kill " + job[:14], COMPLETE), f"dlaunch kill {job} ")
        self.assertEqual(shell.line_after("dlaunch top --interval 5 " + job[:14], COMPLETE), f"dlaunch top --interval 5 {job} ")
        self.assertEqual(shell.line_after("dlaunch trace --for 1m " + job[:14], COMPLETE), f"dlaunch trace --for 1m {job} ")
        self.assertEqual(shell.line_after("dlaunch trace --output numbers.t", COMPLETE), "dlaunch trace --output numbers.txt ")
        self.assertEqual(shell.line_after("dlaunch stacks --rank 0 " + job[:14], COMPLETE), f"dlaunch stacks --rank 0 {job} ")
        self.assertEqual(shell.line_after("dlaunch --hostfile numbers.t", COMPLETE), "dlaunch --hostfile numbers.txt ")
        self.assertEqual(shell.line_after("dlaunch --log-dir numb", COMPLETE), "dlaunch --log-dir numbers.d/")
        self.assertEqual(shell.line_after("dlaunch --grace 5 cat numbers.t", COMPLETE),
                         "dlaunch --grace 5 cat numbers.txt ")
        self.assertEqual(shell.line_after("dlaunch completion z", COMPLETE), "dlaunch completion zsh ")
        self.assertEqual(shell.line_after("dlaunch --hostfile two\\ words.t", COMPLETE), "dlaunch --hostfile two\\ words.txt ")
        self.assertEqual(shell.line_after("dlaunch --log-dir two", COMPLETE), "dlaunch --log-dir two\\ words.d/")
        self.assertEqual(shell.line_after("dlaunch -n 2 cat two\\ words.t", COMPLETE), "dlaunch -n 2 cat two\\ words.txt ")
        # Values with colons and equals signs, at which readline splits words.
        self.assertEqual(shell.line_after("dlaunch --hosts node2:4,log", COMPLETE).rstrip(" ,"), "dlaunch --hosts node2:4,login")
        self.assertEqual(shell.line_after("dlaunch --hosts=node2:4,log", COMPLETE).rstrip(" ,"), "dlaunch --hosts=node2:4,login")
        for option in ("--metrics 127.0.0.1:9400", "--port-range 29400:29500", "--env A=b:c", "--env=A=b"):
            self.assertEqual(shell.line_after(f"dlaunch {option} --bin", COMPLETE).rstrip("= "), f"dlaunch {option} --bind")
        self.assertEqual(shell.line_after("dlaunch --rank-order file:x --hostfile numbers.t", COMPLETE),
                         "dlaunch --rank-order file:x --hostfile numbers.txt ")
        # A colon between blanks begins another program.
        self.assertEqual(shell.line_after("dlaunch -n 1 cat : -n 2 cat numbers.t", COMPLETE),
                         "dlaunch -n 1 cat : -n 2 cat numbers.txt ")
        # An option of the program is none of dlaunch's.
        self.assertEqual(shell.line_after("dlaunch cat --simulate-n", COMPLETE).rstrip(), "dlaunch cat --simulate-n")
        if all_matches:
            self.assertEqual(sorted(shell.line_after("dlaunch --on-failure ", ALL).split()[2:]),
                             ["continue", "end", "restart"])
            self.assertEqual(sorted(word.rstrip("=") for word in shell.line_after("dlaunch stacks --", ALL).split()[2:]), ["--json", "--rank"])

    def check_other_programs(self, shell):
        self.assertEqual(shell.line_after("plan chec", COMPLETE), "plan check ")
        self.assertEqual(shell.line_after("plan show --cyc", COMPLETE), "plan show --cyclic ")
        self.assertEqual(shell.line_after("plan list all_re", COMPLETE), "plan list all_reduce ")
        self.assertEqual(shell.line_after("schedule show --file numbers.t", COMPLETE), "schedule show --file numbers.txt ")
        self.assertEqual(shell.line_after("blackbox --file numbers.t", COMPLETE), "blackbox --file numbers.txt ")

    def test_bash(self):
        folder = Folder(self)
        job = running_job(self, folder.environment)
        for way in ("source <(dlaunch completion bash)", f"source {SHARE}/bash-completion/completions/dlaunch"):
            folder.write("rc", f"{way}\n{BASH}")
            shell = Shell(["bash", "--noprofile", "--rcfile", folder.path + "/rc", "-i"], folder.environment,
                          folder.path)
            self.addCleanup(shell.end)
            self.check(shell, job, all_matches=True)
        folder.write("rc", "".join(f"source {SHARE}/bash-completion/completions/{name}\n" for name in OTHERS) + BASH)
        shell = Shell(["bash", "--noprofile", "--rcfile", folder.path + "/rc", "-i"], folder.environment, folder.path)
        self.addCleanup(shell.end)
        self.check_other_programs(shell)
        # zsh lists the option, and does not insert it where an operand without choices may stand.
        self.assertEqual(shell.line_after("collperf --in-pl", COMPLETE), "collperf --in-place ")

    def test_zsh(self):
        if shutil.which("zsh") is None:
            self.skipTest("zsh is not installed")
        folder = Folder(self)
        job = running_job(self, folder.environment)
        environment = {**folder.environment, "ZDOTDIR": folder.path}
        for before, after in (("", "source <(dlaunch completion zsh)"), (f"fpath=({SHARE}/zsh/site-functions $fpath)", "")):
            folder.write(".zshrc", f"{before}\nautoload -U compinit\ncompinit -u -D\n{after}\n{ZSH}")
            shell = Shell(["zsh", "-d", "-i"], environment, folder.path)
            self.addCleanup(shell.end)
            self.check(shell, job, all_matches=True)
            if before:  # those that are installed
                self.check_other_programs(shell)

    def test_fish(self):
        if shutil.which("fish") is None:
            self.skipTest("fish is not installed")
        folder = Folder(self)
        job = running_job(self, folder.environment)

        def words(line):
            script = f"source {SHARE}/fish/vendor_completions.d/dlaunch.fish; complete -C '{line}'"
            done = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True, cwd=folder.path,
                                  env=folder.environment, timeout=DEADLINE_S, check=False)
            self.assertEqual(done.stderr, "")
            return sorted(text.split("\t")[0] for text in done.stdout.splitlines())

        self.assertEqual(words("dlaunch --simulate-n"), ["--simulate-nodes"])
        self.assertEqual(words("dlaunch --on-failure "), ["continue", "end", "restart"])
        self.assertEqual(words("dlaunch --bind=nu"), ["--bind=numa"])
        self.assertEqual(words("dlaunch --hosts log"), ["login"])
        self.assertEqual(words("dlaunch --hosts node2,log"), ["node2,login"])
        self.assertEqual(words("dlaunch kill " + job[:14]), [job])
        self.assertEqual(words("dlaunch kill --n"), ["--now"])
        self.assertIn("doctor", words("dlaunch doc"))
        self.assertEqual(words("dlaunch cat --simulate-n"), [])
        self.assertEqual(words("dlaunch trace " + job[:14]), [job])

    def test_hosts_of_the_last_jobs_are_offered(self):
        folder = Folder(self)
        folder.write("ssh", '#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
        os.chmod(folder.path + "/ssh", 0o755)
        job = subprocess.run([DLAUNCH, "--hosts", "127.0.0.2,node2", "--ssh", folder.path + "/ssh", "true"],
                             capture_output=True, text=True, env=folder.environment, timeout=DEADLINE_S, check=False)
        hosts = subprocess.run([DLAUNCH, "completion", "hosts"], capture_output=True, text=True, env=folder.environment,
                               timeout=DEADLINE_S, check=True).stdout.split()
        self.assertEqual(hosts, ["127.0.0.2", "node2", "node1", "login"], job.stderr)

    def test_a_home_that_takes_no_file_keeps_no_job(self):
        folder = Folder(self)
        folder.write("plain", "")
        folder.write("ssh", '#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
        os.chmod(folder.path + "/ssh", 0o755)
        environment = {**folder.environment, "XDG_STATE_HOME": folder.path + "/plain"}
        job = subprocess.run([DLAUNCH, "--hosts", "127.0.0.2", "--ssh", folder.path + "/ssh", "echo", "it ran"],
                             capture_output=True, text=True, env=environment, timeout=DEADLINE_S, check=False)
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertIn("it ran", job.stdout)
        self.assertEqual(subprocess.run([DLAUNCH, "completion", "hosts"], capture_output=True, env=environment,
                                        timeout=DEADLINE_S, check=True).stdout, b"")

    def test_another_shell_is_refused_with_those_that_there_are(self):
        done = subprocess.run([DLAUNCH, "completion", "tcsh"], capture_output=True, text=True, timeout=DEADLINE_S,
                              check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("bash, zsh and fish", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
