#include "cohort/trainer/compat/pt/object_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <optional>

namespace cohort::trainer::pt {
namespace {

using Kind = Object::Kind;

constexpr size_t kLongest = 400;
constexpr int kDeepest = 20;

bool IsNumpy(std::string_view name, std::string_view function) {
  return name == Text("numpy.core.multiarray.", function) || name == Text("numpy._core.multiarray.", function);
}

std::string Hex(char byte) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto value = static_cast<uint8_t>(byte);
  return {kDigits[value >> 4], kDigits[value & 15]};
}

// The type that numpy writes as "f8".
std::string NumpyScalar(const std::vector<const Object*>& arguments) {
  const bool described = !arguments.empty() && !arguments[0]->arguments().empty();
  const std::string_view code = described ? arguments[0]->arguments()[0]->text : "";
  int bytes = 0;
  if (code.size() > 1) std::from_chars(code.data() + 1, code.data() + code.size(), bytes);
  switch (code.empty() ? '\0' : code[0]) {
    case 'b':
      return "numpy.bool_";
    case 'i':
      return Text("numpy.int", bytes * 8);
    case 'u':
      return Text("numpy.uint", bytes * 8);
    case 'f':
      return Text("numpy.float", bytes * 8);
    case 'c':
      return Text("numpy.complex", bytes * 8);
    default:
      return "numpy scalar";
  }
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 64> text{};
  const bool fixed = value == 0 || (std::abs(value) >= 1e-4 && std::abs(value) < 1e16);
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string printed(text.data(), end.ptr);
  if (fixed && printed.find('.') == std::string::npos) printed += ".0";
  return printed;
}

std::string IntText(const Object& object) {
  if (object.text.empty()) return Text(object.number);
  if (object.text.find_first_not_of("-0123456789") == std::string_view::npos) return std::string(object.text);
  std::string digits = "0x";
  for (auto byte = object.text.rbegin(); byte != object.text.rend(); ++byte) {
    digits += Hex(*byte);
  }
  return digits;
}

std::string Quoted(std::string_view text, bool bytes) {
  std::string quoted = bytes ? "b'" : "'";
  for (const char letter : text.substr(0, kLongest)) {
    if (letter == '\'' || letter == '\\') quoted += '\\';
    if (static_cast<uint8_t>(letter) < 0x20 || (bytes && static_cast<uint8_t>(letter) >= 0x7f)) {
      quoted += "\\x" + Hex(letter);
    } else {
      quoted += letter;
    }
  }
  return quoted + "'";
}

// bytes, as protocols 0 to 2 write them: _codecs.encode(TEXT, "latin1").
std::optional<std::string> EncodedBytes(const Object& call) {
  if (CalleeOf(call) != "_codecs.encode" || call.arguments().empty()) return std::nullopt;
  const std::string_view text = call.arguments()[0]->text;
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    auto value = static_cast<uint8_t>(text[i]);
    if ((value & 0xe0) == 0xc0 && i + 1 < text.size()) {  // UTF-8 of two bytes
      value = static_cast<uint8_t>((value & 0x03) << 6 | (static_cast<uint8_t>(text[++i]) & 0x3f));
    }
    bytes += static_cast<char>(value);
  }
  return bytes;
}

void Print(const Object& object, int depth, std::string& text);

void PrintAll(const std::vector<Object*>& items, int depth, std::string& text) {
  for (size_t i = 0; i < items.size() && text.size() < kLongest; ++i) {
    if (i > 0) text += ", ";
    Print(*items[i], depth + 1, text);
  }
}

void PrintEntries(const Object& object, int depth, std::string& text) {
  text += '{';
  for (const auto& [key, value] : object.entries()) {
    if (text.size() >= kLongest) break;
    if (text.back() != '{') text += ", ";
    Print(*key, depth + 1, text);
    text += ": ";
    Print(*value, depth + 1, text);
  }
  text += '}';
}

