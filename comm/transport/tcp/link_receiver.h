// The receiving direction of one link: which posted receive a frame belongs to, signatures, reductions while data come,
// and the frames that come before their receive is posted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>

#include "cohort/comm/transport/net/buffer_pool.h"
#include "cohort/comm/transport/tcp/connection.h"
#include "cohort/comm/transport/tcp/link_key.h"
#include "cohort/comm/transport/tcp/peer.h"
#include "cohort/comm/transport/tcp/wire.h"
#include "cohort/comm/transport/transport.h"

namespace cohort::comm::tcp {

class LinkReceiver : public FrameTaker, public FrameOwner {
 public:
  LinkReceiver(const LinkKey& key, Peer* peer, const FlowLimits& limits, net::BufferPool* buffers,
               size_t* pending_operations)
      : key_(key),
        peer_(peer),
        limits_(limits),
        buffers_(buffers),
        pending_operations_(pending_operations),
        reported_(limits.window) {}
  ~LinkReceiver() override { Abandon(); }
  LinkReceiver(const LinkReceiver&) = delete;
  LinkReceiver& operator=(const LinkReceiver&) = delete;

  Progress TryRecv(RecvOperation& operation);
  // Forgets all operations and what has come; afterwards neither they nor their memory are touched.
  void Abandon();

  // A frame for this link, its data not read. kStop: the connection is lost.
  FrameSink::Choice OnFrame(const FrameHeader& header, const runtime::CallRecord* record, bool keep, bool again);
  // Receives a short message whole, from the frames that came early or from the connection. False: nothing was done.
  // `granted`: what the frame grants to this side's sender, where that was not told before.
  bool Receive(const ShortReceive& receive, uint64_t* granted);
  std::byte* Room(uint64_t left, size_t* bytes) override;
  void Filled(size_t bytes) override;
  void EndFrame() override;
  void FrameSent() override {}  // of a report, whose head is no memory of ours

  // The place up to which the peer may send.
  uint64_t Granted() const { return consumed_ + posted_left_ + limits_.window; }
  // The peer has been told.
  void NoteReported(uint64_t granted) { reported_ = granted; }
  // Tells the peer, if that is due and it is connected. True when nothing is due any more.
  bool ReportGrant();

  bool report_queued = false;  // the transport's note

 private:
  struct Posted {
    RecvOperation* operation = nullptr;
    uint64_t message = 0;
    uint64_t received = 0;  // bytes of whole frames
    bool done = false;      // or failed
    bool failed = false;
  };
  struct Arrival {
    FrameHeader header;
    net::BufferPool::Block data;
    size_t filled = 0;
  };

  Posted& Post(RecvOperation& operation);
  bool IsWhole(const FrameHeader& header, const ShortReceive& receive) const;
  bool ReceiveArrival(const ShortReceive& receive);
  void EndShort(const FrameHeader& header);
  Progress Result(Posted& posted, bool moved);
  bool TakeArrivals();
  Posted* PostedFor(uint64_t message);
  bool CheckCall(Posted& posted, const FrameHeader& header);
  FrameSink::Choice Refuse(const char* why);
  FrameSink::Choice Keep(const FrameHeader& header);
  void Deliver(Posted& posted, const Arrival& arrival);
  void Reduce(RecvOperation& operation, uint64_t offset, const std::byte* data, size_t bytes);
  void Account(Posted& posted, const FrameHeader& header);
  void Complete(Posted& posted);
  bool ReportDue() const { return Granted() > reported_ && limits_.Due(Granted() - reported_); }
  void ReportIfDue();
  bool IsFirst(const Posted& posted) const;
  void Forget(Posted& posted);

  const LinkKey key_;
  Peer* const peer_;
  const FlowLimits limits_;
  net::BufferPool* const buffers_;
  size_t* const pending_operations_;  // of all links: posted and not handed back

  std::list<Posted> posted_, spare_posted_;  // whose nodes are reused by splicing
  std::list<Arrival> arrivals_, spare_arrivals_;
  uint64_t next_posted_ = 0;   // message
  uint64_t next_message_ = 0;  // of the next frame
  uint64_t next_offset_ = 0;

  // The frame whose data are being read, and their use.
  enum class Taking : uint8_t { kNothing, kDirect, kReduce, kKeep, kRefused } taking_ = Taking::kNothing;
  FrameHeader taken_;
  uint64_t filled_ = 0;           // kDirect, kReduce: bytes of the frame that are in place
  Posted* into_ = nullptr;        // kDirect, kReduce
  net::BufferPool::Block stage_;  // kReduce, kRefused
  size_t staged_ = 0;

  uint64_t kept_ = 0;         // Charge() of arrivals_
  uint64_t consumed_ = 0;     // Charge() of all frames delivered
  uint64_t posted_left_ = 0;  // bytes that posted receives still wait for
  uint64_t reported_;
  // The calls that the latest frames belong to. Several, because a peer whose call needs nothing from this side goes
  // on to later ones before the message that shows the mismatch is looked at.
  std::array<runtime::CallRecord, 8> records_{};
  size_t next_record_ = 0;
};

}  // namespace cohort::comm::tcp
