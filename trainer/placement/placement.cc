#include "cohort/trainer/placement/placement.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace cohort::trainer {
namespace {

int64_t Product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::string TextOf(const std::vector<int64_t>& sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  return text + "]";
}

std::string RankText(const Axis& axis) {
  return axis.name + " " + std::to_string(axis.rank) + "/" + std::to_string(axis.size);
}

int RankAt(const Axis& axis, const Coordinate& at) {
  const auto found = at.find(axis.name);
  return found == at.end() ? axis.rank : found->second;
}

// Goes through all combinations of one piece a dimension, the last dimension fastest. False after the last one.
bool Next(std::vector<size_t>& chosen, const std::function<size_t(size_t)>& choices) {
  for (size_t dim = chosen.size(); dim-- > 0;) {
    if (++chosen[dim] < choices(dim)) return true;
    chosen[dim] = 0;
  }
  return false;
}

}  // namespace

int64_t Box::numel() const { return Product(sizes); }

void ForRuns(const std::vector<int64_t>& whole, const std::vector<int64_t>& part, const Box& box,
             const std::function<void(int64_t in_whole, int64_t in_part, int64_t count)>& visit) {
  const size_t dims = box.sizes.size();
  size_t inner = dims;  // dimensions from here on belong to a run
  int64_t run = 1;
  while (inner > 0) {
    --inner;
    run *= box.sizes[inner];
    if (box.sizes[inner] != whole[inner] || box.sizes[inner] != part[inner]) break;
  }
  if (box.numel() == 0) return;
  std::vector<int64_t> index(dims, 0);
  const auto place = [&](const std::vector<int64_t>& offset, const std::vector<int64_t>& sizes) {
    int64_t flat = 0;
    for (size_t dim = 0; dim < dims; ++dim) flat = flat * sizes[dim] + offset[dim] + index[dim];
    return flat;
  };
  for (;;) {
    visit(place(box.offset, whole), place(box.local, part), run);
    size_t dim = inner;
    while (dim > 0 && ++index[dim - 1] == box.sizes[dim - 1]) index[--dim] = 0;
    if (dim == 0) return;
  }
}

Placement::Placement(std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {}

int64_t Placement::numel() const { return Product(sizes_); }

absl::Status Placement::Add(Use use) {
  const Axis& axis = use.axis;
  if (axis.name.empty() || axis.size < 1 || axis.rank < 0 || axis.rank >= axis.size) {
    return absl::InvalidArgumentError("a placement wants an axis with a name and a rank on it, not " + RankText(axis));
  }
  for (const Use& other : uses_) {
    if (other.axis.name != axis.name) continue;
    return absl::InvalidArgumentError("the parameter of sizes " + TextOf(sizes_) + " is placed over axis '" +
                                      axis.name + "' twice: " + Describe());
  }
  uses_.push_back(std::move(use));
  return absl::OkStatus();
}

absl::Status Placement::Split(const Axis& axis, const Cut& cut) {
  const int dims = std::max<int>(static_cast<int>(sizes_.size()), 1);
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError("axis '" + axis.name + "' can't cut dimension " + std::to_string(cut.dim) +
                                      " of a parameter of sizes " + TextOf(sizes_) + ": " + why);
  };
  if (cut.dim < 0 || cut.dim >= dims) return refuse("it has no such dimension");
  if (cut.unit < 1) return refuse("a unit of " + std::to_string(cut.unit));
  for (const Use& use : uses_) {
    const bool uneven = !cut.blocks.empty() || cut.unit > 1;  // other ranks may have other lengths by now
    if (uneven && use.use == AxisUse::kSplit && use.cut.dim == cut.dim) {
      return refuse("blocks and units are cut first, but axis '" + use.axis.name + "' has cut it before");
    }
  }
  int64_t length = 0;
  const std::vector<Pieces> here = PiecesAt({});
  for (const Piece& piece : here[cut.dim]) length += piece.length;
  const std::vector<int64_t> blocks = cut.blocks.empty() ? std::vector<int64_t>{length} : cut.blocks;
  if (std::accumulate(blocks.begin(), blocks.end(), int64_t{0}) != length) {
    return refuse("blocks " + TextOf(blocks) + " do not add up to its length of " + std::to_string(length));
  }
  for (const int64_t block : blocks) {
    if (block < 0 || block % cut.unit != 0) {
      return refuse("a part of " + std::to_string(block) + " is no multiple of its unit of " +
                    std::to_string(cut.unit));
    }
  }
  return Add({.axis = axis, .use = AxisUse::kSplit, .cut = cut});
}

