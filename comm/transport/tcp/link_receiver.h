// The receiving direction of one link: which posted receive a frame belongs to, signatures, reductions while data come,
// and the frames that come before their receive is posted.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cohort/comm/transport/net/buffer_pool.h"
#include "cohort/comm/transport/net/link_key.h"
#include "cohort/comm/transport/net/ordered_link.h"
#include "cohort/comm/transport/tcp/connection.h"
#include "cohort/comm/transport/tcp/peer.h"
#include "cohort/comm/transport/tcp/wire.h"
#include "cohort/comm/transport/transport.h"

namespace cohort::comm::tcp {

class LinkReceiver : public FrameTaker, public FrameOwner {
 public:
  LinkReceiver(const net::LinkKey& key, Peer* peer, const FlowLimits& limits, net::BufferPool* buffers,
               size_t* pending_operations)
      : key_(key),
        peer_(peer),
        buffers_(buffers),
        messages_(pending_operations),
        early_(buffers, limits.window + FlowLimits::kOverhead),
        credit_(limits.window) {}
  ~LinkReceiver() override { Abandon(); }
  LinkReceiver(const LinkReceiver&) = delete;
  LinkReceiver& operator=(const LinkReceiver&) = delete;

  Progress TryRecv(RecvOperation& operation);
  // Forgets all operations and what has come; afterwards neither they nor their memory are touched.
  void Abandon();

  // A frame for this link, its data not read. kStop: the connection is lost.
  FrameSink::Choice OnFrame(const FrameHeader& header, const runtime::CallRecord* record, bool keep, bool again);
  std::byte* Room(uint64_t left, size_t* bytes) override;
  void Filled(size_t bytes) override;
  void EndFrame() override;
  void FrameSent() override {}  // of a report, whose head is no memory of ours

  // Every frame of the other direction reports its grant.
  net::ReceiveCredit& credit() { return credit_; }
  // Tells the peer, if that is due and it is connected. True when nothing is due any more.
  bool Report();

  bool report_owed = false;  // of net::OwedReports

 private:
  struct Posted : net::PostedMessage<RecvOperation> {
    uint64_t received = 0;  // bytes of whole frames
    bool done = false;      // or failed
    bool failed = false;
  };
  struct Early : net::EarlyFrame<FrameHeader> {
    size_t filled = 0;  // bytes of data
  };

  Posted& Post(RecvOperation& operation);
  Progress Result(Posted& posted, bool moved);
  bool TakeEarly();
  bool CheckCall(Posted& posted, const FrameHeader& header);
  FrameSink::Choice Refuse(const char* why);
  FrameSink::Choice Keep(const FrameHeader& header);
  void Account(Posted& posted, const FrameHeader& header);
  void Complete(Posted& posted);
  void ReportIfDue();
  bool IsFirst(const Posted& posted);
  void Forget(Posted& posted);

  const net::LinkKey key_;
  Peer* const peer_;
  net::BufferPool* const buffers_;

  net::MessageQueue<Posted> messages_;
  net::EarlyFrames<Early> early_;
  net::ReceiveCredit credit_;
  net::CallHistory history_;
  uint64_t next_message_ = 0;  // of the next frame
  uint64_t next_offset_ = 0;

  // The frame whose data are being read, and their use.
  enum class Taking : uint8_t { kNothing, kDirect, kReduce, kKeep, kRefused } taking_ = Taking::kNothing;
  FrameHeader taken_;
  uint64_t filled_ = 0;           // kDirect, kReduce: bytes of the frame that are in place
  Posted* into_ = nullptr;        // kDirect, kReduce
  net::BufferPool::Block stage_;  // kReduce, kRefused
  size_t staged_ = 0;
};

}  // namespace cohort::comm::tcp
