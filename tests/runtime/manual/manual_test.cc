// One description of a command line, and the forms that are made of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "CLI/CLI.hpp"
#include "cohort/runtime/manual/command.h"
#include "cohort/runtime/manual/describe.h"
#include "cohort/runtime/manual/forms.h"
#include "cohort/runtime/manual/notes.h"
#include "cohort/runtime/manual/shell_word.h"

namespace cohort::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(Values, AValuesNameSaysWhatCompletesIt) {
  EXPECT_EQ(CompletesOf("FILE"), Completes::kFile);
  EXPECT_EQ(CompletesOf("FOLDER"), Completes::kFolder);
  EXPECT_EQ(CompletesOf("HOSTS"), Completes::kHosts);
  EXPECT_EQ(CompletesOf("N"), Completes::kNothing);
  EXPECT_THAT(WordsOf("core|numa|none"), ElementsAre("core", "numa", "none"));
  EXPECT_THAT(WordsOf("given|natural|file:FILE"), ElementsAre("given", "natural"));
  EXPECT_THAT(WordsOf("N|MIN:MAX"), IsEmpty());
  EXPECT_THAT(WordsOf("core"), IsEmpty());
  EXPECT_EQ(CompletesOf("a|b"), Completes::kWords);
  EXPECT_EQ(CompletesOf("NAME", {"slurm", "local"}), Completes::kWords);
}

TEST(Notes, IndentedLinesStayAndOthersFlow) {
  const auto blocks = ReadNotes("Examples:\n  a   b\n  c\nText that\ngoes on.\n\nMore.\nExit status: 0\n");
  std::vector<std::string> texts;
  for (const NoteBlock& block : blocks) texts.push_back(block.text);
  EXPECT_THAT(texts, ElementsAre("Examples", "a   b\nc", "Notes", "Text that goes on.", "More.", "Exit status", "0"));
}

// A program with every kind of option.
ManualCommand Sample() {
  static std::string text;
  static int number = 4;
  static bool flag = false;
  CLI::App app("Does 'things' to files.");
  app.add_option("-b,--bind", text, "Bind [ranks]: each to its part")->type_name("core|numa|none");
  app.add_option("--ranks", number, "size of the group")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--kind", text, "of call")->check(CLI::IsMember({"ring", "tree"}));
  app.add_flag("--now", flag, "Don't wait");
  app.add_flag("--hidden", flag)->group("");
  CLI::App* const inner = app.add_subcommand("list", "Lists files. And more");
  inner->add_option("file", text, "the list")->type_name("FILE");
  app.add_subcommand("clear", "Removes all files");
  app.footer("Examples:\n  sample --bind core\n.dots begin a line\n");
  return Describe(app, "sample");
}

TEST(Describe, ReadsTheParsersOptions) {
  const ManualCommand sample = Sample();
  ASSERT_EQ(sample.options.size(), 5u);  // with --help
  EXPECT_THAT(sample.options[1].names, ElementsAre("-b", "--bind"));
  EXPECT_THAT(ChoicesOf(sample.options[1]), ElementsAre("core", "numa", "none"));
  EXPECT_EQ(HelpOf(sample.options[2]), "size of the group (1 to 64; 4 unless given)");
  EXPECT_THAT(ChoicesOf(sample.options[3]), ElementsAre("ring", "tree"));
  EXPECT_EQ(sample.options[4].value, "");
  EXPECT_EQ(HelpOf(sample.options[0]), "Print the options and exit");
  ASSERT_EQ(sample.commands.size(), 2u);
  EXPECT_EQ(sample.commands[0].name, "list");
  EXPECT_THAT(sample.commands[0].options, IsEmpty());
  EXPECT_EQ(sample.commands[0].notes, "");
}

TEST(Forms, EachHasEveryOption) {
  for (const char* const form : {"man", "markdown", "bash", "zsh", "fish"}) {
    const auto text = Form(Sample(), form, "cohort 1.2.3");
    ASSERT_TRUE(text.has_value()) << form;
    for (const char* const name : {"bind", "ranks", "now", "list"}) EXPECT_THAT(*text, HasSubstr(name)) << form;
    EXPECT_THAT(*text, Not(HasSubstr("hidden"))) << form;
  }
  EXPECT_FALSE(Form(Sample(), "pdf", "").has_value());
}

TEST(Forms, ACommandThatNothingFollowsEndsInNoBlank) {
  EXPECT_THAT(*Form(Sample(), "markdown", ""), HasSubstr("\n## `sample clear`\n"));
  EXPECT_THAT(*Form(Sample(), "man", ""), HasSubstr("\n.SS sample clear\n"));
  EXPECT_THAT(*Form(Sample(), "man", ""), HasSubstr("\\fBsample clear\\fR\n"));
}

TEST(ShellWord, ShellsTakeTheTextLiterally) { EXPECT_EQ(ShellWord("it's $HOME"), "'it'\\''s $HOME'"); }

TEST(Forms, TheManualPageEscapesWhatSteersRoff) {
  const std::string page = *Form(Sample(), "man", "cohort 1.2.3");
  EXPECT_THAT(page, HasSubstr("\n\\&.dots begin a line"));
  EXPECT_THAT(page, HasSubstr("Does \\(aqthings\\(aq"));
  EXPECT_THAT(page, HasSubstr("\\fB\\-\\-bind\\fR"));
}

}  // namespace
}  // namespace cohort::runtime
