#!/usr/bin/env python3
"""The reference pages of the C++ and C interfaces, from the comments of the public headers.

usage: api.py [--list] FOLDER    writes a page for each header into FOLDER; --list names what has no comment

The last line printed has the number of public symbols and of documented ones. DOXYGEN names the program.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

import doxygen_filter
import headers

HERE = pathlib.Path(__file__).resolve().parent
ROOT = pathlib.Path(headers.ROOT)
PARTS = (("comm", "comm: communicators and collectives"), ("runtime", "runtime: joining a job"),
         ("trainer", "trainer: training with libtorch"))


def run_doxygen(paths, folder):
    config = (HERE / "Doxyfile").read_text(encoding="utf-8")
    config += "INPUT = " + " ".join(f'"{ROOT / path}"' for path in paths) + "\n"
    config += f'OUTPUT_DIRECTORY = "{folder}"\nSTRIP_FROM_PATH = "{ROOT}"\n'
    config += f'INPUT_FILTER = "{sys.executable} -B {HERE / "doxygen_filter.py"}"\n'
    subprocess.run([os.environ.get("DOXYGEN", "doxygen"), "-"], input=config, text=True, check=True)
    return pathlib.Path(folder) / "xml"


def _text(element):
    """The paragraphs of a description. Backticks are back where Doxygen read them."""
    if element is None:
        return ""
    for code in element.iter("computeroutput"):
        code.text = "`" + "".join(code.itertext()) + "`"
        for child in list(code):
            code.remove(child)
    found = []
    for block in element:
        if block.tag in ("para", "verbatim"):
            items = [f"- {' '.join(''.join(item.itertext()).split())}" for item in block.iter("listitem")]
            for part in list(block):
                if part.tag in ("itemizedlist", "orderedlist"):
                    part.clear()
            text = " ".join("".join(block.itertext()).split())
            found += [escaped(text)] if text else []
            found += ["\n".join(escaped(item) for item in items)] if items else []
    return "\n\n".join(found)


def escaped(text):
    """The text with what Markdown would read as markup escaped, except in backticks. Markdown shows a backslash before
    `<`, so that one becomes an entity."""
    parts = text.split("`")
    return "`".join(re.sub(r"([>*_\[\]])", r"\\\1", part).replace("<", "&lt;") if n % 2 == 0 or n == len(parts) - 1 else part
                    for n, part in enumerate(parts))


_TYPES = ("class", "struct", "union", "enum")
_OPTIONS = "Its fields are options: `.NAME(value)` sets one and returns the object, `.NAME()` reads it."


class Symbol:
    """A class, a function, a field, a type or a macro, with its comment."""

    def __init__(self, element, scope=""):
        self.name = element.findtext("name") or element.findtext("compoundname") or ""
        self.kind = element.get("kind")
        self.scope = scope
        location = element.find("location")
        self.file = location.get("file") if location is not None else ""
        self.line = int(location.get("line", "0")) if location is not None else 0
        self.signature = _signature(element)
        self.text = "\n\n".join(filter(None, (_text(element.find("briefdescription")),
                                              _text(element.find("detaileddescription")))))
        self.shared = ""  # a sentence in place of a comment of its own: where it is described
        self.is_option = False  # by TORCH_ARG
        self.values = [(v.findtext("name"), "\n".join(filter(None, (_text(v.find("briefdescription")),
                        _text(v.find("detaileddescription")))))) for v in element.findall("enumvalue")]

    @property
    def documented(self):
        return bool(self.text or self.shared or self.values)

    @property
    def full_name(self):
        return f"{self.scope}::{self.name}" if self.scope else self.name


def _flat(element):
    return " ".join("".join(element.itertext()).split()) if element is not None else ""


def _signature(element):
    kind = element.get("kind")
    parameters = [_flat(p.find("type")) + " " + (p.findtext("declname") or "") for p in
                  (element.findall("templateparamlist/param"))]
    template = f"template <{', '.join(p.strip() for p in parameters)}>\n" if parameters else ""
    if kind == "function":
        shown = f"{_flat(element.find('type'))} {element.findtext('name')}{element.findtext('argsstring') or ''}"
        static = "static " if element.get("static") == "yes" and "static" not in shown else ""
        return template + static + shown.strip()
    if kind in ("variable", "typedef"):
        definition = element.findtext("definition") or ""
        short = re.sub(r"\bcohort::(\w+::)+(?=\w+$)", "", definition)
        return f"{short}{element.findtext('argsstring') or ''}{' ' + _flat(element.find('initializer')) if element.find('initializer') is not None else ''}"
    if kind == "enum":
        return f"enum {element.findtext('name')}"
    if kind == "define":
        parameters = [p.findtext("defname") or "" for p in element.findall("param")]
        return f"#define {element.findtext('name')}" + (f"({', '.join(parameters)})" if parameters else "")
    return f"{template}{kind} {(element.findtext('compoundname') or '').rsplit('::', 1)[-1]}"


def _is_interface(symbol, element):
    """False for what every class has (copies, moves, destructors, empty constructors) and for hidden names."""
    args = element.findtext("argsstring") or ""
    if "internal" in symbol.scope.split("::") or "<" in symbol.scope.rsplit("::", 1)[-1] or symbol.name == "TORCH_MODULE":
        return False
    if args.endswith("override"):
        return False  # its base class says what it does
    if symbol.kind == "function":
        if symbol.name.startswith("~") or "=delete" in args.replace(" ", "") or "=default" in args.replace(" ", ""):
            return False
        if symbol.name == symbol.scope.rsplit("::", 1)[-1] and (args in ("()", "() noexcept") or f"{symbol.name} &&" in args):
            return False
        if symbol.name == "operator=":
            return False
    return not symbol.name.startswith(("@", "_")) and not symbol.name.endswith("_")


def read(xml, paths):
    """{header: [Symbol]} in the order of the files."""
    found = {path: [] for path in paths}
    for file in sorted(xml.glob("*.xml")):
        root = ElementTree.parse(file).getroot()
        for compound in root.iter("compounddef"):
            kind = compound.get("kind")
            scope = compound.findtext("compoundname") or ""
            if kind in ("class", "struct", "union"):
                if compound.get("prot") == "private" or re.search(r"\b(internal|detail)::|<", scope):
                    continue
                symbol = Symbol(compound)
                symbol.name = scope.rsplit("::", 1)[-1]
                symbol.scope = scope.rpartition("::")[0]
                found.get(symbol.file, []).append(symbol)
            elif kind not in ("namespace", "file"):
                continue
            for member in compound.findall("sectiondef/memberdef"):
                if member.get("prot") != "public" or (kind == "file" and member.get("kind") == "function" and "cohort.h" not in scope):
                    continue
                symbol = Symbol(member, "" if kind == "file" else scope)
                if kind == "file" and symbol.file != "comm/c/cohort.h":
                    continue
                if kind == "file" and symbol.kind == "define" and not symbol.name.startswith("COHORT_"):
                    continue
                if _is_interface(symbol, member) and "detail" not in scope:
                    found.get(symbol.file, []).append(symbol)
    for path, symbols in found.items():
        seen = {}
        for symbol in symbols:
            seen.setdefault((symbol.full_name, symbol.signature, symbol.line), symbol)
        found[path] = sorted(seen.values(), key=lambda s: s.line)
    return found


def share_comments(path, symbols):
    """Gives a symbol without a comment the one that speaks for it too: of its block, the lines up to the next empty one;
    of the file, whose head names the type; of the struct that a typedef repeats; of the function that it overrides."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    for symbol in symbols:
        symbol.is_option = "TORCH_ARG(" in lines[symbol.line - 1]
    head = "\n".join(doxygen_filter.head_of("\n".join(lines) + "\n")[0])
    code = "\n".join(lines)
    by_name = {s.name: s for s in symbols if s.text and s.kind != "typedef"}
    for before, symbol in zip([None] + symbols, symbols):
        if symbol.text or symbol.values and all(text for _, text in symbol.values):
            continue
        if symbol.is_option and not (before.is_option and before.text and "//" not in lines[before.line - 1]):
            continue  # a comment behind an option is about that one
        subject = symbol.name.removesuffix("Impl").removesuffix("Options")
        if symbol.name.endswith("Options") and re.search(rf"\b(class|struct|auto|Work|[A-Za-z:<>]+) {subject}(Impl)?\b", code):
            symbol.shared = f"Options of `{subject}`."
        elif symbol.kind in (*_TYPES, "typedef") and re.search(rf"\b{re.escape(subject)}\b", head):
            symbol.shared = "The head of this page describes it."
        elif before and before.scope == symbol.scope and before.documented and before.kind not in _TYPES and all(
                line.strip() for line in lines[before.line - 1:symbol.line - 1]):
            symbol.shared = before.shared or f"As `{before.name}` above."
        elif before and before.full_name == symbol.scope and before.documented and symbol.kind == "variable":
            symbol.shared = f"`{before.name}` describes it."
        elif symbol.name in by_name:
            symbol.shared = f"As `{by_name[symbol.name].full_name}`."


