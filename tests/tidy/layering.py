"""The includes that are allowed: the layers of this repository, and the headers of vendors."""

import posixpath
import re

from tree import top

# The longest matching prefix is a file's layer; what it may include besides itself.
ALLOWED = {
    "proto": (),
    "runtime": ("proto",),
    "comm": ("runtime",),
    "launcher": ("proto", "runtime/base", "runtime/manual", "runtime/perfetto", "runtime/process", "runtime/ranges",
                 "runtime/segment", "runtime/tape"),
    "trainer": ("runtime", "comm"),
    "python": ("runtime", "comm"),
    "tools": ("proto", "runtime", "comm", "launcher", "trainer"),
    "tests": ("proto", "runtime", "comm", "launcher", "trainer", "python", "tools"),
}

# The rooms of each part: a folder may include itself and the folders above it. "" is the part's own folder.
ROOMS = {
    "runtime": ("manual", "base", "perfetto", "process", "ranges", "segment", "tape", "engine", "bootstrap", ""),
    "comm": ("reduce", "cuda", "transport", "transport/net", "transport/shm/way", "transport/shm", "transport/ucx",
             "transport/tcp/socket", "transport/tcp", "transport/sim", "plan",
             "algorithm", "select", "simulate", "provider", "check", "tape", "run", "nccl/library", "nccl/profiler", "nccl", "group", "", "c", "c/examples", "examples"),
    "launcher": ("remedies", "base", "base/net", "options", "trace", "verdict", "control/parts", "control", "control/standby", "rpc", "machine",
                 "agent/watch", "agent/lines", "agent/rank", "agent/trace", "agent/mpi/spawn", "agent/mpi/pmix", "agent/mpi", "agent/stacks", "agent/activity", "agent/evidence", "agent/link",
                 "agent/life", "agent", "spawn", "join",
                 "nodes/surroundings", "nodes", "report", "metrics", "jobs", "replay", "front_end/printing", "front_end",
                 "commands/trace", "commands"),
    "trainer": ("base", "mesh", "transfer", "placement", "autograd", "state/checkpoint", "state", "nn",
                "parallel/replicate", "parallel/zero", "parallel/fsdp", "parallel/tensor",
                "parallel/pipeline/schedule", "parallel/pipeline", "torchshard", "adapter", "parallelize",
                "compat/pt", "compat", "data", "", "examples", "examples/gpt", "examples/ports"),
    "python": ("module",),
}
# Folders that do not include each other: what they share lies above them or in SHARED, what joins them below.
SIBLINGS = ("comm/transport/", "trainer/parallel/")
SHARED = ("comm/transport/net",)
# Values that every room of the part may use.
VALUES = ("comm/types.h", "comm/request.h")
# The libraries of the values, whatever room they are made in.
VALUE_TARGETS = ("comm_types",)
# Tests of whole programs and of several rooms together; the others lie where the room lies that they test.
TEST_FOLDERS = ("tests", "tests/support", "tests/tidy", "tests/package", "tests/job", "tests/deploy",
                "tests/comm/conformance", "tests/launcher/dlaunch")

