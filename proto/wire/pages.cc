#include "proto/wire/pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"
#include "proto/wire/text.h"

namespace lgpu {
namespace {

using wire::Text;

PlainStatus OsError(std::string_view call, int error) {
  const std::string text = Text(std::string(call), ": ", std::strerror(error));
  if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOSPC) {
    return PlainError(PlainCode::kResourceExhausted,
                      Text(text, "; a session needs two shared pages of its own"));
  }
  return PlainError(PlainCode::kInternal, text);
}

PlainResult<UniqueFd> MakeMemfd(const char* name, std::size_t bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return OsError("memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return OsError("ftruncate of a session page", errno);
  }
  return fd;
}

PlainStatus Seal(int fd, int seals) {
  if (::fcntl(fd, F_ADD_SEALS, seals) != 0) return OsError("fcntl(F_ADD_SEALS) on a session page", errno);
  return {};
}

PlainResult<std::shared_ptr<void>> Map(MapMemory map, const MapRequest& request) {
  Mapping mapping = map(request);
  if (mapping.start == nullptr) return OsError("mmap of a session page", mapping.error);
  return std::move(mapping.start);
}

// Whether `fd` may be mapped as a page of `bytes`: a file that could shrink later would turn a read into
// a SIGBUS.
PlainStatus CheckReceivedFile(int fd, std::size_t bytes, std::size_t older_bytes) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    return PlainError(PlainCode::kInvalidArgument,
                      Text("a session page is no open descriptor: ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode) ||
      (info.st_size != static_cast<off_t>(bytes) && info.st_size != static_cast<off_t>(older_bytes))) {
    return PlainError(
        PlainCode::kInvalidArgument,
        Text("a session page of ", info.st_size, " bytes was received, this version knows pages of ", bytes,
             "; use a liblgpu and an lgpud of the same version"));
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return PlainError(PlainCode::kInvalidArgument,
                      "a session page was received that is not sealed against shrinking");
  }
  return {};
}

std::string Hex(std::uint64_t value) {
  char text[17];
  return {text, static_cast<std::size_t>(std::snprintf(text, sizeof(text), "%" PRIx64, value))};
}

PlainStatus CheckMagic(std::uint64_t magic, std::uint64_t expected) {
  if (magic == expected) return {};
  return PlainError(PlainCode::kInvalidArgument,
                    Text("a session page starts with ", Hex(magic), " and not with ", Hex(expected),
                         "; use a liblgpu and an lgpud of the same version"));
}

}  // namespace

void SetOpName(ClientPage& page, int index, std::string_view name) {
  LGPU_CHECK_OP(index, >=, 0);
  LGPU_CHECK_OP(index, <, ClientPage::kMaxOps);
  std::array<std::uint64_t, ClientPage::kOpNameBytes / 8> words = {};
  std::memcpy(words.data(), name.data(), std::min<std::size_t>(name.size(), ClientPage::kOpNameBytes));
  auto& target = page.op_names[static_cast<std::size_t>(index)].words;
  for (std::size_t i = 0; i < words.size(); ++i) target[i].store(words[i], std::memory_order_relaxed);
  const std::uint64_t count = page.op_count.load(std::memory_order_relaxed);
  page.op_count.store(std::max(count, static_cast<std::uint64_t>(index) + 1), std::memory_order_release);
}

std::string GetOpName(const ClientPage& page, int index) {
  const std::uint64_t count = page.op_count.load(std::memory_order_acquire);
  if (index < 0 || index >= ClientPage::kMaxOps || static_cast<std::uint64_t>(index) >= count) return "?";
  // The words are copied once; only the copy is looked at.
  std::array<std::uint64_t, ClientPage::kOpNameBytes / 8> words;
  const auto& source = page.op_names[static_cast<std::size_t>(index)].words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = source[i].load(std::memory_order_relaxed);
  std::array<char, ClientPage::kOpNameBytes> text;
  std::memcpy(text.data(), words.data(), text.size());
  const auto end = std::find(text.begin(), text.end(), '\0');
  const bool sensible = end != text.begin() &&
                        std::all_of(text.begin(), end,
                                    [](char c) {
                                      return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                                             (c >= 'a' && c <= 'z');
                                    }) &&
                        std::all_of(end, text.end(), [](char c) { return c == '\0'; });
  return sensible ? std::string(text.begin(), end) : "?";
}

