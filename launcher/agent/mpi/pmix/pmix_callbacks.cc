#include "cohort/launcher/agent/mpi/pmix/pmix_callbacks.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/mpi/pmix/open_pmix_endpoint.h"
#include "cohort/launcher/agent/mpi/pmix/published_value.h"

namespace cohort::launcher {
namespace {

constexpr size_t kMostLogBytes = 128u << 10;       // of a call of PMIx_Log or PMIx_Abort: more than what is passed on
constexpr size_t kMostPublishedBytes = 64u << 10;  // more than what ServiceNames takes
constexpr size_t kMostSpawnBytes = 1u << 20;       // of a request for processes

pmix_status_t OnConnected(const pmix_proc_t* rank, void*, pmix_op_cbfunc_t, void*) {
  WithServerOf(*rank, [&](auto* server) { server->Tell(PmixEndpoint::Connected{server->LocalRankOf(*rank)}); });
  return PMIX_OPERATION_SUCCEEDED;
}

pmix_status_t OnFinalized(const pmix_proc_t* rank, void*, pmix_op_cbfunc_t, void*) {
  WithServerOf(*rank, [&](auto* server) { server->Tell(PmixEndpoint::Finalized{server->LocalRankOf(*rank)}); });
  return PMIX_OPERATION_SUCCEEDED;
}

// Not answered: the rank waits until it is killed.
pmix_status_t OnAbort(const pmix_proc_t* rank, void*, int code, const char* text, pmix_proc_t*, size_t,
                      pmix_op_cbfunc_t, void*) {
  const std::string said(text != nullptr ? text : "", text != nullptr ? ::strnlen(text, kMostLogBytes) : 0);
  WithServerOf(*rank,
               [&](auto* server) { server->Tell(PmixEndpoint::Aborted{server->LocalRankOf(*rank), code, said}); });
  return PMIX_SUCCESS;
}

bool OfOneNamespace(const pmix_proc_t* ranks, size_t count) {
  return std::all_of(ranks, ranks + count,
                     [&](const pmix_proc_t& rank) { return std::strcmp(rank.nspace, ranks[0].nspace) == 0; });
}

// Ranks of several namespaces. The library has gathered those of this node.
pmix_status_t TellJoined(const pmix_proc_t* ranks, size_t count, std::string values,
                         const OpenPmixEndpoint::Waiting& waiting) {
  PmixEndpoint::Joined joined;
  joined.values = std::move(values);
  const pmix_proc_t* known = nullptr;
  for (size_t i = 0; i < count; ++i) {
    bool here = false;
    if (WithServer(ranks[i].nspace, [&](auto* server) { here = server->Has(ranks[i].rank); })) known = &ranks[i];
    joined.all_here = joined.all_here && here;
  }
  const bool told = known != nullptr && WithServer(known->nspace, [&](auto* server) {
                      joined.number = server->Await(waiting);
                      server->Tell(std::move(joined));
                    });
  return told ? PMIX_SUCCESS : PMIX_ERR_NOT_FOUND;
}

// Whether ranks join each other or leave, nobody keeps a list of it.
pmix_status_t OnConnect(const pmix_proc_t* ranks, size_t count, const pmix_info_t*, size_t, pmix_op_cbfunc_t done,
                        void* argument) {
  return TellJoined(ranks, count, "", {.without = done, .argument = argument});
}

pmix_status_t OnFence(const pmix_proc_t* ranks, size_t count, const pmix_info_t*, size_t, char* values, size_t bytes,
                      pmix_modex_cbfunc_t done, void* argument) {
  if (!OfOneNamespace(ranks, count)) {
    return TellJoined(ranks, count, values != nullptr ? std::string(values, bytes) : "",
                      {.with_values = done, .argument = argument});
  }
  PmixEndpoint::Fence fence;
  for (size_t i = 0; i < count && ranks[i].rank != PMIX_RANK_WILDCARD; ++i) {
    fence.ranks.push_back(static_cast<int>(ranks[i].rank));
  }
  if (values != nullptr) fence.values.assign(values, bytes);
  const bool known = count > 0 && WithServer(ranks[0].nspace, [&](auto* server) {
                       fence.number = server->Await({.with_values = done, .argument = argument});
                       server->Tell(std::move(fence));
                     });
  return known ? PMIX_SUCCESS : PMIX_ERR_NOT_FOUND;
}

pmix_status_t OnWanted(const pmix_proc_t* rank, const pmix_info_t*, size_t, pmix_modex_cbfunc_t done, void* argument) {
  const bool known = WithServer(rank->nspace, [&](auto* server) {
    server->Tell(
        PmixEndpoint::Wanted{server->Await({.with_values = done, .argument = argument}), static_cast<int>(rank->rank)});
  });
  return known ? PMIX_SUCCESS : PMIX_ERR_NOT_FOUND;
}

void OnLog(const pmix_proc_t* rank, const pmix_info_t* data, size_t count, const pmix_info_t*, size_t,
           pmix_op_cbfunc_t done, void* argument) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    const pmix_value_t& value = data[i].value;
    if (std::strncmp(data[i].key, "pmix.log.", 9) != 0) continue;
    const size_t room = kMostLogBytes - text.size();
    if (value.type == PMIX_STRING && value.data.string != nullptr) {
      text.append(value.data.string, ::strnlen(value.data.string, room));
    }
    if (value.type == PMIX_BYTE_OBJECT && value.data.bo.bytes != nullptr) {
      text.append(value.data.bo.bytes, std::min<size_t>(value.data.bo.size, room));
    }
  }
  // It can't be refused here, but what it says can be left out.
  WithServerOf(*rank, [&](auto* server) {
    if (server->full()) text.clear();
    const uint64_t number = server->Await({.without = done, .argument = argument});
    server->Tell(PmixEndpoint::Said{number, server->LocalRankOf(*rank), std::move(text)});
  });
}

