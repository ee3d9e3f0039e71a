// lgpu_wire_generator DESCRIPTORS FOLDER MESSAGE...: writes the structs of proto/wire for the messages and
// all messages that these have as fields. DESCRIPTORS is what protoc --include_imports --descriptor_set_out
// makes. A file x.proto becomes FOLDER/proto/wire/x_messages.h; FOLDER/proto/every_message.h names each
// struct with its class of protobuf.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lgpu {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::OneofDescriptor;

[[noreturn]] void Fail(const std::string& text) {
  std::fprintf(stderr, "lgpu_wire_generator: %s\n", text.c_str());
  std::exit(1);
}

/// "session" of "lgpu/v1/session.proto".
std::string Stem(const FileDescriptor& file) { return std::filesystem::path(file.name()).stem(); }

std::string Guard(std::string path) {
  for (char& c : path) {
    const auto byte = static_cast<unsigned char>(c);
    c = std::isalnum(byte) ? static_cast<char>(std::toupper(byte)) : '_';
  }
  return "LGPU_" + path + "_";
}

/// "Refusal::Holder" of "lgpu.v1.Refusal.Holder" with "::" between the names.
std::string Scoped(const std::string& full_name, const FileDescriptor& file,
                   std::string_view separator = "::") {
  std::string name;
  const std::string inside = full_name.substr(file.package().size() + 1);
  for (const char c : inside) c == '.' ? name += separator : name += c;
  return name;
}

/// "kMapCount" of REASON_MAP_COUNT of the enum Reason.
std::string Enumerator(const std::string& value, const EnumDescriptor& type) {
  std::string prefix;
  for (const char c : type.name()) {
    if (std::isupper(static_cast<unsigned char>(c)) && !prefix.empty()) prefix += '_';
    prefix += static_cast<char>(std::toupper(c));
  }
  prefix += '_';
  if (value.rfind(prefix, 0) != 0) Fail("the names of " + type.full_name() + " have to begin with " + prefix);
  std::string name = "k";
  bool starts_word = true;
  for (const char c : value.substr(prefix.size())) {
    if (c != '_') name += static_cast<char>(starts_word ? c : std::tolower(c));
    starts_word = c == '_';
  }
  return name;
}

/// The type of one value of the field.
std::string ValueType(const FieldDescriptor& field) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_BOOL:
      return "bool";
    case FieldDescriptor::TYPE_UINT32:
      return "std::uint32_t";
    case FieldDescriptor::TYPE_UINT64:
      return "std::uint64_t";
    case FieldDescriptor::TYPE_INT32:
      return "std::int32_t";
    case FieldDescriptor::TYPE_INT64:
      return "std::int64_t";
    case FieldDescriptor::TYPE_STRING:
      return "std::string";
    case FieldDescriptor::TYPE_BYTES:
      return "Blob";
    case FieldDescriptor::TYPE_ENUM:
      return Scoped(field.enum_type()->full_name(), *field.enum_type()->file());
    case FieldDescriptor::TYPE_MESSAGE:
      if (!field.is_map()) return Scoped(field.message_type()->full_name(), *field.message_type()->file());
      break;
    default:
      break;
  }
  Fail(field.full_name() + ": proto/wire/encoding.h has no type for " + field.type_name() +
       (field.is_map() ? " of a map" : ""));
}

std::string MemberType(const FieldDescriptor& field) {
  const std::string value = ValueType(field);
  if (field.is_repeated()) {
    const bool is_unpacked = field.is_packable() && !field.is_packed();
    if (is_unpacked) Fail(field.full_name() + ": a list of numbers has to be packed");
    return "std::vector<" + value + ">";
  }
  if (!field.has_presence()) return value;
  const bool is_text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  if (is_text) Fail(field.full_name() + ": proto/wire/encoding.h has no optional texts");
  return "std::optional<" + value + ">";
}

std::string_view InitialValue(const FieldDescriptor& field) {
  if (field.is_repeated() || field.has_presence()) return "";
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return "";
    case FieldDescriptor::CPPTYPE_BOOL:
      return " = false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return "{}";
    default:
      return " = 0";
  }
}

/// The messages that are used, those of fields before the ones that have them.
class UsedMessages {
 public:
  void Add(const Descriptor& message) {
    if (std::find(open_.begin(), open_.end(), &message) != open_.end()) {
      Fail(message.full_name() + " contains itself");
    }
    if (!known_.insert(&message).second) return;
    listed_.push_back(&message);
    open_.push_back(&message);
    for (int i = 0; i < message.field_count(); ++i) {
      const FieldDescriptor& field = *message.field(i);
      if (field.message_type() != nullptr) Add(*field.message_type());
      if (field.enum_type() != nullptr) AddEnum(*field.enum_type());
    }
    open_.pop_back();
    Place(*Outermost(message));
  }
  bool Has(const Descriptor& message) const { return known_.count(&message) != 0; }
  bool Has(const EnumDescriptor& type) const { return enums_.count(&type) != 0; }
  /// In the order in which they were met.
  const std::vector<const Descriptor*>& listed() const { return listed_; }
  /// Messages that are in no other one, in the order in which C++ needs them.
  const std::vector<const Descriptor*>& placed() const { return placed_; }
  const std::vector<const EnumDescriptor*>& free_enums() const { return free_enums_; }

