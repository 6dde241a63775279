"""The files of the repository, as the rules see them."""

import functools
import io
import os
import re
import subprocess
import tokenize

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAYERS = ("proto", "runtime", "comm", "launcher", "trainer", "python")
FOLDERS = LAYERS + ("docs", "tests", "tools", "deploy")

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)
# Comments, raw strings, strings and characters. A quote between digits (1'000) is a separator, not a character.
_LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|'
    r"(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'",
    re.DOTALL)


class Tree:
    """A folder with sources; `paths` are relative to its root, with slashes."""

    def __init__(self, root, paths):
        self.root = root
        self.paths = sorted(paths)

    @functools.lru_cache(maxsize=None)
    def text(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8") as file:
            return file.read()

    @functools.lru_cache(maxsize=None)
    def code(self, path):
        """The text with comments and the insides of strings blanked, line for line."""
        return strip_literals(self.text(path))

    @functools.lru_cache(maxsize=None)
    def includes(self, path):
        """[(line, header)] as written."""
        text = self.text(path)
        return [(text.count("\n", 0, m.start()) + 1, m.group(2)) for m in _INCLUDE.finditer(text)]

    @functools.lru_cache(maxsize=None)
    def comments(self, path):
        """[(line, text without its mark, whether it has the line for itself)], an entry for each line of a comment or of a docstring."""
        if path.endswith(".py"):
            return list(_python_comments(self.text(path)))
        if path.endswith((".sh", ".cmake", "CMakeLists.txt")):
            return list(_script_comments(self.text(path)))
        return list(_cpp_comments(self.text(path)))

    @functools.lru_cache(maxsize=None)
    def strings(self, path):
        """[(line, text)] of the strings of a C++ file; those that stand side by side are one."""
        found, end, text = [], 0, self.text(path)
        for match in _LITERAL.finditer(text):
            if match.group(0)[0] not in '"R':
                continue
            body = match.group(0).partition('"')[2].rpartition('"')[0]
            if found and not text[end:match.start()].strip():
                found[-1] = (found[-1][0], found[-1][1] + body)
            else:
                found.append((text.count("\n", 0, match.start()) + 1, body))
            end = match.end()
        return found

    def sources(self, *folders):
        """C++ files, in the given top folders or in all."""
        return [p for p in self.paths if p.endswith((".cc", ".h", ".cu")) and (not folders or top(p) in folders)]

    def named(self, *endings):
        return [p for p in self.paths if p.endswith(endings)]


def strip_literals(text):
    def blank(match):
        found = match.group(0)
        keep = found[0] if found[0] in "\"'" else ""
        lines = "\n" * found.count("\n")
        return keep + lines + keep if keep else (" " + lines if found[0] == "/" else '""' + lines)

    return _LITERAL.sub(blank, text)


def _cpp_comments(text):
    for match in _LITERAL.finditer(text):
        if match.group(0)[0] != "/":
            continue
        number = text.count("\n", 0, match.start()) + 1
        alone = not text[text.rfind("\n", 0, match.start()) + 1:match.start()].strip()
        for i, line in enumerate(match.group(0).split("\n")):
            yield number + i, line.strip(" \t/*!<"), alone or i > 0


def _python_comments(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.strip("# \t"), not token.line[:token.start[1]].strip()
        elif token.type == tokenize.STRING and token.string.startswith('"""') and not token.line[:token.start[1]].strip():
            for i, line in enumerate(token.string[3:-3].splitlines()):
                yield token.start[0] + i, line.strip(), True


def _script_comments(text):
    """Comments with a line for themselves: behind code a # may be part of a word or a string."""
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*#(?!!)", line):
            yield number, line.strip("# \t"), True


def top(path):
    return path.split("/")[0] if "/" in path else ""


def load(root=ROOT):
    """The files that git tracks or would track; without git (a source archive), every file outside build folders."""
    try:
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, check=True,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = list(_walk(root))
    return Tree(root, [p for p in set(listed) if p and os.path.isfile(os.path.join(root, p))])


def _walk(root):
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in ("build", ".git", "__pycache__")]
        for name in files:
            yield os.path.relpath(os.path.join(folder, name), root)
