#ifndef LGPU_CLIENT_DRIVER_TICK_PAGE_H_
#define LGPU_CLIENT_DRIVER_TICK_PAGE_H_

#include <atomic>
#include <cstdint>

namespace lgpu::shim {

/// A TickPage is a second, read-only mapping of the beginning of a session's stats page, for the tick in it.
/// Children inherit it, unlike the page itself. It is mapped for good.
class TickPage {
 public:
  /// The stats page of another session or daemon takes the place of the one before, at the same address.
  /// False: there is no memory for it, and nothing has changed.
  bool Map(int stats_page);
  /// Null before the first Map.
  const std::atomic<std::uint64_t>* tick() const;

 private:
  void* start_ = nullptr;
};

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_TICK_PAGE_H_
