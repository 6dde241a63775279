// Ranks that meet through a store of the program's own.
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <future>
#include <map>
#include <string>
#include <thread>

#include "cohort/comm/c/cohort.h"

namespace cohort::testing {
namespace {

// A store of a launcher of the program's own, in the memory of the only rank.
struct MapStore {
  std::map<std::string, std::string> values;
  size_t longest_key = 0;
  static int Put(void* context, const char* key, const void* value, size_t bytes) {
    auto& own = *static_cast<MapStore*>(context);
    own.values[key] = std::string(static_cast<const char*>(value), bytes);
    own.longest_key = std::max(own.longest_key, std::strlen(key));
    return 0;
  }
  static int Get(void* context, const char* key, int64_t, void* value, size_t capacity, size_t* bytes) {
    const auto& values = static_cast<MapStore*>(context)->values;
    const auto found = values.find(key);
    if (found == values.end() || found->second.size() > capacity) return 1;
    *bytes = found->second.size();
    std::memcpy(value, found->second.data(), found->second.size());
    return 0;
  }
};

TEST(CStoreTest, ARankJoinsThroughTheProgramsStore) {
  MapStore memory;
  cohort_store store = {sizeof(cohort_store), 0, 1, &MapStore::Put, &MapStore::Get, &memory};
  cohort_init_options options = COHORT_INIT_OPTIONS_INIT;
  options.store = &store;
  cohort_runtime runtime = nullptr;
  ASSERT_EQ(cohort_init(&options, &runtime), COHORT_OK) << cohort_last_error();
  EXPECT_EQ(cohort_put(runtime, "key", "value", 5, 1'000'000'000), COHORT_OK) << cohort_last_error();
  char value[8] = {};
  size_t bytes = 0;
  EXPECT_EQ(cohort_get(runtime, "key", value, sizeof value, &bytes, 1'000'000'000), COHORT_OK) << cohort_last_error();
  EXPECT_EQ(std::string(value, bytes), "value");
  EXPECT_EQ(cohort_get(runtime, "key", value, 3, &bytes, 1'000'000'000), COHORT_INVALID_ARGUMENT);
  EXPECT_EQ(bytes, 5u);
  EXPECT_EQ(cohort_get(runtime, "no such key", value, 3, &bytes, 1'000'000), COHORT_NOT_FOUND);
  EXPECT_EQ(cohort_put(runtime, std::string(1024, 'k').c_str(), "v", 1, 1'000'000'000), COHORT_OK);
  EXPECT_EQ(memory.longest_key, 1034u) << "the bound that the header names";
  EXPECT_EQ(cohort_finalize(runtime), COHORT_OK);

  store.rank = 1;
  EXPECT_EQ(cohort_init(&options, &runtime), COHORT_INVALID_ARGUMENT);
  EXPECT_EQ(runtime, nullptr);
  store = {sizeof(cohort_store), 0, 1, nullptr, &MapStore::Get, &memory};
  EXPECT_EQ(cohort_init(&options, &runtime), COHORT_INVALID_ARGUMENT);
  store.size = 3;
  EXPECT_EQ(cohort_init(&options, &runtime), COHORT_INVALID_ARGUMENT);
}

// A store whose server has gone.
struct BrokenStore : MapStore {
  static int Get(void*, const char*, int64_t, void*, size_t, size_t*) { return COHORT_UNAVAILABLE; }
};

TEST(CStoreTest, AStoreThatHasFailedIsNotOneWithoutTheKey) {
  MapStore memory;
  cohort_store store = {sizeof(cohort_store), 0, 1, &MapStore::Put, &BrokenStore::Get, &memory};
  cohort_init_options options = COHORT_INIT_OPTIONS_INIT;
  options.store = &store;
  cohort_runtime runtime = nullptr;
  EXPECT_EQ(cohort_init(&options, &runtime), COHORT_UNAVAILABLE);
  EXPECT_NE(std::string(cohort_last_error()).find("the program's store failed to get"), std::string::npos)
      << cohort_last_error();
}

TEST(CStoreTest, KeysAreTextOfPrintableCharacters) {
  cohort_runtime runtime = nullptr;
  ASSERT_EQ(cohort_init(nullptr, &runtime), COHORT_OK) << cohort_last_error();
  size_t bytes = 0;
  for (const char* const key : {"line\nend", "caf\xc3\xa9", "\x7f"}) {
    EXPECT_EQ(cohort_put(runtime, key, "value", 5, 1'000'000'000), COHORT_INVALID_ARGUMENT) << key;
    EXPECT_EQ(cohort_get(runtime, key, nullptr, 0, &bytes, 1'000'000), COHORT_INVALID_ARGUMENT) << key;
  }
  EXPECT_EQ(cohort_put(runtime, "", "value", 5, 1'000'000'000), COHORT_INVALID_ARGUMENT);
  EXPECT_EQ(cohort_put(runtime, std::string(5000, 'k').c_str(), "value", 5, 1'000'000'000), COHORT_INVALID_ARGUMENT);
  EXPECT_EQ(cohort_put(runtime, "all of ~ASCII!", "value", 5, 1'000'000'000), COHORT_OK) << cohort_last_error();
  EXPECT_EQ(cohort_finalize(runtime), COHORT_OK);
}

// A store in whose function a thread is cancelled that waits for a key.
struct CancellingStore : MapStore {
  static int Get(void* context, const char* key, int64_t timeout_ns, void* value, size_t capacity, size_t* bytes) {
    if (std::string(key).find("cancel") != std::string::npos) {
      pthread_cancel(pthread_self());
      pthread_testcancel();
    }
    return MapStore::Get(context, key, timeout_ns, value, capacity, bytes);
  }
};

TEST(CStoreTest, ACancelledThreadEndsAfterItsCall) {
  struct Waiting {
    cohort_runtime runtime = nullptr;
    cohort_status got = COHORT_OK;
  } waiting;
  MapStore memory;
  cohort_store store = {sizeof(cohort_store), 0, 1, &MapStore::Put, &CancellingStore::Get, &memory};
  cohort_init_options options = COHORT_INIT_OPTIONS_INIT;
  options.store = &store;
  ASSERT_EQ(cohort_init(&options, &waiting.runtime), COHORT_OK) << cohort_last_error();
  const auto wait = [](void* given) -> void* {
    auto& own = *static_cast<Waiting*>(given);
    size_t bytes = 0;
    own.got = cohort_get(own.runtime, "cancel", nullptr, 0, &bytes, 1'000'000);
    pthread_testcancel();
    return nullptr;
  };
  pthread_t thread;
  void* result = nullptr;
  ASSERT_EQ(pthread_create(&thread, nullptr, wait, &waiting), 0);
  pthread_join(thread, &result);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_EQ(waiting.got, COHORT_NOT_FOUND);
  EXPECT_EQ(cohort_finalize(waiting.runtime), COHORT_OK);
}

constexpr std::chrono::seconds kLongest(20);

// A store whose second thread waits for a key until it is let go.
struct SlowStore : MapStore {
  std::promise<void> entered;
  std::promise<void> let_go;
  static int Get(void* context, const char* key, int64_t timeout_ns, void* value, size_t capacity, size_t* bytes) {
    auto& own = *static_cast<SlowStore*>(static_cast<MapStore*>(context));
    if (std::string(key).find("slow") != std::string::npos) {
      own.entered.set_value();
      (void)own.let_go.get_future().wait_for(kLongest);
    }
    return MapStore::Get(context, key, timeout_ns, value, capacity, bytes);
  }
};

TEST(CStoreTest, ARuntimeInUseByAnotherThreadIsNotFinalized) {
  SlowStore memory;
  cohort_store store = {sizeof(cohort_store), 0, 1, &MapStore::Put, &SlowStore::Get, static_cast<MapStore*>(&memory)};
  cohort_init_options options = COHORT_INIT_OPTIONS_INIT;
  options.store = &store;
  cohort_runtime runtime = nullptr;
  ASSERT_EQ(cohort_init(&options, &runtime), COHORT_OK) << cohort_last_error();
  cohort_status got = COHORT_OK;
  std::thread getting([&] {
    size_t bytes = 0;
    got = cohort_get(runtime, "slow", nullptr, 0, &bytes, 1'000'000);
  });
  EXPECT_EQ(memory.entered.get_future().wait_for(kLongest), std::future_status::ready);
  EXPECT_EQ(cohort_finalize(runtime), COHORT_BUSY);
  EXPECT_EQ(cohort_put(runtime, "key", "value", 5, 1'000'000'000), COHORT_OK) << "two threads use one runtime";
  memory.let_go.set_value();
  getting.join();
  EXPECT_EQ(got, COHORT_NOT_FOUND);
  EXPECT_EQ(cohort_finalize(runtime), COHORT_OK);
}

}  // namespace
}  // namespace cohort::testing
