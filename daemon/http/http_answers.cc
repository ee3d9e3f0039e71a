#include "daemon/http/http_answers.h"

#include <string>

#include "proto/messages_json.h"

namespace lgpu::daemon {
namespace {

constexpr char kJsonType[] = "application/json";

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return 503;
    case absl::StatusCode::kUnimplemented:
      return 501;
    default:
      return 500;
  }
}

}  // namespace

void Answer(httplib::Response& response, int status, const nlohmann::json& body) {
  response.status = status;
  response.set_content(JsonLine(body), kJsonType);
}

void Fail(httplib::Response& response, int status, const absl::Status& why) {
  Answer(response, status,
         {{"schema", "lgpu.error/v1"},
          {"code", absl::StatusCodeToString(why.code())},
          {"message", std::string(why.message())}});
}

void Fail(httplib::Response& response, const absl::Status& why) { Fail(response, HttpStatusOf(why), why); }

}  // namespace lgpu::daemon
