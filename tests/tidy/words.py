"""Things that may not be written, or only in one place."""

import re

from tree import top

# (pattern in code without comments and strings, files it may stand in, whether tests may use it, reason)
BANNED = (
    (r"\b(secure_)?getenv\s*\(",
     ("runtime/env.cc", "launcher/base/process_environment.cc", "comm/examples/", "trainer/examples/"), True,
     "the environment is read in runtime/env.cc and launcher/base/process_environment.cc only"),
    (r"\bstd::(recursive_|shared_|timed_)?mutex\b|\bstd::(lock_guard|unique_lock|scoped_lock|shared_lock)\b|"
     r"\bstd::condition_variable(_any)?\b|\babsl::Mutex\b", ("runtime/base/mutex.h",), True,
     "use the annotated Mutex and CondVar of runtime/base/mutex.h"),
    (r"\bCOHORT_(HAVE|WITH)_\w+", (), False, "choose a source or its stub in CMake; shared code has no #ifdef"),
    (r"\bgoto\b", (), False, "no goto"),
    # In the trainer it is a tensor's. The others leave behind a thread in a call that may never return.
    (r"\.detach\s*\(\s*\)",
     ("trainer/", "tests/trainer/", "tests/support/fake_nccl/fake_nccl.cc", "comm/nccl/library/nccl_communicator.cc",
      "launcher/front_end/printing/output_printer.cc",
      "launcher/agent/rank/log_writer.cc", "launcher/base/bounded_call.cc", "launcher/trace/trace_file.cc"), False,
     "a detached thread outlives what it uses: join it"),
    (r"\busing\s+namespace\s+(?!std::(chrono_literals|literals|string_literals|string_view_literals))", (), False,
     "no using-directives"),
    (r"\bdynamic_cast\b", ("trainer/",), True, "say it in the interface"),
    (r"\bremove_all\s*\(", ("comm/examples/", "launcher/", "tools/", "tests/comm/", "tests/launcher/", "tests/runtime/", "tests/tools/",
      "tests/support/temporary_folder.h", "tests/trainer/examples/gpt_test.cc"), False,
     "PyTorch's libtorch has a std::filesystem::remove_all that crashes: use RemoveTree of trainer/state/checkpoint"),
    (r"\bassert\s*\(", (), True, "assertions vanish in release builds: return a Status or use COHORT_CHECK"),
)

_UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|X{3}|HAC[K])\b")
# Paths that only exist on the machine of their author.
_PRIVATE = re.compile(r"(?<![\w./-])/(w[o]rk|ho[m]e|Us[e]rs)/\w|\.librar[y]/|\bshared/(b[i]n|rese[a]rch)\b")

# A sentence that opens so has no subject, or hides it behind a clause.
_OPENING = re.compile(r"(Of|What|Who|Whose|Whoever|Where|Those)\b")
# The plain ones are: "N ranks", "every 16th", "again", "is told" or "fails", "reports", "the caller".
_VAGUE = re.compile(r"\b(so many|so manieth|manieth|anew|(?:hear(?:s|d|ing)?|tell(?:s|ing)?) of|whoever)\b", re.IGNORECASE)
_TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)", re.MULTILINE)
_CONTINUES = re.compile(r"(DISABLED_)?(Is|Are|Have|Of|That|What|Whatever|Who|Whose|Whoever|Where|Those|They|It|Nor|May|Must|Can)"
                        r"(?=[A-Z0-9])")
_COMMENTED = (".h", ".cc", ".cu", ".py", ".sh", ".cmake", "CMakeLists.txt", ".proto", ".def", ".inc")

# The lines that git writes around the two sides of a conflict. (A line of equals signs may underline a title.)
_CONFLICT = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)

# The Python package is dlaunch. The runtime, the backend of torch.distributed and the C++ library are Cohort's.
_PACKAGE = re.compile(r"\b(?:import|from) `?cohort\b(?!:)|"
                      r"\bcohort\.(?:torch|_comm|init|finalize|programs|communicator|job|runtime\(|[A-Z]\w*)|"
                      r"\bpython/cohort\b|\bcohort/(?:torch|switch|bin|__init__|_comm|(?:communicator|job|programs)\.py)\b|"
                      r"\bpip3? install (?:[^\s`]*/)?cohort\b|\bcohort-[\w.*]+\.whl\b|\bpackage `?cohort\b(?![.`]?[\w-])")
_FORMER_NAME_IN = ("CHANGELOG.md", "python/CMakeLists.txt", "tests/python/names.py", "tests/python/torch_switch_ranks.py",
                   "tests/tidy/")


def check_banned(tree):
    for path in tree.sources():
        code = tree.code(path)
        for pattern, files, tests_may, reason in BANNED:
            if files and path.startswith(files):
                continue
            if tests_may and top(path) == "tests":
                continue
            for match in re.finditer(pattern, code):
                yield path, code.count("\n", 0, match.start()) + 1, f"{match.group(0).strip()}: {reason}"


