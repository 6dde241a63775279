#include "cohort/comm/simulate/event_engine.h"

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

EventEngine::EventEngine(const Network& network, int64_t timed, double chunk_bytes, bool fanout, OnStep on_step)
    : network_(network),
      ranks_(network.ranks()),
      timed_(timed),
      tie_ranks_(std::min(network.ranks(), network.ranks_per_node * network.nodes_per_leaf)),
      chunk_bytes_(chunk_bytes),
      local_further_(Femtoseconds(network.local.message_us)),
      remote_further_(Femtoseconds(network.remote.message_us)),
      fanout_(fanout),
      on_step_(std::move(on_step)) {
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
  const bool shared = !actors_.empty() && actors_[actors_.size() - lanes_].program == &programs[0];
  for (size_t lane = 0; lane < lanes_; ++lane) {
    const Program& program = programs[lane];
    Actor actor;
    actor.program = &program;
    actor.peers = shared ? actors_[actors_.size() - lanes_].peers : &peers_.emplace_back(program);
    actor.first_channel = static_cast<uint32_t>(channels_.size());
    channels_.resize(channels_.size() + actor.peers->offsets.size());
    actor.fences = std::any_of(program.begin(), program.end(), [](const Op& op) { return op.fence >= 0; });
    actors_.push_back(std::move(actor));
  }
}

uint32_t EventEngine::ChannelFrom(uint32_t reader, int32_t offset) const {
  const Actor& actor = actors_[reader];
  const size_t place = actor.peers->Find(offset);
  return place < actor.peers->offsets.size() ? actor.first_channel + static_cast<uint32_t>(place) : kNone;
}

void EventEngine::Append(Queue& queue, uint32_t message) {
  messages_[message].next = kNone;
  (queue.head == kNone ? queue.head : messages_[queue.tail].next) = message;
  queue.tail = message;
}

uint32_t EventEngine::Pop(Queue& queue) {
  const uint32_t message = queue.head;
  queue.head = messages_[message].next;
  return message;
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
      const uint32_t number = ChannelOf(actor, actor.at);
      Queue& arrived = channels_[number].arrived;
      if (arrived.head == kNone) {
        actor.blocked = Blocked::kReceive;
        actor.waits_for = number;
        return;
      }
      const size_t rank = RankOf(index);
      const Time reached = actor.clock;
      if (actor.last == OpKind::kRecv) actor.clock += Further(node_of_[rank] == node_of_[Peer(rank, op.offset)]);
      const uint32_t message = Pop(arrived);
      actor.clock = std::max(actor.clock, messages_[message].time);
      if (on_step_ != nullptr) {
        Tell(index, {.kind = SimulatedStep::Kind::kReceive,
                     .peer = static_cast<int64_t>(Peer(rank, op.offset)),
                     .number = messages_[message].index,
                     .bytes = op.chunks * chunk_bytes_,
                     .begin = reached});
      }
      messages_[message].next = std::exchange(free_message_, message);
    }
    Combine(index, op);
    if (op.kind != OpKind::kWork) actor.last = op.kind == OpKind::kPublish ? OpKind::kSend : op.kind;
    ++actor.at;
  }
}

void EventEngine::Combine(uint32_t index, const Op& op) {
  if (op.combined == 0) return;
  Actor& actor = actors_[index];
  const Time begin = actor.clock;
  actor.clock += TransferTime(op.combined * chunk_bytes_, network_.reduce_gigabytes_s);
  if (on_step_ != nullptr) Tell(index, {.bytes = op.combined * chunk_bytes_, .begin = begin});
}

void EventEngine::Tell(uint32_t index, SimulatedStep step) const {
  step.rank = static_cast<int64_t>(RankOf(index));
  step.lane = index % lanes_;
  step.end = actors_[index].clock;
  on_step_(step);
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
    const Time begin = actor.clock;
    if (actor.last == OpKind::kSend || i > 0) actor.clock += Further(node_of_[rank] == node_of_[to]);
    if (on_step_ != nullptr) {
      Tell(index, {.kind = SimulatedStep::Kind::kSend,
                   .peer = publish && fanout_ ? -1 : static_cast<int64_t>(to),
                   .number = actor.posted,
                   .bytes = op.chunks * chunk_bytes_,
                   .begin = begin});
    }
    const uint32_t number = NewMessage();
    messages_[number] = {.time = actor.clock,
                         .actor = index,
                         .chunks = op.chunks,
                         .offset = offset,
                         .index = actor.posted,
                         .publish = publish && fanout_};
    if (actor.fences) actor.outstanding.push_back({actor.posted, kUnknown});
    if (messages_[number].publish) {
      Begin(number, actor.clock);
    } else {
      const uint32_t reader = ReaderOf(messages_[number], to);
      const uint32_t channel = ChannelFrom(reader, static_cast<int32_t>((ranks_ - offset) % ranks_));
      messages_[number].channel = channel;
      if (channel != kNone) {
        Append(channels_[channel].posted, number);
        Take(reader);
      }
    }
    ++report_.messages;
  }
  ++actor.posted;
}

// Lets the next message that the reader receives go, if it is posted and the one before it has taken the port.
void EventEngine::Take(uint32_t reader) {
  Actor& actor = actors_[reader];
  for (; !actor.lets && actor.taking < actor.program->size(); ++actor.taking) {
    const Op& op = (*actor.program)[actor.taking];
    if (op.kind != OpKind::kRecv || (op.published && fanout_)) continue;
    Queue& posted = channels_[ChannelOf(actor, actor.taking)].posted;
    if (posted.head == kNone) return;
    const uint32_t message = Pop(posted);
    actor.released = std::max(actor.released, messages_[message].time);
    actor.lets = true;
    Begin(message, actor.released);
  }
}

void EventEngine::Begin(uint32_t number, Time time) {
  Message& message = messages_[number];
  message.time = time;
  const auto offset = static_cast<size_t>(message.offset);
  const size_t to = Peer(RankOf(message.actor), message.offset);
  const auto tie = (static_cast<uint64_t>(to % static_cast<size_t>(tie_ranks_)) << 32) | offset;
  heap_.push_back({time, message.index, tie, number});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
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
  const uint32_t reader = ReaderOf(message, to);
  if (message.publish) message.channel = ChannelFrom(reader, static_cast<int32_t>((ranks_ - message.offset) % ranks_));
  if (message.channel == kNone) return;
  message.time = arrival;
  Append(channels_[message.channel].arrived, number);
  const Actor& actor = actors_[reader];
  if (actor.blocked == Blocked::kReceive && actor.waits_for == message.channel) Advance(reader);
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
    const uint32_t reader = ReaderOf(message, to);
    actors_[reader].lets = false;
    Take(reader);
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
      steady_state_.Restart();
    }
    steady_state_.Look(at, repetition_->period, event.time);
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
