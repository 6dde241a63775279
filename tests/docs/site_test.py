#!/usr/bin/env python3
"""The site builds, has no dead link and loads nothing from a network: site_test.py FOLDER. Skipped without its tools, which
`tools/dev docs` installs. The filter and the checker are tested in any case."""
import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(sys.argv.pop() if len(sys.argv) > 1 else tempfile.mkdtemp())
sys.path.insert(0, str(ROOT / "tools/docs"))

import build  # noqa: E402
import check_site  # noqa: E402
import doxygen_filter  # noqa: E402
import plots  # noqa: E402


class Filter(unittest.TestCase):
    def test_comment_above_and_behind(self):
        text = doxygen_filter.translate("// Head.\n#pragma once\n\n// Above.\nint a;\nint b;  // behind,\n        // and more\n")
        self.assertEqual(text.splitlines()[3:], ["/// Above.", "int a;", "int b;  ///< behind,", "        ///< and more"])
        self.assertNotIn("Head", text)

    def test_comment_of_c(self):
        text = doxygen_filter.translate("/* Head. */\n/* Above. */\nint a; /* behind */\n")
        self.assertEqual(text.splitlines(), ["", "/** Above. */", "int a; /**< behind */"])

    def test_option_of_libtorch_is_a_field(self):
        text = doxygen_filter.translate("#pragma once\n  TORCH_ARG(std::vector<int64_t>, blocks) = {};  // parts\n")
        self.assertEqual(text.splitlines()[1], "  std::vector<int64_t> blocks = {};  ///< parts")


class Pages(unittest.TestCase):
    def test_drawing_keeps_its_lines_and_other_text_does_not(self):
        page = "```text\na ──► b\n```\n\n```text\nan error\n```\n\n```python\na --> b\n```\n"
        shown = build._BLOCK.sub(build._marked, page)
        self.assertEqual(shown.count("{ .text .drawing }"), 1)
        self.assertIn("``` { .text .drawing }\na ──► b\n```", shown)

    def test_option_is_a_heading(self):
        page = "| option | meaning |\n|---|---|\n| `-n, --np N\\|M` | Ranks |\n| `JOB` | A job |\n"
        self.assertEqual(build.with_headings(page), "### `-n, --np N|M`\n\nRanks\n\n### `JOB`\n\nA job\n")

    def test_button_copies_commands_alone(self):
        page = '<div class="language-console highlight"><pre><code><span>$ a &lt; "b" \\\n</span><span>> -c\nprinted\n$ d\n</span></code></pre></div>'
        self.assertIn('<div data-copy="a &lt; &quot;b&quot; \\\n-c\nd" class="language-console', build.with_commands(page))
        other = page.replace("console", "python")
        self.assertEqual(build.with_commands(other), other)

    def test_option_is_not_broken_behind_its_dashes(self):
        shown = build.with_whole_options("<p>--a</p><code><span id=\"x-y\">run --no-pin</span> a-b</code>")
        self.assertEqual(shown, '<p>--a</p><code><span id="x-y">run <span class="option">--no-pin</span></span> a-b</code>')


class Plots(unittest.TestCase):
    def test_panels_are_in_one_column_without_background(self):
        source = next((ROOT / "tools/bench/results").glob("peers-*-ratios.svg")).read_text(encoding="utf-8")
        shown = plots.in_one_column(source)
        root = ElementTree.fromstring(shown)
        self.assertEqual(root.get("width"), "460")
        self.assertNotIn('height="100%" fill="white"', shown)
        self.assertEqual(shown.count("<polyline"), source.count("<polyline"))
        panels = [group.get("transform") for group in root if any(child.get("class") == "title" for child in group)]
        self.assertEqual(len(panels), source.count('class="title"'))
        self.assertEqual(len(set(panels)), len(panels))

    def test_other_picture_stays(self):
        self.assertEqual(plots.in_one_column("<svg><path/></svg>"), "<svg><path/></svg>")


class Checker(unittest.TestCase):
    def check(self, pages):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in pages.items():
                (pathlib.Path(folder) / name).write_text(text, encoding="utf-8")
            return check_site.check(folder)[2]

    def test_dead_page_and_heading(self):
        self.assertEqual(self.check({"a.html": '<a href="b.html#here">x</a><h1 id="t"><a href="#t">x</a>', "b.html": '<h2 id="here">'}), [])
        self.assertEqual(len(self.check({"a.html": '<a href="c.html">x</a><a href="b.html#there">x</a>', "b.html": ""})), 2)

    def test_network(self):
        self.assertEqual(len(self.check({"a.html": '<script src="https://example.org/x.js"></script><a href="https://example.org">'})), 1)


class PythonPage(unittest.TestCase):
    def test_names_all_of_the_package(self):
        package = (ROOT / "python/dlaunch/__init__.py").read_text(encoding="utf-8")
        listed = next(node for node in ast.parse(package).body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
        pages = "".join((ROOT / "docs/reference" / name).read_text(encoding="utf-8") for name in ("python.md", "errors.md"))
        for name in ast.literal_eval(listed.value):
            if not name.startswith("_"):
                self.assertRegex(pages, rf"\b{name}\b")
        operations = (ROOT / "python/module/operations.cc").read_text(encoding="utf-8")
        names = set(re.findall(r'^\s*\{CollectiveKind::\w+, "([a-z_]+)"', operations, re.M))
        self.assertGreater(len(names), 10)
        for name in names:
            self.assertRegex(pages, rf"\b{name}\b")


class Ids(unittest.TestCase):
    def test_page_has_each_id_of_dlaunch(self):
        page = build.error_ids(build.headers.tree.load())
        listed = (ROOT / "launcher/remedies/remedies.def").read_text(encoding="utf-8")
        ids = sorted(set(re.findall(r'^COHORT_REMEDY\("([a-z0-9-]+)"', listed, re.M)))
        self.assertGreater(len(ids), 50)
        self.assertEqual(sorted(re.findall(r"^## (.+)$", page, re.M)), ids)


class Site(unittest.TestCase):
    def test_builds(self):
        here = next((p for p in (ROOT / "build/docs/env/bin/python", pathlib.Path(sys.executable))
                     if p.exists() and subprocess.run([p, "-c", "import mkdocs, material"], capture_output=True, check=False).returncode == 0), None)
        if here is None or not shutil.which(os.environ.get("DOXYGEN", "doxygen")):
            self.skipTest("there is no MkDocs or no Doxygen: tools/dev docs installs them")
        ran = subprocess.run([here, "-B", ROOT / "tools/docs/build.py", FOLDER], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, check=False)
        print(ran.stdout)
        self.assertEqual(ran.returncode, 0)
        self.assertIn(" 0 broken", ran.stdout)
        self.assertTrue((FOLDER / "site/search/search_index.js").exists())


if __name__ == "__main__":
    program = unittest.main(exit=False)
    result = program.result
    for _, reason in result.skipped:
        print(f"skipped: {reason}")
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