def check_words(tree):
    for path in tree.paths:
        try:
            lines = tree.text(path).splitlines()
        except UnicodeDecodeError:
            continue  # a data file
        for number, line in enumerate(lines, 1):
            found = _UNFINISHED.search(line)
            if found:
                yield path, number, f"{found.group(0)}: finish it, or open an issue"
            found = _PRIVATE.search(line)
            if found:
                yield path, number, f"'{found.group(0)}' is a path of one machine"


def check_conflicts(tree):
    for path in tree.paths:
        try:
            text = tree.text(path)
        except UnicodeDecodeError:
            continue  # a data file
        for match in _CONFLICT.finditer(text):
            yield path, text.count("\n", 0, match.start()) + 1, "a conflict of a merge that was not resolved"


def check_openings(tree):
    """The first word of a comment, and of each paragraph in it."""
    for path in tree.named(*_COMMENTED):
        goes_on_at = 0  # a comment there continues the one before
        for number, text, alone in tree.comments(path):
            found = _OPENING.match(text)
            if found and not (alone and number == goes_on_at):
                yield path, number, f"a comment opens with '{found.group(0)}': begin with what it is about"
            goes_on_at = number + 1 if alone and text else 0


def check_comments(tree):
    """Words in comments that say less than plain ones. A phrase may go over the end of a line."""
    for path in tree.named(*_COMMENTED):
        before, tail = 0, ""
        for number, text, _ in tree.comments(path):
            joined = tail + " " + text if before == number - 1 else text
            for found in _VAGUE.finditer(joined):
                if found.end() > len(joined) - len(text):
                    yield path, number, f"'{found.group(0)}' in a comment: say it in plain words (CONTRIBUTING.md)"
            before, tail = number, text.split()[-1] if text.split() else ""


def check_package(tree):
    """The former name of the Python package, which is another project's."""
    for path in tree.paths:
        if path.startswith(_FORMER_NAME_IN):
            continue
        try:
            text = tree.text(path)
        except UnicodeDecodeError:
            continue  # a data file
        for found in _PACKAGE.finditer(text):
            yield (path, text.count("\n", 0, found.start()) + 1,
                   f"'{found.group(0)}': the Python package is called dlaunch")


def check_messages(tree):
    """The same words in the strings of C++ files, which users read."""
    for path in tree.sources():
        for number, text in tree.strings(path):
            for found in _VAGUE.finditer(text):
                yield path, number, f"'{found.group(0)}' in a message: say it in plain words (CONTRIBUTING.md)"


def check_pages(tree):
    """The same words in pages. A phrase may go over the end of a line."""
    for path in tree.named(".md"):
        text = tree.text(path)
        for found in re.finditer(_VAGUE.pattern.replace(" ", r"\s+"), text, re.IGNORECASE):
            yield path, text.count("\n", 0, found.start()) + 1, f"'{found.group(0)}' in a page: say it in plain words"


def check_test_names(tree):
    """The first word of a test's name, which is a sentence of its own: not the second half of the suite's name."""
    for path in tree.sources("tests"):
        text = tree.text(path)
        for match in _TEST.finditer(text):
            found = _CONTINUES.match(match.group(2))
            if found:
                yield (path, text.count("\n", 0, match.start()) + 1,
                       f"{match.group(1)}.{match.group(2)} goes on from the suite's name: name the whole fact")


def _paragraphs(text):
    """[(line, text)] of the lines of a page with which a paragraph, an entry of a list or a cell of a table begins."""
    fenced = False
    begins = True
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced or not line.strip() or line.startswith(("#", "```", "    ")):
            begins = True
            continue
        mark = re.match(r"\s*([-*>]|\d+\.) ", line)
        if line.startswith("|"):
            begins = True
        elif begins or mark:
            yield number, line[mark.end():] if mark else line
            begins = False


def check_page_openings(tree):
    """The first word of each paragraph and of each entry of a list in a page."""
    for path in tree.named(".md"):
        for number, text in _paragraphs(tree.text(path)):
            found = _OPENING.match(text.lstrip("`*_[("))
            if found:
                yield path, number, f"a paragraph opens with '{found.group(0)}': begin with what it is about"


def check_headers(tree):
    for path in tree.named(".h"):
        if not re.search(r"^#pragma once$", tree.text(path), re.MULTILINE):
            yield path, 1, "has no #pragma once"


RULES = {"banned": check_banned, "words": check_words, "openings": check_openings, "comments": check_comments,
         "messages": check_messages, "pages": check_pages, "test_names": check_test_names,
         "page_openings": check_page_openings, "conflicts": check_conflicts, "package": check_package, "headers": check_headers}
