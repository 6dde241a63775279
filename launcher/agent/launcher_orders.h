// dlaunch's messages to an agent, on its standard input. Their end means that dlaunch is gone.
#pragma once

#include <functional>
#include <string>
#include <variant>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/base/message_pipe.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// All of it is called on the loop's thread, and the events come there.
class LauncherOrders {
 public:
  struct Order {
    const v1::ToNode* message;  // until the handler returns
  };
  // No further order can be read, and why.
  struct Broken {
    std::string why;
  };
  // Once: dlaunch is gone, or ends the job; or End was called.
  struct Ended {};
  using Event = std::variant<Order, Broken, Ended>;
  using Handler = std::function<void(const Event&)>;

  LauncherOrders(EventLoop* loop, Handler handle);

  // False where the standard input is a file, whose end no loop would tell.
  bool Watch();
  // Takes what has come already, while the loop does not run.
  void TakeWaiting();
  // No order is taken any more, nor one that has been read already.
  void End();
  // The same without the event.
  void Close();
  bool ended() const { return ended_; }

 private:
  void Read();

  EventLoop* const loop_;
  const Handler handle_;
  MessageReader reader_;
  bool ended_ = false;
};

}  // namespace cohort::launcher
