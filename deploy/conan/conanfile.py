"""Cohort for Conan 2, built from this source with the libraries of the system: `conan create deploy/conan`."""
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy, load
from conan.tools.system.package_manager import Apt

BUILD = "g++ ninja-build pkg-config python3 protobuf-compiler libprotobuf-dev libabsl-dev libssl-dev libucx-dev libhwy-dev " \
    "libcli11-dev nlohmann-json3-dev"
LAUNCHER = "libgrpc++-dev protobuf-compiler-grpc libhwloc-dev prometheus-cpp-dev libdw-dev"
TRAINER = "libtorch-dev libopenblas0-openmp"


class CohortConan(ConanFile):
    name = "cohort"
    license = "Apache-2.0"
    description = "Collective communication runtime, launcher and libtorch trainer"
    topics = ("collectives", "distributed", "training", "launcher")
    settings = "os", "arch", "compiler", "build_type"
    package_type = "library"
    options = {"shared": [True, False], "launcher": [True, False], "trainer": [True, False]}
    default_options = {"shared": True, "launcher": True, "trainer": False}

    @property
    def _project(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        text = load(self, os.path.join(self._project, "CMakeLists.txt"))
        self.version = re.search(r"project\(cohort VERSION ([0-9.]+)", text)[1]

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "proto/*", "runtime/*", "comm/*", "launcher/*", "trainer/*", "tools/*"):
            copy(self, pattern, self._project, self.export_sources_folder)

    def validate(self):
        check_min_cppstd(self, 20)

    def system_requirements(self):
        packages = BUILD.split()
        packages += LAUNCHER.split() if self.options.launcher else []
        packages += TRAINER.split() if self.options.trainer else []
        Apt(self).install(packages, check=True)

    def layout(self):
        self.folders.root = os.path.join("..", "..")
        self.folders.source = "."
        self.folders.build = os.path.join("build", "conan")
        self.folders.generators = os.path.join("build", "conan", "generators")

    def generate(self):
        toolchain = CMakeToolchain(self, generator="Ninja")
        toolchain.user_presets_path = False  # nothing is written beside the source
        toolchain.cache_variables.update({
            "COHORT_BUILD_TESTS": "OFF",
            "COHORT_WERROR": "OFF",  # other compilers and flags than the project's own warn of other things
            "COHORT_SHARED": "ON" if self.options.shared else "OFF",
            "COHORT_WITH_GRPC": "ON" if self.options.launcher else "OFF",
            "COHORT_WITH_TORCH": "ON" if self.options.trainer else "OFF",
            "COHORT_WITH_PYTHON": "OFF"})
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self):
        # The install has its own configuration for find_package, with all targets.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/cohort"]
        self.cpp_info.libs = ["cohort_c", "cohort_comm"]
        self.runenv_info.prepend_path("PATH", os.path.join(self.package_folder, "bin"))
