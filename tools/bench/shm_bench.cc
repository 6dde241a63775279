// Latency and bandwidth of the shared-memory transport alone, by hand-written calls of its links and fan-outs: what a
// communicator's calls are compared with. Two processes, one per CPU.
#include <sched.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/reduce/reduce.h"
#include "cohort/comm/transport/shm/shm_transport.h"
#include "cohort/comm/types.h"
#include "tools/bench/bare_rows.h"
#include "tools/bench/communicator_rows.h"
#include "tools/bench/layer_rows.h"
#include "tools/bench/pinned_pair.h"
#include "tools/program/program.h"

namespace cohort::comm {
namespace {

using bench::CommunicatorAllReduce;
using bench::kMostSamples;
using bench::PrintHeader;
using bench::PrintRow;
using bench::RunPair;
using bench::Side;
using bench::Statistics;
using bench::Ticks;

constexpr uint64_t kSignature = 42;

template <typename Attempt>
void Drive(const absl::Status& error, Attempt attempt) {
  for (int spins = 0;; ++spins) {
    const Progress progress = attempt();
    if (progress == Progress::kDone) return;
    if (progress == Progress::kFailed) {
      std::fprintf(stderr, "benchmark: %s\n", error.ToString().c_str());
      std::exit(1);
    }
    if (spins > 2000) sched_yield();
  }
}

std::unique_ptr<ShmTransport> MakeTransport(const Side& side, ShmOptions options = {}) {
  return std::make_unique<ShmTransport>(side.segment, side.rank(), [](int rank) { return rank; }, options);
}

// A rank's end of a link, with buffers in private or in segment memory.
struct LinkEnd {
  LinkEnd(Side& side, size_t bytes, bool window, ShmOptions options) : transport(MakeTransport(side, options)) {
    auto made = transport->Connect({.group = 1,
                                    .epoch = 1,
                                    .group_rank = side.rank(),
                                    .peer = 1 - side.rank(),
                                    .peer_world_rank = 1 - side.rank()});
    if (!made.ok()) std::exit(1);
    link = std::move(*made);
    if (window) {
      auto block = side.segment.Allocate(2 * bytes + 4096);
      if (!block.ok()) std::exit(1);
      out = static_cast<std::byte*>(*side.segment.Map(*block));
    } else {
      storage.resize(2 * bytes + 4096, std::byte{1});
      out = storage.data();
    }
    in = out + bytes;
  }
  void Send(size_t bytes) {
    SendOperation send;
    send.data = out;
    send.bytes = bytes;
    send.signature = kSignature;
    Drive(send.error, [&] { return link->TrySend(send); });
  }
  void Recv(size_t bytes) {
    RecvOperation recv;
    recv.data = in;
    recv.bytes = bytes;
    recv.signature = kSignature;
    Drive(recv.error, [&] { return link->TryRecv(recv); });
  }
  // Both at once, as an exchange does.
  void Exchange(size_t bytes, bool reduce) {
    SendOperation send;
    send.data = out;
    send.bytes = bytes;
    send.signature = kSignature;
    RecvOperation recv;
    recv.data = in;
    recv.bytes = bytes;
    recv.signature = kSignature;
    if (reduce) {
      recv.reduce = FindReduceKernel(DataType::kFloat32, ReduceOp::kSum);
      recv.element_bytes = sizeof(float);
      recv.operand = out;
    }
    bool sent = false, received = false;
    Drive(recv.error, [&] {
      if (!sent) sent = link->TrySend(send) == Progress::kDone;
      if (!received) received = link->TryRecv(recv) == Progress::kDone;
      return sent && received ? Progress::kDone : Progress::kBlocked;
    });
  }

