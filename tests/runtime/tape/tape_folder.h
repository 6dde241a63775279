// The part that tests of tapes share: a folder, and tapes in it.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohort/runtime/tape/tape_reader.h"
#include "cohort/runtime/tape/tape_writer.h"
#include "cohort/v1/agent.pb.h"
#include "tests/support/temporary_folder.h"

namespace cohort::runtime {

inline TapeHead HeadOf(int rank) {
  v1::Welcome welcome;
  welcome.set_rank(static_cast<uint32_t>(rank));
  welcome.set_world_size(4);
  welcome.set_epoch(1);
  TapeHead head;
  head.version = COHORT_VERSION;
  head.id = 77;
  head.rank = rank;
  head.welcome = welcome.SerializeAsString();
  head.environment = {"RANK=3"};
  return head;
}

inline CallRecord RecordAt(const std::string& site, uint64_t tag = 0) {
  CallRecord record;
  record.signature.kind = 3;
  record.signature.dtype = 11;
  record.signature.op = 1;
  record.tag = tag;
  std::memcpy(record.site, site.data(), site.size());
  return record;
}

inline std::string TextIn(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class TapeTest : public ::testing::Test {
 protected:
  std::unique_ptr<TapeWriter> Create(const TapeHead& head = HeadOf(3)) const {
    auto writer = TapeWriter::Create(folder_, "rank-3.epoch-1.tape", head);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return writer.ok() ? *std::move(writer) : nullptr;
  }
  static uint64_t Begin(TapeWriter& writer, uint32_t group, const CallRecord& record, size_t bytes) {
    return writer.Begin({.group = group, .record = &record, .count = bytes, .received = bytes});
  }
  static void End(TapeWriter& writer, uint64_t call, const std::string& result) {
    const MemoryPiece piece{result.data(), result.size()};
    writer.End(call, {&piece, 1});
  }
  // A call that is done at once.
  static void Call(TapeWriter& writer, uint32_t group, const CallRecord& record, const std::string& result) {
    End(writer, Begin(writer, group, record, result.size()), result);
  }
  std::string FileText() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void Replace(const std::string& text) const { temporary_.Write("rank-3.epoch-1.tape", text); }
  // A tape of 40 calls, which has ended in order: the result of call i is ResultOf(i).
  void WriteSome() const {
    auto writer = Create();
    const uint32_t group = writer->AddGroup(5, std::vector<int>{0, 3});
    for (uint64_t i = 0; i < 40; ++i) Call(*writer, group, RecordAt("a.cc:1", i * i / 9), ResultOf(i));
    writer->AddLookup({.key = "key", .found = true, .value = "value"});
    writer->Finish();
  }
  static std::string ResultOf(uint64_t call) { return std::string(call < 20 ? call * 7 : call % 3 * 4, 'x'); }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path(), path_ = folder_ + "/rank-3.epoch-1.tape";
};

}  // namespace cohort::runtime
