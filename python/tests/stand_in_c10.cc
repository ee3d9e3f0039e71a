// Calls of lgpu.torch's functions that catch what these throw, for torch_test.py by ctypes. It stands in for
// PyTorch's libc10, with its error class by the same names; with LGPU_WITH_TORCH the class is PyTorch's own.

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#ifdef LGPU_WITH_TORCH
#include <c10/util/Exception.h>
#else
namespace c10 {

int live_errors = 0;

struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};

class Error : public std::exception {
 public:
  Error(SourceLocation where, std::string text);
  Error(const Error& other) : std::exception(other), text_(other.text_) { ++live_errors; }
  ~Error() override { --live_errors; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

Error::Error(SourceLocation where, std::string text)
    : text_(std::string(where.file) + ": " + std::move(text)) {
  ++live_errors;
}

class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

}  // namespace c10
#endif

namespace {

template <typename Call>
int Catch(char* text, std::size_t size, Call call) {
  const auto say = [&](const std::exception& error, int kind) {
    std::snprintf(text, size, "%s", error.what());
    return kind;
  };
  try {
    call();
  } catch (const c10::OutOfMemoryError& error) {
    return say(error, 1);
  } catch (const std::runtime_error& error) {
    return say(error, 2);
  }
  return 0;
}

}  // namespace

// 0: nothing was thrown; 1: c10::OutOfMemoryError, 2: std::runtime_error, with its text.
extern "C" int call_malloc(void* (*function)(ssize_t, int, void*), ssize_t bytes, int device, void* stream,
                           void** address, char* text, std::size_t size) {
  return Catch(text, size, [&] { *address = function(bytes, device, stream); });
}
extern "C" int call_record_stream(void (*function)(void*, void*), void* address, void* stream, char* text,
                                  std::size_t size) {
  return Catch(text, size, [&] { function(address, stream); });
}
extern "C" int call_memory_fraction(void (*function)(double, int), double fraction, int device, char* text,
                                    std::size_t size) {
  return Catch(text, size, [&] { function(fraction, device); });
}
extern "C" int call_no_pools(void (*function)(), char* text, std::size_t size) {
  return Catch(text, size, [&] { function(); });
}
#ifndef LGPU_WITH_TORCH
// Also what makes the class's tables part of this library.
extern "C" int throw_own(char* text, std::size_t size) {
  return Catch(text, size, [] { throw c10::OutOfMemoryError({"f", "own", 0}, "own"); });
}
extern "C" int live_errors() { return c10::live_errors; }
#endif