PlainResult<SharedPage<StatsPage>> SharedPages::CreateStatsPage(MapMemory map) {
  SharedPage<StatsPage> page;
  LGPU_PLAIN_ASSIGN_OR_RETURN(fd, page.fd_, MakeMemfd("lgpu-stats", sizeof(StatsPage)));
  LGPU_PLAIN_ASSIGN_OR_RETURN(mapping, page.mapping_,
                              Map(map, {.fd = page.fd_.get(), .bytes = sizeof(StatsPage), .writable = true}));
  // After the mapping: FUTURE_WRITE leaves writable mappings that exist and refuses new ones.
  LGPU_PLAIN_RETURN_IF_ERROR(
      Seal(page.fd_.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL));
  page->magic.store(StatsPage::kMagic, std::memory_order_release);
  return page;
}

PlainResult<SharedPage<const ClientPage>> SharedPages::CreateClientPage(MapMemory map, std::size_t bytes) {
  LGPU_CHECK(bytes == sizeof(ClientPage) || bytes == kClientPageBytesWithoutCharges);
  SharedPage<const ClientPage> page;
  LGPU_PLAIN_ASSIGN_OR_RETURN(fd, page.fd_, MakeMemfd("lgpu-client", bytes));
  const std::uint64_t magic = ClientPage::kMagic;
  if (::pwrite(page.fd_.get(), &magic, sizeof(magic), 0) != static_cast<ssize_t>(sizeof(magic))) {
    return OsError("pwrite to a session page", errno);
  }
  LGPU_PLAIN_RETURN_IF_ERROR(Seal(page.fd_.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  LGPU_PLAIN_ASSIGN_OR_RETURN(mapping, page.mapping_,
                              Map(map, {.fd = page.fd_.get(), .bytes = sizeof(ClientPage)}));
  return page;
}

PlainResult<SharedPage<SharedCharges>> SharedPages::MapCharges(MapMemory map,
                                                               const SharedPage<const ClientPage>& page) {
  struct stat info = {};
  if (::fstat(page.fd(), &info) != 0) return OsError("fstat of a session page", errno);
  if (info.st_size != static_cast<off_t>(sizeof(ClientPage))) {
    return PlainError(PlainCode::kInvalidArgument, "the session's version of the protocol has no charges");
  }
  SharedPage<SharedCharges> charges;
  LGPU_PLAIN_ASSIGN_OR_RETURN(
      mapping, charges.mapping_,
      Map(map,
          {.fd = page.fd(), .bytes = sizeof(SharedCharges), .offset = kChargesOffset, .writable = true}));
  return charges;
}

PlainResult<SharedPage<const StatsPage>> SharedPages::OpenStatsPage(MapMemory map, UniqueFd fd) {
  LGPU_PLAIN_RETURN_IF_ERROR(CheckReceivedFile(fd.get(), sizeof(StatsPage), sizeof(StatsPage)));
  SharedPage<const StatsPage> page;
  LGPU_PLAIN_ASSIGN_OR_RETURN(mapping, page.mapping_, Map(map, {.fd = fd.get(), .bytes = sizeof(StatsPage)}));
  page.fd_ = std::move(fd);
  LGPU_PLAIN_RETURN_IF_ERROR(CheckMagic(page->magic.load(std::memory_order_acquire), StatsPage::kMagic));
  return page;
}

PlainResult<SharedPage<ClientPage>> SharedPages::OpenClientPage(MapMemory map, UniqueFd fd) {
  LGPU_PLAIN_RETURN_IF_ERROR(CheckReceivedFile(fd.get(), sizeof(ClientPage), kClientPageBytesWithoutCharges));
  SharedPage<ClientPage> page;
  LGPU_PLAIN_ASSIGN_OR_RETURN(mapping, page.mapping_,
                              Map(map, {.fd = fd.get(), .bytes = sizeof(ClientPage), .writable = true}));
  page.fd_ = std::move(fd);
  LGPU_PLAIN_RETURN_IF_ERROR(CheckMagic(page->magic.load(std::memory_order_acquire), ClientPage::kMagic));
  return page;
}

namespace {

// Atomically: a thread that looks sees the one mapping or the other. Not through mmap(), which
// ThreadSanitizer takes for a write to the range.
PlainStatus MapOver(const void* address, int fd, std::size_t bytes, int protection) {
  void* const target = const_cast<void*>(address);
  // All of the offset's bytes are read: an int would leave half of them to chance.
  if (::syscall(SYS_mmap, target, bytes, protection, MAP_SHARED | MAP_FIXED, fd, off_t{0}) == -1) {
    return OsError("mmap of a session page", errno);
  }
  if (::madvise(target, bytes, MADV_DONTFORK) != 0) {
    return OsError("madvise(MADV_DONTFORK) on a session page", errno);
  }
  return {};
}

// The pages of a mapping under another address.
PlainResult<std::shared_ptr<const ClientPage>> SecondView(ClientPage& page) {
  void* const view = ::mremap(&page, 0, sizeof(page), MREMAP_MAYMOVE);
  if (view == MAP_FAILED) return OsError("mremap of a session page", errno);
  return std::shared_ptr<const ClientPage>(static_cast<const ClientPage*>(view), [](const ClientPage* pages) {
    ::munmap(const_cast<ClientPage*>(pages), sizeof(*pages));
  });
}

using DeviceCounters = std::array<ClientPage::Device, ClientPage::kMaxDevices>;

// The words of the page up to the last slot of the ring that has a record. Reading the other slots would give
// them memory.
std::size_t UsedWords(const ClientPage& page) {
  constexpr std::size_t kBeforeSlots = offsetof(ClientPage, ring) + offsetof(PlacementRing, slots);
  const std::uint64_t slots = std::min(page.ring.head.load(std::memory_order_relaxed), PlacementRing::kSlots);
  return (kBeforeSlots + slots * sizeof(PlacementRing::Slot)) / sizeof(std::uint64_t);
}

// Adds the writes to the old page between its copy and its replacement. Most counters rise and fall by
// additions; the peak and the count of ops only grow; names of ops are written once.
void AddLateWrites(const ClientPage& old, const DeviceCounters& copied, ClientPage& fresh) {
  const auto raise = [](std::atomic<std::uint64_t>& value, std::uint64_t to) {
    std::uint64_t seen = value.load(std::memory_order_relaxed);
    while (seen < to && !value.compare_exchange_weak(seen, to, std::memory_order_release)) {
    }
  };
  for (std::size_t i = 0; i < old.devices.size(); ++i) {
    using Device = ClientPage::Device;
    for (const auto counter :
         {&Device::used, &Device::requested, &Device::live_blocks, &Device::allocations, &Device::refusals}) {
      const std::uint64_t missing = (old.devices[i].*counter).load(std::memory_order_relaxed) -
                                    (copied[i].*counter).load(std::memory_order_relaxed);
      (fresh.devices[i].*counter).fetch_add(missing, std::memory_order_relaxed);
    }
    for (const auto count : {&Device::peak_used, &Device::ops}) {
      raise(fresh.devices[i].*count, (old.devices[i].*count).load(std::memory_order_relaxed));
    }
  }
  for (std::size_t i = 0; i < old.op_names.size(); ++i) {
    for (std::size_t j = 0; j < old.op_names[i].words.size(); ++j) {
      const std::uint64_t word = old.op_names[i].words[j].load(std::memory_order_relaxed);
      if (word != 0) fresh.op_names[i].words[j].store(word, std::memory_order_relaxed);
    }
  }
  raise(fresh.op_count, old.op_count.load(std::memory_order_acquire));
}

}  // namespace

PlainStatus SharedPages::ReplaceStatsPage(MapMemory map, SharedPage<const StatsPage>& page, UniqueFd fd) {
  LGPU_PLAIN_ASSIGN_OR_RETURN(opened, const SharedPage<const StatsPage> checked,
                              OpenStatsPage(map, std::move(fd)));
  return MapOver(page.get(), checked.fd(), sizeof(StatsPage), PROT_READ);
}

PlainStatus SharedPages::ReplaceClientPage(MapMemory map, SharedPage<ClientPage>& page, UniqueFd fd) {
  LGPU_PLAIN_ASSIGN_OR_RETURN(opened, const SharedPage<ClientPage> fresh, OpenClientPage(map, std::move(fd)));
  using Word = std::atomic<std::uint64_t>;
  LGPU_PLAIN_ASSIGN_OR_RETURN(view, const std::shared_ptr<const ClientPage> old, SecondView(*page));
  DeviceCounters copied{};
  // Charges begin anew: the fresh page's daemon lends again.
  const std::size_t used = UsedWords(*page);
  constexpr std::size_t kFirstCounter = offsetof(ClientPage, devices) / sizeof(Word);
  const Word* const from = reinterpret_cast<const Word*>(page.get());
  Word* const to = reinterpret_cast<Word*>(fresh.get());
  Word* const seen = reinterpret_cast<Word*>(copied.data());
  for (std::size_t i = 0; i < used; ++i) {
    const std::uint64_t word = from[i].load(std::memory_order_relaxed);
    to[i].store(word, std::memory_order_relaxed);
    const bool is_counter = i >= kFirstCounter && i < kFirstCounter + sizeof(copied) / sizeof(Word);
    if (is_counter) seen[i - kFirstCounter].store(word, std::memory_order_relaxed);
  }
  LGPU_PLAIN_RETURN_IF_ERROR(MapOver(page.get(), fresh.fd(), sizeof(ClientPage), PROT_READ | PROT_WRITE));
  AddLateWrites(*old, copied, *fresh);
  return {};
}

}  // namespace lgpu
