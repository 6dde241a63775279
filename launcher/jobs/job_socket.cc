#include "cohort/launcher/jobs/job_socket.h"

#include <unistd.h>

#include <utility>

namespace cohort::launcher {

JobSocket::JobSocket(EventLoop* loop, Callbacks callbacks)
    : callbacks_(std::move(callbacks)),
      socket_(loop,
              {.on_packet = [this](RankSocket::PeerId from, const std::string& packet) { OnPacket(from, packet); },
               .on_closed = [](RankSocket::PeerId) {}}) {}

absl::Status JobSocket::Listen(const std::string& job_id) {
  return socket_.Listen(kJobSocketPrefix + job_id, kMaxAskers);
}

void JobSocket::OnPacket(RankSocket::PeerId from, const std::string& packet) {
  const v1::JobAnswer answer = Answer(from, packet);
  socket_.Send(from, answer.SerializeAsString());
  if (!answer.refused().empty()) socket_.Close(from);
}

v1::JobAnswer JobSocket::Answer(RankSocket::PeerId from, const std::string& packet) {
  v1::JobAnswer answer;
  v1::JobRequest request;
  const uid_t user = socket_.UserOf(from);
  if (user != ::getuid() && user != 0) {
    answer.set_refused("this job belongs to user " + std::to_string(::getuid()));
  } else if (!request.ParseFromString(packet)) {
    answer.set_refused("this is no request of dlaunch");
  } else if (request.protocol() != kJobProtocol) {
    answer.set_refused("the asker speaks version " + std::to_string(request.protocol()) +
                       ", this job's dlaunch version " + std::to_string(kJobProtocol) +
                       ": use the dlaunch that started the job");
  } else {
    *answer.mutable_snapshot() = callbacks_.snapshot(request);
    if (request.stop()) callbacks_.stop(request.at_once());
  }
  return answer;
}

}  // namespace cohort::launcher
