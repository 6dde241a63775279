// ReadPtFile on files that somebody made: each is an error or gives tensors, none takes more memory than a little, a
// crash or hours. The archives are made here, byte by byte and with right checksums, so that lies get past them.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "cohort/trainer/compat/pt_file.h"
#include "cohort/trainer/state/checkpoint/remove_tree.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Bytes(uint64_t value, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

uint32_t Crc32(const std::string& data) {
  uint32_t sum = 0xffffffff;
  for (const char byte : data) {
    sum ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? 0xedb88320 : 0);
  }
  return ~sum;
}

struct Entry {
  std::string name;
  std::string data;
  // The false values that its directory gives.
  uint64_t bytes = UINT64_MAX, offset = UINT64_MAX;
  uint16_t method = 0;
  bool wide = false;  // in 64-bit fields
};

std::string Zip(const std::vector<Entry>& entries, uint64_t count = UINT64_MAX, bool wide_end = false) {
  std::string file, directory;
  for (const Entry& entry : entries) {
    const uint64_t offset = entry.offset == UINT64_MAX ? file.size() : entry.offset;
    const uint64_t bytes = entry.bytes == UINT64_MAX ? entry.data.size() : entry.bytes;
    const std::string name = "file/" + entry.name, sum = Bytes(Crc32(entry.data), 4);
    const std::string sizes = Bytes(entry.data.size(), 4) + Bytes(entry.data.size(), 4);
    if (entry.offset == UINT64_MAX) {
      file += "PK\3\4" + Bytes(0, 10) + sum + sizes + Bytes(name.size(), 2) + Bytes(0, 2) + name + entry.data;
    }
    const std::string extra =
        entry.wide ? Bytes(1, 2) + Bytes(24, 2) + Bytes(bytes, 8) + Bytes(bytes, 8) + Bytes(offset, 8) : "";
    const auto field = [&](uint64_t value) { return Bytes(entry.wide ? UINT32_MAX : value, 4); };
    directory += "PK\1\2" + Bytes(0, 6) + Bytes(entry.method, 2) + Bytes(0, 4) + sum + field(bytes) + field(bytes) +
                 Bytes(name.size(), 2) + Bytes(extra.size(), 2) + Bytes(0, 10) + field(offset) + name + extra;
  }
  const uint64_t listed = count == UINT64_MAX ? entries.size() : count, place = file.size();
  file += directory;
  if (wide_end) {
    const uint64_t end = file.size();
    file += "PK\6\6" + Bytes(44, 8) + Bytes(0, 12) + Bytes(listed, 8) + Bytes(listed, 8) + Bytes(directory.size(), 8) +
            Bytes(place, 8);
    file += "PK\6\7" + Bytes(0, 4) + Bytes(end, 8) + Bytes(1, 4);
  }
  return file + "PK\5\6" + Bytes(0, 4) + Bytes(listed, 2) + Bytes(listed, 2) + Bytes(directory.size(), 4) +
         Bytes(place, 4) + Bytes(0, 2);
}

std::string Text(const std::string& text) { return "X" + Bytes(text.size(), 4) + text; }
std::string Long(uint64_t value) { return "\x8a\x08" + Bytes(value, 8); }
std::string Name(const std::string& module, const std::string& name) { return "c" + module + "\n" + name + "\n"; }

// A tensor of the floats that record "data/" + `key` has.
std::string Tensor(const std::string& key, const std::string& elements, const std::string& offset,
                   const std::string& sizes, const std::string& strides) {
  return Name("torch._utils", "_rebuild_tensor_v2") + "((" + Text("storage") + Name("torch", "FloatStorage") +
         Text(key) + Text("cpu") + elements + "tQ" + offset + "(" + sizes + "t(" + strides + "t\x89" +
         Name("collections", "OrderedDict") + ")RtR";
}

const std::string kSix("K\x06", 2), kNone("K\0", 2);  // NOLINT: constants of a test

std::string Pickled(const std::string& object) { return "\x80\x02" + object + "."; }
std::string GoodPickle() { return Pickled("}" + Text("a") + Tensor("0", kSix, kNone, "K\2K\3", "K\3K\1") + "s"); }

at::Tensor Values() { return torch::arange(6, torch::kFloat32).view({2, 3}); }
std::string Data() {
  const at::Tensor values = Values();
  return {static_cast<const char*>(values.data_ptr()), values.nbytes()};
}
std::vector<Entry> Entries(const std::string& pickle) {
  return {{.name = "version", .data = "3\n"},
          {.name = "data.pkl", .data = pickle},
          {.name = "byteorder", .data = "little"},
          {.name = "data/0", .data = Data()}};
}

// While it lives no more than this can be had: who asks for what a file pretends to have gets an error that says so.
class LittleMemory {
 public:
  LittleMemory() {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    EXPECT_EQ(getrlimit(RLIMIT_AS, &before_), 0);
    struct rlimit little = before_;
    little.rlim_cur = pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) + (uint64_t{1} << 30);
    EXPECT_EQ(setrlimit(RLIMIT_AS, &little), 0);
  }
  ~LittleMemory() { EXPECT_EQ(setrlimit(RLIMIT_AS, &before_), 0); }
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;

 private:
  struct rlimit before_{};
};

