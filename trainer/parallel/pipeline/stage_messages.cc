#include "cohort/trainer/parallel/pipeline/stage_messages.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "cohort/runtime/base/deadline.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/parallel/pipeline/schedule/turn.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr int64_t kMostDims = 14;
constexpr int64_t kShapeNumbers = kMostDims + 2;  // type, dimensions, sizes

std::vector<int> Everyone(const comm::Communicator& group) {
  std::vector<int> ranks(static_cast<size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

PlaceExchange::PlaceExchange(comm::Communicator& group, int devices) : group_(group), devices_(devices) {
  for (int pair = 0; pair < devices * devices; ++pair) {
    auto channel = group.Subgroup(Everyone(group));
    ThrowUnlessOk(channel.status(), "Pipeline: making a channel between stages");
    channels_.push_back(*std::move(channel));
  }
}

PlaceExchange::~PlaceExchange() {
  for (const auto& channel : channels_) NoteGroupEnd(*channel);
}

void PlaceExchange::Connect(const LocalDevice& device, const Schedule& schedule) {
  if (!device.device.is_cuda() || devices_ > 1) return;
  comm::Communicator& channel = *channels_.front();
  const auto options = at::TensorOptions(at::kFloat).device(device.device);
  const at::Tensor one = at::ones({1}, options);
  ThrowUnlessAllCame(AllReduce(channel, AsBuffer(one), AsBuffer(one), comm::ReduceOp::kSum).Wait(),
                     "Pipeline: connecting the stages");
  std::set<std::pair<bool, int>> directions;  // sends, peer
  for (const Action& action : schedule.by_rank[static_cast<size_t>(rank())]) {
    if (IsMessage(action.kind)) directions.emplace(IsSend(action.kind), schedule.PeerOf(action));
  }
  std::vector<Message> messages;
  std::vector<at::Tensor> received;
  for (const auto& [sends, peer] : directions) {
    if (sends) {
      messages.push_back({.peer = peer, .in = AsBuffer(one), .sends = true});
    } else {
      received.push_back(at::empty({1}, options));
      messages.push_back({.peer = peer, .out = AsBuffer(received.back())});
    }
  }
  if (messages.empty()) return;
  ThrowUnlessAllCame(Exchange(channel, messages).Wait(), "Pipeline: connecting neighbours");
}

void PlaceExchange::Hand(const Action& receive, at::Tensor tensor) {
  runtime::MutexLock lock(mutex_);
  handed_[{receive.kind, receive.stage, receive.micro_batch}] = std::move(tensor);
  changed_.NotifyAll();
}

at::Tensor PlaceExchange::TakeHanded(const Action& receive) {
  runtime::MutexLock lock(mutex_);
  const std::tuple<ActionKind, int, int> key{receive.kind, receive.stage, receive.micro_batch};
  const runtime::Deadline deadline = runtime::Deadline::After(default_timeout());
  bool in_time = true;
  while (in_time && handed_.count(key) == 0 && failure_.empty()) in_time = changed_.Wait(mutex_, deadline);
  if (!failure_.empty()) throw DistributedError(absl::StatusCode::kAborted, failure_);
  if (handed_.count(key) == 0) {
    throw DistributedError(absl::StatusCode::kDeadlineExceeded,
                           "Pipeline: waiting for " + ToString(receive) + " from another device of this rank");
  }
  at::Tensor tensor = std::move(handed_.at(key));
  handed_.erase(key);
  return tensor;
}

void PlaceExchange::Fail(const std::string& why) {
  {
    runtime::MutexLock lock(mutex_);
    if (failure_.empty()) failure_ = why;
    changed_.NotifyAll();
  }
  runtime::MutexLock lock(posting_);
  for (const auto& channel : channels_) channel->Abort(why);
  group_.Abort(why);
}

void PlaceExchange::BeginStep(bool trains) {
  iteration_ = (iteration_ / 2 + 1) * 2 + (trains ? 0 : 1);
  runtime::MutexLock lock(mutex_);
  TORCH_CHECK(failure_.empty(), "Pipeline: an earlier step has failed: ", failure_);
  handed_.clear();
}

StageMessages::StageMessages(const Schedule& schedule, int place, LocalDevice device, PlaceExchange& exchange,
                             bool one_batch)
    : schedule_(schedule), place_(place), device_(device), exchange_(exchange), one_batch_(one_batch) {}

void StageMessages::BeginStep() {
  outgoing_.clear();
  incoming_.clear();
  shapes_.clear();
}

std::string StageMessages::NameOf(const Action& message) const {
  return "Pipeline: " + ToString(message) + (IsSend(message.kind) ? " to" : " from") + " rank " +
         std::to_string(schedule_.PeerOf(message) / exchange_.devices());
}

uint64_t StageMessages::TagOf(const Action& message, bool sizes) const {
  const Action send = IsSend(message.kind) ? message : OtherEnd(message);
  const int64_t place = int64_t{send.micro_batch} * schedule_.stages + send.stage;
  return CallTag(exchange_.iteration(), place * 4 + (send.kind == ActionKind::kSendBackward ? 2 : 0) + (sizes ? 1 : 0));
}

void StageMessages::Put(const Action& send, at::Tensor tensor) {
  const Action receive = OtherEnd(send);
  if (receive.stage < 0 || receive.stage >= schedule_.stages) return;
  if (schedule_.RankOf(receive) == place_) {
    incoming_[KeyOf(receive)] = {.tensor = std::move(tensor), .work = nullptr, .handed = false};
  } else {
    outgoing_[KeyOf(send)] = std::move(tensor);
  }
}

at::Tensor StageMessages::Outgoing(const Action& send) {
  const auto found = outgoing_.find(KeyOf(send));
  TORCH_CHECK(found != outgoing_.end(), "Pipeline: ", ToString(send), " comes before what it sends");
  at::Tensor tensor = std::move(found->second);
  outgoing_.erase(found);
  if (send.kind == ActionKind::kSendForward) {
    const auto [known, first] = shapes_.insert({send.stage, Shape{tensor.scalar_type(), tensor.sizes().vec()}});
    TORCH_CHECK(first || (known->second.sizes == tensor.sizes() && known->second.type == tensor.scalar_type()),
                "Pipeline: stage ", send.stage, " made of micro-batch ", send.micro_batch, " a tensor of sizes ",
                tensor.sizes(), ", and of an earlier one of sizes ", c10::IntArrayRef(known->second.sizes),
                "; those of a step must be equal");
  }
  return tensor.contiguous().resolve_conj().resolve_neg();
}

// Both sides know which message of a step is a stage's first.
void StageMessages::SendShapes(std::span<const Action> sends) {
  for (const Action& send : sends) {
    if (send.kind != ActionKind::kSendForward || shapes_.count(send.stage) > 0) continue;
    const at::Tensor& tensor = outgoing_.at(KeyOf(send));
    TORCH_CHECK(tensor.dim() <= kMostDims, "Pipeline: the output of stage ", send.stage, " has ", tensor.dim(),
                " dimensions; ", kMostDims, " can be sent");
    at::Tensor numbers = at::zeros({kShapeNumbers}, at::kLong);
    auto* const data = numbers.data_ptr<int64_t>();
    data[0] = static_cast<int64_t>(tensor.scalar_type());
    data[1] = tensor.dim();
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), data + 2);
    const int peer = schedule_.PeerOf(send);
    auto work = std::make_shared<runtime::Work>(exchange_.With(place_, peer, [&](comm::Communicator& channel) {
      return Send(channel, AsBuffer(numbers), peer / exchange_.devices(), TagOf(send, /*sizes=*/true));
    }));
    sent_.emplace_back(std::move(work), std::vector<at::Tensor>{numbers});
  }
}

