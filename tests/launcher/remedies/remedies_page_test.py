"""The list of remedies, their pages and the errors in the sources agree.

  remedies_page_test.py <source>
"""

import pathlib
import re
import sys
import unittest

LAUNCHER = pathlib.Path(sys.argv[1]) / "launcher"
FOLDER = LAUNCHER / "remedies"
ROW = re.compile(r'^COHORT_REMEDY\("([a-z0-9-]+)", k(\w+)\)$', re.MULTILINE)
TOKENS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|' r"'(?:[^'\\\n]|\\.)'")
LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"')
# A message that says what would work.
REMEDY = re.compile(r"; (use|give|raise|lower|install|leave|name|unset|bring|mount|add|correct) ")
# Messages that say so and are no errors, or are a part of one whose id stands with the rest.
NOTICES = ("nodes is here", "; bring its network up", "; give each option once", "leave --mpi out", "if that comes, take fewer",
           "; leave --nnodes", "; give them", "; give a wider")
# Functions that take a text for a user, or for another process that shows it. `error` is a std::error_code.
TAKES_TEXT = re.compile(r"\b(Say|Announce|Refuse|GiveUp|say|Notice|Failed|on_notice|set_\w+)\([^;]*(?<!code\(\))(?<!error)\.message\(\)")


def unescaped(literal):
    return re.sub(r"\\(.)", r"\1", literal[1:-1])


def statements(code):
    """The statements of a file without their comments, a condition or a head before a block being one."""
    code = TOKENS.sub(lambda token: "" if token.group(0).startswith("//") else token.group(0), code)
    begin = 0
    masked = TOKENS.sub(lambda token: "_" * len(token.group(0)), code)
    for end in re.finditer(r"[;{}]\s*\n", masked):
        yield code[begin:end.end()]
        begin = end.end()
    yield code[begin:]


class RemediesTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.names = dict(ROW.findall((FOLDER / "remedies.def").read_text(encoding="utf-8")))
        self.pages = "".join(page.read_text(encoding="utf-8") for page in sorted(FOLDER.glob("errors-*.md")))
        self.sources = {path.relative_to(LAUNCHER): path.read_text(encoding="utf-8")
                        for path in sorted(LAUNCHER.rglob("*")) if path.suffix in (".cc", ".h") and path.parent != FOLDER}

    def test_each_id_stands_once_in_the_list_and_once_on_a_page(self):
        listed = re.findall(r"^COHORT_REMEDY\(", (FOLDER / "remedies.def").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual(len(listed), len(self.names))
        self.assertEqual(sorted(self.names), re.findall(r"^\| `([a-z0-9-]+)` \|", self.pages, re.MULTILINE))

    def test_the_name_in_the_code_is_the_id(self):
        for id, name in self.names.items():
            self.assertEqual(name, "".join(word.capitalize() for word in id.split("-")))

    def test_each_has_a_sentence_of_the_subject_and_one_of_the_remedy(self):
        short = [name for name, meaning in re.findall(r"^\| `([a-z0-9-]+)` \| (.+) \|$", self.pages, re.MULTILINE)
                 if len(re.findall(r"[.!?](?:\s|$)", meaning)) < 2]
        self.assertEqual(short, [])

    def test_the_readme_lists_all(self):
        readme = (FOLDER / "README.md").read_text(encoding="utf-8")
        rows = "".join(re.findall(r"^\| \[[a-z]-[a-z]\]\(errors-.+$", readme, re.MULTILINE))
        self.assertEqual(re.findall(r"`([a-z0-9-]+)`", rows), sorted(self.names))

    def test_each_is_given_to_an_error(self):
        code = "".join(self.sources.values())
        self.assertEqual([id for id, name in self.names.items() if not re.search(rf"\bRemedy::k{name}\b", code)], [])

    def test_no_message_has_an_id_typed_into_it(self):
        for path, code in self.sources.items():
            for literal in LITERAL.findall(code):
                for word in re.findall(r"\[([a-z0-9-]+)\]", literal):
                    self.assertNotIn(word, self.names, f"{path}: {literal}")

    def test_a_message_with_a_remedy_has_an_id(self):
        without = []
        for path, code in self.sources.items():
            if path.name == "option_hints.cc":  # answers, which an error with an id shows
                continue
            found = list(statements(code))
            for statement, following in zip(found, found[1:] + [""]):  # the end of a message may have a name of its own
                text = "\0".join(unescaped(literal) for literal in LITERAL.findall(re.sub(r'"\s*\n\s*"', "", statement)))
                if REMEDY.search(text) and "Remedy::k" not in statement + following and not any(notice in text for notice in NOTICES):
                    without.append(f"{path}: {text}")
        self.assertEqual(without, [])

    def test_a_text_of_a_status_shows_its_id(self):
        without = [f"{path}: {statement.strip()}" for path, code in self.sources.items() for statement in statements(code)
                   if TAKES_TEXT.search(statement)]
        self.assertEqual(without, [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
