// Describes one collective call so that a peer, an agent or a later reader can compare it. The signature holds
// everything that must agree. The black-box record surrounds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace cohort::runtime {

// Everything that the members of a group must agree on for one operation. It is plain bytes: compared with memcmp,
// hashed, sent.
struct CallSignature {
  uint64_t group = 0;     // group id (a hash of parent, members and creation order; equal on all members)
  uint64_t sequence = 0;  // number of the operation in its group, from 1; send/recv count per direction and peer
  uint64_t count = 0;     // elements as the call defines them, or a hash of the counts
  uint32_t epoch = 0;
  int32_t root = -1;        // group rank; -1 where the call has none
  uint16_t kind = 0;        // comm::CollectiveKind
  uint16_t dtype = 0;       // comm::DataType
  uint8_t op = 0;           // comm::ReduceOp, 0 where the call has none
  uint8_t determinism = 0;  // comm::Determinism, 0 where the call has no op; and, above it, Checks of the rank
  uint16_t algorithm = 0;   // hash of the algorithm's kind and name
  uint64_t tuning = 0;      // hash of the tuning table in force, of the user function's name, and of the tag

  friend bool operator==(const CallSignature& a, const CallSignature& b) { return std::memcmp(&a, &b, sizeof a) == 0; }
};
static_assert(sizeof(CallSignature) == 48 && std::is_trivially_copyable_v<CallSignature>);

// The checks that a rank makes of its calls (COHORT_CHECK). They are part of the signature.
struct Checks {
  bool nan = false;      // inputs are searched for NaN and infinity
  bool results = false;  // results that must be equal are compared

  bool any() const { return nan || results; }  // whether anything is checked
  // Their part of CallSignature::determinism.
  uint8_t bits() const { return static_cast<uint8_t>((nan ? kNanBit : 0) | (results ? kResultsBit : 0)); }
  static Checks Of(const CallSignature& signature) {  // those in a signature
    return {(signature.determinism & kNanBit) != 0, (signature.determinism & kResultsBit) != 0};
  }
  static uint8_t LevelOf(const CallSignature& signature) { return signature.determinism & 0x0f; }  // comm::Determinism

  static constexpr uint8_t kNanBit = 0x10;      // of bits()
  static constexpr uint8_t kResultsBit = 0x20;  // of bits()
};

// The words of a signature, each with a key of its own, and their product, folded.
class SignatureWords {
 public:
  explicit SignatureWords(const CallSignature& signature)
      : bytes_(reinterpret_cast<const unsigned char*>(&signature)) {}
  // Loads word by word: a wider load of bytes that were just stored would wait for the store.
  uint64_t operator[](size_t i) const {
    uint64_t value;
    std::memcpy(&value, bytes_ + 8 * i, sizeof value);
    return value ^ kKeys[i];
  }
  static uint64_t Fold(uint64_t a, uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  static constexpr uint64_t kKeys[6] = {0x9e3779b97f4a7c15u, 0xff51afd7ed558ccdu, 0xc4ceb9fe1a85ec53u,
                                        0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu, 0xd6e8feb86659fd93u};

 private:
  const unsigned char* bytes_;
};

// The part of HashSignature that all calls share which differ in group and sequence alone.
inline uint64_t HashBeyondSequence(const CallSignature& signature) {
  const SignatureWords words(signature);
  const uint64_t second = SignatureWords::Fold(words[2], words[3]);
  const uint64_t third = SignatureWords::Fold(words[4], words[5]);
  return (second << 1 | second >> 63) ^ (third + SignatureWords::kKeys[4]);
}

// A 64-bit hash of the signature, never 0. Every message of the operation carries it. It multiplies to 128 bits and
// folds three pairs of words at once, as wyhash does, which takes 4 ns. `beyond_sequence`: HashBeyondSequence of it.
inline uint64_t HashSignature(const CallSignature& signature, uint64_t beyond_sequence) {
  const SignatureWords words(signature);
  return SignatureWords::Fold(SignatureWords::Fold(words[0], words[1]) ^ SignatureWords::kKeys[2], beyond_sequence) | 1;
}
inline uint64_t HashSignature(const CallSignature& signature) {
  return HashSignature(signature, HashBeyondSequence(signature));
}

// The signature of one message of a call whose blocks differ in length. It combines the call's signature with the
// message's length in bytes (below 2^63). Lengths are thus compared wherever signatures are.
inline constexpr uint64_t kLengthKey = 0x9e3779b97f4a7c15u;
inline uint64_t SignatureWithLength(uint64_t signature, uint64_t bytes) {
  return signature ^ (bytes * kLengthKey << 1);
}
// The length inside such a signature, for a call with `signature`. If it belongs to another call, the result is
// nonsense.
inline uint64_t LengthIn(uint64_t with_length, uint64_t signature) {
  constexpr uint64_t kInverse = 0xf1de83e19937733du;
  static_assert(kLengthKey * kInverse == 1);
  return ((with_length ^ signature) >> 1) * kInverse & ~(uint64_t{1} << 63);
}

// The part of CallSignature::tuning that stands for a call's tag. 0 for no tag.
inline uint64_t TagHash(uint64_t tag) { return (tag ^ tag >> 32) * 0xda942042e4dd58b5u; }

// The signature of an operation that follows others. It also says whether all earlier ones agreed. If a rank's wrong
// call needed nothing from its peers, its next message to any of them reveals it.
inline uint64_t ChainSignature(uint64_t earlier, uint64_t signature) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(earlier ^ 0xc4ceb9fe1a85ec53u) * (signature ^ 0x94d049bb133111ebu);
  return (static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64)) | 1;
}

enum class CallState : uint16_t { kEmpty = 0, kStarted = 1, kDone = 2, kFailed = 3 };

// CallRecord::device of a call of another library. It was recorded by a plug-in, which does not know the device and
// sees beginning and end a little late.
inline constexpr int16_t kUnknownDevice = 0x7fff;

// One record of a rank's black box: who called what, where, when, and how far it got. It has 200 bytes. Only its rank
// writes it. The agent and local peers read it at any moment, also after the rank's death.
struct CallRecord {
  CallSignature signature;
  uint64_t bytes = 0;           // moved into or out of this rank's buffers, for people
  uint64_t wire_signature = 0;  // what the call's messages carry; for a collective: its ChainSignature
  uint64_t start_ns = 0;        // steady clock
  // 0 while the call runs. It is start_ns when the call did not wait for longer than about a microsecond.
  uint64_t end_ns = 0;
  CallState state = CallState::kEmpty;
  int16_t device = -1;      // number of the CUDA device that holds the memory, in its process; -1: host memory
  int32_t group_rank = -1;  // rank of the caller in its group
  int32_t peer = -1;        // send/recv: the other side, as group rank
  int32_t group_size = 0;
  uint64_t tag = 0;              // CallOptions::tag
  int32_t peer_world_rank = -1;  // send/recv: the other side; a call with a root: the root; as world rank
  uint32_t result = 0;           // a hash of the call's result, where results are compared; 0: there is none
  char user_op[16] = {};         // the user function's name, cut; NUL-terminated
  char site[72] = {};            // "train.cc:88", the tail of the path when too long; NUL-terminated
};
static_assert(sizeof(CallRecord) == 200 && std::is_trivially_copyable_v<CallRecord>);

// True when messages of this call carry `signature`.
inline bool Carries(const CallRecord& record, uint64_t signature) {
  return record.wire_signature == signature || HashSignature(record.signature) == signature;
}

}  // namespace cohort::runtime
