// The tensors in what a module's forward returns.
#pragma once

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"

namespace cohort::trainer {

inline void AppendTensors(const at::Tensor& tensor, std::vector<at::Tensor>& found) { found.push_back(tensor); }

template <typename T>
void AppendTensors(const std::vector<T>& values, std::vector<at::Tensor>& found) {
  for (const T& value : values) AppendTensors(value, found);
}

template <typename T>
void AppendTensors(const std::optional<T>& value, std::vector<at::Tensor>& found) {
  if (value.has_value()) AppendTensors(*value, found);
}

template <typename... Ts>
void AppendTensors(const std::tuple<Ts...>& values, std::vector<at::Tensor>& found) {
  std::apply([&found](const auto&... value) { (AppendTensors(value, found), ...); }, values);
}

template <typename A, typename B>
void AppendTensors(const std::pair<A, B>& values, std::vector<at::Tensor>& found) {
  AppendTensors(values.first, found);
  AppendTensors(values.second, found);
}

// A type of the user's own gives its tensors by an overload of AppendTensors in its namespace; what has none gives
// Whether TensorsOf knows where a T has its tensors.
template <typename T>
concept HasTensors = requires(const T& value, std::vector<at::Tensor>& found) { AppendTensors(value, found); };

// nothing.
template <typename T>
std::vector<at::Tensor> TensorsOf(const T& value) {
  std::vector<at::Tensor> found;
  if constexpr (HasTensors<T>) AppendTensors(value, found);
  return found;
}

}  // namespace cohort::trainer
