#include "client/driver/environment.h"

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "client/driver/place_note.h"

namespace lgpu::shim {
namespace {

constexpr long kDefaultWait = 2000;
constexpr long kLongestWait = 86'400'000;

extern const PlaceNote place_note;
const PlaceNote place_note = {"lgpu-place-note", "", ""};

/// `lgpu run` writes the note into the file: the compiler must not assume it empty.
const PlaceNote& Note() {
  const PlaceNote* note = &place_note;
  __asm__ volatile("" : "+r"(note));
  return *note;
}

/// Whether this library is a copy that was made to limit a program.
bool IsCopy() { return Note().folder[0] != '\0'; }

std::string_view NotedVariables() {
  return {Note().variables, ::strnlen(Note().variables, PlaceNote::kRoom)};
}

std::string Noted(std::string_view name) {
  std::string_view rest = NotedVariables();
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.size() > name.size() && line.substr(0, name.size()) == name && line[name.size()] == '=') {
      return std::string(line.substr(name.size() + 1));
    }
  }
  return {};
}

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// A container's copy: no variable of an image or of its user takes the limit away.
bool IsFixed() { return Noted("LGPU_SHIM") == "on"; }
bool IsOff() { return Variable("LGPU_SHIM") == "off" && !IsFixed(); }

/// Whether the note's variables count: this process has lost its own, or may have none.
bool IsNoted() { return IsFixed() || (Variable("LGPU_LEASE").empty() && !Noted("LGPU_LEASE").empty()); }

}  // namespace

std::optional<LeaseSession::Options> OptionsFromEnvironment(const char* client) {
  if (IsOff()) return std::nullopt;
  const auto find = [is_noted = IsNoted()](const char* name) {
    return is_noted ? Noted(name) : Variable(name);
  };
  LeaseSession::Options options;
  options.lease = find("LGPU_LEASE");
  if (options.lease.empty() && !IsCopy()) return std::nullopt;
  options.directory = find("LGPU_ENDPOINT");
  if (options.directory.empty()) options.directory = "/run/lgpu";
  options.client = client;
  const std::string wait = find("LGPU_MEMORY_WAIT_MS");
  char* end = nullptr;
  const long wanted = std::strtol(wait.c_str(), &end, 10);
  const bool is_number = !wait.empty() && *end == '\0' && wanted >= 0 && wanted <= kLongestWait;
  options.memory_wait = std::chrono::milliseconds(is_number ? wanted : kDefaultWait);
  return options;
}

void RestoreVisibleDevices() {
  if (!IsNoted() || IsOff()) return;
  const std::string visible = Noted("CUDA_VISIBLE_DEVICES");
  if (!visible.empty()) ::setenv("CUDA_VISIBLE_DEVICES", visible.c_str(), /*overwrite=*/0);
}

}  // namespace lgpu::shim
