#!/usr/bin/env python3
"""Doxygen's input filter: `doxygen_filter.py HEADER` prints the header with comments in the form that Doxygen reads.

Headers have plain comments. One above a declaration becomes `///`, one behind it `///<` with its further lines. The
comment at the head of a file is left out: api.py prints it at the top of the header's page. TORCH_ARG(bool, bias) = true
becomes the field bias.
"""
import re
import sys

_ALONE = re.compile(r"^(\s*)//(?!/) ?(.*)$")
_BEHIND = re.compile(r"^(.*?[;,{}=\w)]\s*)//(?!/) ?(.*)$")
_OPTION = re.compile(r"\bTORCH_ARG\((.+), (\w+)\)")  # libtorch's: a field with a function that sets it and one that reads it
_BLOCK = re.compile(r"^(.*?)/\*(?!\*) ?(.*)$")


def _plain(text):
    """Text in which Doxygen sees no command and no markup."""
    text = text.replace("\\", "\\\\").replace("@", "\\@").replace("&", "&amp;").replace("<", "&lt;")
    return text.replace(">", "&gt;").replace("#", "\\#").replace("*", "&#42;").replace("_", "&#95;") if "`" not in text else text


def _lines(lines):
    """C++ comments, line by line."""
    column = None  # of a comment behind code, which may go on in the next line
    for line in lines:
        line = _OPTION.sub(r"\1 \2", line)
        alone, found = _ALONE.match(line), _BEHIND.match(line)
        if alone and len(alone[1]) == column:
            yield f"{alone[1]}///< {_plain(alone[2])}"
        elif alone:
            column = None
            yield f"{alone[1]}/// {_plain(alone[2])}"
        elif found and found[1].count('"') % 2 == 0 and not found[1].lstrip().startswith("#"):
            column = len(found[1])
            yield f"{found[1]}///< {_plain(found[2])}"
        else:
            column = None
            yield line


def _blocks(lines):
    """C comments, which may go over several lines."""
    inside = False
    for line in lines:
        found = None if inside else _BLOCK.match(line)
        if found:
            mark = "/**<" if found[1].strip() else "/**"
            inside = "*/" not in line
            text, end, rest = found[2].partition("*/")
            yield f"{found[1]}{mark} {_plain(text)}{end}{rest}"
        elif inside:
            text, end, rest = line.partition("*/")
            inside = not end
            star = re.match(r"^(\s*\*?)(.*)$", text)
            yield f"{star[1]}{_plain(star[2])}{end}{rest}"
        else:
            yield line


def head_of(text):
    """(the comment at the head of a file as lines without marks, the number of lines that it takes)."""
    lines = text.splitlines()
    if lines and lines[0].startswith("/*"):
        size = next(n for n, line in enumerate(lines, 1) if line.rstrip().endswith("*/"))
        plain = [re.sub(r"^(/\*| \*) ?|\s*\*/$", "", line) for line in lines[:size]]
        return plain, size
    size = next((n for n, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return [line[2:].removeprefix(" ") for line in lines[:size]], size


def translate(text):
    _, size = head_of(text)
    lines = [""] * size + text.splitlines()[size:]
    return "\n".join(_blocks(lines) if text.startswith("/*") else _lines(lines)) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.write(translate(file.read()))
