#include "python/module/scopes.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "python/module/words.h"

namespace lgpu::python {

namespace nb = nanobind;

namespace {

// The method `get` of the context variable; of the interpreter, so it is never let go.
PyObject* get_innermost = nullptr;

}  // namespace

OpenScopes::~OpenScopes() {
  while (!open_.empty()) open_.pop_back();
}

nb::object OpenScopes::Innermost() {
  nb::object innermost = nb::steal(PyObject_CallNoArgs(get_innermost));
  if (!innermost.is_valid()) throw nb::python_error();
  return innermost;
}

void OpenScopes::Open(const nb::object& innermost) {
  std::vector<const Scope*> chain;
  for (nb::handle next = innermost; next.is_valid();) {
    const Scope* scope = nb::cast<const Scope*>(next);
    chain.push_back(scope);
    next = scope->outer ? nb::handle(*scope->outer) : nb::handle();
  }
  for (auto scope = chain.rbegin(); scope != chain.rend(); ++scope) {
    One& one = open_.emplace_back();
    const Context& context = (*scope)->context->get();
    if ((*scope)->policy) one.policy = std::make_unique<DevicePolicyScope>(context, *(*scope)->policy);
    if (!(*scope)->asks_for_device) continue;
    one.device = (*scope)->device ? std::make_unique<DeviceScope>(context, *(*scope)->device)
                                  : std::make_unique<DeviceScope>(context, std::nullopt);
  }
}

void BindScopes(nb::module_& module) {
  nb::class_<Scope>(module, "Scope", "What a with statement asks of ops, and the scopes around it.")
      .def(
          "__init__",
          [](Scope* self, nb::object context, bool asks_for_device, std::optional<std::string> device,
             std::optional<std::string> policy, nb::object outer) {
            std::optional<DevicePolicy> parsed;
            if (policy) parsed = PolicyOf(*policy);
            PyContext* const raw = nb::cast<PyContext*>(context);
            new (self) Scope{
                std::move(context), raw,    asks_for_device,
                std::move(device),  parsed, outer.is_none() ? std::nullopt : std::optional(std::move(outer))};
          },
          nb::arg("context"), nb::arg("asks_for_device"), nb::arg("device").none(), nb::arg("policy").none(),
          nb::arg("outer").none())
      .def_prop_ro("outer",
                   [](const Scope& self) -> nb::object { return self.outer ? *self.outer : nb::none(); });
  nb::object get = nb::module_::import_("lgpu._state").attr("innermost_scope").attr("get");
  get_innermost = get.release().ptr();
}

}  // namespace lgpu::python
