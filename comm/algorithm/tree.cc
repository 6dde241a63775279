#include "cohort/comm/algorithm/tree.h"

#include <algorithm>

#include "cohort/comm/algorithm/pattern.h"

namespace cohort::comm {

TreePlace PlaceInTree(int size, int rank, int root, int radix) {
  TreePlace place;
  const int64_t v = Modulo(rank - root, size);
  const auto group_rank = [&](int64_t relative) { return static_cast<int>((relative + root) % size); };
  place.relative = static_cast<int>(v);
  int64_t power = 1;  // of v's lowest digit that is not zero, or beyond the size
  while (power < size && v / power % radix == 0) power *= radix;
  if (power < size) place.parent = group_rank(v - v / power % radix * power);
  place.span = static_cast<int>(std::min<int64_t>(power, size - v));
  for (int64_t m = power / radix; m >= 1; m /= radix) {
    for (int64_t j = radix - 1; j >= 1; --j) {
      const int64_t child = v + j * m;
      if (child >= size) continue;
      place.children.push_back(
          {group_rank(child), static_cast<int>(child), static_cast<int>(std::min<int64_t>(m, size - child))});
    }
  }
  return place;
}

int64_t RootChildren(int size, int radix) {
  int64_t children = 0;
  for (int64_t m = 1; m < size; m *= radix) children += std::min<int64_t>(radix - 1, (size - 1) / m);
  return children;
}

int64_t TreeDepth(int size, int radix) {
  // The smallest v of depth d has d digits, all of them 1.
  int64_t depth = 0;
  for (int64_t v = 1; v < size; v = v * radix + 1) ++depth;
  return depth;
}

}  // namespace cohort::comm
