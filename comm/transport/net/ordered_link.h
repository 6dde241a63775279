// The parts of a link that do not depend on how frames move: messages under way in their order, frames that came before
// their receive, credit, and the calls that frames belong to. Nodes and buffers are used again, so that a steady state
// allocates nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>
#include <vector>

#include "cohort/comm/transport/net/buffer_pool.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm::net {

// A message under way. The numbers are those of its link and direction, the same on both sides: both derive from the
// plan which message has which.
template <class Operation>
struct PostedMessage {
  Operation* operation = nullptr;
  uint64_t first = 0;   // number
  uint64_t pieces = 1;  // that are numbered

  bool Covers(uint64_t number) const { return number - first < pieces; }
};

// The messages of one direction in the order in which they were tried first.
template <class Posted>
class MessageQueue {
 public:
  // `pending_operations` counts those of all links.
  explicit MessageQueue(size_t* pending_operations) : pending_operations_(pending_operations) {}

  bool empty() const { return posted_.empty(); }
  auto begin() { return posted_.begin(); }
  auto end() { return posted_.end(); }
  Posted& front() { return posted_.front(); }

  // Appends a message with the next `pieces` numbers; the operation's state becomes its entry.
  template <class Operation>
  Posted& Add(Operation& operation, uint64_t pieces = 1) {
    if (spare_.empty()) spare_.emplace_back();
    posted_.splice(posted_.end(), spare_, spare_.begin());
    Posted& posted = posted_.back();
    posted = Posted();
    posted.operation = &operation;
    posted.first = next_;
    posted.pieces = pieces;
    next_ += pieces;
    operation.state = &posted;
    ++*pending_operations_;
    return posted;
  }
  // Null: its receive has not been tried.
  Posted* Find(uint64_t number) {
    const auto found = std::find_if(begin(), end(), [&](const Posted& entry) { return entry.Covers(number); });
    return found == end() ? nullptr : &*found;
  }
  void Remove(Posted& posted) {
    --*pending_operations_;
    posted.operation->state = nullptr;
    const auto found = std::find_if(begin(), end(), [&](const Posted& entry) { return &entry == &posted; });
    spare_.splice(spare_.begin(), posted_, found);
  }

 private:
  size_t* const pending_operations_;
  std::list<Posted> posted_, spare_;
  uint64_t next_ = 0;
};

// A frame that came before its receive. Transports add to it.
template <class Header>
struct EarlyFrame {
  Header header;
  BufferPool::Block data;
  uint64_t charge = 0;
};

// Early frames in their order, whose charges are bounded.
template <class Frame>
class EarlyFrames {
 public:
  EarlyFrames(BufferPool* buffers, uint64_t most) : buffers_(buffers), most_(most) {}
  ~EarlyFrames() { Clear(); }
  EarlyFrames(const EarlyFrames&) = delete;
  EarlyFrames& operator=(const EarlyFrames&) = delete;

  bool empty() const { return frames_.empty(); }
  auto begin() { return frames_.begin(); }
  auto end() { return frames_.end(); }
  Frame& front() { return frames_.front(); }
  Frame& back() { return frames_.back(); }

  // Makes a frame before `place`, with room for `bytes` bytes of data. Null: the peer sends more than it may.
  template <class Header>
  Frame* Add(typename std::list<Frame>::iterator place, const Header& header, uint64_t charge, size_t bytes) {
    if (kept_ + charge > most_) return nullptr;
    kept_ += charge;
    if (spare_.empty()) spare_.emplace_back();
    frames_.splice(place, spare_, spare_.begin());
    Frame& frame = *std::prev(place);
    frame = Frame();
    frame.header = header;
    frame.charge = charge;
    if (bytes > 0) frame.data = buffers_->Get(bytes);
    return &frame;
  }
  // Returns the next one.
  auto Remove(typename std::list<Frame>::iterator frame) {
    kept_ -= frame->charge;
    buffers_->Put(std::exchange(frame->data, {}));
    const auto next = std::next(frame);
    spare_.splice(spare_.begin(), frames_, frame);
    return next;
  }
  void Clear() {
    while (!frames_.empty()) Remove(frames_.begin());
  }

 private:
  BufferPool* const buffers_;
  const uint64_t most_;
  std::list<Frame> frames_, spare_;
  uint64_t kept_ = 0;  // charges of frames_
};

// Flow control counts charges: a stream of them for each direction of a link. The receiver grants a place in it up to
// which the sender may go.
class SendCredit {
 public:
  explicit SendCredit(uint64_t window) : granted_(window) {}
  uint64_t sent() const { return sent_; }
  uint64_t granted() const { return granted_; }
  // Charges that may still be sent.
  uint64_t allowed() const { return granted_ - sent_; }
  void Send(uint64_t charge) { sent_ += charge; }
  void Grant(uint64_t granted) { granted_ = std::max(granted_, granted); }

 private:
  uint64_t sent_ = 0;
  uint64_t granted_;
};
class ReceiveCredit {
 public:
  explicit ReceiveCredit(uint64_t window) : window_(window), reported_(window) {}
  uint64_t consumed() const { return consumed_; }
  // The sum of what was consumed, what posted receives still wait for, and a window. So a late receiver keeps at most a
  // window.
  uint64_t granted() const { return consumed_ + posted_ + window_; }
  // The grant has grown enough since the last report for a frame of its own.
  bool report_due() const { return granted() > reported_ && granted() - reported_ >= window_ / 2; }
  void Consume(uint64_t charge) { consumed_ += charge; }
  void Post(uint64_t bytes) { posted_ += bytes; }
  void Unpost(uint64_t bytes) { posted_ -= bytes; }
  // The peer has been told of `granted`.
  void Report(uint64_t granted) { reported_ = granted; }

 private:
  const uint64_t window_;
  uint64_t consumed_ = 0;
  uint64_t posted_ = 0;
  uint64_t reported_;
};

// The calls that the latest frames of a link belong to. Several, because a peer whose call needs nothing from this side
// goes on to later ones before the message that shows the mismatch is looked at.
class CallHistory {
 public:
  void Add(const runtime::CallRecord& record) { records_[next_++ % records_.size()] = record; }
  // The frame belongs to another call than the receive: `operation` gets the error and the peer's call, if it is known.
  void Mismatch(int peer_rank, uint64_t signature, uint64_t message_bytes, RecvOperation* operation) const;

 private:
  std::array<runtime::CallRecord, 8> records_{};
  size_t next_ = 0;
};

// Copies or reduces a part of a message into its place. `data` are aligned for whole elements.
void Deliver(const RecvOperation& operation, uint64_t offset, const std::byte* data, size_t bytes);

// Links whose grant could not be reported yet. A Link has `report_owed`, false at first, and Report(), which is true
// when nothing is due any more.
template <class Link>
class OwedReports {
 public:
  bool empty() const { return links_.empty(); }
  void Add(Link& link) {
    if (!std::exchange(link.report_owed, true)) links_.push_back(&link);
  }
  void Remove(Link& link) {
    if (std::exchange(link.report_owed, false)) std::erase(links_, &link);
  }
  // Returns whether any was settled.
  bool Send() {
    const auto settled = [](Link* link) {
      link->report_owed = !link->Report();
      return !link->report_owed;
    };
    return std::erase_if(links_, settled) > 0;
  }

 private:
  std::vector<Link*> links_;
};

}  // namespace cohort::comm::net