absl::Status Placement::Partial(const Axis& axis) { return Add({.axis = axis, .use = AxisUse::kPartial}); }

absl::Status Placement::Replicated(const Axis& axis) { return Add({.axis = axis, .use = AxisUse::kReplicated}); }

absl::Status Placement::Owned(const Axis& axis, int owner) { return AddOwner(axis, AxisUse::kOwned, owner); }

absl::Status Placement::Reduced(const Axis& axis, int owner) { return AddOwner(axis, AxisUse::kReduced, owner); }

absl::Status Placement::AddOwner(const Axis& axis, AxisUse use, int owner) {
  if (owner < 0 || owner >= axis.size) {
    return absl::InvalidArgumentError("axis '" + axis.name + "' has " + std::to_string(axis.size) +
                                      " ranks; none of them is owner " + std::to_string(owner));
  }
  return Add({.axis = axis, .use = use, .owner = owner});
}

void Placement::set_copy(int copy, int copies) {
  copy_ = copy;
  copies_ = copies;
}

std::vector<Axis> Placement::axes() const {
  std::vector<Axis> axes;
  for (const Use& use : uses_) axes.push_back(use.axis);
  return axes;
}

AxisUse Placement::use(const std::string& axis) const {
  for (const Use& use : uses_) {
    if (use.axis.name == axis) return use.use;
  }
  return AxisUse::kReplicated;
}

bool Placement::mentions(const std::string& axis) const {
  return std::any_of(uses_.begin(), uses_.end(), [&](const Use& use) { return use.axis.name == axis; });
}

int Placement::owner(const std::string& axis) const {
  for (const Use& use : uses_) {
    const bool has_owner = use.use == AxisUse::kOwned || use.use == AxisUse::kReduced;
    if (use.axis.name == axis && has_owner) return use.owner;
  }
  return -1;
}

bool Placement::whole() const {
  return std::none_of(uses_.begin(), uses_.end(),
                      [](const Use& use) { return use.use == AxisUse::kSplit || use.use == AxisUse::kOwned; });
}

bool Placement::owned_at(const Coordinate& at) const {
  return std::all_of(uses_.begin(), uses_.end(),
                     [&](const Use& use) { return use.use != AxisUse::kOwned || RankAt(use.axis, at) == use.owner; });
}

// Cuts the pieces, taken as one range, and keeps those of one rank. Pieces that follow each other become one.
Placement::Pieces Placement::Take(const Pieces& from, const Cut& cut, int ranks, int rank) {
  int64_t length = 0;
  for (const Piece& piece : from) length += piece.length;
  const std::vector<int64_t> blocks = cut.blocks.empty() ? std::vector<int64_t>{length} : cut.blocks;
  Pieces taken;
  const auto take = [&](int64_t begin, int64_t end) {
    int64_t at = 0;
    for (const Piece& piece : from) {
      const int64_t first = std::max(begin, at), last = std::min(end, at + piece.length);
      const int64_t start = piece.begin + first - at;
      at += piece.length;
      if (first >= last) continue;
      if (!taken.empty() && taken.back().begin + taken.back().length == start) {
        taken.back().length += last - first;
      } else {
        taken.push_back({.begin = start, .length = last - first});
      }
    }
  };
  int64_t block_begin = 0;
  for (const int64_t block : blocks) {
    const int64_t units = block / cut.unit, each = (units + ranks - 1) / ranks;
    const int64_t first = std::min(rank * each, units), last = std::min(first + each, units);
    take(block_begin + first * cut.unit, block_begin + last * cut.unit);
    block_begin += block;
  }
  return taken;
}