 private:
  static const Descriptor* Outermost(const Descriptor& message) {
    const Descriptor* outer = &message;
    while (outer->containing_type() != nullptr) outer = outer->containing_type();
    return outer;
  }
  void Place(const Descriptor& message) {
    const bool is_ready = std::find(open_.begin(), open_.end(), &message) == open_.end();
    const bool is_new = std::find(placed_.begin(), placed_.end(), &message) == placed_.end();
    if (is_ready && is_new) placed_.push_back(&message);
  }
  void AddEnum(const EnumDescriptor& type) {
    if (!enums_.insert(&type).second) return;
    if (type.containing_type() == nullptr) {
      free_enums_.push_back(&type);
    } else if (!Has(*type.containing_type())) {
      Add(*type.containing_type());
    }
  }

  std::set<const Descriptor*> known_;
  std::set<const EnumDescriptor*> enums_;
  std::vector<const Descriptor*> open_, listed_, placed_;
  std::vector<const EnumDescriptor*> free_enums_;
};

/// A Writer writes the structs of one file.
class Writer {
 public:
  Writer(const UsedMessages& used, std::string& out) : used_(used), out_(out) {}

  void Enum(const EnumDescriptor& type, const std::string& indent) {
    out_ += indent + "enum class " + type.name() + " : std::int32_t {\n";
    for (int i = 0; i < type.value_count(); ++i) {
      const auto& value = *type.value(i);
      out_ += indent + "  " + Enumerator(value.name(), type) + " = " + std::to_string(value.number()) + ",\n";
    }
    out_ += indent + "};\n";
  }

  void Message(const Descriptor& message, const std::string& indent) {
    out_ += indent + "/// " + message.full_name() + "\n" + indent + "struct " + message.name() + " {\n";
    const std::string inner = indent + "  ";
    for (int i = 0; i < message.enum_type_count(); ++i) {
      if (used_.Has(*message.enum_type(i))) Enum(*message.enum_type(i), inner);
    }
    for (int i = 0; i < message.nested_type_count(); ++i) {
      if (used_.Has(*message.nested_type(i))) Message(*message.nested_type(i), inner);
    }
    if (used_.Has(message)) {
      Members(message, inner);
      Fields(message, inner);
    }
    out_ += indent + "};\n";
  }

 private:
  void Members(const Descriptor& message, const std::string& indent) {
    for (int i = 0; i < message.field_count(); ++i) {
      const FieldDescriptor& field = *message.field(i);
      const OneofDescriptor* const one_of = field.real_containing_oneof();
      if (one_of == nullptr) {
        out_ += indent + MemberType(field) + " " + field.name();
        out_.append(InitialValue(field)).append(";\n");
      } else if (one_of->field(0) == &field) {
        OneOf(*one_of, indent);
      }
    }
  }
  void OneOf(const OneofDescriptor& one_of, const std::string& indent) {
    if (one_of.containing_type()->real_oneof_decl_count() != 1) {
      Fail(one_of.containing_type()->full_name() + ": a message may have one oneof");
    }
    out_ += indent + "std::variant<std::monostate";
    std::set<const Descriptor*> types;
    for (int i = 0; i < one_of.field_count(); ++i) {
      const FieldDescriptor& field = *one_of.field(i);
      if (field.message_type() == nullptr || !types.insert(field.message_type()).second) {
        Fail(field.full_name() + ": a oneof has messages, each once");
      }
      out_ += ", " + ValueType(field);
    }
    out_ += "> " + one_of.name() + ";\n" + indent + "/// The " + one_of.name() + ", if it is this one.\n";
    out_ += indent + "template <typename T>\n" + indent + "const T* Get() const {\n";
    out_ += indent + "  return std::get_if<T>(&" + one_of.name() + ");\n" + indent + "}\n";
  }
  void Fields(const Descriptor& message, const std::string& indent) {
    std::vector<const FieldDescriptor*> fields;
    for (int i = 0; i < message.field_count(); ++i) fields.push_back(message.field(i));
    std::sort(fields.begin(), fields.end(),
              [](const auto* a, const auto* b) { return a->number() < b->number(); });
    out_ += indent + "static void Fields([[maybe_unused]] auto&& visit, [[maybe_unused]] auto& m) {\n";
    for (const FieldDescriptor* const field : fields) {
      const OneofDescriptor* const one_of = field->real_containing_oneof();
      out_ += indent + "  visit";
      if (one_of != nullptr) out_ += ".template Case<" + ValueType(*field) + ">";
      out_ += "(" + std::to_string(field->number()) + ", m." +
              (one_of != nullptr ? one_of->name() : field->name()) + ");\n";
    }
    out_ += indent + "}\n";
  }

