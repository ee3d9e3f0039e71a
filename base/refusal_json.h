#ifndef LGPU_BASE_REFUSAL_JSON_H_
#define LGPU_BASE_REFUSAL_JSON_H_

#include <nlohmann/json.hpp>
#include <optional>

#include "lgpu/refusal.h"

namespace lgpu {

/// The one JSON of a refusal: `lgpu --json`, events, the payload of a status, `error.refusal` in Python.
/// Numbers and texts that are not known are left out; lists are there always.
nlohmann::json RefusalToJson(const Refusal& refusal);
/// Nothing where the JSON is no refusal.
std::optional<Refusal> RefusalFromJson(const nlohmann::json& json);

}  // namespace lgpu

#endif  // LGPU_BASE_REFUSAL_JSON_H_