std::vector<Placement::Pieces> Placement::PiecesAt(const Coordinate& at) const {
  std::vector<Pieces> pieces;
  for (const int64_t size : sizes_) pieces.push_back({{.begin = 0, .length = size}});
  if (pieces.empty()) pieces.push_back({{.begin = 0, .length = 1}});
  for (const Use& use : uses_) {
    if (use.use != AxisUse::kSplit) continue;
    Pieces& dim = pieces[use.cut.dim];
    dim = Take(dim, use.cut, use.axis.size, RankAt(use.axis, at));
  }
  return pieces;
}

std::vector<Box> Placement::boxes(const Coordinate& at) const {
  if (!owned_at(at)) return {};
  const std::vector<Pieces> pieces = PiecesAt(at);
  for (const Pieces& dim : pieces) {
    if (std::all_of(dim.begin(), dim.end(), [](const Piece& piece) { return piece.length == 0; })) return {};
  }
  std::vector<Box> boxes;
  std::vector<size_t> chosen(pieces.size(), 0);
  do {
    Box box;
    for (size_t dim = 0; dim < sizes_.size(); ++dim) {
      int64_t local = 0;
      for (size_t before = 0; before < chosen[dim]; ++before) local += pieces[dim][before].length;
      box.offset.push_back(pieces[dim][chosen[dim]].begin);
      box.sizes.push_back(pieces[dim][chosen[dim]].length);
      box.local.push_back(local);
    }
    boxes.push_back(std::move(box));
  } while (Next(chosen, [&](size_t dim) { return pieces[dim].size(); }));
  return boxes;
}

std::vector<int64_t> Placement::local_sizes(const Coordinate& at) const {
  const bool cut = std::any_of(uses_.begin(), uses_.end(), [](const Use& use) { return use.use == AxisUse::kSplit; });
  if (sizes_.empty() && !cut) return {};
  std::vector<int64_t> local;
  for (const Pieces& dim : PiecesAt(at)) {
    int64_t length = 0;
    for (const Piece& piece : dim) length += piece.length;
    local.push_back(length);
  }
  return local;
}

bool Placement::writes(const Coordinate& at) const {
  if (copy_ > 0 || !owned_at(at)) return false;
  const auto first = [&](const std::string& axis, int rank) {
    const AxisUse how = use(axis);
    return rank == 0 || how == AxisUse::kSplit || how == AxisUse::kOwned;
  };
  for (const Use& use : uses_) {
    if (!first(use.axis.name, RankAt(use.axis, at))) return false;
  }
  return std::all_of(at.begin(), at.end(), [&](const auto& place) { return first(place.first, place.second); });
}

std::string Placement::Describe() const {
  std::string text = TextOf(sizes_);
  for (size_t i = 0; i < uses_.size(); ++i) {
    const Use& use = uses_[i];
    text += i == 0 ? ": " : "; ";
    switch (use.use) {
      case AxisUse::kSplit:
        text += RankText(use.axis) + " cuts dim " + std::to_string(use.cut.dim);
        if (!use.cut.blocks.empty()) text += " in blocks";
        for (const int64_t block : use.cut.blocks) text += " " + std::to_string(block);
        if (use.cut.unit > 1) text += " by units of " + std::to_string(use.cut.unit);
        break;
      case AxisUse::kPartial:
        text += "gradient partial over " + use.axis.name;
        break;
      case AxisUse::kReplicated:
        text += "replicated over " + use.axis.name;
        break;
      case AxisUse::kOwned:
        text += "on " + use.axis.name + " " + std::to_string(use.owner) + "/" + std::to_string(use.axis.size);
        break;
      case AxisUse::kReduced:
        text += "gradient on " + use.axis.name + " " + std::to_string(use.owner) + "/" + std::to_string(use.axis.size);
        break;
    }
  }
  if (copies_ > 1) {
    text += (uses_.empty() ? ": " : "; ") + ("copy " + std::to_string(copy_)) + "/" + std::to_string(copies_);
  }
  return text;
}

}  // namespace cohort::trainer
