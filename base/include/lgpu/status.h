#ifndef LGPU_STATUS_H_
#define LGPU_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function with the error of `expression`, an absl::Status, if it has one.
#define LGPU_RETURN_IF_ERROR(expression)                              \
  do {                                                                \
    if (absl::Status lgpu_status = (expression); !lgpu_status.ok()) { \
      return lgpu_status;                                             \
    }                                                                 \
  } while (false)

// LGPU_ASSIGN_OR_RETURN(declaration, expression): evaluates `expression`, an absl::StatusOr, and
// returns its error from the enclosing function, or moves its value into `declaration`.
#define LGPU_ASSIGN_OR_RETURN(declaration, expression) \
  LGPU_ASSIGN_OR_RETURN_IMPL_(LGPU_CONCAT_(lgpu_status_or_, __LINE__), declaration, expression)

#define LGPU_ASSIGN_OR_RETURN_IMPL_(result, declaration, expression) \
  auto result = (expression);                                        \
  if (!result.ok()) return std::move(result).status();               \
  declaration = *std::move(result)
#define LGPU_CONCAT_(a, b) LGPU_CONCAT_IMPL_(a, b)
#define LGPU_CONCAT_IMPL_(a, b) a##b

#endif  // LGPU_STATUS_H_
