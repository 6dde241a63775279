// The keys of PEFT's rank_pattern and alpha_pattern: regular expressions for layers.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cohort::trainer {

// Throws c10::Error, which names `who`, for a key that may mean something else in Python than here. Letters, digits,
// "_", ".", "-", classes, groups, "|" and repetitions mean the same, and so do \d, \w and escaped punctuation.
void CheckLayerPattern(const std::string& key, const std::string& who);

// Whether the layer `name` has the key: the name itself, or what stands behind one of its dots, fits the expression. A
// key that CheckLayerPattern throws for fits nothing.
bool FitsLayer(const std::string& key, const std::string& name);

// The value of the first key that the layer has; `otherwise` if it has none.
template <typename Value>
Value ForLayer(const std::vector<std::pair<std::string, Value>>& pattern, const std::string& name, Value otherwise) {
  for (const auto& [key, value] : pattern) {
    if (FitsLayer(key, name)) return value;
  }
  return otherwise;
}

}  // namespace cohort::trainer
