"""Pages: facts that must be written down, and must stay true."""

import os
import re

from tree import FOLDERS, top

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_VARIABLE = re.compile(r'"(COHORT_[A-Z][A-Z0-9_]*)"')


def check_readmes(tree):
    for folder in FOLDERS:
        if f"{folder}/README.md" not in tree.paths:
            yield f"{folder}/README.md", 1, "is missing: each top folder says what it holds"


def check_links(tree):
    for path in tree.named(".md"):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            for target in _LINK.findall(line):
                if re.match(r"[a-z]+:|#", target):
                    continue
                file = os.path.normpath(os.path.join(os.path.dirname(path), target.split("#")[0]))
                if not os.path.exists(os.path.join(tree.root, file)):
                    yield path, number, f"links to {target}, which does not exist"


def _named_files(text):
    """[(line, name)] of a README: what stands in backticks in the first column of its tables of files."""
    found = []
    of_files = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            of_files = False
            continue
        first = line.split("|")[1]
        if first.strip() in ("file", "file or folder", "folder or file"):
            of_files = True
        elif of_files:
            found += [(number, name) for name in re.findall(r"`([^`]+)`", first)]
    return found


def check_files(tree):
    """A README's table of files names none that is not there. A name stands for the files NAME, NAME.h, NAME.cc, ..., or
    for a folder; ".cc" after "worker.h" for worker.cc; a star for any text."""
    for path in tree.named("README.md"):
        folder = os.path.dirname(path)
        stem = ""
        for number, name in _named_files(tree.text(path)):
            if name.startswith((".", "-")):
                name = stem + name
            else:
                stem = name.split(".")[0]
            pattern = re.escape(os.path.normpath(os.path.join(folder, name))).replace(r"\*", "[^/]*")
            if not any(re.match(pattern + r"([./].*)?$", file) for file in tree.paths):
                yield path, number, f"names {name}, which is not there"


def entries(text):
    """[(line, name)] of a .def list: the first string of each MACRO(...) line, or else its first argument."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'^[A-Z][A-Z0-9_]*\((?:[^")]*"([^"]+)"|\s*([\w.-]+))', line)
        if match:
            found.append((number, match.group(1) or match.group(2)))
    return found


def _readmes_above(tree, path):
    parts = path.split("/")[:-1]
    return [r for r in ("/".join(parts[:n] + ["README.md"]) for n in range(len(parts), 0, -1)) if r in tree.paths]


def check_lists(tree):
    """Every entry of a .def list stands in the README of its folder or of a folder around it."""
    for path in tree.named(".def"):
        readmes = _readmes_above(tree, path)
        prose = "\n".join(tree.text(r) for r in readmes)
        listed = entries(tree.text(path))
        if not listed:
            yield path, 1, "has no entries of the form MACRO(name, ...)"
        for line, name in listed:
            if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", prose):
                yield path, line, f"{name} is not described in {readmes[0] if readmes else 'a README.md of its folder'}"


def check_environment(tree):
    """runtime/README.md lists the environment variables: all of them, and no others."""
    used = {}
    for path in tree.sources():
        if top(path) == "tests":
            continue
        text = tree.text(path)
        for match in _VARIABLE.finditer(text):
            used.setdefault(match.group(1), (path, text.count("\n", 0, match.start()) + 1))
    page = "runtime/README.md"
    prose = tree.text(page) if page in tree.paths else ""
    listed = set(re.findall(r"`(COHORT_[A-Z][A-Z0-9_]*)`", prose))
    for name in sorted(set(used) - listed):
        yield used[name] + (f"{name} is not described in {page}",)
    for name in sorted(listed - set(used)):
        line = next(n for n, text in enumerate(prose.splitlines(), 1) if name in text)
        yield page, line, f"{name} is described, but no code reads or sets it"


RULES = {"readmes": check_readmes, "links": check_links, "files": check_files, "lists": check_lists,
         "environment": check_environment}
