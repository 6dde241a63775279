// PMI-1 of two nodes, whatever their ranks write and whenever they end.
//
//   - an answer is one line, to a rank of the node; barrier_out goes to ranks that wait in a barrier;
//   - a node publishes once a barrier, when all its ranks are in it;
//   - only a rank that is in MPI is to be ended.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "cohort/launcher/agent/mpi/pmi1_node.h"
#include "tests/support/fuzz_input.h"

namespace cohort::launcher {
namespace {

constexpr int kRanks = 2;

class Side {
 public:
  explicit Side(int node)
      : node_({.name = "job",
               .world_size = 2 * kRanks,
               .first_rank = node * kRanks,
               .local_ranks = kRanks,
               .nodes = 2,
               .mapping = ""}) {}

  Pmi1Node& node() { return node_; }
  const std::optional<std::string>& published() const { return published_; }
  void Take(const Pmi1Node::Events& events) {
    for (const Pmi1Node::Event& event : events) std::visit([this](const auto& it) { On(it); }, event);
  }
  // The other side has published too.
  void Complete(const std::string& theirs) {
    published_.reset();
    Take(node_.OnAllPublished({theirs}));
    FuzzCheck(node_.in_barrier() == 0 && !node_.waits_for_nodes());
  }

 private:
  void On(const Pmi1Node::Answer& answer) {
    FuzzCheck(answer.local_rank >= 0 && answer.local_rank < kRanks);
    FuzzCheck(answer.line.starts_with("cmd=") && answer.line.find('\n') == answer.line.size() - 1);
  }
  void On(const Pmi1Node::Publish& publish) {
    FuzzCheck(!published_ && publish.round == ++round_ && node_.in_barrier() == kRanks);
    published_ = publish.values;
  }
  bool IsInside(int rank) const { return node_.UseOf(rank) == MpiUse::kInside; }
  void On(const Pmi1Node::Abandoned& abandoned) { FuzzCheck(IsInside(abandoned.local_rank)); }
  void On(const Pmi1Node::Nested& nested) { FuzzCheck(IsInside(nested.local_rank)); }
  void On(const Pmi1Node::Left& left) { FuzzCheck(left.by >= 0 && left.by < 2 * kRanks); }
  void On(const Pmi1Node::NameCall& call) { FuzzCheck(call.local_rank >= 0 && call.local_rank < kRanks); }
  void On(const Pmi1Node::Spawn& spawn) {
    FuzzCheck(spawn.local_rank >= 0 && spawn.local_rank < kRanks && !spawn.request.programs.empty());
  }
  void On(const Pmi1Node::Aborted& aborted) { FuzzCheck(aborted.local_rank >= 0 && aborted.local_rank < kRanks); }

  Pmi1Node node_;
  std::optional<std::string> published_;
  uint64_t round_ = 0;
};

std::string LineOf(FuzzInput* input) {
  switch (input->Below(15)) {
    case 0:
      return "cmd=init pmi_version=1 pmi_subversion=1";
    case 1:
    case 2:
      return "cmd=barrier_in";
    case 3:
      return "cmd=put kvsname=job key=" + input->Text() + " value=" + input->Text();
    case 4:
      return "cmd=get kvsname=job key=" + input->Text();
    case 5:
      return "cmd=finalize";
    case 6:
      return "cmd=publish_name service=" + input->Text() + " port=" + input->Text();
    case 7:
      return "cmd=lookup_name service=" + input->Text();
    case 8:
      return "mcmd=spawn";
    case 9:
      return "nprocs=" + std::to_string(input->Below(3));
    case 10:
      return "execname=" + input->Text();
    case 11:
      return "endcmd";
    default:
      return input->Text();
  }
}

void Try(FuzzInput* input) {
  std::array<Side, 2> sides = {Side(0), Side(1)};
  while (!input->empty()) {
    Side& side = sides[input->Below(2)];
    const int rank = static_cast<int>(input->Below(kRanks));
    const uint32_t what = input->Below(16);
    if (what == 0) {
      side.Take(side.node().OnClosed(rank));
    } else if (what == 1) {
      side.Take(side.node().OnLeftElsewhere("rank 3"));
    } else {
      std::string line = LineOf(input);
      std::erase(line, '\n');
      side.Take(side.node().OnLine(rank, line));
    }
    if (!sides[0].published() || !sides[1].published()) continue;
    const std::string first = *sides[0].published(), last = *sides[1].published();
    sides[0].Complete(last);
    sides[1].Complete(first);
  }
}

}  // namespace
}  // namespace cohort::launcher

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cohort::FuzzInput input(data, size);
  cohort::launcher::Try(&input);
  return 0;
}
