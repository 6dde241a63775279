// The machine that runs pickles, on programs made here.
#include "cohort/trainer/compat/pt/pickle.h"

#include <string>

#include "cohort/trainer/compat/pt/object_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::trainer::pt {
namespace {

using Kind = Object::Kind;
using std::string_literals::operator""s;
using ::testing::HasSubstr;

// The value that a pickle makes, as Python prints it.
std::string Made(const std::string& program) {
  Pickle pickle(program);
  return Printed(pickle.Run());
}

std::string ErrorOf(const std::string& program) {
  try {
    return "made " + Made(program);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Pickle, MakesNumbersOfEveryProtocol) {
  EXPECT_EQ(Made("I42\n."), "42");
  EXPECT_EQ(Made("I01\n."), "True");
  EXPECT_EQ(Made("I00\n."), "False");
  EXPECT_EQ(Made("L-7L\n."), "-7");
  EXPECT_EQ(Made("L123456789012345678901234567890L\n."), "123456789012345678901234567890");
  EXPECT_EQ(Made("F1.5\n."), "1.5");
  EXPECT_EQ(Made("K\xff."), "255");
  EXPECT_EQ(Made("M\x34\x12."), "4660");
  EXPECT_EQ(Made("J\xff\xff\xff\xff."), "-1");
  EXPECT_EQ(Made("\x8a\0."s), "0");
  EXPECT_EQ(Made("\x8a\x02\0\xff."s), "-256");
  EXPECT_EQ(Made("\x8b\x01\0\0\0\x80."s), "-128");
  EXPECT_EQ(Made("\x8a\x09\0\0\0\0\0\0\0\0\x01."s), "0x010000000000000000");
  EXPECT_EQ(Made("G\x40\x59\0\0\0\0\0\0."s), "100.0");
  EXPECT_EQ(Made("G\x44\x15\xaf\x1d\x78\xb5\x8c\x40."), "1e+20");
  EXPECT_EQ(Made("N."), "None");
}

TEST(Pickle, MakesTextsOfEveryProtocol) {
  EXPECT_EQ(Made("S'it\\'s'\n."), "'it\\'s'");
  EXPECT_EQ(Made("Va\\u00e9\xe9\n."), "'a\xc3\xa9\xc3\xa9'");
  EXPECT_EQ(Made("U\x02"
                 "ab."),
            "'ab'");
  EXPECT_EQ(Made("T\x02\0\0\0ab."s), "'ab'");
  EXPECT_EQ(Made("\x8c\x02"
                 "ab."),
            "'ab'");
  EXPECT_EQ(Made("\x8d\x02\0\0\0\0\0\0\0ab."s), "'ab'");
  EXPECT_EQ(Made("C\x02\0z."s), "b'\\x00z'");
  EXPECT_EQ(Made("B\x01\0\0\0z."s), "b'z'");
  EXPECT_EQ(Made("c_codecs\nencode\n(V\\u00ff\xe9z\nVlatin1\ntR."), "b'\\xff\\xe9z'");
  EXPECT_EQ(Made("\x96\x01\0\0\0\0\0\0\0z."s), "b'z'");
}

TEST(Pickle, MakesContainersOfEveryProtocol) {
  EXPECT_EQ(Made("(I1\nI2\nt."), "(1, 2)");
  EXPECT_EQ(Made("(K\x01l."), "[1]");
  EXPECT_EQ(Made("(K\x01K\x02"
                 "d."),
            "{1: 2}");
  EXPECT_EQ(Made("](K\x01K\x02"
                 "e."),
            "[1, 2]");
  EXPECT_EQ(Made("}(K\x01K\x02u."), "{1: 2}");
  EXPECT_EQ(Made("\x8f(K\x01\x90."), "frozenset({1})");
  EXPECT_EQ(Made("(K\x01\x91."), "frozenset({1})");
  EXPECT_EQ(Made("K\x01\x85."), "(1,)");
  EXPECT_EQ(Made(")."), "()");
}

TEST(Pickle, CallsNoFunctionOfAPickle) {
  EXPECT_EQ(Made("cos\nsystem\n(S'touch x'\ntR."), "os.system('touch x')");
  EXPECT_EQ(Made("(S'touch x'\nios\nsystem\n."), "os.system('touch x')");
  EXPECT_EQ(Made("(cos\nsystem\nS'touch x'\no."), "os.system('touch x')");
  EXPECT_EQ(Made("\x8c\x02os\x8c\x06system\x93)\x81."), "os.system()");
  EXPECT_EQ(Made("ca\nb\n)}\x92}S'k'\nK\x01sb."), "a.b(){'k': 1}");
  EXPECT_EQ(Made("\x82\x05."), "copyreg.extension 5");
}

TEST(Pickle, RemembersAndFollowsCircles) {
  EXPECT_EQ(Made("(K\x01q\x05K\x02p6\n\x94h\x05g6\nj\x02\0\0\0t."s), "(1, 2, 1, 2, 2)");
  const std::string circle = "]q\0h\0a."s;
  Pickle pickle(circle);
  const Object& list = pickle.Run();
  ASSERT_EQ(list.items().size(), 1U);
  EXPECT_EQ(list.items()[0], &list);
  EXPECT_LT(Printed(list).size(), 1000U);
  EXPECT_EQ(Made("K\x01K\x02"
                 "0K\x03\x86."),
            "(1, 3)");
  EXPECT_EQ(Made("K\x01(K\x02"
                 "1."),
            "1");
  EXPECT_EQ(Made("K\x01"
                 "2\x86."),
            "(1, 1)");
}

TEST(Pickle, RefusesBytesThatAreNoPickle) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("ends too early"));
  EXPECT_THAT(ErrorOf("."), HasSubstr("takes more than it made"));
  EXPECT_THAT(ErrorOf("t"), HasSubstr("lacks a mark"));
  EXPECT_THAT(ErrorOf("h\x01."), HasSubstr("has not made"));
  EXPECT_THAT(ErrorOf("NNNs."), HasSubstr("holds none"));
  EXPECT_THAT(ErrorOf("N}b."), HasSubstr("has none"));
  EXPECT_THAT(ErrorOf("\xfe"), HasSubstr("unknown operation 254"));
  EXPECT_THAT(ErrorOf("Ix\n."), HasSubstr("integer that is none"));
  EXPECT_THAT(ErrorOf("X\xff\xff\xff\xff"), HasSubstr("ends too early"));
}

// An operation of one byte takes fifty of memory.
TEST(Pickle, RemembersABoundedNumberOfObjects) {
  EXPECT_THAT(ErrorOf("N" + std::string(10'000'001, '\x94') + "."), HasSubstr("remembers more than 10000000 objects"));
}

TEST(Pickle, RunsOnePickleAfterTheOther) {
  Pickle pickle("K\x01.K\x02.");
  EXPECT_EQ(pickle.Run().number, 1);
  EXPECT_EQ(pickle.consumed(), 3U);
  EXPECT_EQ(pickle.Run().number, 2);
}

}  // namespace
}  // namespace cohort::trainer::pt
