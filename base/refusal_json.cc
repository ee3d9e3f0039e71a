#include "base/refusal_json.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/refusal_fields.h"
#include "lgpu/refusal_json.h"

namespace lgpu {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr double kMostSeconds = 4e12;  // a double has their milliseconds exactly

/// A time is in seconds, and its key says so.
template <typename T>
constexpr const char* KeyOf(const T&, const char* name) {
  return name;
}
constexpr const char* KeyOf(const std::optional<milliseconds>&, const char* name) {
  return std::string_view(name) == "idle_ms" ? "idle_seconds" : "waited_seconds";
}

struct Writer {
  static Json Of(RefusalReason reason) { return std::string(RefusalReasonName(reason)); }
  static Json Of(const std::string& text) { return text; }
  static Json Of(std::int64_t number) { return number; }
  static Json Of(std::uint64_t number) { return number; }
  static Json Of(Bytes amount) { return amount.count(); }
  static Json Of(milliseconds time) { return static_cast<double>(time.count()) / 1e3; }
  static Json Of(const Refusal::Holder& holder) {
    Json json = Json::object();
#define LGPU_WRITE(member, name) Put(json, KeyOf(holder.member, #name), holder.member);
    LGPU_REFUSAL_HOLDER_FIELDS(LGPU_WRITE)
#undef LGPU_WRITE
    return json;
  }
  static Json Of(const Refusal::Owner& owner) {
    Json json = Json::object();
#define LGPU_WRITE(member, name) json[#name] = Of(owner.member);
    LGPU_REFUSAL_OWNER_FIELDS(LGPU_WRITE)
#undef LGPU_WRITE
    return json;
  }
  template <typename T>
  static Json Of(const std::vector<T>& list) {
    Json json = Json::array();
    for (const T& item : list) json.push_back(Of(item));
    return json;
  }

  template <typename T>
  static void Put(Json& json, const char* key, const T& value) {
    json[key] = Of(value);
  }
  template <typename T>
  static void Put(Json& json, const char* key, const std::optional<T>& value) {
    if (value) json[key] = Of(*value);
  }

  template <typename T>
  static void PutKnown(Json& json, const char* key, const T& value) {
    json[key] = Of(value);
  }
  static void PutKnown(Json& json, const char* key, const std::string& text) {
    if (!text.empty()) json[key] = text;
  }
  template <typename T>
  static void PutKnown(Json& json, const char* key, const std::optional<T>& value) {
    if (value) json[key] = Of(*value);
  }
};

struct Reader {
  /// False where the JSON is not of the type.
  static bool Read(const Json& json, RefusalReason& reason) {
    if (!json.is_string()) return false;
    // A reason that a later version added is kept as a refusal without one.
    for (int i = 0; i <= static_cast<int>(RefusalReason::kDescriptors); ++i) {
      const auto known = static_cast<RefusalReason>(i);
      if (json.get_ref<const std::string&>() == RefusalReasonName(known)) reason = known;
    }
    return true;
  }
  static bool Read(const Json& json, std::string& text) {
    if (json.is_string()) text = json.get<std::string>();
    return json.is_string();
  }
  static bool Read(const Json& json, std::int64_t& number) {
    const bool fits =
        json.is_number_integer() && (!json.is_number_unsigned() || json.get<std::uint64_t>() >> 63 == 0);
    if (fits) number = json.get<std::int64_t>();
    return fits;
  }
  static bool Read(const Json& json, std::uint64_t& number) {
    if (json.is_number_unsigned()) number = json.get<std::uint64_t>();
    return json.is_number_unsigned();
  }
  static bool Read(const Json& json, Bytes& amount) {
    std::uint64_t count = 0;
    const bool read = Read(json, count);
    amount = Bytes(count);
    return read;
  }
  static bool Read(const Json& json, milliseconds& time) {
    if (!json.is_number()) return false;
    time = milliseconds(std::llround(std::clamp(json.get<double>(), -kMostSeconds, kMostSeconds) * 1e3));
    return true;
  }
  static bool Read(const Json& json, Refusal::Holder& holder) {
    bool ok = json.is_object();
#define LGPU_READ(member, name) ok = ok && ReadMember(json, KeyOf(holder.member, #name), holder.member);
    LGPU_REFUSAL_HOLDER_FIELDS(LGPU_READ)
#undef LGPU_READ
    return ok;
  }
  static bool Read(const Json& json, Refusal::Owner& owner) {
    bool ok = json.is_object();
#define LGPU_READ(member, name) ok = ok && ReadMember(json, #name, owner.member);
    LGPU_REFUSAL_OWNER_FIELDS(LGPU_READ)
#undef LGPU_READ
    return ok;
  }
  template <typename T>
  static bool Read(const Json& json, std::vector<T>& list) {
    if (!json.is_array()) return false;
    for (const Json& item : json) {
      if (!Read(item, list.emplace_back())) return false;
    }
    return true;
  }

  /// A member that is not there is an error, unless it is a text or may be unknown.
  template <typename T>
  static bool ReadMember(const Json& json, const char* key, T& value) {
    const auto found = json.find(key);
    return found == json.end() ? std::is_same_v<T, std::string> : Read(*found, value);
  }
  template <typename T>
  static bool ReadMember(const Json& json, const char* key, std::optional<T>& value) {
    const auto found = json.find(key);
    return found == json.end() || Read(*found, value.emplace());
  }
};

}  // namespace

Json RefusalToJson(const Refusal& refusal) {
  Json json = Json::object();
#define LGPU_WRITE(member, name) Writer::PutKnown(json, KeyOf(refusal.member, #name), refusal.member);
  LGPU_REFUSAL_FIELDS(LGPU_WRITE)
#undef LGPU_WRITE
  return json;
}

std::string RefusalJson(const Refusal& refusal) {
  // A name that is no UTF-8 is shown with replacement characters; it never throws.
  return RefusalToJson(refusal).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<Refusal> RefusalFromJson(const Json& json) {
  std::optional<Refusal> refusal(std::in_place);
  bool ok = json.is_object();
#define LGPU_READ(member, name) \
  ok = ok && Reader::ReadMember(json, KeyOf(refusal->member, #name), refusal->member);
  LGPU_REFUSAL_FIELDS(LGPU_READ)
#undef LGPU_READ
  if (!ok) refusal.reset();
  return refusal;
}

}  // namespace lgpu
