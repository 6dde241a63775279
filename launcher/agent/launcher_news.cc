#include "cohort/launcher/agent/launcher_news.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

LauncherNews::LauncherNews(EventLoop* loop)
    : output_(loop, runtime::FileDescriptor(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3))) {}

void LauncherNews::Notice(const std::string& text) {
  v1::FromNode message;
  message.set_notice(text);
  Write(message);
}

void LauncherNews::Remark(const std::string& text) {
  v1::FromNode message;
  message.set_remark(text);
  Write(message);
}

void LauncherNews::Failed(const std::string& why) {
  v1::FromNode message;
  message.set_failed(why);
  Write(message);
}

void LauncherNews::Line(const v1::OutputLine& line) {
  v1::FromNode message;
  *message.mutable_output() = line;
  Write(message);
}

void LauncherNews::WantInput(uint64_t bytes, bool closed) {
  v1::FromNode message;
  message.mutable_input_wanted()->set_bytes(bytes);
  message.mutable_input_wanted()->set_closed(closed);
  Write(message);
}

void LauncherNews::Listening(const std::string& addresses) {
  v1::FromNode message;
  message.set_listening(addresses);
  Write(message);
}

void LauncherNews::Stack(v1::RankStack stack) {
  v1::FromNode message;
  *message.mutable_stack() = std::move(stack);
  Write(message);
}

void LauncherNews::View(v1::NodeView view, uint64_t look) {
  view.set_look(look);
  v1::FromNode message;
  *message.mutable_view() = std::move(view);
  Write(message);
}

void LauncherNews::Trace(v1::NodeTrace trace) {
  v1::FromNode message;
  *message.mutable_trace() = std::move(trace);
  Write(message);
}

void LauncherNews::HostSilent(uint64_t term) {
  v1::FromNode message;
  message.set_host_silent(term);
  Write(message);
}

void LauncherNews::Report(const v1::JobReport& report) {
  v1::FromNode message;
  *message.mutable_report() = report;
  Write(message);
}

void LauncherNews::AllSaid(uint64_t epoch) {
  if (std::exchange(said_epoch_, epoch) == epoch) return;
  v1::FromNode message;
  message.set_all_said(epoch);
  Write(message);
}

}  // namespace cohort::launcher
