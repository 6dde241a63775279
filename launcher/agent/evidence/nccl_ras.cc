#include "cohort/launcher/agent/evidence/nccl_ras.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace cohort::launcher {
namespace {

constexpr uint16_t kRasPort = 28028;
// The server may take that many seconds for peers that do not answer. It reads all at once as well as one by one.
constexpr std::string_view kQuestion = "CLIENT PROTOCOL 2\nTIMEOUT 1\nSTATUS\n";
constexpr std::string_view kGreeting = "SERVER PROTOCOL ";
constexpr size_t kMostBytes = NcclRas::kMaxText + 1024;  // with the lines of the protocol

bool AreAtOneAddress(const TcpListener& one, const TcpListener& other) {
  return one.size == other.size && std::memcmp(&one.address, &other.address, one.size) == 0;
}

}  // namespace

std::optional<uint16_t> RasPort(const std::vector<std::string>& environment) {
  if (ValueIn(environment, "NCCL_RAS_ENABLE") == "0") return std::nullopt;
  const std::string address = ValueIn(environment, "NCCL_RAS_ADDR");
  if (address.empty()) return kRasPort;
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  uint16_t port = 0;
  const char* const end = address.data() + address.size();
  const auto [read, error] = std::from_chars(address.data() + colon + 1, end, port);
  if (error != std::errc() || read != end || port == 0) return std::nullopt;
  return port;
}

std::string ReadRasAnswer(const std::string& bytes, bool whole) {
  if (!bytes.starts_with(kGreeting)) return "";
  std::string text;
  bool cut = !whole;
  size_t begin = 0;
  while (begin < bytes.size()) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    std::string_view line(bytes.data() + begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (text.empty() && (line.empty() || line == "OK" || line.starts_with(kGreeting))) continue;
    if (text.size() + line.size() + 1 > NcclRas::kMaxText) {
      cut = true;
      break;
    }
    text.append(line).append("\n");
  }
  while (text.ends_with("\n\n")) text.pop_back();
  if (!text.empty() && cut) text += "... (it had no more to say in time, or too much)\n";
  return text;
}

bool NcclRas::Ask(const EvidenceQuestion& question, Done done) {
  Close();
  if (!question.for_job || question.time == EvidenceTime::kAfterEnd) return false;
  std::set<uint16_t> ports;
  std::set<pid_t> groups;
  std::map<pid_t, uint32_t> rank_of;
  for (const EvidenceRank& rank : question.ranks) {
    const auto port = rank.program == 0 ? std::nullopt : RasPort(rank.environment);
    if (!port) continue;
    ports.insert(*port);
    groups.insert(rank.group);
    rank_of.emplace(rank.group, rank.rank);
  }
  if (ports.empty()) return false;
  const std::vector<TcpListener> listeners = ListenersAt(ports);
  if (listeners.empty()) return false;
  std::set<uint64_t> inodes;
  for (const TcpListener& listener : listeners) inodes.insert(listener.inode);
  const std::map<uint64_t, pid_t> owners = GroupsOfSockets(inodes, groups);
  for (const TcpListener& listener : listeners) {
    const bool ours = std::all_of(listeners.begin(), listeners.end(), [&](const TcpListener& other) {
      return !AreAtOneAddress(listener, other) || owners.contains(other.inode);
    });
    if (!ours || !Connect(listener)) continue;
    rank_ = rank_of.at(owners.at(listener.inode));
    done_ = std::move(done);
    timer_ = loop_->After(question.limit, [this] { Finish(false); });
    return true;
  }
  return false;
}

bool NcclRas::Connect(const TcpListener& listener) {
  socket_ =
      runtime::FileDescriptor(::socket(listener.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_.valid()) return false;
  const auto* const address = reinterpret_cast<const sockaddr*>(&listener.address);
  const bool begun = ::connect(socket_.get(), address, listener.size) == 0 || errno == EINPROGRESS;
  if (begun && loop_->Watch(socket_.get(), EPOLLOUT, [this](uint32_t events) { OnReady(events); })) return true;
  socket_.Close();
  return false;
}

void NcclRas::OnReady(uint32_t events) {
  if (!sent_) {
    if ((events & (EPOLLERR | EPOLLHUP)) != 0) return Finish(false);
    const ssize_t sent = ::send(socket_.get(), kQuestion.data(), kQuestion.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent != static_cast<ssize_t>(kQuestion.size())) return Finish(false);
    sent_ = true;
    loop_->SetEvents(socket_.get(), EPOLLIN);
    return;
  }
  std::array<char, 4096> part{};
  const ssize_t got = ::recv(socket_.get(), part.data(), part.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got > 0) bytes_.append(part.data(), static_cast<size_t>(got));
  const bool greets = bytes_.starts_with(kGreeting.substr(0, bytes_.size()));
  if (got <= 0 || !greets || bytes_.size() >= kMostBytes) Finish(got == 0);
}

void NcclRas::Finish(bool whole) {
  const Done done = std::exchange(done_, nullptr);
  Evidence evidence{name_, rank_, ReadRasAnswer(bytes_, whole)};
  Close();
  std::vector<Evidence> found;
  if (!evidence.text.empty()) found.push_back(std::move(evidence));
  done(std::move(found));
}

void NcclRas::Close() {
  loop_->Cancel(std::exchange(timer_, 0));
  if (socket_.valid()) loop_->Unwatch(socket_.get());
  socket_.Close();
  sent_ = false;
  bytes_.clear();
}

}  // namespace cohort::launcher
