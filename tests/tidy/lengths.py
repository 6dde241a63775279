"""Sizes that keep a file one concept and a function one thought."""

import math

import functions

FILE_LINES = 500
FUNCTION_LINES = 70
PAGE_WORDS = 1500
README_WORDS = 900
EXCEPTIONS = "tests/tidy/exceptions.txt"


def _exceptions(tree):
    """{(kind, path, name): (line in the list, the size that it allows)}"""
    found = {}
    if EXCEPTIONS in tree.paths:
        for number, text in enumerate(tree.text(EXCEPTIONS).splitlines(), 1):
            words = text.split()
            if words and not text.startswith("#"):
                most = int(words.pop()) if words[-1].isdigit() else math.inf
                found[(words[0], words[1], " ".join(words[2:]))] = number, most
    return found


def _too_long(tree):
    """(key, line, size, message) of everything above its limit."""
    for path in tree.sources() + tree.named(".py", ".cmake", "CMakeLists.txt", ".sh", ".proto", "tools/dev"):
        lines = tree.text(path).count("\n")
        if lines > FILE_LINES:
            yield ("file", path, ""), 1, lines, f"has {lines} lines; the limit is {FILE_LINES}"
    for path in tree.named(".md"):
        words = len(tree.text(path).split())
        limit = README_WORDS if path == "README.md" else PAGE_WORDS
        if words > limit and not path.endswith("/OPTIONS.md"):  # which is as long as there are options
            yield ("words", path, ""), 1, words, f"has {words} words; the limit is {limit}"
    for path in tree.sources():
        for name, line, lines in functions.find(tree.code(path)):
            if lines > FUNCTION_LINES:
                yield ("function", path, name), line, lines, f"{name} has {lines} lines; the limit is {FUNCTION_LINES}"


def exceptions(tree, kinds, findings):
    """The `findings`, [((kind, path, name), line, size, message)], that the list of exceptions does not allow, and the
    entries of these kinds that are no longer needed. The list only shrinks: nothing on it may grow."""
    allowed = {key: entry for key, entry in _exceptions(tree).items() if key[0] in kinds}
    needed = set()
    for key, line, size, message in findings:
        needed.add(key)
        if key not in allowed:
            yield key[1], line, message
        elif size > allowed[key][1]:
            yield key[1], line, f"{message}, and {EXCEPTIONS} allows {allowed[key][1]}: it may not grow"
    for key, (line, _) in allowed.items():
        if key not in needed:
            yield EXCEPTIONS, line, f"'{' '.join(key).strip()}' is no longer needed: remove it"


def check_lengths(tree):
    yield from exceptions(tree, ("file", "function", "words"), _too_long(tree))


RULES = {"lengths": check_lengths}
