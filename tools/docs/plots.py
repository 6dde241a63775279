"""Plots of `plot.cc` as the site shows them: panels in one column, so that a narrow window shows their text, and no background."""
import re

_PANEL = 460  # pixels; plot.cc has the same
_ROW = 300
_LEGEND = 18


def _moved(lines, x, y):
    return [f'<g transform="translate({x:g},{y:g})">', *lines, "</g>"]


def _legend(lines):
    """The entries, each a line of the file and a mark, three in a row; and the height that they take."""
    entries = [lines[n:n + 2] for n in range(0, len(lines), 2)]
    shown = []
    for n, entry in enumerate(entries):
        x, y = (float(re.search(rf'{name}="([\d.]+)"', entry[0])[1]) for name in ("x1", "y1"))
        shown += _moved(entry, 14 + n % 3 * 150 - x, 52 + n // 3 * _LEGEND - y)
    return shown, -(-len(entries) // 3) * _LEGEND


def in_one_column(svg):
    """The picture with its panels one below the other. A picture of another form stays as it is."""
    lines = [line for line in svg.splitlines() if line != '<rect width="100%" height="100%" fill="white"/>']
    begins = [n for n, line in enumerate(lines) if 'class="title"' in line]
    legend = [n for n, line in enumerate(lines[:begins[0]] if begins else []) if 'stroke-width="2.5"' in line]
    if not legend:
        return svg
    head, caption = lines[:legend[0] - 1], re.sub(r"<[^>]+>", "", lines[legend[0] - 1])
    first, _, rest = caption.partition(". ")
    captions = [f'<text x="14" y="{20 + 16 * n}">{text}</text>' for n, text in enumerate(filter(None, (first, rest)))]
    entries, height = _legend(lines[legend[0]:begins[0]])
    top = 44 + height
    shown = []
    for n, begin in enumerate(begins):
        panel = lines[begin:begins[n + 1]] if n + 1 < len(begins) else lines[begin:-1]
        x, y = (float(re.search(rf'{name}="([\d.]+)"', panel[0])[1]) for name in ("x", "y"))
        shown += _moved(panel, -(x // _PANEL) * _PANEL, top + n * _ROW - (y - 20))
    total = top + len(begins) * _ROW
    head[0] = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_PANEL}" height="{total}" viewBox="0 0 {_PANEL} {total}">'
    head[1] = head[1].replace("font:12px", "font:13px")
    return "\n".join([*head, *captions, *entries, *shown, "</svg>"]) + "\n"