void StageMessages::LearnShapes(std::span<const Action> receives) {
  for (const Action& receive : receives) {
    if (receive.kind != ActionKind::kRecvForward || shapes_.count(receive.stage - 1) > 0) continue;
    const at::Tensor numbers = at::zeros({kShapeNumbers}, at::kLong);
    const int peer = schedule_.PeerOf(receive);
    runtime::Work work = exchange_.With(peer, place_, [&](comm::Communicator& channel) {
      return Recv(channel, AsBuffer(numbers), peer / exchange_.devices(), TagOf(receive, /*sizes=*/true));
    });
    ThrowUnlessAllCame(work.Wait(), NameOf(receive) + ", its sizes");
    const auto* const data = numbers.data_ptr<int64_t>();
    TORCH_CHECK(data[1] >= 0 && data[1] <= kMostDims, NameOf(receive), ": it has ", data[1], " dimensions");
    shapes_[receive.stage - 1] = {static_cast<at::ScalarType>(data[0]),
                                  std::vector<int64_t>(data + 2, data + 2 + data[1])};
  }
}

void StageMessages::Turn(std::span<const Action> messages) {
  DropSent();
  std::vector<Action> elsewhere;
  for (const Action& message : messages) {
    if (!exchange_.IsHere(schedule_.PeerOf(message))) {
      elsewhere.push_back(message);
    } else if (IsSend(message.kind)) {
      exchange_.Hand(OtherEnd(message), Outgoing(message));
    } else {
      incoming_[KeyOf(message)].handed = true;
    }
  }
  const TurnParts parts = PartsOf(elsewhere, [this](int stage) { return shapes_.count(stage) > 0; });
  SendShapes(parts.sends);
  Start(parts.sends, parts.now);
  LearnShapes(parts.later);
  Start({}, parts.later);
}