// Files that are to be removed are the library's own affair; there is nothing else that could be controlled.
pmix_status_t OnJobControl(const pmix_proc_t*, const pmix_proc_t*, size_t, const pmix_info_t*, size_t,
                           pmix_info_cbfunc_t, void*) {
  return PMIX_ERR_NOT_SUPPORTED;
}

// A number that a caller may give as one of several types, or `otherwise`.
int64_t NumberIn(const pmix_info_t* info, size_t count, const char* key, int64_t otherwise) {
  for (size_t i = 0; i < count; ++i) {
    const pmix_value_t& value = info[i].value;
    if (std::strncmp(info[i].key, key, PMIX_MAX_KEYLEN) != 0) continue;
    switch (value.type) {
      case PMIX_INT:
        return value.data.integer;
      case PMIX_INT32:
        return value.data.int32;
      case PMIX_UINT32:
        return value.data.uint32;
      case PMIX_SIZE:
        return static_cast<int64_t>(value.data.size);
      case PMIX_BOOL:
        return value.data.flag ? 1 : 0;
      case PMIX_PERSIST:
        return value.data.persist;
      default:
        break;
    }
  }
  return otherwise;
}

bool Contains(const pmix_info_t* info, size_t count, const char* key) {
  return std::any_of(info, info + count,
                     [key](const pmix_info_t& its) { return std::strncmp(its.key, key, PMIX_MAX_KEYLEN) == 0; });
}

bool IsDirective(const pmix_info_t& info) { return std::strncmp(info.key, "pmix.", 5) == 0; }

// One name a call, as MPI libraries do.
pmix_status_t OnPublish(const pmix_proc_t* rank, const pmix_info_t* info, size_t count, pmix_op_cbfunc_t done,
                        void* argument) {
  const pmix_info_t* const data = std::find_if_not(info, info + count, IsDirective);
  if (data == info + count) return PMIX_ERR_BAD_PARAM;
  if (!std::all_of(data + 1, info + count, IsDirective)) return PMIX_ERR_NOT_SUPPORTED;
  const std::optional<std::string> value = PublishedValue::Write(*rank, data->value);
  if (!value) return PMIX_ERR_NOT_SUPPORTED;
  if (value->size() > kMostPublishedBytes) return PMIX_ERR_OUT_OF_RESOURCE;
  PmixEndpoint::Publish publish;
  publish.name.assign(data->key, ::strnlen(data->key, PMIX_MAX_KEYLEN));
  publish.value = *value;
  publish.once = NumberIn(info, count, PMIX_PERSISTENCE, PMIX_PERSIST_APP) == PMIX_PERSIST_FIRST_READ;
  return PassOn(*rank, {.without = done, .argument = argument}, [&](auto* server, uint64_t number) {
    publish.number = number;
    server->Tell(std::move(publish));
  });
}

