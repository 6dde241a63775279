"""abi_test.py <comm/c> <libcohort_c.so> [--write]: compares the binary interface with comm/c/abi.txt: functions, types,
values, macros, the places of members in structs, and the symbols of the library with their versions.

--write writes the list. It refuses a list that differs under the same version, and one that lacks something of the same
major version: raise COHORT_C_MINOR for additions, and COHORT_C_MAJOR for all other changes."""

import difflib
import os
import re
import subprocess
import sys
import tempfile


def flat(text):
    return re.sub(r"\s+", " ", text).strip()


def declarations(header):
    """(functions, types, {struct: [(member, declaration)]}, names of values, macros) of the header without comments."""
    text = re.sub(r"/\*.*?\*/", " ", header, flags=re.DOTALL)
    text = re.sub(r"\\\n", " ", text)
    names = [n for n in re.findall(r"^#define (COHORT_\w+) ", text, re.MULTILINE) if not n.endswith("_INIT")]
    macros = [flat(m) for m in re.findall(r"^#define (COHORT_\w+(?:_INIT |\().*)$", text, re.MULTILINE)]
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    structs = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.DOTALL):
        members = []
        for member in filter(None, map(flat, body.split(";"))):
            pointer = re.search(r"\(\*(\w+)\)", member)
            members.append((pointer.group(1) if pointer else member.split()[-1].lstrip("*"), member))
        structs[name] = members
    text = re.sub(r"typedef struct \w+ \{.*?\} \w+;", "", text, flags=re.DOTALL)
    for body in re.findall(r"enum \{(.*?)\};", text, re.DOTALL):
        names += re.findall(r"COHORT_\w+", body)
    text = re.sub(r"enum \{.*?\};", "", text, flags=re.DOTALL)
    statements = [flat(s) for s in text.split(";")]
    types = [s[s.index("typedef"):] for s in statements if "typedef" in s]
    functions = [s for s in statements if re.match(r"(const )?\w+\*? cohort_\w+\(", s)]
    return functions, types, structs, list(dict.fromkeys(n for n in names if n not in ("COHORT_BLOCK", "COHORT_NULL"))), macros


def lost(before, now):
    """The lines of `before` that a larger minor version must keep. A struct may grow, and its INIT macro with it."""

    def is_kept(line):
        if line.startswith("version ") or line in now:
            return True
        if line.startswith("struct "):
            return any(other.split()[:2] == line.split()[:2] for other in now)
        grown = line.removesuffix("}")
        return line.startswith("macro ") and grown != line and any(other.startswith(grown) for other in now)

    return [line for line in before if not is_kept(line)]


def check_lost():
    before = ["version 1.0", "function void f(void)", "struct s 8 bytes", "macro S_INIT {sizeof(s), 0}"]
    added = ["version 1.1", *before[1:2], "function void g(void)", "struct s 16 bytes", "macro S_INIT {sizeof(s), 0, 0}"]
    assert lost(before, added) == [] and lost(added, before) == ["function void g(void)", added[-1]]
    assert lost(before, before[:1]) == before[1:]


def measured(folder, structs, names):
    """The values and layouts, as the C compiler has them."""
    lines = ["#include <stdio.h>", f'#include "{os.path.join(folder, "cohort.h")}"', "int main(void) {"]
    for name in names:
        lines.append(f'  printf("value {name} %lld\\n", (long long)(intptr_t)({name}));')
    for struct, members in structs.items():
        lines.append(f'  printf("struct {struct} %d bytes\\n", (int)sizeof({struct}));')
        for member, text in members:
            lines.append(f'  printf("member {struct} %d: {text}\\n", (int)offsetof({struct}, {member}));')
    lines += ["  return 0;", "}"]
    with tempfile.TemporaryDirectory() as work:
        source, program = os.path.join(work, "abi.c"), os.path.join(work, "abi")
        with open(source, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        subprocess.run(["cc", "-std=c99", "-Wall", "-Werror", source, "-o", program], check=True)
        return subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def symbols(library):
    shown = subprocess.run(["nm", "-D", "--defined-only", library], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = [line.split() for line in shown.splitlines()]
    return sorted(f"symbol {fields[-1]}" for fields in found if fields[-2] != "A")


def main():
    folder, library = sys.argv[1:3]
    with open(os.path.join(folder, "cohort.h"), encoding="utf-8") as file:
        header = file.read()
    check_lost()
    functions, types, structs, names, macros = declarations(header)
    version = "version " + ".".join(re.search(rf"#define COHORT_C_{part} (\d+)", header).group(1)
                                    for part in ("MAJOR", "MINOR"))
    now = [version, *(f"function {f}" for f in functions), *(f"type {t}" for t in types),
           *(f"macro {m}" for m in macros), *measured(os.path.abspath(folder), structs, names), *symbols(library)]
    path = os.path.join(folder, "abi.txt")
    before = []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            before = file.read().splitlines()
    if now == before:
        print(f"{version}: {len(functions)} functions, {len(structs)} structs, {len(names)} values")
        return
    same_major = before and before[0].split(".")[0] == version.split(".")[0]
    if same_major and (missing := lost(before, now)):
        print("\n".join(missing))
        sys.exit("a library of this major version must keep what comm/c/abi.txt lists: raise COHORT_C_MAJOR")
    if "--write" in sys.argv and (not before or before[0] != version):
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(now) + "\n")
        return
    print("\n".join(difflib.unified_diff(before, now, path, "this build", lineterm="", n=0)))
    same = before and before[0] == version
    sys.exit("the binary interface of C differs from comm/c/abi.txt: " +
             ("raise COHORT_C_MINOR for additions, COHORT_C_MAJOR for other changes, and then " if same else "") +
             "run abi_test.py with --write")


if __name__ == "__main__":
    main()
