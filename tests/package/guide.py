#!/usr/bin/env python3
"""Writes the parts of a Markdown page that are marked `<!-- tested: NAME -->` into files of those names.

usage: guide.py PAGE FOLDER
"""
import pathlib
import re
import sys

page, folder = sys.argv[1:]
parts = re.findall(r"<!-- tested: (\S+) -->\n```\w*\n(.*?)^```$", pathlib.Path(page).read_text(), re.DOTALL | re.MULTILINE)
assert parts, "%s has no tested parts" % page
for name, text in parts:
    pathlib.Path(folder, name).write_text(text)
