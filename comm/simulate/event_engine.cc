#include "comm/simulate/event_engine.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace cohort::comm {
namespace {

constexpr double kFemtosecondsPerMicrosecond = 1e9;

// Femtoseconds that `bytes` take at `gigabytes_s`.
int64_t TransferTime(double bytes, double gigabytes_s) {
  return std::llround(bytes / gigabytes_s * 1e-3 * kFemtosecondsPerMicrosecond);
}

}  // namespace

EventEngine::EventEngine(const Network& network, int64_t timed, double chunk_bytes, bool fanout)
    : network_(network),
      ranks_(network.ranks()),
      timed_(timed),
      tie_ranks_(std::min(network.ranks(), network.ranks_per_node * network.nodes_per_leaf)),
      chunk_bytes_(chunk_bytes),
      local_further_(Femtoseconds(network.local.message_us)),
      remote_further_(Femtoseconds(network.remote.message_us)),
      fanout_(fanout) {
  for (int64_t rank = 0; rank < ranks_; ++rank) node_of_.push_back(static_cast<uint32_t>(network.NodeOf(rank)));
  for (int64_t node = 0; node < network.nodes; ++node) {
    leaf_of_.push_back(static_cast<uint32_t>(node / network.nodes_per_leaf));
  }
  for (int64_t rank = 0; rank < timed_; ++rank) {
    link_nodes_ = std::max<size_t>(link_nodes_, node_of_[static_cast<size_t>(rank)] + 1);
  }
  link_leaves_ = leaf_of_[link_nodes_ - 1] + 1;
  link_free_.resize(2 * (static_cast<size_t>(timed_) + link_nodes_ + link_leaves_), 0);
  uplink_use_.resize(2 * link_leaves_, 0);
}

EventEngine::Time EventEngine::Femtoseconds(double microseconds) {
  return std::llround(microseconds * kFemtosecondsPerMicrosecond);
}

void EventEngine::AddRank(const std::vector<Program>& programs) {
  lanes_ = programs.size();
  for (const Program& program : programs) {
    Actor actor;
    actor.program = &program;
    actor.fences = std::any_of(program.begin(), program.end(), [](const Op& op) { return op.fence >= 0; });
    actors_.push_back(std::move(actor));
  }
}

uint32_t EventEngine::ChannelOf(uint32_t reader, int32_t offset) {
  const uint64_t key = uint64_t{reader} * static_cast<uint64_t>(ranks_) + static_cast<uint64_t>(offset);
  const auto [entry, added] = channel_of_.try_emplace(key, static_cast<uint32_t>(channels_.size()));
  if (added) channels_.push_back({.reader = reader});
  return entry->second;
}

uint32_t EventEngine::NewMessage() {
  if (free_message_ != kNone) return std::exchange(free_message_, messages_[free_message_].next);
  messages_.emplace_back();
  return static_cast<uint32_t>(messages_.size() - 1);
}

// In the order in which a message passes them.
EventEngine::Route EventEngine::RouteOf(size_t from, size_t to) const {
  Route route;
  const auto add = [&](size_t link) { route.links[static_cast<size_t>(route.count++)] = static_cast<uint32_t>(link); };
  const auto ports = static_cast<size_t>(timed_);
  const size_t to_image = Image(to);
  const size_t nics = 2 * ports;
  const size_t uplinks = nics + 2 * link_nodes_;
  route.local = node_of_[from] == node_of_[to];
  route.core = leaf_of_[node_of_[from]] != leaf_of_[node_of_[to]];
  add(from);
  if (!route.local) add(nics + node_of_[from]);
  if (route.core) {
    add(uplinks + leaf_of_[node_of_[from]]);
    add(uplinks + link_leaves_ + leaf_of_[node_of_[to_image]]);
  }
  if (!route.local) add(nics + link_nodes_ + node_of_[to_image]);
  add(ports + to_image);
  return route;
}

// A fence on sends whose arrival is not known yet stays shut; else the clock moves to the latest.
bool EventEngine::FenceOpen(Actor& actor, const Op& op) {
  if (op.fence < 0) return true;
  const int64_t before = actor.posted - op.fence;
  Time latest = actor.clock;
  for (const Outstanding& send : actor.outstanding) {
    if (send.index >= before) continue;
    if (send.arrival == kUnknown) return false;
    latest = std::max(latest, send.arrival);
  }
  actor.clock = latest;
  std::erase_if(actor.outstanding,
                [&](const Outstanding& send) { return send.arrival != kUnknown && send.arrival <= latest; });
  return true;
}

