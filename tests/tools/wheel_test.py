#!/usr/bin/env python3
"""How the wheel is linked for an old glibc, and that newer symbols are found: wheel_test.py <repository>"""
import ctypes
import errno
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

REPOSITORY = pathlib.Path(sys.argv[1])
TOOLS = REPOSITORY / "tools/wheel"
sys.path.insert(0, str(TOOLS))

import libraries  # noqa: E402
import link  # noqa: E402
import symbols  # noqa: E402
import sysroot  # noqa: E402

SKIPPED = 77
TAG = f"cp39-abi3-manylinux_2_28_{platform.machine()}"


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cohort-wheel-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def compile(self, name, text, *options):
        path = self.folder / name
        subprocess.run(["cc", "-x", "c", "-", "-shared", "-fPIC", "-o", path, *options], input=text, text=True, check=True)
        return path


class Link(Folder):
    def toolchain(self, shared):
        for name in ("lib/liba.a", "there/liba.a", "there/liba.so.1.2", "there/libb.so"):
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.touch()
        return link.Toolchain("c++", str(self.folder), shared)

    def test_a_module_takes_the_archives_that_were_built_for_it(self):
        self.assertEqual(link.translate([f"{self.folder}/there/liba.so.1.2"], self.toolchain(True)), [f"{self.folder}/lib/liba.a"])

    def test_a_program_takes_the_archives_of_the_system(self):
        self.assertEqual(link.translate([f"{self.folder}/there/liba.so.1.2"], self.toolchain(False)), [f"{self.folder}/there/liba.a"])

    def test_a_library_below_the_build_folder_is_relative(self):
        toolchain = self.toolchain(False)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.assertEqual(link.translate(["there/liba.so.1.2"], toolchain), ["there/liba.a"])

    def test_the_output_is_no_library_to_look_for(self):
        self.assertEqual(link.translate(["-o", "/none/a.so"], self.toolchain(True)), ["-o", "/none/a.so"])

    def test_a_library_without_an_archive_is_named(self):
        with self.assertRaisesRegex(SystemExit, "libb.so has no archive: .*libraries.py"):
            link.translate([f"{self.folder}/there/libb.so"], self.toolchain(False))

    def test_what_is_for_another_linker_is_left_out(self):
        given = ["-O2", "-g1", "-DNDEBUG", "-fPIC", "-shared", "-fuse-ld=mold", "-Wl,-z,separate-loadable-segments", "-pthread",
                 "--sysroot=/there", "-Wl,--version-script=exported.map", "a.o", "-ldl", "-Wl,--push-state,--as-needed", "-Wl,--pop-state"]
        self.assertEqual(link.translate(given, self.toolchain(True)), ["-shared", "-Wl,--version-script=exported.map", "a.o", "-ldl"])


class Usage(Folder):
    def test_each_script_shows_it_and_makes_nothing(self):
        for script in (libraries, link, symbols, sysroot):
            for words, status in (["--help"], 0), (["-h"], 0), ([], 2):
                ran = subprocess.run([sys.executable, "-B", script.__file__, *words], cwd=self.folder, capture_output=True, text=True, check=False)
                self.assertEqual((ran.returncode, ran.stderr if status else ran.stdout), (status, script.__doc__ + "\n"))
        self.assertEqual(list(self.folder.iterdir()), [])


class Sysroot(Folder):
    def package(self, name, files, source="", version="1-2"):
        """A package of Debian: files maps paths to contents, or to ("->", target)."""
        tree = self.folder / name
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(f"Package: {name}\nVersion: {version}\nArchitecture: arm64\nMaintainer: nobody\n"
                                             f"Description: none\n{source}", encoding="utf-8")
        for path, content in files.items():
            place = tree / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, tuple):
                place.symlink_to(content[1])
            else:
                place.write_text(content, encoding="utf-8")
        made = self.folder / f"{name}.deb"
        subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree, made], check=True, stdout=subprocess.DEVNULL)
        return str(made)

    def test_links_of_packages_lead_to_the_files_of_others(self):
        if shutil.which("dpkg-deb") is None:
            self.skipTest("there is no dpkg-deb")
        root = self.folder / "root"
        (root / "usr/lib").mkdir(parents=True)
        (root / "lib").symlink_to("usr/lib")
        for package in (self.package("one", {"lib/there/libone.so.1": "library", "usr/share/doc/one/copyright": "text"}),
                        self.package("one-dev", {"usr/lib/there/libone.so": ("->", "/lib/there/libone.so.1")})):
            sysroot.unpack(package, str(root))
        sysroot.turn_links(str(root))
        self.assertTrue((root / "lib").is_symlink())
        self.assertEqual((root / "usr/lib/there/libone.so").read_text(encoding="utf-8"), "library")
        self.assertFalse(os.path.isabs(os.readlink(root / "usr/lib/there/libone.so")))
        self.assertFalse((root / "usr/share/doc").exists())

    def test_the_version_of_a_source_is_that_of_the_package_there(self):
        if shutil.which("dpkg-deb") is None:
            self.skipTest("there is no dpkg-deb")
        packages = [self.package("libone-dev", {}, "Source: one (1-2)\n", "1-2+b3"), self.package("two", {})]
        (self.folder / "sources.txt").write_text("".join(f"{sysroot.source_of(package)}\n" for package in packages), encoding="utf-8")
        self.assertEqual(libraries.source_of("libone-dev", str(self.folder)), ["one", "1-2"])
        self.assertEqual(libraries.source_of("two", str(self.folder)), ["two", "1-2"])


