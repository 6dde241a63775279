#include "cohort/launcher/agent/watch/signal_targets.h"

#include <algorithm>
#include <csignal>
#include <string>
#include <string_view>

namespace cohort::launcher {
namespace {

constexpr std::string_view kShells[] = {"sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "ksh93", "mksh", "yash"};
constexpr std::string_view kInterpreters[] = {"python", "perl", "ruby", "node"};

bool IsShell(const RankMember& member) {
  return std::find(std::begin(kShells), std::end(kShells), member.program) != std::end(kShells);
}

bool IsInterpreter(const RankMember& member) {
  return std::any_of(std::begin(kInterpreters), std::end(kInterpreters),
                     [&member](std::string_view name) { return member.program.starts_with(name); });
}

// A shell without job control lets `command &` ignore both.
bool InBackground(const RankMember& child, const RankMember& shell) {
  const auto deaf = [](const RankMember& member) { return member.Ignores(SIGINT) && member.Ignores(SIGQUIT); };
  return deaf(child) && !deaf(shell);
}

class Walk {
 public:
  explicit Walk(const RankMembers& members) : members_(members) {}

  std::vector<const RankMember*> Roots() const {
    std::vector<const RankMember*> roots;
    for (const RankMember& member : members_) {
      const bool known = std::any_of(members_.begin(), members_.end(),
                                     [&member](const RankMember& other) { return other.pid == member.parent; });
      if (!known) roots.push_back(&member);
    }
    return roots;
  }
  std::vector<const RankMember*> ChildrenOf(const RankMember& parent) const {
    std::vector<const RankMember*> children;
    for (const RankMember& member : members_) {
      if (member.parent == parent.pid && member.pid != parent.pid) children.push_back(&member);
    }
    return children;
  }
  // Whether another member prints what this one reads.
  bool HasSource(const RankMember& reader) const {
    return std::any_of(members_.begin(), members_.end(), [&reader](const RankMember& writer) {
      const bool writes = writer.outputs[0] == reader.input || writer.outputs[1] == reader.input;
      return writer.pid != reader.pid && writes;
    });
  }

 private:
  const RankMembers& members_;
};

class EndWalk {
 public:
  EndWalk(const RankMembers& members, const std::function<bool(const RankMember&)>& told, bool late)
      : walk_(members), told_(told), late_(late) {
    for (const RankMember* root : walk_.Roots()) Visit(*root);
  }
  std::vector<const RankMember*> Take() { return std::move(found_); }

 private:
  void Visit(const RankMember& member) {
    if (!member.Ignores(SIGTERM) && !member.Catches(SIGTERM) && IsFilter(member) && walk_.HasSource(member)) return;
    const std::vector<const RankMember*> children = walk_.ChildrenOf(member);
    const bool holds_terminal =
        !member.Catches(SIGTERM) && std::any_of(children.begin(), children.end(), [&member](const RankMember* child) {
          return child->terminal != 0 && child->terminal != member.terminal;
        });
    if (!member.Ignores(SIGTERM) && !holds_terminal) found_.push_back(&member);
    const bool keeps_it = late_ && IsInterpreter(member) && member.waits && children.size() == 1;
    for (const RankMember* child : children) {
      const bool waited_for = IsShell(member) && !told_(member) && !InBackground(*child, member);
      if (!member.Catches(SIGTERM) || waited_for || keeps_it) Visit(*child);
    }
  }

  const Walk walk_;
  const std::function<bool(const RankMember&)>& told_;
  const bool late_;
  std::vector<const RankMember*> found_;
};

class NoticeWalk {
 public:
  NoticeWalk(const RankMembers& members, int signal) : walk_(members), signal_(signal) {
    for (const RankMember* root : walk_.Roots()) Visit(*root);
  }
  std::vector<const RankMember*> Take() { return std::move(found_); }

 private:
  void Visit(const RankMember& member) {
    const bool takes = member.Catches(signal_);
    if (takes) found_.push_back(&member);
    for (const RankMember* child : walk_.ChildrenOf(member)) {
      if (!takes || (IsShell(member) && !InBackground(*child, member))) Visit(*child);
    }
  }

  const Walk walk_;
  const int signal_;
  std::vector<const RankMember*> found_;
};

}  // namespace

std::vector<const RankMember*> WhoIsToEnd(const RankMembers& members,
                                          const std::function<bool(const RankMember&)>& told, bool late) {
  return EndWalk(members, told, late).Take();
}

std::vector<const RankMember*> WhoTakesNotice(const RankMembers& members, int signal) {
  return NoticeWalk(members, signal).Take();
}

bool IsFilter(const RankMember& member) { return member.input != PipeId() && !member.Catches(SIGTERM); }

}  // namespace cohort::launcher
