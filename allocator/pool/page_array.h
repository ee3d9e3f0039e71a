#ifndef LGPU_ALLOCATOR_POOL_PAGE_ARRAY_H_
#define LGPU_ALLOCATOR_POOL_PAGE_ARRAY_H_

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace lgpu {

/// A PageArray is a growing array of plain values in pages of its own. The system has these pages back as
/// soon as the array ends, which the heap of a program does not promise. Growing copies nothing. Throws
/// std::bad_alloc where there is no memory. Not thread-safe.
template <typename T>
class PageArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  PageArray() = default;
  PageArray(PageArray&& other) noexcept { swap(other); }
  PageArray& operator=(PageArray&& other) noexcept {
    PageArray taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~PageArray() {
    if (items_ != nullptr) munmap(items_, room_ * sizeof(T));
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T* begin() const { return items_; }
  const T* end() const { return items_ + size_; }
  T* begin() { return items_; }
  T* end() { return items_ + size_; }
  const T& operator[](std::size_t i) const { return items_[i]; }
  T& operator[](std::size_t i) { return items_[i]; }

  void push_back(const T& item) {
    if (size_ == room_) Reserve(std::max(2 * room_, kFirst));
    new (&items_[size_++]) T(item);
  }
  /// Room for so many, without memory behind it yet.
  void Reserve(std::size_t room) {
    if (room <= room_) return;
    void* const grown =
        items_ == nullptr
            ? mmap(nullptr, room * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
            : mremap(items_, room_ * sizeof(T), room * sizeof(T), MREMAP_MAYMOVE);
    if (grown == MAP_FAILED) throw std::bad_alloc();
    // One page fault for 2 MiB instead of 512; a kernel that has no such pages is left with small ones.
    madvise(grown, room * sizeof(T), MADV_HUGEPAGE);
    items_ = static_cast<T*>(grown);
    room_ = room;
  }
  /// Room for so many, with memory behind it: no page fault comes later.
  void Populate(std::size_t room) {
    Reserve(room);
    auto* const bytes = reinterpret_cast<volatile std::byte*>(items_);
    for (std::size_t at = size_ * sizeof(T); at < room * sizeof(T); at += kPage) bytes[at] = std::byte{0};
  }
  void swap(PageArray& other) noexcept {
    std::swap(items_, other.items_);
    std::swap(size_, other.size_);
    std::swap(room_, other.room_);
  }

 private:
  static constexpr std::size_t kPage = 4096;  // the smallest that a system has
  static constexpr std::size_t kFirst = (std::size_t{1} << 16) / sizeof(T);

  T* items_ = nullptr;
  std::size_t size_ = 0;
  std::size_t room_ = 0;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_PAGE_ARRAY_H_
