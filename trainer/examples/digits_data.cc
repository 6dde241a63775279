#include "cohort/trainer/examples/digits_data.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "cohort/trainer/examples/example_data.h"
#include "torch/torch.h"

namespace cohort::examples {
namespace {

constexpr int kPixels = 64;
constexpr int kBrightest = 16;
constexpr float kMean = 4.9f;  // of all pixels of the set, and their standard deviation
constexpr float kDeviation = 6.0f;

// Appends the 64 pixels and returns the label of one line.
int64_t ParseLine(std::string_view line, const std::string& where, std::vector<float>& pixels) {
  int64_t label = 0;
  for (int column = 0; column <= kPixels; ++column) {
    int value = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
    const int limit = column == kPixels ? 9 : kBrightest;
    TORCH_CHECK(error == std::errc() && value >= 0 && value <= limit, where, ": column ", column + 1,
                " is no integer from 0 to ", limit);
    line.remove_prefix(end - line.data());
    const bool last = column == kPixels;
    TORCH_CHECK(last ? line.empty() : !line.empty() && line.front() == ',', where, ": expected 65 columns");
    if (last) {
      label = value;
    } else {
      line.remove_prefix(1);
      pixels.push_back((static_cast<float>(value) - kMean) / kDeviation);
    }
  }
  return label;
}

Digits Select(const at::Tensor& images, const at::Tensor& labels, const at::Tensor& rows) {
  return {images.index_select(0, rows), labels.index_select(0, rows)};
}

}  // namespace

DigitsSplit LoadDigits(const std::string& path, uint64_t seed) {
  std::error_code none;
  TORCH_CHECK(std::filesystem::is_regular_file(path, none), path,
              " is no ordinary file, or can't be reached; name the file with --data");
  std::ifstream file(path);
  TORCH_CHECK(file.is_open(), "can't open ", path, "; name the file with --data");
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  std::string line;
  while (std::getline(file, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    labels.push_back(ParseLine(line, path + ":" + std::to_string(labels.size() + 1), pixels));
  }
  TORCH_CHECK(labels.size() >= 10, path, ": needs at least 10 lines, has ", labels.size());
  const int64_t count = static_cast<int64_t>(labels.size());
  const at::Tensor all_images = torch::tensor(pixels).view({count, 1, 8, 8});
  const at::Tensor all_labels = torch::tensor(labels);
  const at::Tensor order = torch::randperm(count, at::detail::createCPUGenerator(seed), torch::kInt64);
  const int64_t test = count / 5;
  return {Select(all_images, all_labels, order.narrow(0, test, count - test)),
          Select(all_images, all_labels, order.narrow(0, 0, test))};
}

std::string FindDigits() { return FindExampleData("digits.csv"); }

}  // namespace cohort::examples
