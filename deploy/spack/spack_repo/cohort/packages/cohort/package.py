from spack_repo.builtin.build_systems.cmake import CMakePackage, generator

from spack.package import *


class Cohort(CMakePackage):
    """Collective communication runtime, launcher and libtorch trainer in C++20."""

    license("Apache-2.0")

    # Built from a source that is here (`spack develop --path`): nothing is downloaded.
    version("0.1.0")

    variant("shared", default=True, description="Build shared libraries")
    variant("launcher", default=True, description="Build dlaunch and its tools")
    variant("ucx", default=True, description="Use UCX between nodes with RDMA")
    variant("trainer", default=False, description="Build the trainer on libtorch")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3.9:", type="build")

    depends_on("abseil-cpp")
    depends_on("protobuf@3.21:")
    depends_on("openssl@3:")
    depends_on("highway@1:")
    depends_on("cli11")
    depends_on("nlohmann-json")
    depends_on("ucx@1.13:", when="+ucx")
    with when("+launcher"):
        depends_on("grpc@1.50:")
        depends_on("hwloc@2:")
        depends_on("prometheus-cpp")
        depends_on("elfutils")
    with when("+trainer"):
        depends_on("py-torch@1.13:")

    conflicts("%gcc@:10", msg="C++20 of GCC 11 or newer is needed")
    conflicts("platform=darwin")
    conflicts("platform=windows")

    generator("ninja")

    def cmake_args(self):
        return [
            self.define("COHORT_BUILD_TESTS", False),
            self.define("COHORT_WERROR", False),  # other compilers warn of other things
            self.define("COHORT_WITH_PYTHON", False),
            self.define_from_variant("COHORT_SHARED", "shared"),
            self.define("COHORT_WITH_GRPC", "ON" if self.spec.satisfies("+launcher") else "OFF"),
            self.define("COHORT_WITH_UCX", "ON" if self.spec.satisfies("+ucx") else "OFF"),
            self.define("COHORT_WITH_TORCH", "ON" if self.spec.satisfies("+trainer") else "OFF"),
        ]
