// torchshard_memory_bench: the memory of a rank for a head that is cut over the ranks and its loss, beside what
// TorchShard's published figures say (ResNet-50, batch 256, float32 and SGD with momentum).
//
// TorchShard's column is its figure less the one for 1,000 classes, 4,141 MiB, which is the backbone. Ours is the
// formula of trainer/torchshard/head_memory.h; trainer_tensor_ranks measures a real step and holds it to the formula.
#include <cstdint>
#include <cstdio>

#include "cohort/trainer/torchshard/head_memory.h"

namespace cohort::bench {
namespace {

using trainer::torchshard::HeadMemoryFormula;
using trainer::torchshard::PredictHeadMemory;

// A row of TorchShard's table: MiB a GPU with dim 1, plain, with AMP and with ZeRO; 0: not published.
struct Published {
  int64_t classes;
  int ranks;
  int plain, amp, zero;
};
constexpr int kBackbone = 4141, kBackboneAmp = 2893, kBackboneZero = 4189;
constexpr Published kPublished[] = {{1000, 8, 4141, 2893, 4189},
                                    {100'000, 8, 4569, 3473, 4527},
                                    {500'000, 8, 7917, 5919, 7071},
                                    {1'000'000, 8, 11167, 9075, 10003},
                                    {2'000'000, 16, 11615, 0, 0}};

double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void PrintPair(int published, int backbone, const HeadMemoryFormula& formula) {
  const double ours = MiB(PredictHeadMemory(formula));
  if (published <= backbone) {
    std::printf("%8s %7.0f %6s", "-", ours, "");
  } else {
    std::printf("%8d %7.0f %5.2fx", published - backbone, ours, ours / (published - backbone));
  }
}

void PrintTable() {
  std::printf("MiB a rank for head and loss, batch 256, 2048 features; theirs, ours, ratio\n\n");
  std::printf("%9s %5s %22s %22s %22s\n", "classes", "ranks", "plain", "AMP", "ZeRO, 2 groups");
  for (const Published& row : kPublished) {
    HeadMemoryFormula formula = {.classes = row.classes, .batch = 256, .ranks = row.ranks};
    std::printf("%9lld %5d ", static_cast<long long>(row.classes), row.ranks);
    PrintPair(row.plain, kBackbone, formula);
    formula.autocast = true;
    PrintPair(row.amp, kBackboneAmp, formula);
    formula.autocast = false;
    formula.replicas = 2;
    PrintPair(row.zero, kBackboneZero, formula);
    std::printf("\n");
  }
}

}  // namespace
}  // namespace cohort::bench

int main() { cohort::bench::PrintTable(); }
