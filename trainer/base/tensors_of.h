// Finds the tensors in the arguments and results of a module's forward pass.
#pragma once

#include <concepts>
#include <functional>
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

// Whether TensorsOf knows where a T has its tensors.
template <typename T>
concept HasTensors = requires(const T& value, std::vector<at::Tensor>& found) { AppendTensors(value, found); };

// Returns the tensors in `value`. A user's own type provides them by an overload of AppendTensors in its namespace. A
// type without one has none.
template <typename T>
std::vector<at::Tensor> TensorsOf(const T& value) {
  std::vector<at::Tensor> found;
  if constexpr (HasTensors<T>) AppendTensors(value, found);
  return found;
}

// The change that MapTensors applies to each tensor.
struct TensorMap {
  std::function<at::Tensor(const at::Tensor&)> change;
};

// Whether MapTensors knows where a T has tensors. It knows tensors and containers of them. It refuses tuples and pairs
// with references (std::tie), which would refer to destroyed values. A user's own type has an overload `T
// MapTensors(const T&, const TensorMap&)` in its namespace, or keeps its tensors as they are.
template <typename T>
concept Mappable = requires(const T& value, const TensorMap& map) { MapTensors(value, map); };

// Excludes types derived from at::Tensor, which would lose their own part.
template <std::same_as<at::Tensor> T>
T MapTensors(const T& tensor, const TensorMap& map) {
  return map.change(tensor);
}

// Maps one part of a container.
template <typename T>
T MapPart(const T& value, const TensorMap& map) {
  if constexpr (Mappable<T>) {
    return MapTensors(value, map);
  } else {
    return value;
  }
}

template <typename T>
  requires Mappable<T>
std::vector<T> MapTensors(const std::vector<T>& values, const TensorMap& map) {
  std::vector<T> mapped;
  mapped.reserve(values.size());
  for (const T& value : values) mapped.push_back(MapPart(value, map));
  return mapped;
}

template <typename T>
  requires Mappable<T>
std::optional<T> MapTensors(const std::optional<T>& value, const TensorMap& map) {
  return value.has_value() ? std::optional<T>(MapPart(*value, map)) : std::nullopt;
}

template <typename... Ts>
  requires((Mappable<Ts> || ...) && ((std::is_copy_constructible_v<Ts> && !std::is_reference_v<Ts>) && ...))
std::tuple<Ts...> MapTensors(const std::tuple<Ts...>& values, const TensorMap& map) {
  return std::apply([&map](const Ts&... value) { return std::tuple<Ts...>(MapPart(value, map)...); }, values);
}

template <typename A, typename B>
  requires((Mappable<A> || Mappable<B>) && std::is_copy_constructible_v<A> && std::is_copy_constructible_v<B> &&
           !std::is_reference_v<A> && !std::is_reference_v<B>)
std::pair<A, B> MapTensors(const std::pair<A, B>& values, const TensorMap& map) {
  return {MapPart(values.first, map), MapPart(values.second, map)};
}

}  // namespace cohort::trainer
