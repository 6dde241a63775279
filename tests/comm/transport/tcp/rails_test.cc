// Striping over several interfaces: the places of stripes, and connections with rails, on sockets of this process.
#include "cohort/comm/transport/tcp/rails.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/transport/tcp/connection.h"

namespace cohort::comm::tcp {
namespace {

TEST(TcpStriping, GivesEachByteOnePlace) {
  std::mt19937_64 random(1);
  const uint16_t kinds[] = {0, RailBit(1), RailBit(3), RailBit(1) | RailBit(2), kRailBits};
  for (int round = 0; round < 200; ++round) {
    const uint64_t bytes = round < 4 ? kStripedFrom + static_cast<uint64_t>(round) - 1 : random() % kMostFrameBytes + 1;
    const Striping striping(bytes, kinds[random() % std::size(kinds)]);
    uint64_t all = 0;
    for (int carrier = 0; carrier < striping.carriers(); ++carrier) {
      const uint64_t share = striping.ShareOf(carrier);
      all += share;
      for (uint64_t position = 0; position < share;) {
        const uint64_t place = striping.PlaceOf(carrier, position);
        ASSERT_LT(place, bytes);
        ASSERT_EQ(striping.CarrierOf(place), carrier);
        position += striping.RunAt(place);
        ASSERT_LE(position, share);
      }
    }
    ASSERT_EQ(all, bytes);
  }
}

// Keeps the frames that come, in order.
class Keeper : public FrameSink, public FrameTaker {
 public:
  Choice OnFrame(const FrameHeader& header, const runtime::CallRecord*, bool, bool) override {
    flags.push_back(header.flags);
    frames.emplace_back(header.frame_bytes);
    at_ = 0;
    return {Choice::kTake, this};
  }
  std::byte* Room(uint64_t left, size_t* bytes) override {
    *bytes = std::min<size_t>(left, 100'000);
    return frames.back().data() + at_;
  }
  void Filled(size_t bytes) override { at_ += bytes; }
  void EndFrame() override { ++ended; }

  std::vector<uint16_t> flags;
  std::vector<std::vector<std::byte>> frames;
  size_t ended = 0;

 private:
  size_t at_ = 0;
};

class Owner : public FrameOwner {
 public:
  void FrameSent() override {}
};

class TcpRails : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    one_ =
        std::make_unique<Connection>(runtime::FileDescriptor(ends[0]), net::SessionKey{}, net::SessionKey{}, nullptr);
    auto keeper = std::make_unique<Keeper>();
    keeper_ = keeper.get();
    other_ = std::make_unique<Connection>(runtime::FileDescriptor(ends[1]), net::SessionKey{}, net::SessionKey{},
                                          std::move(keeper));
  }
  void AddRail(int rail) {
    AddRailOf(*one_, rail);
    other_->AddRail(rail, std::move(far_end_), "far" + std::to_string(rail));
  }
  void AddRailOf(Connection& connection, int rail) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    connection.AddRail(rail, runtime::FileDescriptor(ends[0]), "near" + std::to_string(rail));
    far_end_ = runtime::FileDescriptor(ends[1]);
  }
  Connection::Written Write(const std::vector<std::byte>& data) {
    FrameHeader header;
    header.frame_bytes = static_cast<uint32_t>(data.size());
    header.message_bytes = data.size();
    return one_->Write(header, nullptr, data.data(), &owner_);
  }
  // An event of every socket, as the watch would tell.
  void ReadOther() {
    other_->OnEvent(false);
    for (int rail = 1; rail < kMostRails; ++rail) other_->OnEvent(false, rail);
    other_->Read(/*keep=*/true, /*long_expected=*/false, nullptr);
  }
  std::vector<std::byte> Data(size_t bytes) {
    std::vector<std::byte> data(bytes);
    for (std::byte& byte : data) byte = static_cast<std::byte>(random_());
    return data;
  }

  std::mt19937_64 random_{7};
  Owner owner_;
  Keeper* keeper_ = nullptr;  // of other_
  runtime::FileDescriptor far_end_;
  std::unique_ptr<Connection> one_, other_;
};

