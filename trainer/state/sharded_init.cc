#include "cohort/trainer/state/sharded_init.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/deferred_init.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr double kPi = 3.14159265358979323846;

uint32_t Low(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t High(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

// The values of elements 4 k to 4 k + 3.
std::array<double, 4> Block(const InitRule& rule, const std::array<uint32_t, 4>& random) {
  std::array<double, 4> values{};
  for (size_t i = 0; i < values.size(); ++i) {
    switch (rule.kind) {
      case InitRule::Kind::kConstant:
        values[i] = rule.first;
        break;
      case InitRule::Kind::kUniform:
        values[i] = rule.first + (rule.second - rule.first) * std::ldexp(random[i] >> 8, -24);
        break;
      case InitRule::Kind::kNormal: {  // Box and Muller: two numbers make two
        const double radius = std::sqrt(-2 * std::log(std::ldexp(random[i & ~size_t{1}] + 1.0, -32)));
        const double angle = 2 * kPi * std::ldexp(random[i | 1], -32);
        values[i] = rule.first + rule.second * radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
        break;
      }
    }
  }
  return values;
}

// Elements [begin, end) of the parameter of that name, into `part`.
void Fill(at::Tensor part, const std::string& name, int64_t begin, int64_t end, uint64_t seed, const InitRule& rule) {
  constexpr int64_t kPiece = 1 << 16;
  TORCH_CHECK(part.numel() == end - begin, "init_parameters: elements ", begin, " to ", end, " of ", name,
              " are to be filled, but its tensor has ", part.numel());
  const uint64_t hash = HashOfName(name);
  std::vector<double> values;
  std::array<double, 4> block{};
  for (int64_t first = begin; first < end; first += kPiece) {
    const int64_t last = std::min(first + kPiece, end);
    values.clear();
    for (int64_t i = first; i < last; ++i) {
      if (i == first || i % 4 == 0) {
        const auto number = static_cast<uint64_t>(i / 4);
        block = Block(rule, Philox({Low(number), High(number), Low(hash), High(hash)}, {Low(seed), High(seed)}));
      }
      values.push_back(block[static_cast<size_t>(i % 4)]);
    }
    part.narrow(0, first - begin, last - first).copy_(at::from_blob(values.data(), {last - first}, at::kDouble));
  }
}

}  // namespace

void InitPart(at::Tensor part, const Placement& placement, const std::string& name, uint64_t seed,
              const InitRule& rule) {
  const at::NoGradGuard no_grad;
  const at::Tensor row = part.reshape({-1});  // a copy where it is not contiguous
  const std::vector<int64_t> sizes = part.sizes().vec();
  TORCH_CHECK(sizes == placement.local_sizes(), "init_parameters: ", name, " has sizes ", part.sizes(),
              " here, and its placement says ", at::IntArrayRef(placement.local_sizes()));
  for (const Box& box : placement.boxes()) {
    ForRuns(placement.sizes(), sizes, box, [&](int64_t whole, int64_t own, int64_t length) {
      Fill(row.narrow(0, own, length), name, whole, whole + length, seed, rule);
    });
  }
  if (!part.is_contiguous()) part.copy_(row.view(part.sizes()));
}

uint64_t HashOfName(const std::string& name) {
  uint64_t hash = 14695981039346656037u;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  return hash;
}

std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {High(b) ^ counter[1] ^ key[0], Low(b), High(a) ^ counter[3] ^ key[1], Low(a)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

InitRule LikeTorch(const std::string& name, const std::vector<int64_t>& sizes) {
  if (sizes.size() < 2) return InitRule::Constant(name.ends_with("weight") ? 1 : 0);
  int64_t row = 1;
  for (size_t i = 1; i < sizes.size(); ++i) row *= sizes[i];
  const double bound = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(row, 1)));
  return InitRule::Uniform(-bound, bound);
}

namespace {

// By the parameter's name and sizes in the unsplit model, however it is split.
void InitPlaced(const at::Tensor& parameter, const std::string& name, uint64_t seed, const InitRules& rules) {
  const std::shared_ptr<const Placement> placement = Placements().OrWhole(parameter);
  const std::string in_whole = NameInWhole(parameter, name);
  InitPart(parameter, *placement, in_whole, seed, rules(in_whole, placement->sizes()));
}

}  // namespace

void init_parameters(ShardedModule& model, uint64_t seed, const InitRules& rules) {
  const at::NoGradGuard no_grad;
  model.Reshard();
  for (const ShardedParameter& part : model.sharded_parameters()) {
    InitPlaced(part.tensor, part.name, seed, rules);
  }
}

void init_parameters(torch::nn::Module& model, uint64_t seed, const InitRules& rules) {
  if (ShardedModule* shards = ShardedModuleOf(model)) return init_parameters(*shards, seed, rules);
  RefuseShards(model, "init_parameters", "shard the outermost module too, and give that");
  const at::NoGradGuard no_grad;
  std::set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    TORCH_CHECK(HasData(item.value()), "init_parameters: parameter ", item.key(),
                " was made under DeferredInit and has no memory; shard the module, or materialize() it");
    InitPlaced(item.value(), item.key(), seed, rules);
  }
}

}  // namespace cohort::trainer
