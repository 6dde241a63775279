#!/usr/bin/env python3
"""Each rule, shown something it must find and something it must let pass."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import classes
import documents
import functions
import layering
import lengths
import tree
import words


class RuleTest(unittest.TestCase):
    def tree_of(self, files):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for path, text in files.items():
            file = os.path.join(folder.name, path)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "w", encoding="utf-8") as out:
                out.write(text)
        return tree.Tree(folder.name, files)

    def found(self, rule, files):
        return [path for path, _, _ in rule(self.tree_of(files))]


class Layering(RuleTest):
    def test_lower_layers_only(self):
        self.assertEqual(self.found(layering.check_layers, {
            "comm/a.cc": '#include "cohort/runtime/engine/work.h"\n#include "cohort/comm/a.h"\n#include <vector>\n',
            "launcher/base/a.cc": '#include "cohort/runtime/segment/segment.h"\n#include "cohort/v1/agent.pb.h"\n',
            "launcher/base/b.cc": '#include "cohort/runtime/engine/work.h"\n',
            "runtime/a.cc": '#include "cohort/comm/a.h"\n',
            "comm/c.cc": '#include "tests/comm/fake.h"\n',
        }), ["comm/c.cc", "launcher/base/b.cc", "runtime/a.cc"])

    def test_rooms_have_an_order(self):
        self.assertEqual(self.found(layering.check_layers, {
            "runtime/segment/a.cc": '#include "cohort/runtime/engine/work.h"\n',
            "comm/plan/a.cc": '#include "cohort/comm/select/tuning.h"\n',
            "comm/plan/b.cc": '#include "cohort/comm/types.h"\n#include "cohort/comm/plan/plan.h"\n',
            "comm/transport/shm/a.cc": '#include "cohort/comm/transport/ucx/wire.h"\n',
            "comm/group/a.cc": '#include "cohort/comm/plan/plan.h"\n',
            "launcher/control/a.cc": '#include "cohort/launcher/control/standby/standby.h"\n',
            "launcher/agent/a.cc": '#include "cohort/launcher/agent/rank/rank_socket.h"\n',
            "trainer/state/a.cc": '#include "cohort/trainer/parallel/fsdp/fully_shard.h"\n',
            "trainer/state/b.cc": '#include "cohort/trainer.h"\n',
            "trainer/examples/a.cc": '#include "cohort/trainer.h"\n',
            "trainer/parallel/zero/a.cc": '#include "cohort/trainer/parallel/replicate/reducer.h"\n',
            "trainer/attic/a.cc": "",
        }), ["comm/plan/a.cc", "comm/transport/shm/a.cc", "launcher/control/a.cc", "runtime/segment/a.cc",
             "trainer/attic/a.cc", "trainer/parallel/zero/a.cc", "trainer/state/a.cc", "trainer/state/b.cc"])

    def test_targets_have_the_same_order(self):
        def library(name, *needs):
            return f"cohort_library(NAME {name} SRCS a.cc DEPS {' '.join('cohort::' + need for need in needs)})\n"

        self.assertEqual(self.found(layering.check_targets, {
            "runtime/CMakeLists.txt": library("runtime"),
            "comm/plan/CMakeLists.txt": library("comm_plan", "comm_types", "comm_select"),
            "comm/select/CMakeLists.txt": library("comm_select", "comm_plan", "runtime"),
            "comm/CMakeLists.txt": library("comm_types", "trainer_base") + library("comm", "comm_select"),
            "launcher/base/CMakeLists.txt": library("launcher_base", "launcher_rpc"),
            "launcher/rpc/CMakeLists.txt": library("launcher_rpc", "launcher_base", "runtime"),
            "trainer/base/CMakeLists.txt": library("trainer_base", "trainer_state", "comm"),
            "trainer/state/CMakeLists.txt": library("trainer_state", "trainer_base"),
        }), ["comm/CMakeLists.txt", "comm/plan/CMakeLists.txt", "launcher/base/CMakeLists.txt",
             "launcher/rpc/CMakeLists.txt", "trainer/base/CMakeLists.txt"])

    def test_tests_lie_where_the_tree_does(self):
        self.assertEqual(self.found(layering.check_places, {
            "comm/plan/plan.h": "", "comm/run/runner.h": "", "launcher/rpc/client.h": "", "trainer/base/error.h": "",
            "tests/comm/plan/plan_test.cc": '#include "cohort/comm/plan/plan.h"\n',
            "tests/comm/plan/runner_test.cc": '#include "cohort/comm/run/runner.h"\n',
            "tests/launcher/attic/a_test.cc": "",
            "tests/launcher/dlaunch/client_test.cc": '#include "cohort/launcher/rpc/client.h"\n',
            "tests/trainer/base/any_test.cc": '#include "cohort/trainer/base/error.h"\n',
        }), ["tests/comm/plan/runner_test.cc", "tests/launcher/attic/a_test.cc"])

    def test_spelling(self):
        files = {"comm/a.cc": '#include "a.h"\n', "comm/a.h": "", "comm/b.cc": '#include "comm/a.h"\n'}
        self.assertEqual(self.found(layering.check_layers, files), ["comm/a.cc", "comm/b.cc"])

    def test_vendors(self):
        self.assertEqual(self.found(layering.check_vendors, {
            "comm/transport/ucx/a.cc": "#include <ucp/api/ucp.h>\n",
            "comm/transport/a.cc": "#include <ucp/api/ucp.h>\n",
            "comm/nccl/a.cc": "#include <nccl.h>\n#include <cuda_runtime_api.h>\n",
            "launcher/cuda_devices.cc": '#include "cohort/launcher/cuda_devices.h"\n#include <cuda.h>\n',
            "comm/b.cc": "#include <torch/torch.h>\n",
            "comm/c.cc": '#include "cohort/v1/rendezvous.grpc.pb.h"\n',
        }), ["comm/b.cc", "comm/c.cc", "comm/transport/a.cc", "launcher/cuda_devices.cc"])

    def test_clashes_are_found_through_headers(self):
        self.assertEqual(self.found(layering.check_clashes, {
            "tools/a.cc": '#include "tools/a.h"\n#include <grpcpp/grpcpp.h>\n',
            "tools/a.h": "#include <torch/torch.h>\n",
        }), ["tools/a.cc"])

    def test_installed_headers_are_whole(self):
        cmake = ("cohort_library(NAME comm\n  HDRS a.h b.h\n  SRCS a.cc c.h)\n"
                 "cohort_library(NAME x EXCLUDE_FROM_INSTALL HDRS d.h)\n")
        self.assertEqual(self.found(layering.check_installed, {
            "comm/CMakeLists.txt": cmake,
            "comm/a.h": '#include "cohort/comm/b.h"\n#include "absl/status/statusor.h"\n',
            "comm/b.h": '#include "cohort/comm/c.h"\n#include "absl/strings/string_view.h"\n',
            "comm/c.h": "",
            "comm/d.h": '#include "cohort/comm/c.h"\n',
        }), ["comm/b.h", "comm/b.h"])

    def test_what_users_are_sent_to_is_installed(self):
        files = {
            "comm/CMakeLists.txt": "cohort_library(NAME comm HDRS a.h SRCS b.h c.h)\n",
            "comm/a.h": "// Give it Once() (b.h). Between hosts: wire.h, c.h.\n",
            "comm/b.h": "",
            "comm/c.h": "",
            "comm/README.md": 'Its inside is `b.h`.\n#include "cohort/comm/a.h"\n',
            "launcher/README.md": "All of it (`d.h`).\n",
            "launcher/d.h": "",
        }
        self.assertEqual(self.found(layering.check_installed, files), ["comm/a.h"])
        files["comm/README.md"] = 'Give it `Once()` (`b.h`).\n```cpp\n#include "cohort/comm/c.h"\n'
        self.assertEqual(self.found(layering.check_installed, files), ["comm/README.md"] * 2 + ["comm/a.h"])

    def test_private_headers_are_listed(self):
        files = {
            "trainer/CMakeLists.txt": "cohort_library(NAME trainer HDRS trainer.h)\n",
            "trainer/base/CMakeLists.txt": "cohort_library(NAME trainer_base HDRS a.h b.h SRCS c.h)\n",
            "trainer/trainer.h": '#include "cohort/trainer/base/a.h"\n',
            "trainer/base/a.h": '#include "cohort/trainer/base/b.h"\n',
            "trainer/README.md": "| folder | private headers |\n|---|---|\n| `base/` | `b.h` |\n\n`c.h` is another.\n",
        }
        self.assertEqual(self.found(layering.check_private, files), [])
        files["trainer/README.md"] = "| folder | private headers |\n|---|---|\n| `base/` | `a.h`, `c.h` |\n"
        self.assertEqual(self.found(layering.check_private, files), ["trainer/README.md"] * 3)

    def test_dead_sources(self):
        self.assertEqual(self.found(layering.check_compiled, {
            "comm/CMakeLists.txt": "cohort_library(NAME comm SRCS a.cc ring/b.cc)  # c.cc\n",
            "comm/kernel/CMakeLists.txt": "glob(${CMAKE_CURRENT_SOURCE_DIR}/../algorithm/*.cc)\nx(k_${isa}.cc)\n",
            "comm/a.cc": "", "comm/ring/b.cc": "", "comm/c.cc": "", "comm/kernel/k_neon.cc": "", "comm/kernel/a.cc": "",
            "comm/algorithm/tree.cc": "",
        }), ["comm/c.cc", "comm/kernel/a.cc"])


class Functions(unittest.TestCase):
    def names(self, text):
        return [(name, lines) for name, _, lines in functions.find(tree.strip_literals(text))]

    def test_shapes(self):
        self.assertEqual(self.names("""