TEST_F(TcpRails, FramesOfRandomSizesArriveAsTheyWere) {
  std::vector<std::vector<std::byte>> sent;
  for (int round = 0; round < 60; ++round) {
    if (round == 10) AddRail(3);
    if (round == 20) AddRail(1);
    if (round == 30) AddRail(7);
    const size_t bytes = round % 3 == 0 ? random_() % 10'000 : random_() % kMostFrameBytes;
    sent.push_back(Data(std::max<size_t>(bytes, 1)));
    Connection::Written written = Connection::Written::kBusy;
    while ((written = Write(sent.back())) == Connection::Written::kBusy) ReadOther();
    ASSERT_NE(written, Connection::Written::kFailed);
    while (one_->flushing()) {
      if (random_() % 2 == 0) ReadOther();
      one_->Flush();
    }
  }
  for (int i = 0; i < 1000 && keeper_->ended < sent.size(); ++i) ReadOther();
  ASSERT_EQ(keeper_->ended, sent.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(keeper_->frames[i], sent[i]) << "frame " << i;
    EXPECT_EQ((keeper_->flags[i] & kRailBits) != 0, i >= 10 && sent[i].size() >= kStripedFrom) << "frame " << i;
  }
}

TEST_F(TcpRails, ARailThatHasEndedUnseenCarriesNothing) {
  AddRailOf(*one_, 2);
  far_end_.Close();
  const std::vector<std::byte> data = Data(kStripedFrom);
  ASSERT_NE(Write(data), Connection::Written::kFailed);
  for (int i = 0; i < 1000 && keeper_->ended < 1; ++i) {
    one_->Flush();
    ReadOther();
  }
  ASSERT_EQ(keeper_->ended, 1u);
  EXPECT_EQ(keeper_->frames[0], data);
}

TEST_F(TcpRails, AFrameWhoseOwnerEndsArrivesWhole) {
  AddRail(1);
  auto data = Data(3 << 20);
  const std::vector<std::byte> copy = data;
  ASSERT_EQ(Write(data), Connection::Written::kPartly);
  one_->LetGo(&owner_);
  std::fill(data.begin(), data.end(), std::byte{0});
  while (one_->flushing()) {
    one_->Flush();
    ReadOther();
  }
  while (keeper_->ended == 0) ReadOther();
  EXPECT_EQ(keeper_->frames[0], copy);
}

// The side that was connected to may use a rail before the other one has read that it is there.
TEST_F(TcpRails, AFrameWaitsForTheRailThatCarriesIt) {
  AddRailOf(*one_, 2);
  const auto data = Data(kStripedFrom);
  Write(data);
  for (int i = 0; i < 10; ++i) {
    one_->Flush();
    ReadOther();
  }
  EXPECT_TRUE(keeper_->frames.empty());
  EXPECT_TRUE(other_->read_error().ok());
  other_->AddRail(2, std::move(far_end_), "far2");
  for (int i = 0; i < 1000 && keeper_->ended == 0; ++i) {
    one_->Flush();
    ReadOther();
  }
  ASSERT_EQ(keeper_->ended, 1u);
  EXPECT_EQ(keeper_->frames[0], data);
}

// The event of its end may come later.
TEST_F(TcpRails, ARailLostAmidAFrameFailsTheWriterByItsName) {
  AddRailOf(*one_, 1);
  const auto data = Data(kMostFrameBytes);
  ASSERT_EQ(Write(data), Connection::Written::kPartly);
  shutdown(far_end_.get(), SHUT_RDWR);
  for (int i = 0; i < 1000 && one_->write_error().ok(); ++i) one_->Flush();
  EXPECT_NE(std::string(one_->write_error().message()).find("near1"), std::string::npos) << one_->write_error();
}

TEST_F(TcpRails, ARailLostAmidAFrameFailsTheReaderByItsName) {
  AddRailOf(*one_, 1);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  other_->AddRail(1, runtime::FileDescriptor(ends[0]), "far1");
  close(ends[1]);
  const auto data = Data(kStripedFrom);
  ASSERT_NE(Write(data), Connection::Written::kFailed);
  for (int i = 0; i < 1000 && other_->read_error().ok(); ++i) ReadOther();
  EXPECT_NE(std::string(other_->read_error().message()).find("far1"), std::string::npos) << other_->read_error();
}

TEST_F(TcpRails, ARailThatHasEndedCarriesNothingMore) {
  AddRail(1);
  AddRail(2);
  one_->OnEvent(/*ending=*/true, 1);
  const auto data = Data(1 << 20);
  Write(data);
  for (int i = 0; i < 1000 && keeper_->ended == 0; ++i) {
    one_->Flush();
    ReadOther();
  }
  ASSERT_EQ(keeper_->ended, 1u);
  EXPECT_EQ(keeper_->flags[0] & kRailBits, RailBit(2));
  EXPECT_EQ(keeper_->frames[0], data);
}

}  // namespace
}  // namespace cohort::comm::tcp