void Print(const Object& object, int depth, std::string& text) {
  if (depth > kDeepest || text.size() >= kLongest) return;
  switch (object.kind) {
    case Kind::kNone:
      text += "None";
      break;
    case Kind::kBool:
      text += object.number != 0 ? "True" : "False";
      break;
    case Kind::kInt:
      text += IntText(object);
      break;
    case Kind::kFloat:
      text += FloatText(object.real);
      break;
    case Kind::kText:
    case Kind::kBytes:
      text += Quoted(object.text, object.kind == Kind::kBytes);
      break;
    case Kind::kName:
      text += object.text;
      break;
    case Kind::kTuple:
      text += '(';
      PrintAll(object.items(), depth, text);
      text += object.items().size() == 1 ? ",)" : ")";
      break;
    case Kind::kList:
      text += '[';
      PrintAll(object.items(), depth, text);
      text += ']';
      break;
    case Kind::kSet:
      text += "frozenset({";
      PrintAll(object.items(), depth, text);
      text += "})";
      break;
    case Kind::kDictionary:
      PrintEntries(object, depth, text);
      break;
    case Kind::kReference:
      text += '<';
      Print(*object.parts->callee, depth + 1, text);
      text += '>';
      break;
    case Kind::kCall:
      if (const std::optional<std::string> bytes = EncodedBytes(object)) {
        text += Quoted(*bytes, /*bytes=*/true);
        break;
      }
      text += CalleeOf(object);
      text += '(';
      PrintAll(object.arguments(), depth, text);
      PrintAll(object.items(), depth, text);
      text += ')';
      if (!object.entries().empty()) PrintEntries(object, depth, text);
      if (object.parts->state != nullptr) Print(*object.parts->state, depth + 1, text);
      break;
  }
}

}  // namespace

std::string_view CalleeOf(const Object& object) {
  if (object.parts == nullptr || object.parts->callee == nullptr) return "";
  const Object& callee = *object.parts->callee;
  if (callee.kind == Kind::kName) return callee.text;
  // ("module", class, file, source): classes of modules in files before PyTorch 1.6
  if (callee.kind != Kind::kReference) return "";
  const std::vector<Object*>& id = callee.parts->callee->items();
  return id.size() >= 2 && id[0]->text == "module" && id[1]->kind == Kind::kName ? id[1]->text : "";
}

Instance InstanceOf(const Object& call) {
  Instance made{.type = CalleeOf(call), .arguments = {call.arguments().begin(), call.arguments().end()}};
  std::vector<const Object*>& arguments = made.arguments;
  if (made.type == "copyreg._reconstructor" && arguments.size() == 3) {  // class, base, the base's value
    made.type = arguments[0]->text;
    const Object& value = *arguments[2];
    if (value.kind == Kind::kTuple || value.kind == Kind::kList || value.kind == Kind::kNone) {
      arguments.assign(value.items().begin(), value.items().end());
    } else {
      arguments = {&value};
    }
  } else if (made.type == "builtins.getattr" && arguments.size() == 2 && arguments[0]->kind == Kind::kName) {
    made.type = arguments[0]->text;  // a member of an enumeration
    arguments.erase(arguments.begin());
  } else if ((made.type == "copyreg.__newobj__" || IsNumpy(made.type, "_reconstruct")) && !arguments.empty()) {
    made.type = arguments[0]->text;
    arguments.erase(arguments.begin());
  }
  return made;
}

std::string TypeOf(const Object& object) {
  switch (object.kind) {
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kText:
      return "str";
    case Kind::kBytes:
      return "bytes";
    case Kind::kName:
      return std::string(object.text);
    case Kind::kTuple:
      return "tuple";
    case Kind::kList:
      return "list";
    case Kind::kSet:
      return "set";
    case Kind::kDictionary:
      return "dict";
    case Kind::kReference: {
      const std::vector<Object*>& id = object.parts->callee->items();
      return id.size() >= 2 && id[1]->kind == Kind::kName ? std::string(id[1]->text) : "reference";
    }
    case Kind::kCall:
      break;
  }
  const Instance made = InstanceOf(object);
  if (IsNumpy(made.type, "scalar")) return NumpyScalar(made.arguments);
  if (made.type == "_codecs.encode") return "bytes";
  if (made.type.starts_with("builtins.")) return std::string(made.type.substr(9));
  return made.type.empty() ? "a call of no name" : std::string(made.type);
}

std::string Printed(const Object& key) {
  std::string text;
  Print(key, 0, text);
  if (text.size() > kLongest) text.resize(kLongest);
  return text;
}

std::string KeyText(const Object& key) { return key.kind == Kind::kText ? std::string(key.text) : Printed(key); }

}  // namespace cohort::trainer::pt