class StandIns(Folder):
    """old_glibc.c, seen from outside, without the glibc of this machine."""

    def setUp(self):
        super().setUp()
        path = self.compile("old.so", (TOOLS / "old_glibc.c").read_text(encoding="utf-8"), "-DHIDDEN=", "-DLOOK_UP(name)=((void)name,NULL)",
                            "-Wl,-Bsymbolic", "-Wall", "-Wextra", "-Werror")
        self.old = ctypes.CDLL(str(path), use_errno=True)

    def test_signals_have_the_names_of_glibc(self):
        self.old.sigabbrev_np.restype = ctypes.c_char_p
        names = {number: f"SIG{self.old.sigabbrev_np(number).decode()}" for number in range(1, 32)}
        for number in map(int, signal.Signals):
            if number < 32:
                self.assertIn(names[number], (signal.Signals(number).name, "SIGPOLL"))
        self.assertEqual([self.old.sigabbrev_np(number) for number in (-1, 0, 32, 1000)], [None] * 4)

    def test_unwind_tables_are_where_glibc_finds_them(self):
        libc = ctypes.CDLL(None)
        if not hasattr(libc, "_dl_find_object"):
            self.skipTest("this glibc has no _dl_find_object")

        def tables(library, address):
            result = (ctypes.c_uint64 * 16)()
            return library._dl_find_object(ctypes.c_void_p(address), result), result[4]

        for function in (libc.printf, self.old.arc4random, ctypes.pythonapi.Py_Initialize):
            address = ctypes.cast(function, ctypes.c_void_p).value
            self.assertEqual(tables(self.old, address), tables(libc, address))
            self.assertEqual(tables(self.old, address)[0], 0)
        self.assertEqual(tables(self.old, 16)[0], -1)

    def test_random_bytes_differ(self):
        first, second = (ctypes.create_string_buffer(1000) for _ in range(2))
        self.old.arc4random_buf(first, 1000)
        self.old.arc4random_buf(second, 1000)
        self.assertNotEqual(first.raw, second.raw)
        self.assertNotEqual(first.raw[-32:], bytes(32))

    def wait(self, seconds):
        """The result of a wait that nobody ends, and how long it took."""
        libc = ctypes.CDLL(None)
        condition, mutex = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        began = time.monotonic()
        until = (ctypes.c_long * 2)(int(began + seconds), int((began + seconds) % 1 * 1e9))
        result = self.old.pthread_cond_clockwait(condition, mutex, time.CLOCK_MONOTONIC, until)
        libc.pthread_mutex_unlock(mutex)
        return result, time.monotonic() - began

    def test_a_wait_ends_at_its_time(self):
        result, took = self.wait(0.05)
        self.assertEqual(result, errno.ETIMEDOUT)
        self.assertGreaterEqual(took, 0.0499)
        self.assertEqual(self.wait(-1)[0], errno.ETIMEDOUT)

    def test_a_long_wait_wakes_up_each_second_as_the_wall_clock_may_have_been_set(self):
        result, took = self.wait(1000)
        self.assertEqual(result, 0)
        self.assertLess(took, 100)


class Symbols(Folder):
    def wheel(self, text, *options, tag=TAG):
        module = self.compile("module.so", text + "\n#include <string.h>\nvoid* copy(void* a, void* b, size_t n) { return memcpy(a, b, n); }",
                              "-O1", "-fno-builtin", *options)
        path = self.folder / f"dlaunch-1-{tag}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(module, "dlaunch/module.so")
            archive.writestr("dlaunch/__init__.py", "")
        return list(symbols.check(str(path), "2.28"))

    def test_symbols_that_are_old_enough_are_none_of_its_business(self):
        self.assertEqual(self.wheel("int PyLong_FromLong(long); int f(void) { return PyLong_FromLong(1); }"), [])

    def test_a_newer_symbol_of_glibc_is_named(self):
        found = self.wheel("#include <stdlib.h>\nunsigned f(void) { return arc4random(); }")
        self.assertEqual(found, ["dlaunch/module.so: needs GLIBC_2.36, for arc4random"])

    def test_libstdcxx_is_named(self):
        found = self.wheel("void* _Znwm(unsigned long); void* f(void) { return _Znwm(1); }", "-lstdc++")
        self.assertIn("dlaunch/module.so: needs the library libstdc++.so.6", found)
        self.assertIn("dlaunch/module.so: needs GLIBCXX_3.4, for _Znwm", found)

    def test_a_symbol_of_no_library_is_named(self):
        self.assertEqual(self.wheel("int g(void); int f(void) { return g(); }"), ["dlaunch/module.so: needs g of an unknown library"])

    def test_a_tag_for_a_newer_glibc_is_named(self):
        self.assertIn("its tag says another glibc", self.wheel("", tag=TAG.replace("2_28", "2_35"))[0])

    def test_a_file_for_another_machine_is_named(self):
        self.assertIn(f"dlaunch/module.so: is built for {platform.machine()}, and the tag says another",
                      self.wheel("", tag=TAG.replace(platform.machine(), "another")))

    def test_a_wheel_without_a_module_is_named(self):
        path = self.folder / f"dlaunch-1-{TAG}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("dlaunch/__init__.py", "")
        self.assertIn("has no ELF file", "".join(symbols.check(str(path), "2.28")))

    def test_the_wheel_in_dist(self):
        wheels = list((REPOSITORY / "dist").glob("dlaunch-*manylinux_2_28*.whl"))
        if not wheels:
            self.skipTest("dist/ has no wheel; tools/dev wheel makes it")
        for wheel in wheels:
            self.assertEqual(list(symbols.check(str(wheel), "2.28")), [])


if __name__ == "__main__":
    for program in ("cc", "readelf"):
        if shutil.which(program) is None:
            print(f"skipped: wheel: there is no {program}")
            sys.exit(SKIPPED)
    os.environ.pop("LD_PRELOAD", None)
    unittest.main(argv=sys.argv[:1], verbosity=2)
