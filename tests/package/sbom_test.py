"""sbom_test.py <tools/package/sbom.py> <build folder>: the list of linked libraries has them with their versions."""
import json
import pathlib
import shutil
import subprocess
import sys
import unittest

if not (shutil.which("ninja") and shutil.which("dpkg-query") and shutil.which("readelf")):
    print("skipped: no ninja, dpkg-query or readelf here, which the list is made from")
    sys.exit(77)

SCRIPT, BUILD = sys.argv[1:]
del sys.argv[1:]


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Bill(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bill = json.loads(output(sys.executable, SCRIPT, BUILD))
        cls.components = {component["bom-ref"]: component for component in cls.bill["components"]}
        cls.parts = {entry["ref"]: entry["dependsOn"] for entry in cls.bill["dependencies"]}

    def linked(self, name):
        return {p["value"] for p in self.components[name]["properties"] if p["name"] == "cohort:linked"}.pop().split()

    def test_is_cyclonedx(self):
        self.assertEqual((self.bill["bomFormat"], self.bill["specVersion"]), ("CycloneDX", "1.5"))
        self.assertRegex(self.bill["serialNumber"], "^urn:uuid:[0-9a-f-]{36}$")
        try:
            from cyclonedx.schema import SchemaVersion
            from cyclonedx.validation.json import JsonStrictValidator
        except ImportError:
            self.skipTest("the schema is not checked: pip install cyclonedx-python-lib[json-validation]")
        self.assertIsNone(JsonStrictValidator(SchemaVersion.V1_5).validate_str(json.dumps(self.bill)))

    def test_references_lead_to_components(self):
        for place, parts in self.parts.items():
            for ref in parts:
                self.assertIn(ref, self.components, place)

    def test_has_each_needed_library_of_debian_with_its_version(self):
        library = next(pathlib.Path(BUILD).glob("package/lib/libcohort_comm.so.*.*.*"))
        version = output("dpkg-query", "-W", "-f", "${Version}", "libssl3")
        self.assertIn("NEEDED", output("readelf", "-d", library))
        self.assertIn("libssl3", self.parts[f"lib/{library.name}"])
        self.assertEqual(self.components["libssl3"]["version"], version)

    def test_tells_archives_from_shared_libraries(self):
        if "bin/dlaunch" in self.parts:
            self.assertIn("libgrpc++-dev", self.parts["bin/dlaunch"])
            self.assertIn("static", self.linked("libgrpc++-dev"))
        self.assertEqual(self.linked("libssl3"), ["shared"])

    def test_tells_what_each_part_is_made_of(self):
        (c_library,) = [place for place in self.parts if place.startswith("lib/libcohort_c.")]
        self.assertTrue(any(ref.startswith("lib/libcohort_comm.") for ref in self.parts[c_library]))


unittest.main()
