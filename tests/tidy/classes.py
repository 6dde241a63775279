"""Sizes that keep a class one thing and a folder one room."""

import collections
import posixpath
import re

import functions
from lengths import exceptions
from tree import LAYERS, top

# Above these a look is due. tests/tidy/exceptions.txt has what was above them already, with its size.
METHODS = 25
BOOLEANS = 5
FOLDER_FILES = 25
# Its files are a list: one an algorithm.
LISTS = ("comm/algorithm",)

_CLASS = re.compile(r"\b(?:class|struct)\s+(?:\[\[[^\]]*\]\]\s*)?([A-Z]\w*)\b[^;{}()=]*\{")
_LABEL = re.compile(r"\b(?:public|private|protected)\s*:(?!:)")
_BOOLEAN = re.compile(r"^(?:mutable\s+)?(?:bool|std::atomic\s*<\s*bool\s*>|std::atomic_bool)\s+(\w.*)$", re.DOTALL)
_CALLED = re.compile(r"(~?\w+|operator\s*\S+)\s*\(")
_NO_METHOD = re.compile(r"^(using|typedef|friend|static_assert|template\s*<[^>]*>\s*(friend|using))\b")
# Values that somebody sets: their booleans are settings or properties, and no states.
_SETTINGS = re.compile(r"(Options|Settings|Config|Request|Record|Environment|Traits)$")


def _members(body):
    """The declarations at the top of a class body, without what stands in their braces."""
    depth, piece = 0, ""
    for character in body:
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0 and "(" in piece and "=" not in piece.split("(")[0]:
                yield piece
                piece = ""
        elif depth == 0 and character == ";":
            yield piece
            piece = ""
        elif depth == 0:
            piece += character


def _body(code, begin):
    depth = 1
    for end in range(begin, len(code)):
        depth += {"{": 1, "}": -1}.get(code[end], 0)
        if depth == 0:
            return code[begin:end]
    return ""


def find(code):
    """[(name, line, methods, boolean members)] of every class of code whose comments and strings are blank. Overloads count
    once; constructors and destructors do not count."""
    for match in _CLASS.finditer(code):
        if re.search(r"\benum\s*$", code[:match.start()]):
            continue
        methods, booleans = set(), 0
        for piece in _members(_body(code, match.end())):
            piece = re.sub(r"\s+", " ", _LABEL.sub("", piece)).strip()
            boolean = _BOOLEAN.match(piece)
            if boolean and "(" not in piece:
                booleans += 1 + boolean.group(1).count(",")
                continue
            called = _CALLED.search(re.sub(r"COHORT_\w+\([^()]*\)|std::function<[^;]*>", "", piece))
            if called and not _NO_METHOD.match(piece) and called.group(1).strip("~") != match.group(1):
                methods.add(called.group(1))
        yield match.group(1), code.count("\n", 0, match.start()) + 1, len(methods), booleans


def _too_large(tree):
    for path in tree.sources(*LAYERS):
        for name, line, methods, booleans in find(tree.code(path)):
            if methods > METHODS:
                yield ("methods", path, name), line, methods, f"{name} has {methods} methods; the limit is {METHODS}"
            if booleans > BOOLEANS and not _SETTINGS.search(name):
                yield (("booleans", path, name), line, booleans,
                       f"{name} has {booleans} boolean members; the limit is {BOOLEANS}")


def _cut(tree):
    """Classes whose members are defined in several files."""
    where = collections.defaultdict(dict)
    for path in tree.sources(*LAYERS):
        if not path.endswith(".cc"):
            continue
        for name, line, _ in functions.find(tree.code(path)):
            parts = name.split("::")
            if len(parts) >= 2 and re.match(r"[A-Z]", parts[-2]):
                where[(posixpath.dirname(path), "::".join(parts[:-1]))].setdefault(path, line)
    for (_, name), files in where.items():
        # A class and its stub, of which a build has one, are no halves.
        files = {path: line for path, line in files.items() if not re.search(r"_(stub|unavailable)\.cc$", path)}
        for path in sorted(files)[1:] if len(files) > 1 else ():
            yield ("cut", path, name), files[path], 0, f"defines members of {name}, as {sorted(files)[0]} does"


def check_classes(tree):
    """No class above its limits, but for those listed, and none cut over files to satisfy the limit of a file."""
    yield from exceptions(tree, ("methods", "booleans", "cut"), [*_too_large(tree), *_cut(tree)])


def _full(tree):
    count = collections.Counter(posixpath.dirname(path) for path in tree.sources(*LAYERS))
    for folder, files in sorted(count.items()):
        if files > FOLDER_FILES and folder not in LISTS:
            yield ("files", folder, ""), 1, files, f"has {files} source files at its top; the limit is {FOLDER_FILES}"


def check_folders(tree):
    """A folder with more files than one looks over hides another room."""
    yield from exceptions(tree, ("files",), _full(tree))


RULES = {"classes": check_classes, "folders": check_folders}