void EventEngine::Advance(uint32_t index) {
  Actor& actor = actors_[index];
  actor.blocked = Blocked::kNo;
  while (actor.at < actor.program->size()) {
    const Op& op = (*actor.program)[actor.at];
    if (!FenceOpen(actor, op)) {
      actor.blocked = Blocked::kFence;
      return;
    }
    if (op.kind == OpKind::kSend || op.kind == OpKind::kPublish) {
      Post(index, op);
    } else if (op.kind == OpKind::kRecv) {
      const uint32_t number = ChannelOf(index, op.offset);
      Channel& channel = channels_[number];
      if (channel.head == kNone) {
        actor.blocked = Blocked::kReceive;
        actor.waits_for = number;
        return;
      }
      Message& message = messages_[channel.head];
      const size_t rank = RankOf(index);
      if (actor.last == OpKind::kRecv) actor.clock += Further(node_of_[rank] == node_of_[Peer(rank, op.offset)]);
      actor.clock = std::max(actor.clock, message.time);
      const uint32_t next = message.next;
      message.next = free_message_;
      free_message_ = channel.head;
      channel.head = next;
      if (next == kNone) channel.tail = kNone;
    }
    actor.clock += TransferTime(op.combined * chunk_bytes_, network_.reduce_gigabytes_s);
    if (op.kind != OpKind::kWork) actor.last = op.kind == OpKind::kPublish ? OpKind::kSend : op.kind;
    ++actor.at;
  }
}

void EventEngine::Post(uint32_t index, const Op& op) {
  Actor& actor = actors_[index];
  const size_t rank = RankOf(index);
  const bool publish = op.kind == OpKind::kPublish;
  const bool single = !publish || fanout_;
  const int64_t copies = single ? 1 : ranks_ - 1;
  for (int64_t i = 0; i < copies; ++i) {
    const auto offset = static_cast<int32_t>(single ? op.offset : 1 + i);
    const size_t to = Peer(rank, offset);
    if (actor.last == OpKind::kSend || i > 0) actor.clock += Further(node_of_[rank] == node_of_[to]);
    const uint32_t number = NewMessage();
    messages_[number] = {.time = actor.clock,
                         .actor = index,
                         .chunks = op.chunks,
                         .offset = offset,
                         .index = actor.posted,
                         .publish = publish && fanout_};
    if (actor.fences) actor.outstanding.push_back({actor.posted, kUnknown});
    const auto tie =
        (static_cast<uint64_t>(to % static_cast<size_t>(tie_ranks_)) << 32) | static_cast<uint32_t>(offset);
    heap_.push_back({actor.clock, actor.posted, tie, number});
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    ++report_.messages;
  }
  ++actor.posted;
}

// Takes the links of the route, each from when it is free; returns the arrival. A link that is busy holds the message
// up, but not those behind it: switches have room.
EventEngine::Time EventEngine::Occupy(const Route& route, const Message& message, bool skip_out) {
  const LevelTuning& level = route.local ? network_.local : network_.remote;
  const double bytes = message.chunks * chunk_bytes_;
  const double nic = network_.nic_gigabytes_s;
  const double uplink = nic * static_cast<double>(network_.nodes_per_leaf) / network_.oversubscription;
  // In the order of Route::links.
  const double rates[] = {level.gigabytes_s, nic, uplink, uplink, nic, level.gigabytes_s};
  Time start = message.time;
  Time end = start;
  const size_t first_uplink = link_free_.size() - uplink_use_.size();
  for (int i = skip_out ? 1 : 0; i < route.count; ++i) {
    const size_t link = route.links[static_cast<size_t>(i)];
    const bool uplinks = route.core && (i == 2 || i == 3);
    const double rate = route.local ? level.gigabytes_s : route.core || i < 2 ? rates[i] : rates[i + 2];
    const Time taken = TransferTime(bytes, rate);
    start = std::max(start, link_free_[link]);
    link_free_[link] = start + taken;
    end = std::max(end, start + taken);
    if (uplinks) uplink_use_[link - first_uplink] += static_cast<double>(taken);
  }
  if (!route.local) report_.wire_bytes += bytes;
  if (route.core) report_.core_bytes += bytes;
  return end + Femtoseconds(level.alpha_us);
}

