#!/usr/bin/env python3
"""Every link of a built site leads to a file and an anchor of it, and nothing is loaded from elsewhere: check_site.py SITE"""
import html.parser
import pathlib
import sys
import urllib.parse

# Tags whose address a browser loads by itself.
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class _Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loaded = {"", "__top"}, [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        for name in ("id", "name"):
            if found.get(name):
                self.anchors.add(found[name])
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        address = found.get(_LOADED.get(tag, ""))
        if address and found.get("rel") != "canonical":
            self.loaded.append(address)


def check(site):
    """(pages, links, what is broken)."""
    site = pathlib.Path(site)
    pages = {file: _Page(file.read_text(encoding="utf-8")) for file in sorted(site.rglob("*.html"))}
    count, broken = 0, []
    for file, page in pages.items():
        name = file.relative_to(site)
        if str(name) == "404.html":
            continue  # its links begin at the root of a server
        for link in page.links + page.loaded:
            parts = urllib.parse.urlsplit(link)
            count += 1
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    broken.append(f"{name} loads {link}, which needs a network")
                continue
            target = (file.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else file.resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                broken.append(f"{name} links to {link}, which is not there")
            elif target.suffix == ".html" and urllib.parse.unquote(parts.fragment) not in pages[site / target.relative_to(site.resolve())].anchors:
                broken.append(f"{name} links to {link}, which has no such heading")
    return len(pages), count, broken


if __name__ == "__main__":
    found = check(sys.argv[1])
    print("\n".join(found[2] + [f"{found[0]} pages, {found[1]} links, {len(found[2])} broken"]))
    sys.exit(bool(found[2]))
