"""The list of remedies, its page and the messages in the sources agree.

  remedies_page_test.py <source>
"""

import pathlib
import re
import sys
import unittest

LAUNCHER = pathlib.Path(sys.argv[1]) / "launcher"
ROW = re.compile(r'^COHORT_REMEDY\("([^"]+)", k\w+, "((?:[^"\\]|\\.)*)"\)$', re.MULTILINE)
LITERALS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*')
# A message that says what would work.
REMEDY = re.compile(r"; (use|give|raise|lower|install|leave|name|unset|bring|mount|add|correct) ")
# Messages that say so and are no errors, or belong to another's line.
NOTICES = ("nodes is here", "; give a wider one", "; give each option once", "leave --mpi out", "if that comes, take fewer", "; give each job")


def unescaped(text):
    return re.sub(r"\\(.)", r"\1", text)


def messages(path):
    """The literals of each statement of a file, one message: adjacent ones together, a NUL between others."""
    code = re.sub(r"^\s*//[^\n]*|(?<=[;{,]) // [^\n]*", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = []
    end = 0
    for match in LITERALS.finditer(code):
        if re.search(r"[;{}]\s", code[end:match.start()]) and found:
            yield "\0".join(found)
            found = []
        found.append(unescaped("".join(part[1:-1] for part in re.findall(r'"(?:[^"\\\n]|\\.)*"', match.group(0)))))
        end = match.end()
    yield "\0".join(found)


class RemediesTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = LAUNCHER / "remedies"
        self.rows = [(name, unescaped(words)) for name, words in
                     ROW.findall((folder / "remedies.def").read_text(encoding="utf-8"))]
        self.pages = "".join(page.read_text(encoding="utf-8") for page in sorted(folder.glob("errors-*.md")))
        self.texts = [(path.relative_to(LAUNCHER), text) for path in sorted(LAUNCHER.rglob("*.cc"))
                      if path.parent != folder and path.name != "option_hints.cc" for text in messages(path)]

    def test_each_id_stands_once_in_the_list_and_once_on_a_page(self):
        names = [name for name, _ in self.rows]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(sorted(names), re.findall(r"^\| `([a-z0-9-]+)` \|", self.pages, re.MULTILINE))

    def test_each_has_a_sentence_of_the_subject_and_one_of_the_remedy(self):
        short = [name for name, meaning in re.findall(r"^\| `([a-z0-9-]+)` \| (.+) \|$", self.pages, re.MULTILINE)
                 if len(re.findall(r"[.!?](?:\s|$)", meaning)) < 2]
        self.assertEqual(short, [])

    def test_each_is_reached_before_shorter_words_of_another(self):
        for i, (name, words) in enumerate(self.rows):
            for earlier, other in self.rows[:i]:
                self.assertNotIn(other, words, f"{earlier} hides {name}")

    def test_a_message_with_a_remedy_has_an_id(self):
        without = [f"{path}: {text}" for path, text in self.texts
                   if REMEDY.search(text) and not any(notice in text for notice in NOTICES)
                   and not any(words in text for _, words in self.rows)]
        self.assertEqual(without, [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
