#ifndef LGPU_CLI_EVENT_LINES_H_
#define LGPU_CLI_EVENT_LINES_H_

#include <string>

#include "lgpu/v1/events.pb.h"

namespace lgpu::cli {

/// "12:03:58.123  train  lease train: GPU:0 = ..."; the further lines of a text are indented under the first.
std::string FormatEvent(const v1::Event& event);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_EVENT_LINES_H_
