#include "cohort/comm/simulate/network.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <variant>

namespace cohort::comm {
namespace {

using Figure = std::variant<int64_t*, double*>;

constexpr int64_t kMostRanks = int64_t{1} << 24;

template <typename Visit>
void ForEachFigure(Network& network, const Visit& visit) {
  const std::pair<std::string_view, Figure> figures[] = {
      {"nodes", &network.nodes},
      {"ranks-per-node", &network.ranks_per_node},
      {"nodes-per-leaf", &network.nodes_per_leaf},
      {"oversubscription", &network.oversubscription},
      {"local-alpha-us", &network.local.alpha_us},
      {"local-message-us", &network.local.message_us},
      {"local-gigabytes-s", &network.local.gigabytes_s},
      {"remote-alpha-us", &network.remote.alpha_us},
      {"remote-message-us", &network.remote.message_us},
      {"remote-gigabytes-s", &network.remote.gigabytes_s},
      {"nic-gigabytes-s", &network.nic_gigabytes_s},
      {"reduce-gigabytes-s", &network.reduce_gigabytes_s},
  };
  for (const auto& [name, figure] : figures) {
    if (!visit(name, figure)) return;
  }
}

absl::Status Refuse(size_t position, const std::string& why) {
  return absl::InvalidArgumentError("network description, position " + std::to_string(position + 1) + ": " + why);
}

absl::StatusOr<Network> Preset(std::string_view name) {
  Network network;
  network.preset = name;
  if (name == "flat") return network;
  if (name == "host") {
    network.nodes = 1;
    network.ranks_per_node = 8;
    return network;
  }
  if (name == "fat-tree") {
    network.nodes = 64;
    network.ranks_per_node = 8;
    network.remote = {.alpha_us = 2, .message_us = 0.3, .gigabytes_s = 12.5};
    network.nic_gigabytes_s = 12.5;
    return network;
  }
  if (name == "gpu") {
    network.nodes = 64;
    network.ranks_per_node = 8;
    network.local = {.alpha_us = 2, .message_us = 0.5, .gigabytes_s = 200};
    network.remote = {.alpha_us = 5, .message_us = 0.5, .gigabytes_s = 50};
    network.nic_gigabytes_s = 400;
    network.reduce_gigabytes_s = 1000;
    return network;
  }
  if (name == "ethernet") {
    network.nodes = 8;
    network.remote = {.alpha_us = 25, .message_us = 5, .gigabytes_s = 1.2};
    network.nic_gigabytes_s = 1.2;
    return network;
  }
  return Refuse(0, "no network is called \"" + std::string(name) + "\"; choose flat, host, fat-tree, gpu or ethernet");
}

template <typename T>
bool Read(std::string_view text, T* value) {
  T read = {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), read);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if (!(static_cast<double>(read) >= 0) || static_cast<double>(read) > 1e9) return false;
  *value = read;
  return true;
}

absl::Status Replace(Network& network, size_t position, std::string_view name, std::string_view value) {
  if (name == "placement") {
    if (value != "block" && value != "cyclic") return Refuse(position, "placement is block or cyclic");
    network.cyclic = value == "cyclic";
    return absl::OkStatus();
  }
  bool known = false;
  bool read = false;
  std::string names;
  ForEachFigure(network, [&](std::string_view candidate, const Figure& figure) {
    names += std::string(candidate) + ", ";
    if (candidate != name) return true;
    known = true;
    read = std::visit([&](auto* field) { return Read(value, field); }, figure);
    return false;
  });
  if (!known) return Refuse(position, "no figure is called \"" + std::string(name) + "\"; use " + names + "placement");
  if (!read) {
    return Refuse(position, std::string(name) + " needs a number up to 1e9, not \"" + std::string(value) + "\"");
  }
  return absl::OkStatus();
}

absl::Status CheckFigures(const Network& network) {
  const double rates[] = {network.local.gigabytes_s, network.remote.gigabytes_s, network.nic_gigabytes_s,
                          network.reduce_gigabytes_s, network.oversubscription};
  if (*std::min_element(std::begin(rates), std::end(rates)) < 1e-6) {
    return absl::InvalidArgumentError("network description: rates and oversubscription must be at least 1e-6");
  }
  if (network.nodes < 1 || network.ranks_per_node < 1 || network.nodes_per_leaf < 1 ||
      network.nodes > kMostRanks / network.ranks_per_node) {
    return absl::InvalidArgumentError("network description: needs 1 to " + std::to_string(kMostRanks) +
                                      " ranks, and at least one host a leaf switch");
  }
  return absl::OkStatus();
}

}  // namespace

std::string Network::ToString() const {
  std::string text = preset + ":";
  Network copy = *this;
  ForEachFigure(copy, [&](std::string_view name, const Figure& figure) {
    char number[32];
    char* end =
        std::visit([&](const auto* field) { return std::to_chars(number, std::end(number), *field).ptr; }, figure);
    text += std::string(name) + "=" + std::string(number, end) + ",";
    return true;
  });
  return text + "placement=" + (cyclic ? "cyclic" : "block");
}

absl::StatusOr<Network> Network::Parse(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  absl::StatusOr<Network> network = Preset(text.substr(0, colon));
  if (!network.ok()) return network;
  for (size_t begin = colon + 1; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return Refuse(begin, "needs name=value, not \"" + std::string(item) + "\"");
    }
    absl::Status status = Replace(*network, begin, item.substr(0, equals), item.substr(equals + 1));
    if (!status.ok()) return status;
    begin = end + 1;
  }
  absl::Status status = CheckFigures(*network);
  if (!status.ok()) return status;
  return network;
}

}  // namespace cohort::comm