void StageMessages::Start(const std::vector<Action>& sends, const std::vector<Action>& receives) {
  struct Call {
    Message message;
    int peer;  // place
  };
  std::vector<Call> calls;
  std::vector<at::Tensor> kept;
  bool on_device = false;
  for (const Action& send : sends) {
    const int peer = schedule_.PeerOf(send);
    kept.push_back(Outgoing(send));
    on_device = on_device || kept.back().is_cuda();
    calls.push_back(
        {{.peer = peer / exchange_.devices(), .in = AsBuffer(kept.back()), .sends = true, .tag = TagOf(send)}, peer});
  }
  for (const Action& receive : receives) {
    const int peer = schedule_.PeerOf(receive);
    // A gradient has the sizes of the output that it belongs to.
    const Shape& shape = shapes_.at(receive.kind == ActionKind::kRecvForward ? receive.stage - 1 : receive.stage);
    at::Tensor tensor = at::empty(shape.sizes, at::TensorOptions(shape.type).device(device_.device));
    on_device = on_device || tensor.is_cuda();
    calls.push_back({{.peer = peer / exchange_.devices(), .out = AsBuffer(tensor), .tag = TagOf(receive)}, peer});
    incoming_[KeyOf(receive)].tensor = std::move(tensor);
  }
  if (calls.empty()) return;

  // Channels are by device index; those of one device a rank are one.
  std::vector<std::shared_ptr<runtime::Work>> works;
  if ((one_batch_ || on_device) && exchange_.devices() == 1) {
    std::vector<Message> batch;
    for (const Call& call : calls) batch.push_back(call.message);
    works.assign(calls.size(),
                 std::make_shared<runtime::Work>(exchange_.With(
                     place_, place_, [&](comm::Communicator& channel) { return Exchange(channel, batch); })));
  } else {
    for (const Call& call : calls) {
      const auto [from, to] = call.message.sends ? std::pair(place_, call.peer) : std::pair(call.peer, place_);
      works.push_back(std::make_shared<runtime::Work>(exchange_.With(
          from, to, [&](comm::Communicator& channel) { return Exchange(channel, std::span(&call.message, 1)); })));
    }
  }
  for (size_t i = 0; i < sends.size(); ++i) sent_.emplace_back(works[i], std::vector<at::Tensor>{kept[i]});
  for (size_t i = 0; i < receives.size(); ++i) incoming_[KeyOf(receives[i])].work = works[sends.size() + i];
}

at::Tensor StageMessages::Take(const Action& receive) {
  const auto found = incoming_.find(KeyOf(receive));
  TORCH_CHECK(found != incoming_.end(), "Pipeline: nothing has begun ", ToString(receive));
  Incoming incoming = std::move(found->second);
  incoming_.erase(found);
  if (incoming.handed) {
    return exchange_.TakeHanded(receive).to(device_.device, /*non_blocking=*/true);
  }
  if (incoming.work != nullptr) ThrowUnlessAllCame(incoming.work->Wait(), NameOf(receive));
  return incoming.tensor.to(device_.device, /*non_blocking=*/true);
}

void StageMessages::DropSent() {
  sent_.erase(std::remove_if(sent_.begin(), sent_.end(), [](const auto& sent) { return sent.first->Done(); }),
              sent_.end());
}

void StageMessages::Finish() {
  while (!sent_.empty()) {
    ThrowUnlessAllCame(sent_.front().first->Wait(),
                       "Pipeline: sending to a neighbour of rank " + std::to_string(exchange_.rank()));
    sent_.pop_front();
  }
}

}  // namespace cohort::trainer
