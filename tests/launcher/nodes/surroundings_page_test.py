"""launcher/nodes/SURROUNDINGS.md is true: dlaunch runs with each row's variables and options, and does what the row says;
and the page lists the variables that the sources of nodes read: all of them, and no others."""
import concurrent.futures
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT, DLAUNCH = pathlib.Path(sys.argv[1]), str(pathlib.Path(sys.argv[2]).resolve())
del sys.argv[1:]
PAGE = (ROOT / "launcher/nodes/SURROUNDINGS.md").read_text()
HERE = socket.gethostname()
FILES = {"two": "c1\nc1\nc2\n", "pe": "c1 2 all.q UNDEFINED\nc2 1 all.q UNDEFINED\n", "mpi": "c1 slots=2\nc2 slots=1\n", "hydra": "c1:2\nc2:1\n",
         "here": f"{HERE}\n{HERE}\n"}
# The command is run here, whatever host it is for.
STAND_INS = {"srun": 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n',
             "ssh": 'while [ "$1" != -T ]; do shift; done\neval "$3"\n',
             "blaunch": 'shift\nexec "$@"\n',
             "flux": "echo 2\n"}
LIMIT_S = 60
NOTHING = "nothing"
OTHERS = {"PATH"}


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows():
    """(line, variables, options, status, words) of each row with a status."""
    found = []
    for number, line in enumerate(PAGE.splitlines(), 1):
        row = cells(line) if line.startswith("|") else []
        if len(row) == 5 and row[3].isdigit():
            found.append((number, row[0].strip("`"), row[2].strip("`"), int(row[3]), row[4].strip("`")))
    return found


class SurroundingsPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.at = pathlib.Path(cls.folder.name)
        (cls.at / "bin").mkdir()
        for name, text in FILES.items():
            (cls.at / name).write_text(text)
        for name, text in STAND_INS.items():
            path = cls.at / "bin" / name
            path.write_text("#!/bin/sh\n" + text)
            path.chmod(0o755)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def environment(self, variables):
        # Nothing of this test's own environment: it may run in a job itself.
        found = {"PATH": f"{self.at}/bin:/usr/bin:/bin", "HOME": str(self.at)}
        for assignment in shlex.split(variables):
            name, value = assignment.split("=", 1)
            value = value.replace("HERE", HERE)
            found[name] = str(self.at / value) if value in FILES else value
        return found

    def run_row(self, row):
        """The error in the row; empty: none. A job that would start is placed, and not started."""
        number, variables, options, status, words = row
        dry = [] if status else ["--dry-run"]
        done = subprocess.run([DLAUNCH, *options.split(), *dry, "/bin/true"], env=self.environment(variables),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
        said = done.stdout + done.stderr
        right = not said if words == NOTHING else words in said
        if done.returncode == status and right:
            return ""
        return f"line {number}: {variables} {options}: status {done.returncode}, not {status} with '{words}':\n{said}"

    def test_each_row_does_what_it_says(self):
        self.assertGreater(len(rows()), 80)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            wrong = [text for text in pool.map(self.run_row, rows()) if text]
        self.assertEqual(wrong, [], "\n".join(wrong))

    def test_what_is_refused_names_the_way_out(self):
        for row in rows():
            number, variables, options, status, words = row
            if status != 2:
                continue
            with self.subTest(line=number):
                done = subprocess.run([DLAUNCH, *options.split(), "/bin/true"], env=self.environment(variables),
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
                self.assertRegex(done.stderr, r"--launcher local|Use: srun|--nnodes N")

    def test_it_lists_what_the_sources_read(self):
        read = {}
        for path in sorted((ROOT / "launcher/nodes").rglob("*.cc")):
            for name in re.findall(r'"(_?[A-Z][A-Z0-9]*(?:_[A-Za-z0-9]+)+|RANK|NNODES)"', path.read_text()):
                read.setdefault(name, path.name)
        tried = {assignment.split("=", 1)[0] for row in rows() for assignment in shlex.split(row[1])}
        page = set(re.findall(r"_?[A-Z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+|RANK|NNODES", PAGE))
        self.assertEqual({name: path for name, path in read.items() if name not in page | tried | OTHERS}, {},
                         "read by a source, and not on the page")
        pattern = re.compile(r"VC_\w+_(NUM|HOSTS)$")
        self.assertEqual({name for name in tried if name not in read and not pattern.match(name)} - OTHERS -
                         {"PET_RDZV_ENDPOINT"}, set(), "on the page, and read by no source")


if __name__ == "__main__":
    unittest.main()
