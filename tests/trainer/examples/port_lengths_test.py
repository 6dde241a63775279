#!/usr/bin/env python3
"""port_lengths_test.py <trainer/examples/ports> <the Python programs>: no port is longer than 1.2 times the Python program that it was.

Lines that hold code count: not those that are empty or hold a comment or documentation only."""

import os
import re
import sys

LIMIT = 1.2


def python_lines(text):
    text = re.sub(r'^\s*"""(.|\n)*?"""', "", text, flags=re.MULTILINE)
    return [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def cpp_lines(text):
    return [line for line in text.splitlines() if line.strip() and not line.strip().startswith("//")]


def main(folder, python_folder):
    failed = False
    names = sorted(name[:-3] for name in os.listdir(folder) if name.startswith("port_") and name.endswith(".cc"))
    if len(names) < 3:
        print(f"found only {names}")
        return 1
    for name in names:
        with open(os.path.join(python_folder, name + ".py")) as file:
            theirs = len(python_lines(file.read()))
        with open(os.path.join(folder, name + ".cc")) as file:
            ours = len(cpp_lines(file.read()))
        print(f"{name}: {ours} lines, {theirs} in Python: {ours / theirs:.2f}")
        failed = failed or ours > LIMIT * theirs
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
