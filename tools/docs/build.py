#!/usr/bin/env python3
"""Builds the site: `build.py FOLDER [--symbols]` writes it into FOLDER/site, from the tree's Markdown and public headers.

Without MkDocs it makes FOLDER/env with requirements.txt first. --symbols lists public symbols without a comment. The
pages of docs/ are the site's own. Every other page of the tree lies at its path; a link to a file that is no page
leads to a copy of the file, shown as code. The last lines say how many pages, links and symbols there are.
"""
import html
import importlib.util
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys

import api
import check_site
import headers
import plots

ROOT = pathlib.Path(headers.ROOT)
HERE = pathlib.Path(__file__).resolve().parent
_LINK = re.compile(r"(!?\[(?:[^\]\[]|\[[^\]]*\])*\])\(([^)\s]+)\)")
_LANGUAGES = {".h": "cpp", ".cc": "cpp", ".cu": "cpp", ".def": "cpp", ".c": "c", ".py": "python", ".sh": "bash", ".yaml": "yaml",
              ".cmake": "cmake", ".proto": "proto", ".rs": "rust", ".f90": "fortran", ".json": "json"}
# The theme loads this from a network for search on file:// pages; assets/worker.js replaces it.
_SHIM = "https://unpkg.com/iframe-worker/shim"
_PICTURES = (".svg", ".png")
_BLOCK = re.compile(r"^( *)(```+)([^\n]*)\n(.*?)^\1\2$", re.M | re.S)


def place_of(path):
    """The place in the site of a file of the tree."""
    if path == "README.md":
        return "project/readme.md"
    if path in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"):
        return "project/" + path
    return path.removeprefix("docs/")


def _marked(block):
    """A block of code; one that is a drawing gets the class by which assets/site.css keeps its lines."""
    drawn = block[3] in ("", "text") and re.search(r"[─│┌└├►◄▲▼]|--+[>+]|\+--|^ *\|", block[4], re.M)
    return f"{block[1]}{block[2]} {{ .text .drawing }}\n{block[4]}{block[1]}{block[2]}" if drawn else block[0]


def with_headings(text):
    """A page of options whose rows are headings, so that the search finds an option and leads to it."""
    def headings(table):
        rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", table[1], re.M)
        if len(rows) != table[1].count("\n"):
            sys.exit(f"a row of these options is not `option` | meaning:\n{table[1]}")
        return "\n".join(f"### `{option}`\n\n{meaning}\n" for option, meaning in rows).replace("\\|", "|")
    return re.sub(r"^\| option \| meaning \|\n\|---\|---\|\n((?:\|.*\n)+)", headings, text, flags=re.M)


def with_commands(page):
    """A page of HTML on which the button of a console block copies its commands, and not what they print."""
    def commands(block):
        lines = html.unescape(re.sub(r"<[^>]+>", "", block[0])).splitlines()
        kept = [line for n, line in enumerate(lines) if line.startswith("$ ") or n and lines[n - 1].endswith("\\")]
        text = html.escape("\n".join(line.removeprefix("$ ").removeprefix("> ") for line in kept))
        return block[0].replace('<div class="language-console', f'<div data-copy="{text}" class="language-console', 1)
    return re.sub(r'<div class="language-console.*?</pre></div>', commands, page, flags=re.S)


def with_whole_options(page):
    """A page of HTML on which no line ends behind the dashes of an option in code."""
    def marked(code):
        return re.sub(r"(<[^>]*>)|(?<![\w&;-])(--?[A-Za-z][\w-]*)",
                      lambda found: found[1] or f'<span class="option">{found[2]}</span>', code[0])
    return re.sub(r"<code\b.*?</code>", marked, page, flags=re.S)


