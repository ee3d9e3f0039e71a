#ifndef LGPU_CLIENT_RUNTIME_C_HANDLES_H_
#define LGPU_CLIENT_RUNTIME_C_HANDLES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lgpu/c/lgpu.h"
#include "lgpu/lgpu.h"

// The handles of the C interface.

struct lgpu_refusal {
  lgpu::Refusal refusal;
};
struct lgpu_status {
  absl::Status status;
  std::string message;
  mutable std::optional<lgpu_refusal> refusal = {};  // once it was asked for
};
struct lgpu_options {
  lgpu::ContextOptions options;
};
struct lgpu_context {
  lgpu::Context context;
};
struct lgpu_tensor {
  lgpu::Tensor tensor;
};
struct lgpu_scope {
  lgpu::DeviceScope scope;
};
struct lgpu_policy_scope {
  lgpu::DevicePolicyScope scope;
};
struct lgpu_config {
  lgpu::Config config;
};
struct lgpu_strings {
  std::vector<std::string> strings;
};
struct lgpu_explanation {
  lgpu::PlacementExplanation explanation;
  std::string message;
  std::string text;
};

namespace lgpu::c {

inline lgpu_code Report(const absl::Status& status, lgpu_status* to) {
  if (to != nullptr) {
    to->status = status;
    to->message = std::string(status.message());
    to->refusal.reset();
  }
  return static_cast<lgpu_code>(status.raw_code());
}

inline lgpu_code Missing(const char* what, lgpu_status* to) {
  return Report(absl::InvalidArgumentError(std::string(what) + " is NULL"), to);
}

inline std::string Text(const char* text) { return text == nullptr ? std::string() : std::string(text); }

/// The C interface writes 0 where no limit is given.
inline std::optional<Bytes> LimitOf(std::uint64_t bytes) {
  return bytes == 0 ? std::nullopt : std::optional<Bytes>(bytes);
}

inline lgpu_strings* NewStrings(std::vector<std::string> strings) {
  return std::make_unique<lgpu_strings>(lgpu_strings{std::move(strings)}).release();
}

/// Hands a result over as a handle.
inline lgpu_code Deliver(absl::StatusOr<Tensor> result, lgpu_tensor** to, lgpu_status* status) {
  if (to == nullptr) return Missing("the place for the result", status);
  if (result.ok()) *to = std::make_unique<lgpu_tensor>(lgpu_tensor{*std::move(result)}).release();
  return Report(result.status(), status);
}

}  // namespace lgpu::c

#endif  // LGPU_CLIENT_RUNTIME_C_HANDLES_H_
