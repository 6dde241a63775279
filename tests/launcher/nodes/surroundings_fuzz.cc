// Everything that tells dlaunch of other machines and comes from outside: lists of hosts, node files, schedulers' and
// pods' variables, tokens, what a joining node or an inventory says. The first byte chooses which.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "cohort/launcher/join/gate.h"
#include "cohort/launcher/join/token.h"
#include "cohort/launcher/machine/inventory.h"
#include "cohort/launcher/machine/placement.h"
#include "cohort/launcher/nodes/host_file.h"
#include "cohort/launcher/nodes/host_list.h"
#include "cohort/launcher/nodes/kubernetes.h"
#include "cohort/launcher/nodes/members.h"
#include "cohort/launcher/nodes/slurm.h"
#include "cohort/launcher/nodes/surroundings/other_launchers.h"

namespace cohort::launcher {
namespace {

void Check(bool promise) {
  if (!promise) std::abort();
}

// Accepted lists keep the promises of host_list.h, on which command lines rely.
void CheckHosts(const absl::StatusOr<std::vector<HostEntry>>& hosts) {
  if (!hosts.ok()) return Check(!hosts.status().message().empty());
  Check(!hosts->empty() && hosts->size() <= static_cast<size_t>(kMaxNodes));
  for (const HostEntry& entry : *hosts) {
    Check(!entry.host.empty() && entry.host[0] != '-');
    Check(entry.host.find_first_of(" \t\r\n;|&$`'\"<>\\") == std::string::npos);
    Check(!entry.slots || (*entry.slots >= 1 && *entry.slots <= kMaxRanksPerNode));
  }
}

void CheckHostFile(const absl::StatusOr<HostFile>& file) {
  if (file.ok()) return CheckHosts(file->hosts);
  CheckHosts(file.status());
}

// Variables are the text's lines, NAME=VALUE.
std::optional<std::string> FindLine(const std::string& text, const std::string& name) {
  const size_t at = ("\n" + text).find("\n" + name + "=");
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + name.size() + 1;
  return text.substr(begin, text.find('\n', begin) - begin);
}

void Try(uint8_t which, const std::string& text) {
  const VariableLookup variable = [&](const char* name) { return FindLine(text, name); };
  switch (which % 8) {
    case 0:
      return CheckHosts(ParseHostList(text, "--hosts"));
    case 1:
      return CheckHostFile(ParseHostFile(text, "--hostfile"));
    case 2:
      return CheckHosts(ParseNodeFile(text, "PBS_NODEFILE"));
    case 3:
      if (const auto slurm = ReadSlurmVariables(variable); slurm.ok()) CheckHosts(slurm->hosts);
      return;
    case 4:
      if (const auto member = ReadMemberVariables(variable); member.ok() && *member) {
        Check((*member)->index < (*member)->count && (*member)->count <= kMaxNodes);
      }
      (void)RefuseCopies(variable);
      if (const auto pod = ReadKubernetesVariables(variable, FindLine(text, "NAME").value_or("")); pod.ok()) {
        Check(pod->index >= 0 && pod->index <= kMaxNodes);
      }
      return;
    case 5:
      if (const auto token = ParseToken(text); token.ok()) Check(ParseToken(FormatToken(*token)).ok());
      return;
    case 6:
      (void)ParseJoinHello(text);
      return;
    default:
      if (const auto cpus = ParseCpuList(text); cpus.ok()) Check(*ParseCpuList(FormatCpuList(*cpus)) == *cpus);
  }
}

}  // namespace
}  // namespace cohort::launcher

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  cohort::launcher::Try(data[0], std::string(reinterpret_cast<const char*>(data + 1), size - 1));
  return 0;
}