class Staging:
    """Copies pages into a folder and rewrites their links; pages and files that they link to follow."""

    def __init__(self, repository, folder):
        self.repository = repository
        self.paths = set(repository.paths)
        self.folder = pathlib.Path(folder)
        self.extra = {}  # {path in the tree: place}, for files that are shown as code and for folders without a page
        self.pictures = set()
        self.shown = set()  # pictures that a page shows; to others it only links
        self.headers = set(headers.public_headers(repository))
        self.missing = []

    def add_pages(self):
        menu = set(re.findall(r"[\w./-]+\.md", (ROOT / "docs/nav.yml").read_text(encoding="utf-8")))
        for path in self.repository.named(".md"):
            if path == "docs/README.md" or path.startswith(".github/") or "/corpus" in path or path.startswith("tests/"):
                continue
            used = path.startswith("docs/") or place_of(path) in menu  # by users; they come before the folders' READMEs
            boost = "---\nsearch:\n  boost: 3\n---\n" if used else ""
            text = self.repository.text(path)
            self._write(place_of(path), boost + self._rewritten(path, with_headings(text) if path.endswith("OPTIONS.md") else text))
        for path in list(self.extra):
            self._write(self.extra[path], self._shown(path))
        for path in self.pictures:
            target = self.folder / place_of(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, target)
            if path in self.shown and path.endswith(".svg"):
                target.write_text(plots.in_one_column(target.read_text(encoding="utf-8")), encoding="utf-8")

    def _write(self, place, text):
        file = self.folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def _rewritten(self, path, text):
        fenced = False
        lines = []
        for line in _BLOCK.sub(_marked, text).splitlines():
            if line.lstrip().startswith("```"):
                fenced = not fenced
            lines.append(line if fenced else _LINK.sub(lambda found: f"{found[1]}({self._target(path, found[2], found[1][0] == '!')})", line))
        return "\n".join(lines) + "\n"

    def _target(self, path, link, shown=False):
        if re.match(r"[a-z]+:|#", link):
            return link
        file, mark, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
        if target in self.headers and not path.startswith("docs/reference/cpp"):
            place, mark, anchor = "reference/cpp/" + api.slug(target), "", ""
        elif target.endswith(_PICTURES) and target in self.paths:
            self.pictures.add(target)
            if shown:
                self.shown.add(target)
            place = place_of(target)
        elif target.endswith(".md") and target in self.paths and not target.startswith(("tests/", ".github/")) \
                and target != "docs/README.md":
            place = place_of(target)
        elif f"{target}/README.md" in self.paths and not target.startswith("tests") and target != "docs":
            place = place_of(f"{target}/README.md")
        elif target in self.paths or any(p.startswith(target + "/") for p in self.paths):
            place = self.extra.setdefault(target, f"files/{target.replace('/', '-')}.md")
            mark = anchor = ""
        else:
            self.missing.append(f"{path} links to {link}")
            return link
        return posixpath.relpath(place, posixpath.dirname(place_of(path)) or ".") + mark + anchor

    def _shown(self, path):
        if path not in self.paths:
            listed = sorted({p[len(path) + 1:].split("/")[0] for p in self.paths if p.startswith(path + "/")})
            return f"# {path}\n\nThe folder holds:\n\n" + "\n".join(f"- `{name}`" for name in listed) + "\n"
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".md"):
            return self._rewritten_copy(text)
        lines = text.splitlines()
        cut = f"\nThe first 500 of {len(lines)} lines.\n" if len(lines) > 500 else ""
        body = "\n".join(lines[:500])
        return f"---\nsearch:\n  exclude: true\n---\n# {path}\n{cut}\n````{_LANGUAGES.get(os.path.splitext(path)[1], 'text')}\n{body}\n````\n"

    @staticmethod
    def _rewritten_copy(text):
        """A page of the tests, whose links would lead out of the site."""
        return _LINK.sub(lambda found: found[1][1:-1] if found[1].startswith("[") else found[0], text)


def error_ids(repository):
    """A heading for each row `id | meaning and remedy` of the pages of errors, so that an id is a link."""
    pages = [page for page in sorted(repository.paths) if page.startswith("launcher/remedies/errors-")]
    rows = [row for page in pages for row in re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \|$", repository.text(page), re.M)]
    if not rows:
        sys.exit("launcher/remedies/errors-*.md have no row `id | meaning and remedy`")
    return "\n".join(f"## {name}\n\n{meaning}\n" for name, meaning in rows)


def fill(page, mark, text):
    page.write_text(page.read_text(encoding="utf-8").replace(mark, text), encoding="utf-8")


def configuration(folder):
    return (HERE / "mkdocs.yml").read_text(encoding="utf-8") + (ROOT / "docs/nav.yml").read_text(encoding="utf-8") + \
        f"docs_dir: {folder}/pages\nsite_dir: {folder}/site\n"


def build(folder):
    repository = headers.tree.load()
    shutil.rmtree(folder / "pages", ignore_errors=True)
    staging = Staging(repository, folder / "pages")
    staging.add_pages()
    if staging.missing:
        sys.exit("\n".join(staging.missing))
    shutil.copytree(ROOT / "docs/assets", folder / "pages/assets", dirs_exist_ok=True)
    total, documented, listed = api.generate(folder / "pages/reference/cpp")
    fill(folder / "pages/reference/cpp.md", "<!-- headers -->", listed)
    fill(folder / "pages/reference/ids.md", "<!-- ids -->", error_ids(repository))
    (folder / "mkdocs.yml").write_text(configuration(folder), encoding="utf-8")
    ran = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", folder / "mkdocs.yml"],
                         env=dict(os.environ, NO_MKDOCS_2_WARNING="1"), check=False)
    if ran.returncode != 0:
        sys.exit(ran.returncode)
    for file in (folder / "site").rglob("*.html"):
        up = posixpath.relpath(".", file.parent.relative_to(folder / "site").as_posix())
        page = with_whole_options(with_commands(file.read_text(encoding="utf-8")))
        file.write_text(page.replace(_SHIM, f"{up}/assets/worker.js"), encoding="utf-8")
    pages, links, broken = check_site.check(folder / "site")
    print("\n".join(broken))
    print(f"{folder}/site: {pages} pages, {links} links, {len(broken)} broken; {total} public symbols, {documented} documented")
    if documented < total:
        print("symbols without a comment: tools/dev docs --symbols")
    return 1 if broken or documented < total else 0


def with_mkdocs(folder):
    """Goes on in FOLDER/env, which is made if this Python has no MkDocs."""
    if importlib.util.find_spec("mkdocs") is not None:
        return
    python = folder / "env/bin/python"
    if not python.exists() or subprocess.run([python, "-c", "import mkdocs, material"], capture_output=True, check=False).returncode:
        subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", HERE / "requirements.txt"], check=True)
    os.execv(python, [str(python), "-B", *sys.argv])


def main(arguments):
    if arguments[-1:] in (["-h"], ["--help"]):
        print(__doc__.strip().replace("build.py FOLDER [--symbols]", "tools/dev docs [--symbols]").replace("FOLDER", "build/docs"))
        return 0
    folders = [a for a in arguments if not a.startswith("-")]
    if len(folders) != 1:
        sys.exit(__doc__)
    folder = pathlib.Path(folders[0]).resolve()
    if "--symbols" in arguments:
        total, documented, _ = api.generate(folder / "symbols", verbose=True)
        print(f"{total} public symbols, {documented} documented")
        return documented < total
    with_mkdocs(folder)
    return build(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
