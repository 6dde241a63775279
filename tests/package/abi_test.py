"""abi_test.py <build folder> <comm/c/exported.map>: builds the shared libraries again and compares both with abidiff: nothing may differ.

Objects of the interface for C are compiled again; the C++ libraries, whose objects take minutes, are linked again. Then
a library without one function shows that a difference is seen. `comm/c/abi.txt` is where the interface for C is
compared with the released one, types included (tests/comm/c/abi_test.py)."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

if not (shutil.which("abidiff") and shutil.which("ninja")):
    print("skipped: no abidiff here (Debian's abigail-tools), or no ninja, which tells how libraries are linked")
    sys.exit(77)

BUILD = pathlib.Path(sys.argv[1]).resolve()
LIBRARIES = BUILD / "package/lib"


def commands(target):
    found = subprocess.run(["ninja", "-t", "commands", target], cwd=BUILD, check=True, capture_output=True, text=True)
    return found.stdout.splitlines()


def run(command):
    subprocess.run(command, shell=True, cwd=BUILD, check=True)


def compile_again(folder, target):
    """Compiles the sources of comm/c into the folder. Returns {object of the build: object here}."""
    made = {}
    for line in commands(target):
        found = re.search(r" -o (comm/c/\S+\.o) ", line)
        if found and "cohort_comm_c.dir" in line:
            made[found[1]] = str(folder / os.path.basename(found[1]))
            line = re.sub(r" -MD -MT \S+ -MF \S+", "", line)
            run(line.replace(f" -o {found[1]} ", f" -o {made[found[1]]} "))
    assert made, f"{target} is made of no object of comm/c"
    return made


def link_again(target, place, replaced, version_script=None):
    """Links the library of the build at another place. `replaced` maps objects to others."""
    line = commands(target)[-1]
    words = []
    for word in shlex.split(line.partition("&&")[2].rpartition("&&")[0]):
        word = str(place) if word == target else replaced.get(word, word)
        if version_script and "--version-script=" in word:
            word = f"-Wl,--version-script={version_script}"
        words.append(word)
    assert str(place) in words, f"no link line of {target}: {line}"
    run(shlex.join(words))


def differences(old, new):
    """(exit status, report) of abidiff; status 0: none, with 4: changes, with 8: incompatible ones."""
    found = subprocess.run(["abidiff", "--no-show-locs", str(old), str(new)], capture_output=True, text=True)
    assert not found.returncode & 3, f"abidiff failed: {found.stderr}"
    return found.returncode, found.stdout


def main():
    names = [path.resolve().name for path in sorted(LIBRARIES.glob("libcohort_*.so"))]
    assert names, f"there is no library in {LIBRARIES}"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in names:
            target, again = f"package/lib/{name}", folder / name
            objects = compile_again(folder, target) if name.startswith("libcohort_c.") else {}
            link_again(target, again, objects)
            status, report = differences(LIBRARIES / name, again)
            assert status == 0 and not report.strip(), f"{name} built again differs:\n{report}"
            print(f"{name}: no difference")

        without = folder / "without.map"
        without.write_text(pathlib.Path(sys.argv[2]).read_text().replace("cohort_barrier;", ""))
        (name,) = [name for name in names if name.startswith("libcohort_c.")]
        link_again(f"package/lib/{name}", folder / "less.so", {}, without)
        status, report = differences(LIBRARIES / name, folder / "less.so")
        assert status & 8 and "cohort_barrier" in report, f"a function is gone, and abidiff says {status}:\n{report}"
        print("a function that is gone is seen")


main()
