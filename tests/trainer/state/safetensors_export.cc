// safetensors_export FOLDER: saves tensors of all types as a checkpoint of all ranks, FOLDER/checkpoint, exports it as
// FOLDER/all.safetensors and, without the types that numpy lacks, as FOLDER/numpy.safetensors, and writes each tensor's
// bytes to FOLDER/<name>.bin. For python_safetensors_test.py, which knows their names, types and sizes.
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/state/checkpoint/checkpoint.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// The same on all ranks. An odd number of bytes first, so that what follows is not aligned.
std::vector<std::pair<std::string, at::Tensor>> Tensors() {
  const at::Generator generator = at::detail::createCPUGenerator(5);
  const auto random = [&](at::IntArrayRef sizes, at::ScalarType type) {
    return torch::randn(sizes, generator).mul_(50).to(type);
  };
  return {
      {"numpy.a_bool", random({5}, torch::kFloat) > 0},
      {"numpy.bytes", torch::arange(7, torch::kByte)},
      {"numpy.chars", random({3, 3}, torch::kChar)},
      {"numpy.doubles", random({4, 3, 2}, torch::kDouble)},
      {"numpy.empty", torch::zeros({0, 4})},
      {"numpy.floats", random({31, 17}, torch::kFloat)},
      {"numpy.halves", random({2, 9}, torch::kHalf)},
      {"numpy.ints", random({11}, torch::kInt)},
      {"numpy.longs", random({6}, torch::kLong)},
      {"numpy.scalar", torch::full({}, 2.5)},
      {"numpy.shorts", random({1, 8}, torch::kShort)},
      {"small.bfloats", random({3, 5}, torch::kBFloat16)},
  };
}

// Some are split among the ranks, the others everybody's.
CheckpointTensor PartOf(const std::string& name, const at::Tensor& tensor, const comm::Communicator& world) {
  if (tensor.numel() < 9) return ReplicatedTensor(name, tensor, world);
  const int64_t begin = tensor.size(0) * world.rank() / world.size();
  const int64_t end = tensor.size(0) * (world.rank() + 1) / world.size();
  return {.name = name,
          .sizes = tensor.sizes().vec(),
          .boxes = RowsBox(tensor.sizes().vec(), begin, end),
          .data = tensor.narrow(0, begin, end - begin)};
}

void Export(const std::string& folder) {
  Job job;
  const auto tensors = Tensors();
  std::vector<CheckpointTensor> parts;
  for (const auto& [name, tensor] : tensors) parts.push_back(PartOf(name, tensor, job.world()));
  SaveCheckpoint(job.world(), folder + "/checkpoint", parts, {});
  if (job.rank() != 0) return;
  ExportSafetensors(folder + "/checkpoint", folder + "/all.safetensors", "");
  ExportSafetensors(folder + "/checkpoint", folder + "/numpy.safetensors", "numpy.");
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor whole = tensor.contiguous();
    std::ofstream file(folder + "/" + name + ".bin", std::ios::binary);
    file.write(static_cast<const char*>(whole.data_ptr()), static_cast<std::streamsize>(whole.nbytes()));
    TORCH_CHECK(file.good(), "can't write the bytes of ", name);
  }
}

}  // namespace
}  // namespace cohort::trainer

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: safetensors_export FOLDER\n");
    return 2;
  }
  return cohort::trainer::RunRank("safetensors_export", [&] { cohort::trainer::Export(argv[1]); });
}
