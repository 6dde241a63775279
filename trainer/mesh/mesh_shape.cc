#include "cohort/trainer/mesh/mesh_shape.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>

#include "cohort/trainer/mesh/axis.h"

namespace cohort::trainer {
namespace {

std::string TextOf(const std::vector<int>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + ")";
}

std::vector<std::string_view> SplitAt(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

}  // namespace

int MeshShape::ranks() const {
  int product = 1;
  for (const int size : sizes) product *= size;
  return product;
}

std::string MeshShape::Describe() const {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : ", ") + names[i] + "=" + std::to_string(sizes[i]);
  return text;
}

absl::StatusOr<MeshShape> ParseMesh(std::string_view text) {
  const std::string wanted =
      "a mesh is axes with their sizes, as in replicate=2,shard=2, not \"" + std::string(text) + "\"";
  std::vector<std::pair<std::string, int>> axes;
  for (const std::string_view part : SplitAt(text, ',')) {
    const size_t equals = std::min(part.find('='), part.size());
    const std::string name(part.substr(0, equals));
    const std::string_view number = part.substr(std::min(equals + 1, part.size()));
    int size = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), size);
    if (error != std::errc() || end != number.data() + number.size() || size < 1 || size > (1 << 24)) {
      return absl::InvalidArgumentError(wanted);
    }
    if (CanonicalOrder(name) == CanonicalOrder("")) {
      return absl::InvalidArgumentError(wanted + ": there is no axis '" + name +
                                        "'; there are pipeline, replicate, shard and tensor");
    }
    if (size > 1 && (name == kContextAxis || name == kExpertAxis)) {
      return absl::UnimplementedError("axis '" + name + "' is reserved: nothing uses it yet");
    }
    for (const auto& [other, ignored] : axes) {
      if (other == name) return absl::InvalidArgumentError(wanted + ": it has '" + name + "' twice");
    }
    axes.emplace_back(name, size);
  }
  std::sort(axes.begin(), axes.end(),
            [](const auto& a, const auto& b) { return CanonicalOrder(a.first) < CanonicalOrder(b.first); });
  MeshShape shape;
  for (auto& [name, size] : axes) {
    shape.names.push_back(std::move(name));
    shape.sizes.push_back(size);
  }
  return shape;
}

absl::Status CheckShape(const MeshShape& shape, int ranks) {
  const auto& [names, sizes] = shape;
  const std::string text = TextOf(sizes);
  if (sizes.empty()) return absl::InvalidArgumentError("a mesh needs at least one dimension");
  if (sizes.size() != names.size()) {
    return absl::InvalidArgumentError("mesh shape " + text + " has " + std::to_string(sizes.size()) +
                                      " dimensions, but " + std::to_string(names.size()) + " names were given");
  }
  int64_t product = 1;
  for (const int extent : sizes) {
    if (extent < 1) return absl::InvalidArgumentError("mesh shape " + text + " has an extent below 1");
    product *= extent;
    if (product > std::numeric_limits<int>::max()) break;
  }
  if (product != ranks) {
    const std::string wanted = std::to_string(product);
    return absl::InvalidArgumentError("mesh " + shape.Describe() + " is of " + wanted + " ranks, and this job has " +
                                      std::to_string(ranks) + ": start " + wanted + " (dlaunch --nproc-per-node " +
                                      wanted + " on one node), or change a size");
  }
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (name.empty()) return absl::InvalidArgumentError("a mesh dimension has an empty name");
    if (!seen.insert(name).second) return absl::InvalidArgumentError("mesh dimension '" + name + "' is named twice");
  }
  return absl::OkStatus();
}

std::vector<int> MeshCoordinate(int rank, const std::vector<int>& shape) {
  std::vector<int> coordinate(shape.size());
  for (size_t dim = shape.size(); dim-- > 0;) {
    coordinate[dim] = rank % shape[dim];
    rank /= shape[dim];
  }
  return coordinate;
}

}  // namespace cohort::trainer
