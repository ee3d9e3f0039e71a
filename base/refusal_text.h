#ifndef LGPU_BASE_REFUSAL_TEXT_H_
#define LGPU_BASE_REFUSAL_TEXT_H_

#include <string>

#include "absl/status/status.h"
#include "lgpu/refusal.h"

namespace lgpu {

/// The two parts of FormatRefusal, for programs that print them apart. The headline says what happened and
/// where, in one line however long it is.
std::string RefusalHeadline(const Refusal& refusal);
/// The lines below the headline. Each begins with a line break and has at most 80 columns.
std::string RefusalDetails(const Refusal& refusal);

/// The headline of the refusal that `status` carries, or else the first line of its message.
std::string StatusHeadline(const absl::Status& status);

/// ", idle 12 min" where the holder's lease has been idle for half a minute or longer; otherwise "".
std::string IdleRemark(const Refusal::Holder& holder);

}  // namespace lgpu

#endif  // LGPU_BASE_REFUSAL_TEXT_H_
