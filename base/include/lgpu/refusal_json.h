#ifndef LGPU_REFUSAL_JSON_H_
#define LGPU_REFUSAL_JSON_H_

#include <string>

#include "lgpu/export.h"
#include "lgpu/refusal.h"

namespace lgpu {

/// The refusal as JSON in one line, as under `refusal` in `lgpu --json` (docs/statistics.md, Of a refusal).
LGPU_API std::string RefusalJson(const Refusal& refusal);

}  // namespace lgpu

#endif  // LGPU_REFUSAL_JSON_H_