pmix_status_t OnLookUp(const pmix_proc_t* rank, char** names, const pmix_info_t* info, size_t count,
                       pmix_lookup_cbfunc_t done, void* argument) {
  constexpr std::chrono::seconds kForever{24 * 365 * 3600};
  if (names == nullptr || names[0] == nullptr) return PMIX_ERR_BAD_PARAM;
  if (names[1] != nullptr) return PMIX_ERR_NOT_SUPPORTED;
  PmixEndpoint::LookUp look_up;
  look_up.name = names[0];
  if (Contains(info, count, PMIX_WAIT)) {
    const int64_t seconds = NumberIn(info, count, PMIX_TIMEOUT, 0);
    look_up.wait = seconds > 0 ? std::min(std::chrono::seconds(seconds), kForever) : kForever;
  }
  return PassOn(*rank, {.with_found = done, .argument = argument}, [&](auto* server, uint64_t number) {
    look_up.number = number;
    server->Tell(std::move(look_up));
  });
}

pmix_status_t OnUnpublish(const pmix_proc_t* rank, char** names, const pmix_info_t*, size_t, pmix_op_cbfunc_t done,
                          void* argument) {
  // A rank that ends takes back all that it has published: what is left goes with the job.
  if (names == nullptr || names[0] == nullptr) return PMIX_OPERATION_SUCCEEDED;
  if (names[1] != nullptr) return PMIX_ERR_NOT_SUPPORTED;
  return PassOn(*rank, {.without = done, .argument = argument},
                [&](auto* server, uint64_t number) { server->Tell(PmixEndpoint::Unpublish{number, names[0]}); });
}

void AddAll(char** texts, std::vector<std::string>* to) {
  for (char** text = texts; text != nullptr && *text != nullptr; ++text) to->emplace_back(*text);
}

SpawnedProgram ProgramIn(const pmix_app_t& app) {
  SpawnedProgram program;
  AddAll(app.argv, &program.argv);
  if (app.cmd != nullptr && program.argv.empty()) program.argv.emplace_back(app.cmd);
  if (app.cmd != nullptr) program.argv[0] = app.cmd;
  AddAll(app.env, &program.environment);
  if (app.cwd != nullptr) program.directory = app.cwd;
  for (size_t i = 0; i < app.ninfo; ++i) {
    const pmix_value_t& value = app.info[i].value;
    if (std::strncmp(app.info[i].key, PMIX_WDIR, PMIX_MAX_KEYLEN) != 0 || value.type != PMIX_STRING) continue;
    if (value.data.string != nullptr) program.directory = value.data.string;
  }
  program.count = app.maxprocs;
  return program;
}

size_t BytesOf(const SpawnedProgram& program) {
  size_t bytes = sizeof program + program.directory.size();
  for (const auto* texts : {&program.argv, &program.environment}) {
    for (const std::string& text : *texts) bytes += sizeof text + text.size();
  }
  return bytes;
}

pmix_status_t OnSpawn(const pmix_proc_t* rank, const pmix_info_t*, size_t, const pmix_app_t* apps, size_t count,
                      pmix_spawn_cbfunc_t done, void* argument) {
  PmixEndpoint::Spawn spawn;
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    spawn.request.programs.push_back(ProgramIn(apps[i]));
    bytes += BytesOf(spawn.request.programs.back());
    if (bytes > kMostSpawnBytes) return PMIX_ERR_OUT_OF_RESOURCE;
  }
  return PassOn(*rank, {.with_world = done, .argument = argument}, [&](auto* server, uint64_t number) {
    spawn.local_rank = server->LocalRankOf(*rank);
    spawn.number = number;
    server->Tell(std::move(spawn));
  });
}

}  // namespace

pmix_server_module_t PmixCallbacks() {
  pmix_server_module_t calls{};
  calls.client_connected = OnConnected;
  calls.client_finalized = OnFinalized;
  calls.abort = OnAbort;
  calls.fence_nb = OnFence;
  calls.direct_modex = OnWanted;
  calls.log = OnLog;
  calls.job_control = OnJobControl;
  calls.publish = OnPublish;
  calls.lookup = OnLookUp;
  calls.unpublish = OnUnpublish;
  calls.spawn = OnSpawn;
  calls.connect = OnConnect;
  calls.disconnect = OnConnect;
  return calls;
}

}  // namespace cohort::launcher