namespace a { namespace {
struct S : public B<int> {
  S(int x) : x_{x}, y_(2) {
    f([&] { return 1; });
  }
  int Get() const { return x_; }
  auto Trailing() -> std::vector<int> {
    return {1, 2};
  }
  bool operator()(int a) const { return a == 1'000; }
  int x_ = 0;
  std::array<int, 2> z_{1, 2};
};
}  // namespace }
const std::map<int, int> table = {{1, f()}, {2, 3}};
template <typename T>
absl::StatusOr<int> C::Do(const std::string& s = "{", char c = '{') noexcept {
  if (s.empty()) {
    for (;;) {}
  }
  return R"({{{)".size();
}
TEST_F(Suite, Case) {
}
enum class E { kA, kB };
#define M(x) { \\
  x {
extern "C" int main(int argc, char** argv) { return 0; }
}
"""), [("S", 3), ("Get", 1), ("Trailing", 3), ("operator()", 1), ("C::Do", 6), ("TEST_F(Suite, Case)", 2), ("main", 1)])

    def test_function_after_statement_with_braces(self):
        self.assertEqual(self.names("int x[] = {1, 2};\nvoid F() {\n}\nclass A final {\n public:\n  ~A() {}\n};"),
                         [("F", 2), ("~A", 1)])


class Lengths(RuleTest):
    LONG = "void F() {\n" + "  f();\n" * 80 + "}\n"

    def test_long_things_are_found(self):
        self.assertEqual(self.found(lengths.check_lengths, {
            "comm/a.cc": self.LONG, "comm/b.h": "\n" * 501, "comm/c.cc": "void F() {\n}\n"}), ["comm/b.h", "comm/a.cc"])

    def test_exceptions_shrink(self):
        listed = "# why\nfunction comm/a.cc F\nfile comm/c.cc\n"
        self.assertEqual(self.found(lengths.check_lengths, {
            "comm/a.cc": self.LONG, "comm/c.cc": "", lengths.EXCEPTIONS: listed}), [lengths.EXCEPTIONS])

    def test_long_pages_are_found(self):
        pages = {"README.md": "word " * 901, "comm/a.md": "word " * 1501, "comm/b.md": "word " * 1500, "comm/c.md": "word " * 1600,
                 "comm/d.md": "word " * 1601, lengths.EXCEPTIONS: "words comm/c.md 1600\nwords comm/d.md 1600\n"}
        self.assertEqual(self.found(lengths.check_lengths, pages), ["README.md", "comm/a.md", "comm/d.md"])
        long = "a command prints this page " + "word " * 1600
        self.assertEqual(self.found(lengths.check_lengths, {"tools/x/OPTIONS.md": long, "tools/x/y.md": long}), ["tools/x/y.md"])


class Classes(RuleTest):
    def test_sizes(self):
        overloads = "  void Method%d(int a = 0);\n  void Method%d(bool flag) { if (flag) { Go(); } }\n"
        methods = "".join(overloads % (i, i) for i in range(26))
        booleans = "".join(f"  bool state{i} = false;\n" for i in range(6))
        self.assertEqual(self.found(classes.check_classes, {
            "comm/a.h": "class Large {\n public:\n  Large();\n" + methods + "};\n",
            "comm/b.h": "struct Flags {\n" + booleans + "};\nstruct FlagOptions {\n" + booleans + "};\n",
            "comm/c.h": "class Small : public Base {\n  struct Inner {\n  bool a, b, c;\n  };\n  bool d, e, f, g;\n};\n",
        }), ["comm/a.h", "comm/b.h"])

    def test_listed_classes_only_shrink(self):
        def found(methods, entry):
            body = "".join(f"  void Method{i}();\n" for i in range(methods))
            return self.found(classes.check_classes, {
                "comm/a.h": "class Large {\n" + body + "};\n", lengths.EXCEPTIONS: f"methods comm/a.h Large {entry}\n"})

        self.assertEqual(found(30, 30), [])
        self.assertEqual(found(26, 30), [])
        self.assertEqual(found(31, 30), ["comm/a.h"])
        self.assertEqual(found(25, 30), [lengths.EXCEPTIONS])

    def test_no_class_is_cut_over_files(self):
        member = "void A::F() {\n}\n"
        self.assertEqual(self.found(classes.check_classes, {
            "comm/a.cc": member, "comm/a_finish.cc": "void A::G() {\n}\n",
            "comm/b.cc": "namespace b {\nvoid B::F() {}\n}\n",
            "comm/c.cc": "void C::F() {}\n", "comm/c_stub.cc": "void C::F() {}\n", "comm/plan/a.cc": member,
        }), ["comm/a_finish.cc"])

    def test_folders(self):
        files = {f"comm/plan/f{i}.cc": "" for i in range(26)}
        files.update({f"comm/algorithm/f{i}.cc": "" for i in range(26)})
        self.assertEqual(self.found(classes.check_folders, files), ["comm/plan"])
        files[lengths.EXCEPTIONS] = "files comm/plan 26\n"
        self.assertEqual(self.found(classes.check_folders, files), [])
        files[lengths.EXCEPTIONS] = "files comm/plan 25\nfiles comm/run 26\n"
        self.assertEqual(self.found(classes.check_folders, files), ["comm/plan", lengths.EXCEPTIONS])


class Words(RuleTest):
    def test_banned(self):
        self.assertEqual(self.found(words.check_banned, {
            "comm/a.cc": 'auto x = getenv("A");\n', "runtime/env.cc": 'getenv("A");\n', "comm/b.cc": "// getenv()\n",
            "runtime/base/mutex.h": "std::mutex m;\n", "tests/a.cc": "std::mutex m;\n", "comm/c.cc": "std::mutex m;\n",
            "comm/d.cc": "#ifdef COHORT_HAVE_UCX\n", "trainer/a.cc": "t.detach();\n",
            "comm/e.cc": "static_assert(x);\n",
        }), ["comm/a.cc", "comm/c.cc", "comm/d.cc"])

    def test_words(self):
        self.assertEqual(self.found(words.check_words, {
            "comm/a.cc": "// TO" + "DO\n", "comm/b.md": "see /ho" + "me/me/x\n",
            "comm/c.md": "/proc/self, a/wo" + "rk/x\n",
        }), ["comm/a.cc", "comm/b.md"])

    def test_package(self):
        named = ["import cohort", "from cohort.torch import gloo", "`cohort.init()`", "except cohort.Error:", "python/cohort",
                 "`cohort/torch/`", "pip install dist/cohort-1.whl", "pip install cohort", "the package `cohort`"]
        self.assertEqual(len(self.found(words.check_package, {f"tools/{i}.md": text for i, text in enumerate(named)})),
                         len(named))
        self.assertEqual(self.found(words.check_package, {
            "proto/a.proto": "package cohort.v1;\n", "comm/a.cc": '#include "cohort/comm/a.h"\n cohort::comm',
            "comm/b.md": '`init_process_group("cohort")`, `cohort://`, find_package(cohort), cohort.pc, cohort/cohort.h',
            "CHANGELOG.md": "import cohort\n", "tools/c": "package cohort-trainer, cohort.runtime",
        }), [])

    def test_openings(self):
        tree = self.tree_of({
            "comm/block.cc": "// Of the group.\nint a;\n  // What follows.\n  // Is long.\n",
            "comm/blank.h": "// A rank.\n//\n// Where it runs.\n",
            "comm/trailing.cu": "int a;  // Those of a rank\nint b;  // of the whole\nint c;  // Of another\n",
            "comm/enclosed.inc": "/* Whoever waits. */\n/* One\n * Who waits\n */\n",
            "proto/a.proto": "// Whose ranks\n",
            "tools/a.py": "a = '# What'\nb = 1  # What it is\n",
            "tools/a.sh": "#!/bin/sh\n# What it does\necho a # Of\n",
            "tools/CMakeLists.txt": "# Who\n#\n# Of\n",
            "runtime/continued.cc": "// One of many.\n// Of these it is the first: a sentence may be\n// Where it was.\n",
            "runtime/others.cc": "// Offsets.\n// of a rank\nauto s = \"// What\";\nauto r = R\"(\n// Of\n)\";\n",
            "comm/README.md": "# What it is\n",
        })
        self.assertEqual(sorted((path, line) for path, line, _ in words.check_openings(tree)), [
            ("comm/blank.h", 3), ("comm/block.cc", 1), ("comm/block.cc", 3), ("comm/enclosed.inc", 1),
            ("comm/trailing.cu", 1), ("comm/trailing.cu", 3), ("proto/a.proto", 1), ("tools/CMakeLists.txt", 1),
            ("tools/CMakeLists.txt", 3), ("tools/a.py", 2), ("tools/a.sh", 2)])

    def test_comments(self):
        tree = self.tree_of({
            "comm/a.cc": "// Waits so many times.\nint a;  // Begun anew.\nauto s = \"anew\";\n",
            "comm/b.h": "// The rank hears\n// of it, and there are so\n// many others. Whoever waits\n",
            "comm/c.cc": "// Of so much. Anewly. The agent is told of it.\n",
            "proto/a.proto": "int32 a = 1;  // tells of it\n",
            "tools/a.py": '"""One.\n\nHeard of it."""\na = "anew"\n',
            "tools/a.sh": "# every so manieth\n",
            "comm/a.md": "Begun\nanew. So\nmany ranks hear\n  of it.\n",
            "comm/d.cc": "// anew\nauto s = \"wrap it \"\n    \"anew\";\nauto t = R\"(\nso many)\";\nf(\"tells \", \"of\");\n",
        })
        self.assertEqual([(path, line) for path, line, _ in words.check_comments(tree)], [
            ("comm/a.cc", 1), ("comm/a.cc", 2), ("comm/b.h", 2), ("comm/b.h", 3), ("comm/b.h", 3), ("comm/d.cc", 1),
            ("proto/a.proto", 1), ("tools/a.py", 3), ("tools/a.sh", 1)])
        self.assertEqual([(path, line) for path, line, _ in words.check_messages(tree)], [
            ("comm/a.cc", 3), ("comm/d.cc", 2), ("comm/d.cc", 4)])
        self.assertEqual([(path, line) for path, line, _ in words.check_pages(tree)], [
            ("comm/a.md", 2), ("comm/a.md", 2), ("comm/a.md", 3)])

    def test_test_names(self):
        self.assertEqual(self.found(words.check_test_names, {
            "tests/a.cc": "TEST(Link, IsClosed) {}\n", "tests/b.cc": "TEST_P(Link,\n       DISABLED_OfAPeer) {}\n",
            "tests/c.cc": "TEST_F(Link, IsolatesPeers) {}\nTYPED_TEST(Link, ItemsAreKept) {}\n",
            "comm/a.cc": "TEST(Link, IsClosed) {}\n",
        }), ["tests/a.cc", "tests/b.cc"])

    def test_page_openings(self):
        tree = self.tree_of({
            "comm/README.md": "# What it is\n\nOf the group.\nWhat follows\n\n- Whose rank\n- A rank\n  Where it runs\n\n"
                              "| Who | what |\n|---|---|\n| Those | a |\n\n```\nWhat\n```\n\n    Who\n",
            "comm/a.md": "Offsets\n\n1. **What it costs.** Nothing\n2. `Of`\n",
        })
        self.assertEqual([(path, line) for path, line, _ in words.check_page_openings(tree)], [
            ("comm/README.md", 3), ("comm/README.md", 6), ("comm/a.md", 3), ("comm/a.md", 4)])

    def test_conflicts(self):
        self.assertEqual(self.found(words.check_conflicts, {
            "comm/a.md": "text\n" + "<" * 7 + " HEAD\n", "comm/b.cc": ">" * 7 + " branch\n",
            "comm/c.md": "Title\n=======\n", "comm/d.cc": "a " + "<" * 7 + " b\n", "comm/e.md": "<" * 8 + " b\n",
        }), ["comm/a.md", "comm/b.cc"])

    def test_headers(self):
        files = {"comm/a.h": "#pragma once\n", "comm/b.h": "\n"}
        self.assertEqual(self.found(words.check_headers, files), ["comm/b.h"])


class Documents(RuleTest):
    def test_lists(self):
        self.assertEqual(self.found(documents.check_lists, {
            "comm/README.md": "`ring`: ...\n",
            "comm/algorithm/algorithms.def": '// names\nCOHORT_ALGORITHM(kSum, "ring", X)\nCOHORT_ALGORITHM(tree, X)\n',
            "comm/empty.def": "",
        }), ["comm/algorithm/algorithms.def", "comm/empty.def"])

    def test_environment(self):
        self.assertEqual(self.found(documents.check_environment, {
            "runtime/README.md": "`COHORT_A` and `COHORT_GONE`\n",
            "runtime/env.cc": 'Get("COHORT_A"); Get("COHORT_B");\n',
        }), ["runtime/env.cc", "runtime/README.md"])

    def test_links(self):
        self.assertEqual(self.found(documents.check_links, {
            "README.md": "[a](comm/a.h) [b](https://example.org) [c](#x)\n",
            "comm/a.h": "", "comm/README.md": "[a](b.h)\n",
        }), ["comm/README.md"])

    def test_files(self):
        tree = self.tree_of({
            "comm/README.md": "| file | holds |\n|---|---|\n| `worker.h`, `.cc` | `Gone` |\n| `plan/`, `link` | |\n"
                              "| `lin`, `group/*.def` | |\n\n| what | where |\n|---|---|\n| `gone.h` | |\n",
            "comm/worker.h": "", "comm/plan/plan.h": "", "comm/link.h": "", "comm/group/providers.def": "",
        })
        self.assertEqual([(line, message) for _, line, message in documents.check_files(tree)], [
            (3, "names worker.cc, which is not there"), (5, "names lin, which is not there")])


if __name__ == "__main__":
    unittest.main()
