#ifndef LGPU_CLIENT_RUNTIME_LEASE_COMMON_H_
#define LGPU_CLIENT_RUNTIME_LEASE_COMMON_H_

#include <string>
#include <string_view>

#include "lgpu/context.h"

namespace lgpu {

/// "/job:localhost/replica:0/task:0/device:GPU:<index>".
std::string FullDeviceName(int index);

/// A line for the people who read the log: to the options' sink, else to stderr.
void LogNote(const ContextOptions& options, std::string_view line);

}  // namespace lgpu

#endif  // LGPU_CLIENT_RUNTIME_LEASE_COMMON_H_
