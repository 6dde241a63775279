"""Who may include whom: the layers of this repository, and the headers of vendors."""

import posixpath
import re

from tree import top

# The longest matching prefix is a file's layer; what it may include besides itself.
ALLOWED = {
    "proto": (),
    "runtime/base": (),
    "runtime/segment": ("runtime/base",),
    "runtime": ("proto", "runtime"),
    "comm": ("runtime",),
    "launcher": ("proto", "runtime/base", "runtime/segment"),
    "trainer": ("runtime", "comm"),
    "tools": ("proto", "runtime", "comm", "launcher", "trainer"),
    "tests": ("proto", "runtime", "comm", "launcher", "trainer", "tools"),
}

# (headers, the folders that may include them, why)
VENDORS = (
    (r"(ucp|ucs|uct|ucm)/", ("comm/transport/ucx", "tests/comm"), "UCX"),
    (r"nccl\.h$", ("comm/nccl", "tests/comm", "tests/support"), "NCCL"),
    (r"(cuda(_\w+)?|cudaTypedefs|nvml)\.(h|hpp)$|cuda/", ("comm/cuda", "comm/nccl", "tests/comm", "tests/support"),
     "CUDA"),
    (r"(torch|ATen|c10)/", ("trainer", "tests/trainer", "tools"), "libtorch"),
    (r"(grpc|grpcpp|grpc\+\+)/|.*\.grpc\.pb\.h$", ("proto", "launcher", "runtime/rendezvous", "tests", "tools"),
     "gRPC (a rank does not link it)"),
)

_TORCH = re.compile(r"(torch|ATen|c10)/")
_CLASHING = re.compile(r"(grpc|grpcpp|grpc\+\+|absl/log)/|.*\.grpc\.pb\.h$")


def _within(path, folder):
    return path == folder or path.startswith(folder + "/")


def layer_of(path):
    fitting = [layer for layer in ALLOWED if _within(path, layer)]
    return max(fitting, key=len, default=None)


def target_of(header):
    """The path in this repository that an include names, or None for a header from elsewhere."""
    if header.startswith("cohort/v1/"):
        return "proto/" + header
    return header if layer_of(header) else None


def check_layers(tree):
    for path in tree.sources():
        layer = layer_of(path)
        if layer is None:
            yield path, 1, "is in no layer; sources live in the folders of tests/tidy/layering.py"
            continue
        for line, header in tree.includes(path):
            target = target_of(header)
            if target is None:
                sibling = "/".join(path.split("/")[:-1] + [header])
                if sibling in tree.paths:
                    yield path, line, f'include "{sibling}" from the root of the repository'
                continue
            if layer_of(target) != layer and not any(_within(target, allowed) for allowed in ALLOWED[layer]):
                yield path, line, f"{layer} may not include {header}; allowed: {', '.join(ALLOWED[layer]) or 'none'}"


def check_vendors(tree):
    for path in tree.sources():
        for line, header in tree.includes(path):
            for pattern, folders, vendor in VENDORS:
                if re.match(pattern, header) and not any(_within(path, folder) for folder in folders):
                    yield path, line, f"{header}: only {', '.join(folders)} may include {vendor}"


def _reached(tree, path, seen):
    """All headers from elsewhere that `path` includes, itself or through headers of this repository."""
    if path in seen:
        return set()
    seen.add(path)
    found = set()
    for _, header in tree.includes(path):
        target = target_of(header)
        if target and target in tree.paths:
            found |= _reached(tree, target, seen)
        else:
            found.add(header)
    return found


def check_clashes(tree):
    """libtorch's logging macros and those of gRPC and Abseil have the same names."""
    for path in tree.sources():
        reached = _reached(tree, path, set())
        torch = sorted(h for h in reached if _TORCH.match(h))
        clashing = sorted(h for h in reached if _CLASHING.match(h))
        if torch and clashing:
            yield path, 1, f"includes both {torch[0]} and {clashing[0]}, whose macros clash"


def installed_headers(tree):
    """The HDRS of all libraries that are installed."""
    found = set()
    for cmake in tree.named("CMakeLists.txt"):
        for call in re.findall(r"cohort_library\(([^()]*)\)", re.sub(r"#[^\n]*", "", tree.text(cmake))):
            if "EXCLUDE_FROM_INSTALL" in call:
                continue
            listed = re.search(r"\bHDRS\b(.*?)(?:\b(?:SRCS|DEPS|PRIVATE_DEPS|PCH|NAME)\b|$)", call, re.DOTALL)
            for header in (listed.group(1).split() if listed else ()):
                found.add("/".join(cmake.split("/")[:-1] + [header]))
    return found


def check_installed(tree):
    """An installed header needs nothing but the standard library, Abseil's Status, libtorch (in the trainer), and other
    installed headers. Those that it or its part's page sends users to are installed too."""
    installed = installed_headers(tree)
    for path in sorted(installed):
        if path not in tree.paths:
            continue  # CMake reports it, with the place
        for line, header in tree.includes(path):
            target = target_of(header)
            if target and target not in installed:
                yield path, line, f"is installed, but {header} is not: list it in HDRS of its library"
            elif header.startswith("absl/") and header not in ("absl/status/status.h", "absl/status/statusor.h"):
                yield path, line, f"{header}: installed headers use no Abseil but Status and StatusOr"
    for path in sorted(installed | {top(header) + "/README.md" for header in installed}):
        for line, header in _sent_to(tree, path) if path in tree.paths else ():
            if header not in installed:
                yield path, line, f"sends users to {header}, which is not installed: list it in HDRS of its library"


def _sent_to(tree, path):
    """[(line, header)] of what a header or a page tells its readers to include: `(x.h)` after a name, of the same folder,
    and the includes of a page's examples."""
    folder = posixpath.dirname(path)
    for line, text in enumerate(tree.text(path).splitlines(), 1):
        named = [f"{folder}/{header}" for header in re.findall(r"\(`?(\w+\.h)`?\)", text)]
        if path.endswith(".md"):
            named += re.findall(r'^#include "([^"]+)"', text)
        for header in named:
            if header in tree.paths:
                yield line, header


def _named_sources(tree):
    """One expression that matches every source which some CMakeLists.txt names, also by ${variable} or *."""
    patterns = set()
    for cmake in tree.named("CMakeLists.txt"):
        folder = posixpath.dirname(cmake)
        for word in re.findall(r"[^\s()\"]+\.(?:cc|cu)\b", re.sub(r"#[^\n]*", "", tree.text(cmake))):
            word = word.replace("${CMAKE_CURRENT_SOURCE_DIR}", "/" + folder).replace("${PROJECT_SOURCE_DIR}", "/")
            path = posixpath.normpath(posixpath.join("/" + folder, word)).lstrip("/")
            patterns.add(re.sub(r"\\\$\\{\w+\\}|\\\*", r"[^/]*", re.escape(path)))
    return re.compile("|".join(sorted(patterns)) or "(?!)")


def check_compiled(tree):
    """A source that no CMakeLists.txt names is dead."""
    named = _named_sources(tree)
    for path in tree.sources():
        if path.endswith((".cc", ".cu")) and top(path) and not named.fullmatch(path):
            yield path, 1, "is compiled by no CMakeLists.txt"


RULES = {
    "layers": check_layers,
    "vendors": check_vendors,
    "clashes": check_clashes,
    "installed": check_installed,
    "compiled": check_compiled,
}
