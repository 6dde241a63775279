// Products in chunks hide the collectives beside them, in virtual time (SimulatedLink): at most 30 % is exposed with
// four chunks where the link is as slow as the products.
#include <functional>
#include <vector>

#include "cohort/trainer/parallel/tensor/overlapped_product.h"
#include "cohort/trainer/transfer/simulated_link.h"
#include "tests/trainer/parallel/tensor/tensor_layers.h"

namespace cohort::trainer {
namespace {

constexpr int64_t kRows = 16;  // of each rank
constexpr int64_t kWidth = 6;

// The share of communication that is exposed where computing takes as long: `run` multiplies with the given product.
double Exposed(const std::function<void(const Product&)>& run) {
  SimulatedLink link(0, 1e-6);
  int64_t rows = 0;
  run([&](const at::Tensor& x) {
    rows += x.size(0);
    return x;
  });
  const double seconds_per_row = link.communicated() / static_cast<double>(rows);
  link.Reset();
  run([&](const at::Tensor& x) {
    link.Compute(seconds_per_row * static_cast<double>(x.size(0)));
    return x;
  });
  EXPECT_NEAR(link.computed(), link.communicated(), 1e-9);
  return link.exposed() / link.communicated();
}

TEST(OverlappedProduct, AnOverlappedProductExposesOneChunkOfItsCollectives) {
  if (world->size() == 1) GTEST_SKIP() << "skipped: OverlappedProduct: nothing moves";
  const std::vector<int64_t> rows(world->size(), kRows);
  const at::Tensor part = Random({kRows, kWidth}, 1), whole = Random({kRows * world->size(), kWidth}, 2);
  for (const int chunks : {1, 4}) {
    const ProductPlan plan = {*world, chunks, rows, std::source_location::current()};
    const double gather = Exposed([&](const Product& product) { MultiplyGathered(part, product, plan); });
    const double scatter = Exposed([&](const Product& product) { StartReduceScattered(whole, product, plan).Wait(); });
    const double reduce = Exposed([&](const Product& product) { StartAllReduced(whole, product, plan).Wait(); });
    for (const double share : {gather, scatter, reduce}) {
      if (chunks == 1) {
        EXPECT_NEAR(share, 1, 1e-6);
      } else {
        EXPECT_LE(share, 0.3);
      }
    }
  }
}

TEST(OverlappedProduct, AProductInChunksIsTheSame) {
  const std::vector<int64_t> rows = ChunkSizes(4 * world->size() + 1, world->size());
  const at::Tensor whole = Random({4 * world->size() + 1, kWidth}, 3);
  const at::Tensor part = whole.split_with_sizes(rows)[world->rank()];
  const Product product = [](const at::Tensor& x) { return x * 2; };
  for (const int chunks : {1, 3, 7}) {
    const ProductPlan plan = {*world, chunks, rows, std::source_location::current()};
    const GatheredProduct both = MultiplyGathered(part, product, plan);
    ExpectClose(both.gathered, whole, "gathered");
    ExpectClose(both.product, whole * 2, "product");
    ExpectClose(StartReduceScattered(whole, product, plan).Wait(), part * 2 * world->size(), "scattered");
    ExpectClose(StartAllReduced(whole, product, plan).Wait(), whole * 2 * world->size(), "reduced");
  }
}

}  // namespace
}  // namespace cohort::trainer
