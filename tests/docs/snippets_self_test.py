#!/usr/bin/env python3
"""snippets.py finds what a page shows and does not hold."""
import os
import pathlib
import tempfile
import unittest

import snippets


class Snippets(unittest.TestCase):
    def page(self, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "page.md"
        path.write_text(text, encoding="utf-8")
        return snippets.Page(path)

    def faults(self, text):
        return self.page(text).run(dict(os.environ))[1]

    def test_holds_a_page_that_is_true(self):
        self.assertEqual(self.faults('```python title="a.py"\nprint("1 ms", 7)\n```\n```console\n$ python3 a.py\n25 ms ...\n```\n'), [])

    def test_finds_a_line_that_does_not_come(self):
        self.assertIn("was not printed: b", self.faults("```console\n$ echo a\nb\n```\n")[0])

    def test_finds_a_line_that_is_not_shown(self):
        self.assertIn("is not on the page: a", self.faults("```console\n$ echo a\n```\n")[0])
        self.assertEqual(self.faults("```console\n$ echo a; echo b\n...\nb\n```\n"), [])

    def test_allows_what_is_said_of_ranks_that_end_late(self):
        self.assertEqual(self.faults('```console\n$ echo a; echo "dlaunch: ending the other ranks"\na\n```\n'), [])

    def test_keeps_one_shell(self):
        self.assertEqual(self.faults("```console\n$ A=5\n$ echo $A; (exit 3)\n5\n$ echo $?\n3\n```\n"[:-13] + "```\n"), [])

    def test_finds_blocks_that_nothing_runs(self):
        self.assertEqual(len(list(self.page("```python\nx\n```\n```sh\ny\n```\n<!-- not run: why -->\n```sh\ny\n```\n").faults())), 2)

    def found(self, text):
        return [fault.split(": ", 1)[1] for fault in self.page(text).faults()]

    def test_finds_needs_that_it_does_not_know(self):
        self.assertIn("no need 'numpi'", self.found("<!-- needs: torch numpi -->\n")[0])
        self.assertEqual(len(self.found("<!-- needs: torch, mpi -->\n")), 1)  # 'torch,'

    def test_finds_files_that_no_command_uses(self):
        file = '```python title="a.py"\nx = 1\n```\n'
        self.assertEqual(self.found(file), ["no console block uses a.py"])
        self.assertEqual(self.found(file + "```console\n$ python3 data.py\n```\n"), ["no console block uses a.py"])
        self.assertEqual(self.found(file + "```console\n$ python3 ./a.py\n```\n"), [])
        self.assertEqual(self.found(file + '```python title="b.py"\nimport a\n```\n```console\n$ python3 b.py\n```\n'), [])

    def test_finds_commands_for_which_dots_alone_are_shown(self):
        self.assertIn("dots alone", self.found("```console\n$ echo a\n...\n```\n")[0])
        self.assertEqual(self.found("```console\n$ echo a\n...\na\n$ true\n```\n"), [])

    def test_takes_lines_in_any_order(self):
        self.assertEqual(self.faults("```console\n$ echo b; echo a\na\nb\n```\n"), [])


if __name__ == "__main__":
    unittest.main()
