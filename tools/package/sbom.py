"""sbom.py <build folder>: prints what the installed programs and libraries consist of, as CycloneDX 1.5.

Reads Ninja's records of the build: the libraries on each link line, and the headers each object was compiled with. dpkg
tells which package has them. Components of Debian packages say how they are used: shared, static, headers.
"""
import collections
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid

COMPILERS = re.compile(r"/usr/(include/(c\+\+|x86_64-linux-gnu/c\+\+)|lib/gcc)/")


def output(*command, cwd=None):
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd).stdout


class Build:
    """Ninja's records of one build folder."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        cache = (self.folder / "CMakeCache.txt").read_text()
        self.cached = dict(re.findall(r"^(\w+):\w+=(.*)$", cache, re.MULTILINE))
        self.headers = {}  # object: headers
        for block in output("ninja", "-t", "deps", cwd=self.folder).split("\n\n"):
            name, *headers = block.splitlines() or [""]
            self.headers[name.partition(":")[0]] = [os.path.normpath(self.folder / header.strip()) for header in headers]

    def installed(self):
        """Paths in the build folder of what is installed: {path there: path here}."""
        found, scripts = {}, [self.folder / "cmake_install.cmake"]
        for script in scripts:  # from the top: folders that are no longer built keep theirs
            lines = script.read_text()
            scripts += map(pathlib.Path, re.findall(r'include\("([^"]+/cmake_install\.cmake)"\)', lines))
            for text in re.findall(r'TYPE (?:EXECUTABLE|SHARED_LIBRARY) FILES((?:\s+"[^"]+")+)', lines):
                for path in re.findall(r'"([^"]+)"', text):
                    real = os.path.realpath(path)
                    place = "lib" if ".so" in real else "bin"
                    found[f"{place}/{os.path.basename(real)}"] = real
        return found

    def link_line(self, path):
        lines = output("ninja", "-t", "commands", "-s", os.path.relpath(path, self.folder), cwd=self.folder)
        return lines.split()

    def objects(self, path):
        inputs = output("ninja", "-t", "inputs", os.path.relpath(path, self.folder), cwd=self.folder)
        return [name for name in inputs.splitlines() if name.endswith((".o", ".gch"))]


def needed(path):
    text = output("readelf", "-d", path)
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))


def uses(build, path):
    """The files that a program or library is made of, each with its use."""
    line, found, shared = build.link_line(path), set(), needed(path)
    archives = any(word.endswith("prefer_archives.sh") for word in line)
    for word in line:
        if word.startswith("-") or not re.search(r"\.(so[.\d]*|a)$", word):
            continue
        library = pathlib.Path(os.path.normpath(build.folder / word))
        if library.is_relative_to(build.folder) or not library.exists():
            continue
        stem = library.name.partition(".so")[0]
        archive = library.with_name(stem + ".a")
        if library.suffix == ".a":
            found.add((str(library), "static"))
        elif archives and archive.exists() and not any(name.startswith(stem + ".so") for name in shared):
            found.add((str(archive), "static"))
    for name in shared:
        found.add((name, "shared"))
    for object_name in build.objects(path):
        for header in build.headers.get(object_name, ()):
            if header.startswith("/usr/") and not COMPILERS.match(header):
                found.add((header, "headers"))
    return found


def libraries_by_name():
    names = {}
    for name, path in re.findall(r"^\s*(\S+) .*=> (\S+)$", output("/sbin/ldconfig", "-p"), re.MULTILINE):
        names.setdefault(name, os.path.realpath(path))
    return names


def owners(paths):
    """{path: Debian package}, of those that a package has."""
    wanted = collections.defaultdict(set)
    for path in paths:
        for known in {path, os.path.realpath(path)}:
            wanted[known].add(path)
            wanted[known.removeprefix("/usr")].add(path)
    found = {}
    for listing in pathlib.Path("/var/lib/dpkg/info").glob("*.list"):
        for line in listing.read_text().splitlines():
            for path in wanted.get(line, ()):
                found[path] = listing.stem
    return found


def package_components(names):
    shown = "${binary:Package}|${Package}|${Version}|${Architecture}|${source:Package}\n"
    components = {}
    for line in output("dpkg-query", "-W", "-f", shown, *sorted(names)).splitlines():
        binary, name, version, architecture, source = line.split("|")
        escaped = name.replace("+", "%2B")
        components[name] = {
            "type": "library", "bom-ref": name, "name": name, "version": version,
            "purl": f"pkg:deb/debian/{escaped}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={architecture}",
            "properties": [{"name": "cohort:source-package", "value": source}]}
    return components


def unowned(path):
    """The name of a file that no package has: the folder of headers, or the library."""
    return path.partition("/include/")[0].removeprefix("/") + "/include" if "/include/" in path else os.path.basename(path)


def bill(build):
    version = build.cached["CMAKE_PROJECT_VERSION"]
    ours, names = {}, libraries_by_name()
    for place, path in sorted(build.installed().items()):
        if os.path.exists(path):
            ours[place] = {(names.get(file, file), use) for file, use in uses(build, path)}
    owner = owners({file for parts in ours.values() for file, _ in parts})
    known = package_components({name.partition(":")[0] for name in owner.values()})
    how, dependencies = collections.defaultdict(set), []
    for place, parts in ours.items():
        refs = set()
        for file, use in parts:
            own = next((other for other in ours if os.path.basename(other).startswith(os.path.basename(file))), None)
            ref = own or owner.get(file, "").partition(":")[0] or unowned(file)
            if own != place:
                refs.add(ref)
            if own is None:
                how[ref].add(use)
                known.setdefault(ref, {"type": "library", "bom-ref": ref, "name": ref, "properties": []})
        dependencies.append({"ref": place, "dependsOn": sorted(refs)})
    for ref, kinds in how.items():
        known[ref]["properties"].append({"name": "cohort:linked", "value": " ".join(sorted(kinds))})
    licence = [{"license": {"id": "Apache-2.0"}}]
    own = [{"type": "library" if place.startswith("lib") else "application", "bom-ref": place, "name": place,
            "version": version, "licenses": licence} for place in ours]
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", datetime.datetime.now().timestamp()))
    components = own + [known[ref] for ref in sorted(how)]
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([version, epoch, components]))}",
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).isoformat(),
            "component": {"type": "application", "bom-ref": "cohort", "name": "cohort", "version": version,
                          "licenses": licence}},
        "components": components,
        "dependencies": [{"ref": "cohort", "dependsOn": sorted(ours)}] + dependencies}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(json.dumps(bill(Build(sys.argv[1])), indent=1))