void EventEngine::Deliver(uint32_t number, size_t to, Time arrival) {
  Message& message = messages_[number];
  const auto reader = static_cast<uint32_t>(Image(to) * lanes_ + message.actor % lanes_);
  const auto back = static_cast<int32_t>((ranks_ - message.offset) % ranks_);
  const uint32_t channel_number = ChannelOf(reader, back);
  Channel& channel = channels_[channel_number];
  message.time = arrival;
  message.next = kNone;
  if (channel.head == kNone) {
    channel.head = number;
  } else {
    messages_[channel.tail].next = number;
  }
  channel.tail = number;
  const Actor& actor = actors_[reader];
  if (actor.blocked == Blocked::kReceive && actor.waits_for == channel_number) Advance(reader);
}

void EventEngine::Arrived(uint32_t index, int64_t send, Time arrival) {
  Actor& actor = actors_[index];
  if (!actor.fences) return;
  for (Outstanding& outstanding : actor.outstanding) {
    if (outstanding.index == send && outstanding.arrival == kUnknown) {
      outstanding.arrival = arrival;
      break;
    }
  }
  if (actor.blocked == Blocked::kFence) Advance(index);
}

void EventEngine::Transfer(const Event& event) {
  const Message message = messages_[event.message];
  const size_t rank = RankOf(message.actor);
  ++report_.events;
  if (!message.publish) {
    const size_t to = Peer(rank, message.offset);
    const Time arrival = Occupy(RouteOf(rank, to), message, false);
    Deliver(event.message, to, arrival);
    Arrived(message.actor, message.index, arrival);
    return;
  }
  // One write that all others read, at the same time.
  Time latest = 0;
  for (int64_t offset = 1; offset < ranks_; ++offset) {
    const size_t to = Peer(rank, static_cast<int32_t>(offset));
    const Time arrival = Occupy(RouteOf(rank, to), message, offset > 1);
    latest = std::max(latest, arrival);
    uint32_t copy = event.message;
    if (offset > 1) {
      copy = NewMessage();
      messages_[copy] = message;
    }
    messages_[copy].offset = static_cast<int32_t>(offset);
    Deliver(copy, to, arrival);
  }
  Arrived(message.actor, message.index, latest);
}

absl::StatusOr<SimulationReport> EventEngine::Run(const std::vector<Repetition>& repetitions) {
  for (uint32_t actor = 0; actor < actors_.size(); ++actor) Advance(actor);
  size_t next_repetition = 0;
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Event event = heap_.back();
    heap_.pop_back();
    Transfer(event);
    if (repetitions.empty()) continue;
    const size_t at = actors_[0].at;
    while (next_repetition < repetitions.size() && at >= repetitions[next_repetition].end) ++next_repetition;
    if (next_repetition == repetitions.size() || at < repetitions[next_repetition].begin) continue;
    if (repetition_ != &repetitions[next_repetition]) {
      repetition_ = &repetitions[next_repetition];
      seen_ = nullptr;
      seen_at_ = 0;
    }
    if (at >= seen_at_ + repetition_->period) {
      seen_at_ = at;
      TrySkip(event.time);
    }
  }
  Time end = 0;
  for (size_t i = 0; i < actors_.size(); ++i) {
    const Actor& actor = actors_[i];
    if (actor.at != actor.program->size()) {
      return absl::InternalError("the plan stands still: rank " + std::to_string(i / lanes_) + " waits for ever");
    }
    end = std::max(end, actor.clock);
  }
  const int64_t images = ranks_ / timed_;
  report_.microseconds = static_cast<double>(end) / kFemtosecondsPerMicrosecond;
  report_.messages *= images;
  report_.wire_bytes *= static_cast<double>(images);
  report_.core_bytes *= static_cast<double>(images);
  report_.ranks_timed = timed_;
  if (end > 0) {
    report_.uplink_busy = *std::max_element(uplink_use_.begin(), uplink_use_.end()) / static_cast<double>(end);
  }
  return report_;
}

}  // namespace cohort::comm
