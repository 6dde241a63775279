// Texts as pickles of protocol 0 write them.
#pragma once

#include <string>
#include <string_view>

namespace cohort::trainer::pt {

// The UTF-8 text of a 'V' line: code points above 0xff are \uXXXX or \UXXXXXXXX, others a byte each.
std::string UnescapedText(std::string_view line);
// The text of an 'S' line: a str of Python 2 as it prints itself, with quotes.
std::string UnquotedText(std::string_view line);

}  // namespace cohort::trainer::pt
