#include "cohort/launcher/control/parts/key_value_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using TimePoint = KeyValueStore::TimePoint;

TEST(KeyValueStore, RefusesKeysAndValuesThatAreTooLarge) {
  KeyValueStore store;
  std::vector<KeyValueStore::Waiter> answered;
  EXPECT_EQ(store.Put(std::string(1024, 'k'), std::string(64 << 10, 'v'), &answered), "");
  EXPECT_THAT(store.Put(std::string(1025, 'k'), "", &answered), HasSubstr("1025"));
  EXPECT_THAT(store.Put("", "v", &answered), HasSubstr("0 bytes"));
  EXPECT_THAT(store.Put("k", std::string((64 << 10) + 1, 'v'), &answered), HasSubstr("65537"));
}

TEST(KeyValueStore, BoundsKeysAndBytes) {
  KeyValueStore store;
  std::vector<KeyValueStore::Waiter> answered;
  for (size_t i = 0; i < KeyValueStore::kMaxKeys; ++i) ASSERT_EQ(store.Put(std::to_string(i), "", &answered), "");
  EXPECT_THAT(store.Put("one more", "", &answered), HasSubstr("full"));
  EXPECT_EQ(store.Put("7", "", &answered), "");  // is there already
  KeyValueStore heavy;
  const std::string value(64 << 10, 'v');
  size_t stored = 0;
  while (heavy.Put(std::to_string(stored), value, &answered).empty()) ++stored;
  EXPECT_LE(stored * value.size(), KeyValueStore::kMaxTotalBytes);
  EXPECT_GT(stored, size_t{1000});
}

// Against a plain model: every waiter is answered exactly once, when its key comes or its time is up.
TEST(KeyValueStore, AgreesWithAModel) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  KeyValueStore store;
  std::map<std::string, std::string> values;
  std::map<uint64_t, std::pair<std::string, TimePoint>> waiting;  // by request
  TimePoint now{};
  for (uint64_t step = 1; step <= 20'000; ++step) {
    const std::string key = "k" + std::to_string(random() % 400);
    switch (random() % 4) {
      case 0: {
        const std::string value = std::to_string(random() % 2);
        std::vector<KeyValueStore::Waiter> answered;
        const bool fits = values.emplace(key, value).first->second == value;
        EXPECT_EQ(store.Put(key, value, &answered).empty(), fits);
        for (const auto& waiter : answered) {
          ASSERT_EQ(waiting.count(waiter.request), 1u);
          EXPECT_EQ(waiting[waiter.request].first, key);
          waiting.erase(waiter.request);
        }
        for (const auto& [request, wait] : waiting) EXPECT_NE(wait.first, key);
        break;
      }
      case 1:
      case 2: {
        bool refused = false;
        const TimePoint until = now + milliseconds(random() % 50);
        const std::string* value = store.Get(key, {step % 5, step}, now, until, &refused);
        EXPECT_EQ(value != nullptr, values.count(key) > 0);
        EXPECT_EQ(refused, value == nullptr && until <= now);
        if (value == nullptr && !refused) waiting[step] = {key, until};
        break;
      }
      default:
        now += milliseconds(random() % 5);
        for (const auto& waiter : store.Expire(now)) {
          ASSERT_EQ(waiting.count(waiter.request), 1u);
          EXPECT_LE(waiting[waiter.request].second, now);
          waiting.erase(waiter.request);
        }
        for (const auto& [request, wait] : waiting) EXPECT_GT(wait.second, now);
        EXPECT_EQ(store.NextExpiry().has_value(), !waiting.empty());
    }
    if (step % 1000 == 0) {
      store.Forget(3);
      std::erase_if(waiting, [](const auto& entry) { return entry.first % 5 == 3; });
    }
    if (values.size() == 400) {  // start again
      store = KeyValueStore();
      values.clear();
      waiting.clear();
    }
  }
}

}  // namespace
}  // namespace cohort::launcher
