"""Finds the functions of a C++ file: a brace matcher, not a parser: it needs no compiler and is right often enough."""

import re

_LABEL = re.compile(r"^\s*(public|private|protected)\s*:")
_ATTRIBUTE = re.compile(r"\[\[.*?\]\]", re.DOTALL)
# Words and marks that may stand between a parameter list and a body.
_TAIL = re.compile(r"(\b(const|noexcept|override|final|try|mutable|volatile)|[)\]&}])\s*$")


_NAME = re.compile(r"((?:[A-Za-z_]\w*\s*::\s*)*~?(?:operator\s*[^\s\w(]+|operator\s*\(\s*\)|[A-Za-z_]\w*))\s*\(")


def _name(head):
    found = _NAME.search(head)
    name = re.sub(r"\s", "", found.group(1)) if found else "?"
    arguments = re.match(r"^(TEST|TEST_F|TEST_P|TYPED_TEST|BENCHMARK_F)\s*\(([^)]*)\)", head.strip())
    return f"{arguments.group(1)}({', '.join(a.strip() for a in arguments.group(2).split(','))})" if arguments else name


def _kind(head, inside):
    """The kind of scope that an opening brace begins, from the text since the last ; { or } and the kind of the scope around it."""
    if inside in ("function", "block", "value"):
        return "block"
    head = _ATTRIBUTE.sub("", head).strip()
    if re.search(r"\bnamespace\b", head) or re.search(r'\bextern\s*""\s*$', head):
        return "scope"
    returns_one = re.search(r"\)\s*(const|noexcept|override)*\s*$", head)
    if re.search(r"(^|[\s>])(class|struct|union|enum)\b", head) and not returns_one:
        return "scope"
    if "(" not in head:
        return "value"
    declaration = re.sub(r"\boperator\s*\S+?\s*\(", "operator(", head)
    if re.search(r"(?<![=!<>])=(?!=)", re.sub(r"\([^()]*(\([^()]*\)[^()]*)*\)|<[^<>]*>", "", declaration)):
        return "value"  # a variable with an initialiser
    if re.search(r"\)\s*(noexcept\s*)?:(?!:)", head) and not _TAIL.search(head):
        return "initialiser"  # a_{...} of a constructor, whose body is yet to come
    return "function"


def find(code):
    """[(name, first line, lines)] of each outermost function body in code whose comments and strings are blank."""
    functions = []
    scopes = []  # (kind, name, line)
    head = ""
    line = 1
    code = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda m: "\n" * m.group(0).count("\n"), code, flags=re.MULTILINE)
    for character in code:
        if character == "\n":
            line += 1
        if character == "{":
            kind = _kind(_LABEL.sub("", head), scopes[-1][0] if scopes else "scope")
            scopes.append((kind, _name(head) if kind == "function" else "", line, head))
            head = ""
        elif character == "}":
            kind, name, began, before = scopes.pop() if scopes else ("scope", "", line, "")
            if kind == "function":
                functions.append((name, began, line - began + 1))
            head = before + "{}" if kind in ("initialiser", "value") else ""
        elif character == ";" and head.count("(") <= head.count(")"):
            head = ""
        else:
            head += character
    return functions