def add_sentences(found):
    """Gives symbols the sentences of symbols.txt. Ends with an error where one is needless."""
    entries = dict(line.split(": ", 1) for line in (HERE / "symbols.txt").read_text(encoding="utf-8").splitlines()
                   if line.strip() and not line.startswith("#"))
    used = set()
    for symbol in (s for listed in found.values() for s in listed):
        if not symbol.documented and symbol.full_name in entries:
            symbol.text = entries[symbol.full_name]
            used.add(symbol.full_name)
    needless = sorted(set(entries) - used)
    if needless:
        sys.exit(f"tools/docs/symbols.txt has entries that are not needed: {', '.join(needless)}")


def _head(path):
    """The comment at the head of a header as Markdown: its indented lines are code."""
    lines, _ = doxygen_filter.head_of((ROOT / path).read_text(encoding="utf-8"))
    shown, coded = [], False
    for line in lines:
        code = line.startswith("  ") or (coded and not line.strip())
        if code != coded:
            shown.append("```text" if code else "```")
            coded = code
        shown.append(line if code else escaped(line))
    text = "\n".join(shown + ["```"] * coded)
    return re.sub(r"\n(\s*\n)+```\n", "\n```\n\n", text.replace("\n```text", "\n\n```text"))


def shown_name(symbol, scopes):
    """The heading of a symbol: a member has its class before it."""
    return f"{symbol.scope.rsplit('::', 1)[-1]}::{symbol.name}" if symbol.scope in scopes else symbol.name