class PtFileDamage : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "cohort-pt-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { RemoveTree(folder_); }

  std::map<std::string, at::Tensor> Read(const std::string& bytes) const {
    const std::string path = (folder_ / "file.pt").string();
    std::ofstream(path, std::ios::binary) << bytes;
    return ReadPtFile(path);
  }
  // Anything else than a c10::Error fails the test; empty where there is none.
  std::string ErrorOf(const std::string& bytes) const {
    try {
      Read(bytes);
    } catch (const c10::Error& error) {
      const std::string told = error.what_without_backtrace();
      EXPECT_THAT(told, HasSubstr("file.pt"));
      EXPECT_THAT(told, Not(HasSubstr("allocate")));
      return told;
    }
    return "";
  }
  std::string ErrorOfPickle(const std::string& object) const { return ErrorOf(Zip(Entries(Pickled(object)))); }

  fs::path folder_;
  const LittleMemory little_;
};

TEST_F(PtFileDamage, LeavesAGoodFileAlone) {
  for (const bool wide : {false, true}) {
    std::vector<Entry> entries = Entries(GoodPickle());
    for (Entry& entry : entries) entry.wide = wide;
    const auto found = Read(Zip(entries, UINT64_MAX, wide));
    ASSERT_EQ(found.size(), 1U);
    EXPECT_TRUE(torch::equal(found.at("a"), Values()));
  }
}

TEST_F(PtFileDamage, ATruncatedFileIsAnErrorWhereverItEnds) {
  for (const bool wide : {false, true}) {
    const std::string whole = Zip(Entries(GoodPickle()), UINT64_MAX, wide);
    for (size_t size = 0; size < whole.size(); ++size) EXPECT_NE(ErrorOf(whole.substr(0, size)), "") << size;
  }
}

// A flip that is no error is in a place without meaning.
TEST_F(PtFileDamage, AFlippedBitNeverChangesAValue) {
  const std::string whole = Zip(Entries(GoodPickle()), UINT64_MAX, true);
  for (size_t place = 0; place < whole.size(); ++place) {
    for (const size_t bit : {place % 8, (place * 5 + 3) % 8}) {  // an error costs milliseconds, for its backtrace
      std::string bad = whole;
      bad[place] = static_cast<char>(bad[place] ^ (1 << bit));
      if (!ErrorOf(bad).empty()) continue;
      const auto found = Read(bad);
      ASSERT_EQ(found.count("a"), 1U) << "byte " << place;
      EXPECT_TRUE(torch::equal(found.at("a"), Values())) << "byte " << place;
    }
  }
}

// With the right checksum.
TEST_F(PtFileDamage, SurvivesAnyByteOfThePickle) {
  const std::string good = GoodPickle();
  int refused = 0;
  for (size_t place = 0; place < good.size(); ++place) {
    for (const char value : {'\0', '\xff', ')', '(', 'h', 'Q', 'e', static_cast<char>(good[place] + 1)}) {
      std::string bad = good;
      bad[place] = value;
      refused += ErrorOf(Zip(Entries(bad))).empty() ? 0 : 1;
    }
    EXPECT_NE(ErrorOf(Zip(Entries(good.substr(0, place)))), "") << place;
  }
  EXPECT_GT(refused, 500);
}

TEST_F(PtFileDamage, BelievesNoSizeOfTheDirectory) {
  for (const uint64_t lie : {uint64_t{25}, uint64_t{1} << 31, uint64_t{1} << 40, uint64_t{1} << 63, UINT64_MAX - 1}) {
    for (const bool offset : {false, true}) {
      for (size_t i = 1; i < 4; ++i) {
        std::vector<Entry> entries = Entries(GoodPickle());
        entries[i].wide = true;
        (offset ? entries[i].offset : entries[i].bytes) = lie;
        EXPECT_NE(ErrorOf(Zip(entries)), "") << lie << " of entry " << i;
      }
    }
    EXPECT_NE(ErrorOf(Zip(Entries(GoodPickle()), lie, /*wide_end=*/true)), "") << lie << " entries";
  }
  std::vector<Entry> entries = Entries(GoodPickle());
  entries[3].method = 8;
  EXPECT_THAT(ErrorOf(Zip(entries)), HasSubstr("data/0 is compressed"));
}

// A small file of gigabytes: all records are the same bytes.
TEST_F(PtFileDamage, ReadsNoByteTwice) {
  std::vector<Entry> entries = {{.name = "data/0", .data = std::string(1 << 20, 'x')},
                                {.name = "version", .data = "3\n"}};
  std::string pickle = "]";
  for (int i = 0; i < 200; ++i) {
    const std::string key = std::to_string(i);
    if (i > 0) entries.push_back({.name = "data/" + key, .data = entries[0].data, .offset = 0});
    pickle += Tensor(key, Long(1 << 18), kNone, kSix, kSix) + "a";
  }
  entries.push_back({.name = "data.pkl", .data = Pickled(pickle)});
  EXPECT_THAT(ErrorOf(Zip(entries)), HasSubstr("larger than the file"));
}

