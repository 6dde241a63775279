#!/usr/bin/env python3
"""Runs what the pages of docs/ show: snippets.py PROGRAMS PYTHON BUILD [page...]

PROGRAMS is the folder of dlaunch, PYTHON that of the Python package; BUILD is installed for programs in C and C++, unless
COHORT_SNIPPET_PREFIX names an install. A page is one shell in an empty folder:

  ```python title="train.py"     a block with a title is the file of that name, which a console block must use
  ```console                     `$ command` lines run; the lines between them are what they print
  ```text, ```sh                 are not run; sh needs `<!-- not run: REASON -->` in the line before

Each printed line of a page must come, `...` stands for any text or for any lines, times and numbers of processes for any.
A command that prints shows a line of it at least: dots alone hold nothing.
`<!-- needs: torch install trainer mpi -->` skips a page where one is absent; NEEDS has all. `<!-- setup: COMMAND -->` runs before.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARK = "cohort-snippet-ends"
SECONDS = 240
NEEDS = ("torch", "numpy", "mpi", "trainer", "install", "tools")
LOOKS = 20  # at a view of a running job, which a page shows at one moment
_BLOCK = re.compile(r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n(?P<text>.*?)^```$",
                    re.M | re.S)
_VARYING = ((r"\b\d+(\.\d+)? ?(ns|us|ms|s|min)\b", "N s"), (r"\b\d+(\.\d+)?( ?(MiB|KiB|GB/s|images/s))\b", r"N\2"),
            (r"(until it failed, N s before its end), exited with code \d+$", r"\1"), (r"\bpid \d+", "pid N"),
            (r"\bjob-[0-9a-f]{16}", "job-N"), (r"\bgroup [0-9a-f]{16}", "group N"), (r"\(\w[\w.-]*\): (after|in|had|never)", r"(HOST): \1"),
            (r"[ \t]+$", ""), (r" {2,}", "  "))

# Lines of dlaunch beside its report, where ranks take more than a second to end.
_LATE = re.compile(r"dlaunch: (ending the other ranks|more on the failure .*that is told above:)")


class Shell:
    """One bash, as a reader has it; commands run one by one."""

    def __init__(self, folder, environment):
        self.process = subprocess.Popen(["bash", "--norc"], cwd=folder, env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def run(self, command):
        self.process.stdin.write(f"{{ {command}\n}} </dev/null\necho; echo {MARK} $?\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line.startswith(MARK):
                return lines[:-1] if lines and not lines[-1] else lines
            lines.append(line.rstrip("\n"))
        return lines + ["(the shell ended)"]

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.communicate()


def same(line):
    for pattern, text in _VARYING:
        line = re.sub(pattern, text, line)
    return line


def missing(expected, printed):
    """The first expected line that was not printed, and the first printed one that nothing stands for. Lines may come in
    another order, since ranks run side by side."""
    left = [same(line) for line in printed if line.strip()]
    open_end = any(line.strip() == "..." for line in expected)
    for line in expected:
        if line.strip() in ("...", ""):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in same(line).split("...")))
        found = next((text for text in left if pattern.fullmatch(text)), None)
        if found is None:
            return f"was not printed: {line}"
        left.remove(found)
    left = [text for text in left if not _LATE.fullmatch(text)]
    return f"is not on the page: {left[0]}" if left and not open_end else None


def uses(text, title):
    """Whether commands or other files name the file, or the module that it is; cmake reads its file unnamed."""
    names = rf"(?<![\w.-]){re.escape(title)}\b|\b(?:import|from|-m) {re.escape(title.removesuffix('.py'))}\b"
    return bool(re.search(r"\bcmake " if title == "CMakeLists.txt" else names, text))


def commands_of(text):
    """[(command, expected lines)] of a console block. A command goes on in the next line after a backslash."""
    found = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append([line[2:], []])
        elif found and found[-1][0].endswith("\\") and not found[-1][1]:
            found[-1][0] += "\n" + line.removeprefix("> ")
        elif found:
            found[-1][1].append(line)
    return found


class Page:
    def __init__(self, path):
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.needs = [need for needs in re.findall(r"<!-- needs: (.*?) -->", self.text) for need in needs.split()]
        self.setup = re.findall(r"<!-- setup: (.+?) -->", self.text)
        self.blocks = list(_BLOCK.finditer(self.text))

    def faults(self):
        """Needs that the test does not know, blocks that no test can run, and those that hold nothing."""
        for need in self.needs:
            if need not in NEEDS:
                yield f"{self.path}: the test knows no need '{need}'; it knows {', '.join(NEEDS)}"
        consoles = [block["text"] for block in self.blocks if block["language"] == "console"]
        commands = "\n".join([*self.setup, *(command for text in consoles for command, _ in commands_of(text))])
        for text in consoles:
            for command, expected in commands_of(text):
                if expected and all(line.strip() in ("...", "") for line in expected):
                    yield f"{self.path}: $ {command}: dots alone hold for anything; show a line that it prints"
        for block in self.blocks:
            others = "".join(one["text"] for one in self.blocks if one["title"] and one is not block)
            if block["title"] and not uses(commands + "\n" + others, block["title"]):
                yield f"{self.path}: no console block uses {block['title']}"
            line = self.text.count("\n", 0, block.start("language")) + 1
            language, title = block["language"], block["title"]
            if language in ("python", "cpp", "c", "cmake", "yaml", "json") and not title:
                yield f"{self.path}:{line}: a block of {language} needs title=\"FILE\", and a console block that runs it"
            elif language == "sh" and not block["reason"]:
                yield f"{self.path}:{line}: a block of sh is not run, and no line before it says why"
            elif language not in ("python", "cpp", "c", "cmake", "yaml", "json", "sh", "console", "text"):
                yield f"{self.path}:{line}: the test knows no blocks of '{language}'"

    def run(self, environment):
        """(commands run, faults)"""
        count, faults = 0, []
        with tempfile.TemporaryDirectory(prefix="cohort-page-") as folder:
            shell = Shell(folder, environment)
            signal.signal(signal.SIGALRM, lambda *_: shell.end())
            signal.alarm(SECONDS)
            for command in self.setup:
                shell.run(command)
            for block in self.blocks:
                if block["title"]:
                    (pathlib.Path(folder) / block["title"]).write_text(block["text"], encoding="utf-8")
                elif block["language"] == "console":
                    for command, expected in commands_of(block["text"]):
                        printed = shell.run(command)
                        count += 1
                        fault = missing(expected, printed)
                        for _ in range(LOOKS if command.startswith(("dlaunch top ", "dlaunch stacks ")) else 0):
                            if not fault:
                                break
                            time.sleep(0.3)
                            printed = shell.run(command)
                            fault = missing(expected, printed)
                        if fault:
                            faults.append(f"{self.path}: $ {command}\n  {fault}\n  " + "\n  | ".join(["it printed:"] + printed))
            signal.alarm(0)
            shell.end()
        return count, faults


def absent(need, programs, package, prefix):
    """Why a page that needs it cannot run here, or None."""
    if need in ("torch", "numpy") and not list(pathlib.Path(package).glob("dlaunch/_comm*")):
        return "this build has no Python module"
    if need == "torch":
        ran = subprocess.run(["/usr/bin/python3", "-c", "import torch, numpy"], capture_output=True, check=False)
        return None if ran.returncode == 0 else "Debian's Python has no torch"
    if need == "numpy":
        ran = subprocess.run(["/usr/bin/python3", "-c", "import numpy"], capture_output=True, check=False)
        return None if ran.returncode == 0 else "Debian's Python has no numpy"
    if need == "mpi":
        compiler = shutil.which("mpicxx.mpich")
        works = compiler and subprocess.run([compiler, "-E", "-x", "c++", "-"], input="#include <mpi.h>\n", text=True,
                                            capture_output=True, check=False).returncode == 0
        return None if works else "there is no MPICH with a compiler"
    if need == "trainer":
        return None if (programs / "train_digits").exists() else "this build has no trainer"
    if need == "install":
        return None if prefix else "this build cannot be installed: not all of it is built"
    if need == "tools":
        return None if (programs / "blackbox").exists() else "blackbox is not built"
    return f"the test knows no need '{need}'"  # a fault of the page, too


def install(build, folder):
    """The prefix of an install, or an empty text where the build is not whole."""
    if os.environ.get("COHORT_SNIPPET_PREFIX"):
        return os.environ["COHORT_SNIPPET_PREFIX"]
    ran = subprocess.run(["cmake", "--install", build, "--prefix", folder], capture_output=True, check=False)
    return folder if ran.returncode == 0 else ""


def main(programs, package, build, *names):
    programs = pathlib.Path(programs).resolve()
    pages = [Page(pathlib.Path(n)) for n in names] or [Page(p) for p in sorted((ROOT / "docs").rglob("*.md"))]
    faults = [f for page in pages for f in page.faults()]
    count = skipped = 0
    with tempfile.TemporaryDirectory(prefix="cohort-python-") as folder:
        os.symlink("/usr/bin/python3", os.path.join(folder, "python3"))
        prefix = install(build, os.path.join(folder, "prefix"))
        environment = {**os.environ, "PATH": f"{folder}:{programs}:{os.environ['PATH']}", "PYTHONPATH": package,
                       "COHORT": prefix, "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig:{prefix}/lib/x86_64-linux-gnu/pkgconfig",
                       "SOURCE": str(ROOT), "OMP_NUM_THREADS": "1", "PS1": ""}
        for page in pages:
            reason = next(filter(None, (absent(need, programs, package, prefix) for need in page.needs)), None)
            if reason:
                print(f"skipped: {page.path.relative_to(ROOT) if page.path.is_relative_to(ROOT) else page.path}: {reason}")
                skipped += 1
                continue
            ran, found = page.run(environment)
            count += ran
            faults += found
    print("\n".join(faults))
    print(f"{len(pages)} pages, {skipped} skipped, {count} commands run, {len(faults)} faults")
    return bool(faults)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
