#!/usr/bin/env python3
"""Every public symbol of a header has a comment or a sentence: symbols_test.py FOLDER. Skipped without Doxygen."""
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
if not shutil.which(os.environ.get("DOXYGEN", "doxygen")):
    print("skipped: all: there is no Doxygen; tools/dev setup --services installs it")
    sys.exit(77)
FOLDER = pathlib.Path(sys.argv.pop())
sys.path.insert(0, str(ROOT / "tools/docs"))

import api  # noqa: E402


def symbol(name, kind):
    made = object.__new__(api.Symbol)
    made.__dict__.update(name=name, kind=kind, scope="", file="", line=1, text="", shared="", values=[])
    return made


class Symbols(unittest.TestCase):
    def test_all_public_symbols_are_described(self):
        ran = subprocess.run([sys.executable, "-B", ROOT / "tools/docs/build.py", "--symbols", FOLDER], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout)

    def test_a_word_of_the_files_head_describes_a_class_and_no_function(self):
        path = FOLDER / "head.h"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("// A Thing of some size.\n#pragma once\n\nclass Thing;\n\nint size();\n", encoding="utf-8")
        thing, size = symbol("Thing", "class"), symbol("size", "function")
        api.share_comments(path, [thing, size])
        self.assertTrue(thing.documented)
        self.assertFalse(size.documented)


if __name__ == "__main__":
    unittest.main(verbosity=2)
