#include "cohort/trainer/examples/text_data.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "cohort/trainer/examples/example_data.h"
#include "torch/torch.h"

namespace cohort::examples {

Text::Text(const std::string& path) {
  std::error_code none;
  TORCH_CHECK(std::filesystem::is_regular_file(path, none), path,
              " is no ordinary file, or can't be reached; name the text with --data");
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file.is_open(), "can't open ", path, "; name the text with --data");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  TORCH_CHECK(text.size() >= 10000, path, ": needs at least 10,000 characters, has ", text.size());
  const std::set<char> distinct(text.begin(), text.end());
  characters_.assign(distinct.begin(), distinct.end());
  const at::Tensor codes = Encode(text);
  const int64_t train = codes.numel() * 9 / 10;
  train_ = codes.narrow(0, 0, train);
  validation_ = codes.narrow(0, train, codes.numel() - train);
}

std::string Text::Fingerprint() const {
  size_t hash = std::hash<std::string>{}(characters_);
  for (const at::Tensor& codes : {train_, validation_}) {
    const std::string_view bytes(static_cast<const char*>(codes.contiguous().data_ptr()), codes.nbytes());
    hash = hash * 31 + std::hash<std::string_view>{}(bytes);
  }
  return std::to_string(train_.numel() + validation_.numel()) + " characters with hash " + std::to_string(hash);
}

std::string Text::Decode(const at::Tensor& codes) const {
  std::string text;
  const at::Tensor flat = codes.reshape({-1}).contiguous();
  for (int64_t i = 0; i < flat.numel(); ++i) text += characters_[flat.data_ptr<int64_t>()[i]];
  return text;
}

at::Tensor Text::Encode(const std::string& text) const {
  std::array<int64_t, 256> code_of{};
  code_of.fill(-1);
  for (size_t i = 0; i < characters_.size(); ++i) code_of[static_cast<unsigned char>(characters_[i])] = i;
  std::vector<int64_t> codes;
  for (const char character : text) {
    const int64_t code = code_of[static_cast<unsigned char>(character)];
    if (code >= 0) codes.push_back(code);
  }
  return torch::tensor(codes);
}

TextBatch Text::Batch(bool train, uint64_t seed, int64_t step, int64_t count, int64_t length, int rank,
                      int ranks) const {
  const at::Tensor& text = train ? train_ : validation_;
  at::Generator generator = at::detail::createCPUGenerator(seed * 1000003 + static_cast<uint64_t>(step));
  const at::Tensor places = torch::randint(text.numel() - length, {count}, generator, torch::kInt64);
  const at::Tensor mine = places.index_select(0, torch::arange(rank, count, ranks));
  const at::Tensor indices = mine.unsqueeze(1) + torch::arange(length).unsqueeze(0);
  return {text.take(indices), text.take(indices + 1)};
}

std::string FindShakespeare() { return FindExampleData("shakespeare.txt"); }

}  // namespace cohort::examples
