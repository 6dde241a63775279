#include "cohort/trainer/parallel/fsdp/gradient_reductions.h"

#include <string>
#include <utility>

#include "cohort/comm/check/named_input.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/base/tensor_values.h"
#include "cohort/trainer/parallel/fsdp/unit_gradients.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// Names the elements of a unit's vector of gradients (flat_gradient.h) while its call is made.
class NamedGradients final : public comm::NamedInput {
 public:
  NamedGradients(const FsdpUnit& unit, const at::Tensor& flat)
      : NamedInput(flat.data_ptr()), unit_(unit), type_(flat.scalar_type()) {}
  std::string NameOf(size_t element) const override {
    const int64_t place =
        static_cast<int64_t>(element) / RealsPerElement(type_) % (unit_.padded_numel() / unit_.shards());
    for (const FsdpParameter& each : unit_.parameters()) {
      if (place >= each.offset && place < each.offset + each.chunk) return "the gradient of " + each.name;
    }
    return "";
  }

 private:
  const FsdpUnit& unit_;
  const at::ScalarType type_;
};

}  // namespace

void GradientReductions::Plan(std::vector<FsdpUnit*> order) {
  order_ = std::move(order);
  next_ = 0;
}

void GradientReductions::LaunchReady() {
  for (; next_ < order_.size(); ++next_) {
    FsdpUnit& unit = *order_[next_];
    if (!unit.gradients().trainable()) continue;
    if (!unit.has_all_gradients()) return;
    Launch(unit);
  }
}

void GradientReductions::LaunchRest() {
  for (; next_ < order_.size(); ++next_) {
    FsdpUnit& unit = *order_[next_];
    if (unit.gradients().trainable() && unit.gradients().begun()) Launch(unit);
  }
}

void GradientReductions::Launch(FsdpUnit& unit) {
  at::Tensor flat = unit.gradients().Release();
  if (unit.padded_numel() == 0) return;
  calls_.Tell(JoinCalls::Step::kReduce, unit);
  if (!under_way_.empty()) Replicate(under_way_.back());
  Reduction reduction;
  reduction.unit = &unit;
  reduction.shown.emplace("unit", runtime::RangeLane::kBuckets, static_cast<uint64_t>(unit.number()),
                          static_cast<uint16_t>(unit.number()));
  reduction.tag = tags_.OfReduction(unit);
  ++traffic_.reductions;
  traffic_.reduced_bytes += static_cast<int64_t>(flat.nbytes());
  if (unit.shards() == 1) {
    reduction.reduced = std::move(flat);
  } else {
    StartScatter(reduction, std::move(flat));
  }
  under_way_.push_back(std::move(reduction));
}

void GradientReductions::StartScatter(Reduction& reduction, at::Tensor flat) {
  const int64_t shard_numel = reduction.unit->padded_numel() / reduction.unit->shards();
  comm::Communicator* world = groups_.world();
  reduction.reduced = at::empty({shard_numel}, flat.options());
  const NamedGradients names(*reduction.unit, flat);
  if (world == nullptr) {
    reduction.work = ReduceScatter(groups_.reduce(), AsBuffer(flat), AsBuffer(reduction.reduced), comm::ReduceOp::kSum,
                                   reduction.tag);
  } else {
    std::vector<int64_t> counts, places;
    for (int replica = 0; replica < groups_.replicas(); ++replica) {
      const int64_t begin = PieceBegin(shard_numel, replica), end = PieceBegin(shard_numel, replica + 1);
      for (int shard = 0; shard < groups_.shards(); ++shard) {
        counts.push_back(end - begin);
        places.push_back(shard * shard_numel + begin);
      }
    }
    reduction.piece = at::empty({counts[world->rank()]}, flat.options());
    counts = BufferCounts(std::move(counts), flat.scalar_type());
    places = BufferCounts(std::move(places), flat.scalar_type());
    reduction.work = ReduceScatterV(*world, AsBuffer(flat), {.counts = counts, .displacements = places},
                                    AsBuffer(reduction.piece), comm::ReduceOp::kSum, reduction.tag);
  }
  reduction.flat = std::move(flat);
}

// The first element of a shard that `replica` sums.
int64_t GradientReductions::PieceBegin(int64_t shard_numel, int replica) const {
  return shard_numel * replica / groups_.replicas();
}

// Ends the reduce-scatter and starts what follows it.
void GradientReductions::Replicate(Reduction& reduction) {
  if (reduction.stage != Reduction::Stage::kScattering) return;
  reduction.stage = Reduction::Stage::kReplicating;
  const absl::Status status = reduction.work.Wait();
  reduction.work = runtime::Work();
  reduction.flat = at::Tensor();
  if (!status.ok()) {
    ThrowUnlessAllCame(status, "reducing the gradients from " + reduction.unit->parameters().front().name);
  }
  comm::Communicator* replicas = groups_.replicate();
  if (replicas == nullptr || replicas->size() == 1) return;
  traffic_.replicated_bytes += static_cast<int64_t>(reduction.reduced.nbytes());
  const comm::Buffer buffer = AsBuffer(reduction.reduced);
  if (reduction.piece.defined()) {
    std::vector<int64_t> counts;
    const int64_t numel = reduction.reduced.numel();
    for (int replica = 0; replica < groups_.replicas(); ++replica) {
      counts.push_back(PieceBegin(numel, replica + 1) - PieceBegin(numel, replica));
    }
    counts = BufferCounts(std::move(counts), reduction.reduced.scalar_type());
    comm::CallOptions options;
    options.timeout = default_timeout();
    options.tag = reduction.tag;
    reduction.work =
        AllGatherV(*replicas, AsBuffer(reduction.piece), buffer, {.counts = counts, .displacements = {}}, options);
  } else {
    reduction.work = AllReduce(*replicas, buffer, buffer, comm::ReduceOp::kSum, reduction.tag);
  }
}

void GradientReductions::Finish() {
  for (Reduction& reduction : under_way_) Replicate(reduction);
  for (Reduction& reduction : under_way_) {
    const absl::Status status = reduction.work.Wait();
    reduction.work = runtime::Work();
    if (!status.ok()) {
      ThrowUnlessAllCame(status, "averaging the gradients from " + reduction.unit->parameters().front().name);
    }
    reduction.unit->gradients().SetShards(reduction.reduced);
    reduction.shown.reset();
  }
  under_way_.clear();
}

void GradientReductions::Await() {
  for (Reduction& reduction : under_way_) {
    const absl::Status ignored = reduction.work.Wait();
    (void)ignored;
  }
}

}  // namespace cohort::trainer