# (headers, the folders that may include them, why)
VENDORS = (
    (r"(ucp|ucs|uct|ucm)/", ("comm/transport/ucx", "tests/comm"), "UCX"),
    (r"nccl\.h$", ("comm/nccl", "tests/comm", "tests/support"), "NCCL"),
    (r"(cuda(_\w+)?|cudaTypedefs|nvml)\.(h|hpp)$|cuda/", ("comm/cuda", "comm/nccl", "tests/comm", "tests/support"),
     "CUDA"),
    (r"Python\.h$", ("python/module",), "CPython"),
    (r"pmix(_\w+)?\.h$", ("launcher/agent/mpi/pmix",), "PMIx"),
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
    if header == "cohort/trainer.h":  # all of the trainer
        return "trainer/trainer.h"
    if header == "cohort/cohort.h":  # the interface for C
        return "comm/c/cohort.h"
    if header.startswith("cohort/"):
        return header[len("cohort/"):]
    return header if header.startswith(("tests/", "tools/")) else None


def _room_of(part, folder):
    """The place of a folder in its part's order, or None where it has none."""
    name = folder[len(part):].lstrip("/")
    return ROOMS[part].index(name) if name in ROOMS[part] else None


def _against_the_order(folder, other):
    """Why a folder of a part may not use another folder of the same part, or None where it may."""
    part = top(folder + "/")
    if part not in ROOMS or other == folder or top(other + "/") != part:
        return None
    for siblings in SIBLINGS:
        one, another = ((path[len(siblings):].split("/")[0] if path.startswith(siblings) else None)
                        for path in (folder, other))
        if one and another and one != another and other not in SHARED:
            return f"the folders of {siblings} do not use each other"
    own, used = _room_of(part, folder), _room_of(part, other)
    if own is None or used is None:
        return f"{other if used is None else folder} is in no order of ROOMS"
    return f"{other} comes after {folder} in the order of ROOMS" if used > own else None


def check_layers(tree):
    for path in tree.sources():
        layer = layer_of(path)
        if layer is None:
            yield path, 1, "is in no layer; sources live in the folders of tests/tidy/layering.py"
            continue
        folder = posixpath.dirname(path)
        if layer in ROOMS and _room_of(layer, folder) is None:
            yield path, 1, f"{folder} is no room of ROOMS in tests/tidy/layering.py"
            continue
        for line, header in tree.includes(path):
            target = target_of(header)
            if target is None:
                if header in tree.paths:
                    yield path, line, f'include "cohort/{header}"'
                elif f"{folder}/{header}" in tree.paths:
                    yield path, line, f'include "cohort/{folder}/{header}"'
                continue
            if layer_of(target) != layer and not any(_within(target, allowed) for allowed in ALLOWED[layer]):
                yield path, line, f"{layer} may not include {header}; allowed: {', '.join(ALLOWED[layer]) or 'none'}"
            reason = None if target in VALUES else _against_the_order(folder, posixpath.dirname(target))
            if reason:
                yield path, line, f"may not include {header}: {reason}"


def _libraries(tree):
    """[(CMakeLists.txt, line, name, dependencies)] of all cohort_library calls."""
    for cmake in tree.named("CMakeLists.txt"):
        text = re.sub(r"#[^\n]*", "", tree.text(cmake))
        for call in re.finditer(r"cohort_library\(\s*NAME\s+(\w+)([^()]*)\)", text):
            yield cmake, text.count("\n", 0, call.start()) + 1, call.group(1), re.findall(r"cohort::(\w+)", call.group(2))


def check_targets(tree):
    """A library depends on those of the folders above its own alone, as its sources' includes do."""
    libraries = list(_libraries(tree))
    home = {name: posixpath.dirname(cmake) for cmake, _, name, _ in libraries}
    for cmake, line, name, dependencies in libraries:
        folder = posixpath.dirname(cmake)
        for dependency in dependencies:
            other = home.get(dependency)
            if other is None or dependency in VALUE_TARGETS:
                continue
            layer = layer_of(folder + "/")
            if layer_of(other + "/") != layer and not any(_within(other, allowed) for allowed in ALLOWED.get(layer, ())):
                yield cmake, line, f"{name} may not depend on cohort::{dependency}, which is {layer_of(other + '/')}'s"
            reason = _against_the_order(folder, other)
            if reason:
                yield cmake, line, f"{name} may not depend on cohort::{dependency}: {reason}"


def check_places(tree):
    """A test lies in tests/ where what it tests lies in the tree: in the folder of that name, and X_test.cc that includes
    X.h in the folder of X.h."""
    folders = {posixpath.dirname(path) for path in tree.paths if top(path) != "tests"}
    for path in tree.sources("tests"):
        folder, name = posixpath.split(path)
        if _within(folder, "tests/support") or _within(folder, "tests/package"):
            continue
        if folder not in TEST_FOLDERS and folder[len("tests/"):] not in folders:
            yield path, 1, f"there is no folder {folder[len('tests/'):]} whose tests would lie here"
        tested = re.fullmatch(r"(\w+)_(test|fuzz|ranks)\.cc", name)
        if not tested or folder in TEST_FOLDERS:
            continue
        for _, header in tree.includes(path):
            target = target_of(header)
            if target and top(target) != "tests" and posixpath.basename(target) == tested.group(1) + ".h":
                right = "tests/" + posixpath.dirname(target)
                if right != folder:
                    yield path, 1, f"tests {target}: it belongs in {right}"


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


def check_private(tree):
    """trainer/README.md lists the trainer's installed headers that trainer/trainer.h does not include: all, and no
    others."""
    page, umbrella = "trainer/README.md", "trainer/trainer.h"
    if page not in tree.paths or umbrella not in tree.paths:
        return
    included = {target_of(header) for _, header in tree.includes(umbrella)}
    private = {path for path in installed_headers(tree) if top(path) == "trainer"} - included - {umbrella}
    listed = {}
    in_table = False
    for number, line in enumerate(tree.text(page).splitlines(), 1):
        cells = line.split("|")
        in_table = len(cells) == 4 and (in_table or cells[2].strip() == "private headers")
        for header in re.findall(r"`(\w+\.h)`", cells[2]) if in_table else ():
            listed[f"trainer/{cells[1].strip(' `')}{header}"] = number
    for path in sorted(private - set(listed)):
        yield page, 1, f"does not list {path} among the private headers: it is installed, and {umbrella} does not include it"
    for path in sorted(set(listed) - private):
        yield page, listed[path], f"lists {path} among the private headers, which is not installed or not private"


def _sent_to(tree, path):
    """[(line, header)] of what a header or a page tells its readers to include: `(x.h)` after a name, of the same folder,
    and the includes of a page's examples."""
    folder = posixpath.dirname(path)
    for line, text in enumerate(tree.text(path).splitlines(), 1):
        named = [f"{folder}/{header}" for header in re.findall(r"\(`?(\w+\.h)`?\)", text)]
        if path.endswith(".md"):
            named += [target_of(header) or header for header in re.findall(r'^#include "([^"]+)"', text)]
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
    "targets": check_targets,
    "places": check_places,
    "vendors": check_vendors,
    "clashes": check_clashes,
    "installed": check_installed,
    "private": check_private,
    "compiled": check_compiled,
}