def scopes_of(symbols):
    return {s.full_name for s in symbols if s.kind in ("class", "struct", "union")}


def anchor(shown):
    return re.sub(r"\W+", "-", shown).strip("-").lower()


def broken(path):
    """The path of a header as text that narrow windows break behind a slash."""
    return path.replace("/", "/<wbr>")


def page(path, symbols):
    lines = [f"# {broken(path)}", "", f'```cpp\n#include "cohort/{path if path != "comm/c/cohort.h" else "cohort.h"}"\n```', "",
             _head(path), ""]
    scopes, with_options, seen = scopes_of(symbols), {s.scope for s in symbols if s.is_option}, set()
    for symbol in symbols:
        level = "###" if symbol.scope in scopes else "##"
        shown = shown_name(symbol, scopes)
        mark = "" if anchor(shown) in seen else f" {{ #{anchor(shown)} }}"
        seen.add(anchor(shown))
        lines += [f"{level} {escaped(shown)}{mark}", "", f"```cpp\n{symbol.signature}\n```", "", symbol.text or symbol.shared, ""]
        if symbol.full_name in with_options:
            lines += [_OPTIONS, ""]
        if symbol.values:
            lines += ["| value | meaning |", "|---|---|"]
            lines += [f"| `{name}` | {text.replace(chr(10), ' ').replace('|', chr(92) + '|')} |" for name, text in symbol.values] + [""]
    return "\n".join(lines) + "\n"


def slug(path):
    return path.replace("/", "-").removesuffix(".h") + ".md"


def index(found):
    """The list of all headers, for reference/cpp.md."""
    lines = []
    for part, title in PARTS:
        lines += [f"## {title}", ""]
        for path, symbols in found.items():
            if path.startswith(part + "/"):
                lines += [f"### [{broken(path)}](cpp/{slug(path)}) {{ #{anchor(path)} }}", "", *_listed(path, symbols), ""]
    return "\n".join(lines)


def _listed(path, symbols):
    """A line for each class, with its members, and one for all else of a header. Each name is a link."""
    scopes, lines = scopes_of(symbols), {}
    for symbol in symbols:
        shown = shown_name(symbol, scopes)
        link = f"[`{symbol.name}`](cpp/{slug(path)}#{anchor(shown)})"
        group = symbol.full_name if symbol.full_name in scopes else symbol.scope if symbol.scope in scopes else ""
        if link not in lines.setdefault(group, []):  # an overload has the heading of the first
            lines[group].append(link)
    rest = lines.pop("", [])
    return [f"- {listed[0]}{': ' if listed[1:] else ''}{', '.join(listed[1:])}" for listed in lines.values()] + \
           ([f"- {', '.join(rest)}"] if rest else [])


def generate(folder, verbose=False):
    """Writes the pages; returns (public symbols, documented ones, the list of headers)."""
    paths = headers.public_headers()
    with tempfile.TemporaryDirectory(prefix="cohort-doxygen-") as work:
        found = read(run_doxygen(paths, work), paths)
    for path, listed in found.items():
        share_comments(path, listed)
    add_sentences(found)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    symbols = [s for listed in found.values() for s in listed]
    for path, listed in found.items():
        (folder / slug(path)).write_text(page(path, listed), encoding="utf-8")
    if verbose:
        for symbol in symbols:
            if not symbol.documented:
                print(f"{symbol.file}:{symbol.line}: {symbol.kind} {symbol.full_name} has no comment")
    return len(symbols), sum(s.documented for s in symbols), index(found)


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "--list"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    total, documented, _ = generate(arguments[0], "--list" in sys.argv)
    print(f"{total} public symbols, {documented} documented")