  std::unique_ptr<ShmTransport> transport;
  std::unique_ptr<Link> link;
  std::vector<std::byte> storage;
  std::byte* out = nullptr;
  std::byte* in = nullptr;
};

Statistics PingPong(size_t bytes, bool window, int calls) {
  return RunPair([=](Side& side) {
    LinkEnd end(side, bytes, window, {});
    // A round trip is two messages: half of its time is recorded.
    for (int i = 0; i < calls; ++i) {
      const uint64_t begin = Ticks();
      if (side.rank() == 0) end.Send(bytes);
      end.Recv(bytes);
      if (side.rank() == 1) end.Send(bytes);
      side.Record(side.rank() == 0 ? (Ticks() - begin) / 2 : 0);
    }
  });
}

Statistics Exchange(size_t bytes, bool window, bool reduce, ShmOptions options, int calls) {
  return RunPair([=](Side& side) {
    LinkEnd end(side, bytes, window, options);
    for (int i = 0; i < 5; ++i) end.Exchange(bytes, reduce);
    side.TimeGated(calls, [&] { end.Exchange(bytes, reduce); });
  });
}

Statistics OneWay(size_t bytes, bool window, ShmOptions options, int calls) {
  return RunPair([=](Side& side) {
    LinkEnd end(side, bytes, window, options);
    for (int i = 0; i < 5; ++i) end.Exchange(bytes, false);
    side.TimeGated(calls, [&] { side.rank() == 0 ? end.Send(bytes) : end.Recv(bytes); });
  });
}

// An all-reduce of floats as a plan does it: publish the own input, add the other's.
Statistics PublishAllReduce(size_t bytes, bool window, bool gated, int calls) {
  return RunPair([=](Side& side) {
    auto transport = MakeTransport(side);
    auto fanout = *transport->ConnectFanout(
        {.group = 1, .epoch = 1, .group_rank = side.rank(), .world_ranks = {0, 1}, .lane = 0});
    std::vector<std::byte> storage(2 * bytes + 64);
    std::byte* in = storage.data();
    if (window) in = static_cast<std::byte*>(*side.segment.Map(*side.segment.Allocate(2 * bytes)));
    std::byte* out = in + bytes;
    // Kept and filled in again, as the plan runner does.
    SendOperation send;
    RecvOperation recv;
    recv.reduce = FindReduceKernel(DataType::kFloat32, ReduceOp::kSum);
    recv.element_bytes = sizeof(float);
    const auto call = [&] {
      send.data = in;
      recv.data = out;
      recv.operand = in;
      send.bytes = recv.bytes = bytes;
      send.signature = recv.signature = kSignature;
      send.moved = recv.moved = 0;
      send.state = recv.state = nullptr;
      const bool sent = fanout->TryPublish(send) == Progress::kDone;
      Drive(recv.error, [&] { return fanout->TryRecv(1 - side.rank(), recv); });
      if (!sent) Drive(send.error, [&] { return fanout->TryPublish(send); });
    };
    for (int i = 0; i < 100; ++i) call();
    if (gated) {
      side.TimeGated(calls, call);
    } else {
      side.TimeBackToBack(calls, call);
    }
  });
}

void PrintLargeMessages(const std::function<int(size_t)>& calls) {
  for (size_t bytes : {16 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20}) {
    for (const auto& [name, window, options] :
         {std::tuple{"segment", true, ShmOptions{}}, std::tuple{"private", false, ShmOptions{}},
          std::tuple{"copies", false, ShmOptions{.private_reads = false}}}) {
      PrintRow(std::string("one way, ") + name, bytes, OneWay(bytes, window, options, calls(bytes)));
      PrintRow(std::string("exchange + reduce, ") + name, bytes, Exchange(bytes, window, true, options, calls(bytes)));
    }
  }
}

void PrintBareAllReduce(const std::function<int(size_t)>& calls) {
  for (const size_t bytes : {32 << 10, 64 << 10, 128 << 10}) {
    for (const size_t chunk : {8 << 10, 16 << 10}) {
      PrintRow("private, messages of " + std::to_string(chunk >> 10) + " KiB", bytes,
               bench::BareAllReduce(bytes, chunk, calls(bytes)));
    }
    PrintRow("window", bytes, bench::BareWindowAllReduce(bytes, calls(bytes)));
  }
}

// Tables of all collectives through a Communicator, in windows and in private memory.
void PrintCollectives(bench::CollectiveRow row, const std::vector<size_t>& sizes,
                      const std::function<int(size_t)>& calls, const std::function<bool(const std::string&)>& table) {
  for (int kind = 1; kind <= static_cast<int>(CollectiveKind::kAllToAll); ++kind) {
    row.kind = static_cast<CollectiveKind>(kind);
    if (!table("collective " + std::string(Name(row.kind)))) continue;
    for (const size_t bytes : sizes) {
      row.bytes = bytes;
      row.calls = calls(bytes * 4);
      for (const bool window : {true, false}) {
        row.window = window;
        PrintRow(window ? "window" : "private", bytes, bench::MeasureCollective(row));
      }
    }
  }
}

}  // namespace

int Main(int argc, char** argv) {
  CLI::App app{"Latency and bandwidth of the shared-memory transport between two pinned processes"};
  int calls = 50'000;
  std::string only;
  app.add_option("--calls", calls, "Timed calls per row of small messages")->check(CLI::Range(100, kMostSamples));
  app.add_option("--only", only, "Only tables whose title contains this");
  std::vector<size_t> sizes = {8, 48, 64, 256, 1024, 4096, 8192};
  app.add_option("--bytes", sizes, "Sizes of the all-reduce tables")->check(CLI::Range(4, 8192));
  std::vector<size_t> large = {16 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20};
  app.add_option("--large", large, "Block sizes of the collective tables (only with --only \"collective ...\")");
  bench::CollectiveRow collective;
  app.add_flag("--in-place", collective.in_place, "Collective tables in place");
  app.add_flag("--fresh", collective.fresh, "Collective tables: every input is rewritten before each call");
  app.add_option("--algorithm", collective.algorithm, "Collective tables: this algorithm instead of the selector's");
  if (const std::optional<int> status = tools::ParseCommandLine(app, argc, argv)) return *status;
  const auto table = [&only](const std::string& title) {
    if (title.find(only) == std::string::npos) return false;
    PrintHeader(title);
    return true;
  };
  const auto few = [calls](size_t bytes) {
    return std::max<int>(20, static_cast<int>(calls * 4096.0 / (bytes + 4096)));
  };

  if (table("gate")) {
    PrintRow("empty call", 0, RunPair([=](Side& side) { side.TimeGated(calls, [] {}); }));
    PrintRow("second gate", 0, RunPair([=](Side& side) { side.TimeGated(calls, [&] { side.Gate(); }); }));
  }
  if (table("publish all-reduce")) {
    for (size_t bytes : sizes) {
      PrintRow("gated", bytes, PublishAllReduce(bytes, false, true, calls));
      PrintRow("back to back", bytes, PublishAllReduce(bytes, false, false, calls));
    }
    for (size_t bytes : {2048, 4096, 8192}) {
      PrintRow("gated, segment memory", bytes, PublishAllReduce(bytes, true, true, calls));
    }
  }
  if (table("parts of layers")) {
    PrintRow("signature's hash", 0, bench::SignatureHash(calls));
    PrintRow("black box record", 0, bench::BlackBoxRecord(calls));
    PrintRow("  of it, a clock read", 0, bench::ClockRead(calls));
  }
  if (table("layers alone")) {
    PrintRow("all-reduce over instant messages", 8, bench::LayersAllReduce(8, calls));
  }
  if (table("communicator alone")) {
    for (size_t bytes : sizes) PrintRow("back to back", bytes, CommunicatorAllReduce(bytes, false, calls));
  }
  if (table("communicator all-reduce")) {
    std::printf("%-34s %10s %10s\n", "", "", "overhead: median of the communicator less that of the transport");
    for (size_t bytes : sizes) {
      for (bool gated : {true, false}) {
        const Statistics transport = PublishAllReduce(bytes, false, gated, calls);
        const Statistics communicator = CommunicatorAllReduce(bytes, gated, calls);
        PrintRow(gated ? "gated" : "back to back", bytes, communicator);
        std::printf("%-34s %10s %10.0f %10.0f\n", "  overhead", "", communicator.minimum - transport.minimum,
                    communicator.median - transport.median);
      }
    }
  }
  if (!only.empty()) PrintCollectives(collective, large, few, table);
  if (table("ping-pong, one way")) {
    for (size_t bytes : {8, 48, 64, 256, 1024, 4096}) PrintRow("private", bytes, PingPong(bytes, false, calls));
    for (size_t bytes : {2048, 4096}) PrintRow("segment", bytes, PingPong(bytes, true, calls));
  }
  if (table("large messages")) PrintLargeMessages(few);
  if (table("bare all-reduce: copies, sums and flags only")) PrintBareAllReduce(few);
  return 0;
}

}  // namespace cohort::comm

int main(int argc, char** argv) {
  return cohort::tools::RunProgram("shm_bench", [=] { return cohort::comm::Main(argc, argv); });
}