  const UsedMessages& used_;
  std::string& out_;
};

void WriteFile(const std::filesystem::path& folder, const std::string& name, const std::string& body) {
  std::filesystem::create_directories((folder / name).parent_path());
  std::ofstream file(folder / name, std::ios::binary);
  const std::string guard = Guard(name);
  file << "// Made by lgpu_wire_generator.\n\n#ifndef " << guard << "\n#define " << guard << "\n\n"
       << body << "\n#endif  // " << guard << "\n";
  if (!file.flush()) Fail("cannot write " + (folder / name).string());
}

std::string StructsOf(const FileDescriptor& file, const std::set<const FileDescriptor*>& files,
                      const UsedMessages& used) {
  std::string text;
  for (const std::string_view header : {"cstdint", "optional", "string", "variant", "vector"}) {
    text.append("#include <").append(header).append(">\n");
  }
  text += "\n#include \"proto/wire/encoding.h\"\n";
  for (int i = 0; i < file.dependency_count(); ++i) {
    if (files.count(file.dependency(i)) == 0) continue;
    text += "#include \"proto/wire/" + Stem(*file.dependency(i)) + "_messages.h\"\n";
  }
  text += "\n/// The messages of " + file.name() + ", which says what each field means, as plain structs.\n";
  text += "\nnamespace lgpu::wire {\n";
  Writer writer(used, text);
  for (const EnumDescriptor* const type : used.free_enums()) {
    if (type->file() != &file) continue;
    text += '\n';
    writer.Enum(*type, "");
  }
  for (const Descriptor* const message : used.placed()) {
    if (message->file() != &file) continue;
    text += '\n';
    writer.Message(*message, "");
  }
  return text + "\n}  // namespace lgpu::wire\n";
}

std::string EveryMessage(const std::set<const FileDescriptor*>& files, const UsedMessages& used) {
  std::string text;
  std::set<std::string> includes;
  for (const FileDescriptor* const file : files) {
    includes.insert("proto/wire/" + Stem(*file) + "_messages.h");
    includes.insert(std::filesystem::path(file->name()).replace_extension(".pb.h"));
  }
  for (const std::string& include : includes) text += "#include \"" + include + "\"\n";
  text +=
      "\nnamespace lgpu {\n\n/// Calls `visit.template operator()<Struct, Generated>()` for every message "
      "that lgpu "
      "codes itself.\ntemplate <typename Visit>\nvoid ForEachWireMessage(Visit&& visit) {\n";
  for (const Descriptor* const message : used.listed()) {
    const FileDescriptor& file = *message->file();
    std::string generated = "::";
    for (const char c : file.package()) c == '.' ? generated += "::" : generated += c;
    generated += "::" + Scoped(message->full_name(), file, "_");
    text += "  visit.template operator()<wire::" + Scoped(message->full_name(), file) + ", " + generated +
            ">();\n";
  }
  return text + "}\n\n}  // namespace lgpu\n";
}

}  // namespace
}  // namespace lgpu

int main(int argc, char** argv) {
  using namespace lgpu;
  if (argc < 4) Fail("usage: lgpu_wire_generator DESCRIPTORS FOLDER MESSAGE...");
  google::protobuf::FileDescriptorSet set;
  std::ifstream input(argv[1], std::ios::binary);
  if (!input || !set.ParseFromIstream(&input)) Fail(std::string("cannot read ") + argv[1]);
  google::protobuf::DescriptorPool pool;
  for (const google::protobuf::FileDescriptorProto& file : set.file()) {
    if (pool.BuildFile(file) == nullptr) Fail(std::string(argv[1]) + ": cannot use " + file.name());
  }
  UsedMessages used;
  for (int i = 3; i < argc; ++i) {
    const Descriptor* const message = pool.FindMessageTypeByName(argv[i]);
    if (message == nullptr) Fail(std::string("there is no message ") + argv[i]);
    used.Add(*message);
  }
  std::set<const FileDescriptor*> files;
  std::set<std::string> names;
  for (const Descriptor* const message : used.listed()) {
    files.insert(message->file());
    if (!names.insert(Scoped(message->full_name(), *message->file())).second) {
      Fail("two messages have the name " + message->name());
    }
  }
  for (const EnumDescriptor* const type : used.free_enums()) files.insert(type->file());
  const std::filesystem::path folder = argv[2];
  for (const FileDescriptor* const file : files) {
    WriteFile(folder, "proto/wire/" + Stem(*file) + "_messages.h", StructsOf(*file, files, used));
  }
  WriteFile(folder, "proto/every_message.h", EveryMessage(files, used));
  return 0;
}
