#include "python/module/errors.h"

#include <nanobind/stl/string.h>

#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "lgpu/refusal.h"

namespace lgpu::python {

namespace nb = nanobind;

namespace {

void Put(nb::dict& dict, const char* key, const std::string& value) {
  if (!value.empty()) dict[key] = value;
}
void Put(nb::dict& dict, const char* key, const std::optional<Bytes>& value) {
  if (value) dict[key] = value->count();
}

/// The fields of refusal.proto; unknown values are left out.
nb::dict DictOf(const Refusal& refusal) {
  nb::dict dict;
  dict["reason"] = std::string(RefusalReasonName(refusal.reason));
  Put(dict, "device", refusal.device);
  Put(dict, "lease", refusal.lease);
  Put(dict, "what", refusal.what);
  dict["asked_bytes"] = refusal.asked.count();
  Put(dict, "limit_bytes", refusal.limit);
  Put(dict, "used_bytes", refusal.used);
  Put(dict, "held_bytes", refusal.held);
  Put(dict, "peak_used_bytes", refusal.peak_used);
  if (refusal.live_blocks) dict["live_blocks"] = *refusal.live_blocks;
  Put(dict, "largest_free_block_bytes", refusal.largest_free_block);
  Put(dict, "card", refusal.card);
  Put(dict, "card_total_bytes", refusal.card_total);
  Put(dict, "card_free_bytes", refusal.card_free);
  Put(dict, "coming_back_bytes", refusal.coming_back);
  nb::list holders;
  for (const Refusal::Holder& holder : refusal.holders) {
    nb::dict one;
    Put(one, "lease", holder.lease);
    Put(one, "owner", holder.owner);
    if (holder.pid != 0) one["pid"] = holder.pid;
    Put(one, "device", holder.device);
    one["held_bytes"] = holder.held.count();
    one["guarantee_bytes"] = holder.guarantee.count();
    holders.append(one);
  }
  dict["holders"] = holders;
  nb::list owners;
  for (const Refusal::Owner& owner : refusal.owners) {
    nb::dict one;
    Put(one, "op", owner.op);
    one["bytes"] = owner.bytes.count();
    one["blocks"] = owner.blocks;
    owners.append(one);
  }
  dict["owners"] = owners;
  if (refusal.waited) dict["waited_ms"] = refusal.waited->count();
  nb::list advice;
  for (const std::string& line : refusal.advice) advice.append(line);
  dict["advice"] = advice;
  return dict;
}

}  // namespace

nb::object ExceptionOf(const absl::Status& status) {
  const std::optional<Refusal> refusal = GetRefusal(status);
  const nb::object fields = refusal ? nb::object(DictOf(*refusal)) : nb::none();
  const absl::string_view message = status.message();
  return nb::module_::import_("lgpu.errors")
      .attr("_make")(static_cast<int>(status.code()), std::string(message.data(), message.size()), fields);
}

namespace {

/// Where a signal is pending, its handler runs first, and what it raises is the error.
void SetPythonError(const absl::Status& status) {
  if (PyErr_CheckSignals() != 0) return;
  try {
    const nb::object exception = ExceptionOf(status);
    PyErr_SetObject(exception.type().ptr(), exception.ptr());
  } catch (nb::python_error& raised) {
    raised.restore();  // by a handler that ran while the exception was made
  }
}

}  // namespace

void RegisterErrors() {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const StatusError& error) {
      SetPythonError(error.status());
    } catch (const nb::cast_error&) {
      PyErr_SetString(PyExc_TypeError, "an argument, or an item of one, has the wrong type");
    }
  });
}

}  // namespace lgpu::python
