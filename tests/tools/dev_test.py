#!/usr/bin/env python3
"""tools/dev and tools/bench/peers among fakes of the programs that they call: progress of apt-get, the next step after
the demo, the warning on a busy machine.

usage: dev_test.py REPOSITORY
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = sys.argv[1]
INSTALLED = """#!/bin/sh
shift 3
for package; do echo "ii $package"; done
"""
# Goes on when its progress has been reported.
APT_GET = """#!/bin/sh
case "$*" in *update) exit ;; esac
echo "1 upgraded, 2 newly installed, 0 to remove and 5 not upgraded."
echo "Get:1 http://deb.debian.org/debian bookworm/main amd64 alpha all 1.0 [34 kB]"
echo "Get:2 http://deb.debian.org/debian bookworm/main amd64 beta all 1.0 [34 kB]"
echo "Unpacking alpha (1.0) ..."
tries=0
until grep -q '1 unpacked' "$TOLD" || [ $((tries = tries + 1)) = 600 ]; do sleep 0.1; done
echo "Setting up alpha (1.0) ..."
exit "${APT_STATUS:-0}"
"""
# Installs a program that says which requirement it was installed for.
PIP = """#!/bin/sh
[ "$3" = --version ] && exit
[ "${PIP_STATUS:-0}" = 0 ] || exit "$PIP_STATUS"
case "$*" in *--require-hashes*) ;; *) exit 1 ;; esac
while [ $# -gt 2 ]; do if [ "$1" = --prefix ]; then prefix=$2; fi; shift; done
mkdir -p "$prefix/bin" && cp "$2" "$prefix/bin/mpirun"
"""


class Dev(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cohort-dev-")
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        os.makedirs(os.path.join(self.root, "tools/bench"))
        for name in ("dev", "peer-wheels.sh", "bench/peers"):
            shutil.copy(os.path.join(REPOSITORY, "tools", name), os.path.join(self.root, "tools", name))
        with open(os.path.join(self.root, "tools/debian-packages.txt"), "w") as file:
            file.write("build alpha\nbuild beta\n")
        with open(os.path.join(self.root, "tools/peer-wheels.txt"), "w") as file:
            file.write("# a comment\none==1.0 --hash=sha256:11\ntwo-rt==2.0 --hash=sha256:22\n")
        self.told = os.path.join(self.root, "told")
        self.make("fakes/dpkg-query", INSTALLED)
        self.make("fakes/sudo", '#!/bin/sh\nexec "$@"\n')
        self.make("fakes/apt-get", APT_GET)
        self.make("fakes/cmake", "#!/bin/sh\n")

    def make(self, name, text):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def run_script(self, *command, **environment):
        """The exit status and the output."""
        with open(self.told, "w") as told:
            done = subprocess.run(command, cwd=self.root, stdout=told, stderr=subprocess.STDOUT, timeout=100,
                                  check=False,
                                  env=dict(os.environ, PATH=f"{self.root}/fakes:{os.environ['PATH']}", TOLD=self.told,
                                           **environment))
        with open(self.told) as told:
            return done.returncode, told.read()

    def test_apt_tells_how_far_it_is(self):
        self.make("fakes/dpkg-query", "#!/bin/sh\nexit 1\n")
        status, text = self.run_script("tools/dev", "setup")
        self.assertEqual(status, 0, text)
        self.assertIn("    3 packages: 2 downloaded, 1 unpacked, 0 ready\n", text)

    def test_apt_that_fails_shows_its_last_lines(self):
        self.make("fakes/dpkg-query", "#!/bin/sh\nexit 1\n")
        status, text = self.run_script("tools/dev", "setup", APT_STATUS="100")
        self.assertEqual(status, 1, text)
        self.assertIn("\nSetting up alpha (1.0) ...\ntools/dev: apt-get install failed", text)

    def test_words_are_refused_before_anything_is_installed_and_built(self):
        self.make("fakes/dpkg-query", "#!/bin/sh\nexit 1\n")  # something is to be installed
        self.make("CMakePresets.json", '{"name": "release"}')
        for words, why in ((["package", "--bogus"], "unknown option --bogus"), (["package", "--try", "x"], "x is too much"),
                           (["demo", "--bogus"], "--bogus is too much"), (["format", "--bogus"], "unknown option --bogus"),
                           (["docs", "--bogus"], "unknown option --bogus"), (["test", "--preset"], "--preset needs a name"),
                           (["test", "--preset", "relase"], "there is no preset relase"),
                           (["wheel", "--arch"], "--arch needs a machine")):
            status, text = self.run_script("tools/dev", *words)
            self.assertEqual(status, 1, text)
            self.assertIn(why, text)
            self.assertNotIn("Unpacking", text)

    def test_clean_removes_folders_of_the_build_alone(self):
        for name in ("build/release", "build/kept", "victim"):
            os.makedirs(os.path.join(self.root, name))
        for words in (["../victim"], ["/"], ["."], ["relase"], ["--all"], ["release", "victim"], [""]):
            status, text = self.run_script("tools/dev", "clean", *words)
            self.assertEqual(status, 1, (words, text))
        self.assertTrue(os.path.isdir(os.path.join(self.root, "victim")))
        self.assertEqual(self.run_script("tools/dev", "clean", "release"), (0, ""))
        self.assertEqual(os.listdir(os.path.join(self.root, "build")), ["kept"])
        self.assertEqual(self.run_script("tools/dev", "clean"), (0, ""))
        self.assertFalse(os.path.exists(os.path.join(self.root, "build")))

    def wheels(self):
        """The installed wheels, by folder."""
        peers = os.path.join(self.root, "build/peers")
        return {name: pathlib.Path(peers, name, "bin/mpirun").read_text(encoding="utf-8")
                for name in sorted(os.listdir(peers))}

    def test_peers_get_a_folder_each_and_are_downloaded_once(self):
        self.make("fakes/python3", PIP)
        status, text = self.run_script("tools/dev", "setup", "--peers")
        self.assertEqual(status, 0, text)
        self.assertEqual(self.wheels(), {"one": "one==1.0 --hash=sha256:11\n", "two-rt": "two-rt==2.0 --hash=sha256:22\n"})
        status, text = self.run_script("tools/dev", "setup", "--peers", PIP_STATUS="1")
        self.assertEqual(status, 0, text)
        self.assertNotIn("downloading", text)
        with open(os.path.join(self.root, "tools/peer-wheels.txt"), "w") as file:
            file.write("one==1.1 --hash=sha256:33\ntwo-rt==2.0 --hash=sha256:22\n")
        status, text = self.run_script("tools/dev", "setup", "--peers")
        self.assertIn("downloading one==1.1 into build/peers/one", text)
        self.assertNotIn("two-rt", text)
        self.assertEqual(self.wheels()["one"], "one==1.1 --hash=sha256:33\n")

    def test_a_peer_that_pip_refuses_is_named_and_not_kept(self):
        self.make("fakes/python3", PIP)
        status, text = self.run_script("tools/dev", "setup", "--peers", PIP_STATUS="1")
        self.assertEqual(status, 1, text)
        self.assertIn("pip could not install one two-rt", text)
        self.assertEqual(os.listdir(os.path.join(self.root, "build/peers")), [])

    def test_the_comparison_goes_on_without_peers(self):
        self.make("tools/dev", "#!/bin/sh\nexit 1\n")
        self.make("build/release/bin/collperf", '#!/bin/sh\necho "$*"\n')
        status, text = self.run_script("tools/bench/peers", "--quick")
        self.assertEqual(status, 0, text)
        self.assertIn("WARNING: goes on without the peers", text)

    def test_the_demo_ends_with_a_step_that_works(self):
        self.make("build/release/bin/dlaunch", '#!/bin/sh\necho "started: $*"\n')
        status, text = self.run_script("tools/dev", "demo")
        self.assertEqual(status, 0, text)
        lines = text.splitlines()[-2:]
        done = subprocess.run(["sh", "-c", "\n".join(lines)], capture_output=True, text=True, check=False, cwd="/")
        self.assertRegex(done.stdout, r"^started: --nproc-per-node \d train_digits ", (lines, done))

    def test_peers_warns_and_leaves_the_tree_alone(self):
        self.make("tools/dev", "#!/bin/sh\n")
        self.make("build/release/bin/collperf", '#!/bin/sh\necho "$*"\n')
        spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            status, text = self.run_script("tools/bench/peers", "--quick")
        finally:
            spinning.kill()
            spinning.wait()
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"WARNING: the machine is busy: other programs use \d+ % of a CPU")
        self.assertTrue(text.endswith("--results build/results --quick --peers all\n"), text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
