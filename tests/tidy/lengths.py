"""Sizes that keep a file one concept and a function one thought."""

import functions

FILE_LINES = 500
FUNCTION_LINES = 70
EXCEPTIONS = "tests/tidy/exceptions.txt"


def _exceptions(tree):
    """{(kind, path, name): line in the list}"""
    found = {}
    if EXCEPTIONS in tree.paths:
        for number, text in enumerate(tree.text(EXCEPTIONS).splitlines(), 1):
            words = text.split(None, 2)
            if words and not text.startswith("#"):
                found[tuple(words + [""] * (3 - len(words)))] = number
    return found


def _too_long(tree):
    """(key, line, message) of everything above its limit."""
    for path in tree.sources() + tree.named(".py", ".cmake", "CMakeLists.txt", ".sh", ".proto", "tools/dev"):
        lines = tree.text(path).count("\n")
        if lines > FILE_LINES:
            yield ("file", path, ""), 1, f"has {lines} lines; the limit is {FILE_LINES}"
    for path in tree.sources():
        for name, line, lines in functions.find(tree.code(path)):
            if lines > FUNCTION_LINES:
                yield ("function", path, name), line, f"{name} has {lines} lines; the limit is {FUNCTION_LINES}"


def exceptions(tree, kinds, findings):
    """Those of `findings`, [((kind, path, name), line, message)], that are not in the list of exceptions, and the entries
    of these kinds that are no longer needed."""
    allowed = {key: line for key, line in _exceptions(tree).items() if key[0] in kinds}
    needed = set()
    for key, line, message in findings:
        if key in allowed:
            needed.add(key)
        else:
            yield key[1], line, message
    for key, line in allowed.items():
        if key not in needed:
            yield EXCEPTIONS, line, f"'{' '.join(key).strip()}' is no longer needed: remove it"


def check_lengths(tree):
    yield from exceptions(tree, ("file", "function"), _too_long(tree))


RULES = {"lengths": check_lengths}
