// NCCL's RAS service, in NCCL since 2.24: a process of each node listens, and tells the state of all communicators of
// the job: processes that are dead or do not answer, ranks that lag behind or differ.
//
//   client                          server
//   CLIENT PROTOCOL 2    ──►   ◄──  SERVER PROTOCOL n
//   TIMEOUT 1            ──►   ◄──  OK
//   STATUS               ──►   ◄──  lines for people, then the end of the stream
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/evidence/evidence_source.h"
#include "cohort/launcher/agent/evidence/tcp_listeners.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

// Returns the port at which NCCL listens in a process with this environment: that of NCCL_RAS_ADDR, or else 28028. None
// with NCCL_RAS_ENABLE=0, or where the address has no port.
std::optional<uint16_t> RasPort(const std::vector<std::string>& environment);

// Returns the lines for people in what a server sent; `whole` tells whether the stream has ended. Empty: it is no RAS
// service, or has told nothing. At most NcclRas::kMaxText bytes and a line. Pure.
std::string ReadRasAnswer(const std::string& bytes, bool whole);

class NcclRas : public EvidenceSource {
 public:
  static constexpr size_t kMaxText = 12u << 10;

  NcclRas(std::string name, EventLoop* loop) : name_(std::move(name)), loop_(loop) {}
  ~NcclRas() override { Close(); }
  NcclRas(const NcclRas&) = delete;
  NcclRas& operator=(const NcclRas&) = delete;

  // Asks only a socket that one of the ranks holds, and only if all sockets at that address are the ranks': several may
  // share one, and the kernel chooses.
  bool Ask(const EvidenceQuestion& question, Done done) override;

 private:
  bool Connect(const TcpListener& listener);
  void OnReady(uint32_t events);
  void Finish(bool whole);
  void Close();

  const std::string name_;
  EventLoop* loop_;
  EventLoop::TimerId timer_ = 0;
  runtime::FileDescriptor socket_;
  bool sent_ = false;
  uint32_t rank_ = 0;  // that is asked
  std::string bytes_;  // of the answer
  Done done_;
};

}  // namespace cohort::launcher
