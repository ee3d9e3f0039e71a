#ifndef LGPU_LGPU_H_
#define LGPU_LGPU_H_

// The client library of lgpu: everything that a program needs. Start with Context::Create (context.h).

// IWYU pragma: begin_exports
#include "lgpu/bytes.h"
#include "lgpu/config.h"
#include "lgpu/context.h"
#include "lgpu/device_scope.h"
#include "lgpu/dtype.h"
#include "lgpu/explain.h"
#include "lgpu/interrupt.h"
#include "lgpu/logical_device.h"
#include "lgpu/memory.h"
#include "lgpu/ops.h"
#include "lgpu/refusal.h"
#include "lgpu/shape.h"
#include "lgpu/status.h"
#include "lgpu/tensor.h"
#include "lgpu/tensor_export.h"
#include "lgpu/tensor_import.h"
// IWYU pragma: end_exports

#endif  // LGPU_LGPU_H_