TEST_F(PtFileDamage, RefusesTensorsBeyondTheirStorage) {
  const std::string huge = Long(uint64_t{1} << 62), minus = Long(UINT64_MAX);
  const auto tensor = [](const std::string& elements, const std::string& offset, const std::string& sizes,
                         const std::string& strides) {
    return "}" + Text("a") + Tensor("0", elements, offset, sizes, strides) + "s";
  };
  const std::vector<std::string> bad = {tensor("K\7", kNone, kSix, "K\1"),
                                        tensor(huge, kNone, kSix, "K\1"),
                                        tensor(minus, kNone, kSix, "K\1"),
                                        tensor(kSix, "K\1", kSix, "K\1"),
                                        tensor(kSix, minus, "K\1", "K\1"),
                                        tensor(kSix, huge, "K\1", "K\1"),
                                        tensor(kSix, kNone, huge, "K\1"),
                                        tensor(kSix, kNone, minus, "K\1"),
                                        tensor(kSix, kNone, kSix, huge),
                                        tensor(kSix, kNone, kSix, minus),
                                        tensor(kSix, kNone, huge + huge, "K\1K\1"),
                                        tensor(kSix, kNone, kNone + huge + huge, "K\1K\1K\1"),
                                        tensor(kSix, kNone, "K\2K\3", "K\1"),
                                        tensor(kSix, kNone, huge + huge, kNone + kNone)};
  for (size_t i = 0; i < bad.size(); ++i) EXPECT_NE(ErrorOfPickle(bad[i]), "") << i;
  EXPECT_EQ(ErrorOfPickle(tensor(kSix, kNone, kSix, "K\1")), "");
}

TEST_F(PtFileDamage, DeepNestingAndCirclesEnd) {
  const std::string tensor = Tensor("0", kSix, kNone, kSix, "K\1");
  constexpr int kDeep = 300'000;
  const std::string deep(kDeep, ']'), closed(kDeep - 1, 'a');
  EXPECT_EQ(ErrorOfPickle(deep + closed), "");
  EXPECT_THAT(ErrorOfPickle(deep + tensor + "a" + closed), HasSubstr("nested more than"));
  // Circles are followed once.
  const auto found = Read(
      Zip(Entries(Pickled(std::string("}q\0", 3) + Text("x") + std::string("h\0s", 3) + Text("a") + tensor + "s"))));
  EXPECT_EQ(found.size(), 1U);
  EXPECT_EQ(found.count("a"), 1U);
  // Two ways on at each level.
  std::string ways = "]q\1" + tensor + "a";
  for (int i = 0; i < 60; ++i) ways += "0](h\1h\1eq\1";
  EXPECT_THAT(ErrorOfPickle(ways), HasSubstr("contain each other"));
  // The same with names of a megabyte.
  std::string names = tensor + "q\1";
  for (int i = 0; i < 60; ++i) names += "0}(" + Text(std::string(1 << 14, 'k')) + "h\1" + Text("l") + "h\1uq\1";
  EXPECT_THAT(ErrorOfPickle(names), HasSubstr("contain each other"));
  EXPECT_EQ(ErrorOfPickle(std::string(5'000'000, 'N')), "");
  EXPECT_THAT(ErrorOfPickle(std::string(11'000'000, ']')), HasSubstr("objects"));
  EXPECT_THAT(ErrorOfPickle("X" + Bytes(UINT32_MAX, 4)), HasSubstr("ends too early"));
  EXPECT_THAT(ErrorOfPickle(std::string(1000, '(')), Not(""));
  EXPECT_THAT(ErrorOfPickle("t"), HasSubstr("lacks a mark"));
}

// A chain of wrappers is no way to end the stack.
TEST_F(PtFileDamage, UnwrapsNoTensorForever) {
  std::string chain;
  for (int i = 0; i < 200'000; ++i) chain += Name("torch._utils", "_rebuild_parameter") + "(";
  chain += Tensor("0", kSix, kNone, kSix, "K\1");
  for (int i = 0; i < 200'000; ++i) chain += "\x89)tR";
  EXPECT_THAT(ErrorOfPickle(chain), HasSubstr("again and again"));
}

// All files of the corpus, cut and changed.
TEST_F(PtFileDamage, SurvivesDamageOfTheCorpus) {
  uint32_t random = 1;
  const auto next = [&random] { return random = random * 1664525 + 1013904223; };
  for (const auto& entry : fs::directory_iterator(COHORT_PT_CORPUS)) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string whole{std::istreambuf_iterator<char>(in), {}};
    if (whole.empty() || entry.path().extension() == ".py") continue;
    for (int trial = 0; trial < 6; ++trial) {
      std::string bad = whole;
      const size_t place = (next() >> 4) % whole.size();
      if (trial % 3 == 0) {
        bad.resize(place);
      } else {
        bad[place] = static_cast<char>(next() >> 20);
      }
      ErrorOf(bad);
    }
  }
}

}  // namespace
}  // namespace cohort::trainer
