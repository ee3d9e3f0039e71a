#ifndef LGPU_DAEMON_HTTP_HTTP_ANSWERS_H_
#define LGPU_DAEMON_HTTP_HTTP_ANSWERS_H_

#include <httplib.h>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace lgpu::daemon {

// The answers of the HTTP port: JSON, and errors as JSON ("lgpu.error/v1").

/// Answers with JSON.
void Answer(httplib::Response& response, int status, const nlohmann::json& body);
/// Answers with an error and its HTTP status.
void Fail(httplib::Response& response, int status, const absl::Status& why);
/// The same with the HTTP status that fits to the error.
void Fail(httplib::Response& response, const absl::Status& why);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_HTTP_HTTP_ANSWERS_H_
